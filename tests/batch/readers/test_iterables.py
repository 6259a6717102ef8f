"""The readers of sequences and iterators."""

import asyncio
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.batch import (
    AsyncCursor,
    CsvReader,
    Cursor,
    ForwardReader,
    Reader,
    ReaderError,
    Records,
    SequenceReader,
    as_reader,
)
from tests.batch.readers.reading import Source, in_pieces, items, whole


@pytest.mark.parametrize(
    "sequence", [["a", "b", "c"], ("a", "b", "c"), deque("abc"), range(3)], ids=repr
)
def test_sequence_is_read_alike_whole_and_from_every_position(sequence):
    reader = SequenceReader(sequence, name="letters")
    expected = [("letters", number, each) for number, each in enumerate(sequence, start=1)]
    assert whole(reader) == in_pieces(reader, 2) == expected


@given(st.lists(st.integers()), st.integers(1, 5))
def test_pieces_of_any_sequence_are_the_whole(sequence, limit):
    assert items(in_pieces(SequenceReader(sequence), limit)) == sequence


def test_sequence_that_became_shorter_is_rejected():
    with pytest.raises(ReaderError, match="items has 2 items, but 3 were read"):
        SequenceReader("ab".split() * 2).open({"number": 3})


def test_progress_of_a_sequence_is_its_read_share():
    with SequenceReader([1, 2, 3, 4]).open() as cursor:
        cursor.read(3)
        assert cursor.progress == 0.75


def test_iterator_continues_from_cursor_to_cursor():
    reader = ForwardReader(iter("abcde"), name="letters")
    assert in_pieces(reader, 2) == [
        ("letters", number, letter) for number, letter in enumerate("abcde", start=1)
    ]


def test_numbers_continue_in_another_process():
    with ForwardReader(iter("de")).open({"number": 3}) as cursor:
        assert cursor.read(10) == Records(["d", "e"], "items", first=4)


def test_iterator_cannot_restart():
    reader = ForwardReader(iter("abc"))
    reader.open().read(2)
    with pytest.raises(ReaderError, match="read up to item 2, and cannot continue behind"):
        reader.open()


def failing():
    yield "a"
    yield "b"
    raise OSError("the line is dead")


def test_items_before_an_error_are_returned_then_the_error():
    cursor = ForwardReader(failing()).open()
    assert cursor.read(10).items == ["a", "b"]
    with pytest.raises(ReaderError, match="failed behind item 2") as caught:
        cursor.read(10)
    assert isinstance(caught.value.__cause__, OSError)


def test_end_of_a_failed_generator_is_an_error():
    reader = ForwardReader(failing())
    reader.open().read(2)
    for _ in range(2):
        with pytest.raises(ReaderError, match="the line is dead"):
            reader.open({"number": 2}).read(10)


def test_signal_is_raised_at_once():
    def interrupted():
        yield "a"
        raise KeyboardInterrupt

    cursor = ForwardReader(interrupted()).open()
    with pytest.raises(KeyboardInterrupt):
        cursor.read(10)
    assert cursor.read(10).items == ["a"]
    with pytest.raises(ReaderError, match="failed behind item 1 and cannot continue"):
        cursor.read(10)


async def letters(text):
    for letter in text:
        await asyncio.sleep(0)
        yield letter


async def test_asynchronous_iterable_is_awaited():
    reader = ForwardReader(letters("abc"))
    async with reader.open() as cursor:
        assert (await cursor.read(2)).items == ["a", "b"]
        position = cursor.position
    async with reader.open(position) as cursor:
        assert await cursor.read(2) == Records(["c"], "items", first=3)
        assert not await cursor.read(2)


async def test_async_items_before_an_error_are_returned():
    async def failing():
        yield "a"
        raise OSError("the line is dead")

    async with ForwardReader(failing()).open() as cursor:
        assert (await cursor.read(10)).items == ["a"]
        with pytest.raises(ReaderError, match="the line is dead"):
            await cursor.read(10)


async def inside():
    """A generator that ends when it is cancelled."""
    yield "a"
    await asyncio.Event().wait()


async def cut_off(cursor, limit):
    task = asyncio.create_task(cursor.read(limit))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_items_of_a_cancelled_read_are_returned_by_the_next_read():
    source = Source("a", "b")
    reader = ForwardReader(source)
    await cut_off(reader.open(), 3)
    source.put("c", None)
    cursor = reader.open({"number": 0})
    assert await cursor.read(1) == Records(["a"], "items", first=1)
    assert await cursor.read(9) == Records(["b", "c"], "items", first=2)
    assert not await cursor.read(9)


async def test_items_precede_the_error_of_a_generator_ended_by_cancellation():
    cursor = ForwardReader(inside()).open()
    await cut_off(cursor, 2)
    assert (await cursor.read(2)).items == ["a"]
    with pytest.raises(ReaderError, match="items was closed behind item 1"):
        await cursor.read(2)


async def test_end_right_after_a_cancellation_is_an_error():
    cursor = ForwardReader(Stream(inside())).open()
    await cut_off(cursor, 2)
    assert (await cursor.read(2)).items == ["a"]
    for _ in range(2):
        with pytest.raises(ReaderError, match="failed behind item 1 and cannot continue"):
            await cursor.read(2)


def test_closed_generator_is_not_taken_for_its_end():
    generator = iter(letter for letter in "abc")
    cursor = ForwardReader(generator).open()
    cursor.read(2)
    generator.close()
    with pytest.raises(ReaderError, match="items was closed behind item 2"):
        cursor.read(2)


def test_exhausted_generator_is_an_error():
    generator = iter(letter for letter in "abc")
    list(generator)
    with pytest.raises(ReaderError, match="items was closed behind item 0"):
        ForwardReader(generator).open().read(2)


class Stream:
    """Its items come from an inner generator."""

    def __init__(self, inner):
        self._inner = inner

    def __aiter__(self):
        return self

    async def __anext__(self):
        return await anext(self._inner)


@pytest.mark.parametrize("source", [letters("abc"), Stream(letters("abc"))])
def test_asynchronous_generator_closed_with_its_loop_is_an_error(source):
    reader = ForwardReader(source)

    async def read(number):
        return (await reader.open({"number": number}).read(2)).items

    assert asyncio.run(read(0)) == ["a", "b"]
    with pytest.raises(ReaderError, match="items was closed behind item 2"):
        asyncio.run(read(2))


def test_exhausted_iterable_is_at_its_end_in_every_event_loop():
    reader = ForwardReader(letters("abc"))

    async def read(number):
        return (await reader.open({"number": number}).read(5)).items

    assert asyncio.run(read(0)) == ["a", "b", "c"]
    assert asyncio.run(read(3)) == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ([1], SequenceReader),
        (range(2), SequenceReader),
        ({1, 2}, ForwardReader),
        pytest.param(iter([1]), ForwardReader, id="iterator"),
        (CsvReader("orders.csv"), CsvReader),
    ],
    ids=repr,
)
def test_step_argument_becomes_a_reader(value, kind):
    assert type(as_reader(value)) is kind


def test_reader_argument_is_used_unchanged():
    reader = SequenceReader([])
    assert as_reader(reader) is reader


@pytest.mark.parametrize("value", ["orders.csv", b"", 7, None, CsvReader, letters])
def test_other_values_are_rejected(value):
    with pytest.raises(TypeError, match=r"reader must be a Reader .* or an iterable"):
        as_reader(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SequenceReader("abc"), "sequence must be a list"),
        (lambda: SequenceReader(iter("abc")), "sequence must be a list"),
        (lambda: SequenceReader([], name=""), "name must be a non-empty str, got ''"),
        (lambda: ForwardReader("abc"), "iterable must be iterable, and no text, got 'abc'"),
        (lambda: ForwardReader(7), "iterable must be iterable"),
        (lambda: ForwardReader([], name=7), "name must be a non-empty str, got 7"),
        (lambda: ForwardReader([], journal=1), "journal must be True or False, got 1"),
    ],
)
def test_bad_settings_are_rejected(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_repr_of_a_reader_does_not_read():
    assert repr(ForwardReader(iter([]), journal=False)) == (
        "ForwardReader(<list_iterator>, name='items', journal=False)"
    )


@pytest.mark.parametrize(
    ("base", "method"), [(Reader, "open"), (Cursor, "read"), (AsyncCursor, "read")]
)
def test_reader_without_its_method_is_rejected_at_construction(base, method):
    class Incomplete(base):
        pass

    with pytest.raises(TypeError, match=rf"abstract class Incomplete .*abstract method '?{method}"):
        Incomplete()
