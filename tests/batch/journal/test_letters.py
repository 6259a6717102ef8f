"""The fields of a dead letter, for unusual items and failures."""

import asyncio
import random

import pytest

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import DeadLetters, SequenceReader, SkipPolicy
from retrytemplate.batch.journal.letters import sanitize_text
from tests.support.step_fixture import run

STRANGE = ["\ud800", "\x00"]
ESCAPED = {"\ud800": "\\ud800", "\x00": "\\x00"}


class Bad(Exception):
    """What the item at fault raises."""


class Text:
    """Encodes items as strings; one item as the given string."""

    def __init__(self, encoded):
        self.encoded = encoded

    def encode(self, item):
        return self.encoded if item == 2 else str(item)

    def decode(self, text):
        return 2 if text == self.encoded else int(text)


def fails_at_two(failure):
    def process(item):
        if item == 2:
            raise failure
        return item

    return process


def lettered(world, mode, failure, **settings):
    """The letter of item 2; the other items are written."""
    settings = {"retry": SimpleRetryPolicy(1), "skip": SkipPolicy(on=Exception), **settings}
    report = run(world.step([1, 2, 3], process=fails_at_two(failure), **settings), mode)
    assert (report.status, report.written, report.dead_lettered) == ("completed", 2, 1)
    assert world.rows() == [1, 3]
    return DeadLetters(world.jobs).page()[0]


@pytest.mark.parametrize("strange", STRANGE)
def test_message_that_no_database_stores_affects_no_other_item(world, mode, strange):
    letter = lettered(world, mode, Bad(f"a{strange}b"))
    assert letter.error_message == f"a{ESCAPED[strange]}b"
    assert letter.history[0].message == f"a{strange}b"
    assert letter.replayable


@pytest.mark.parametrize("strange", STRANGE)
def test_exception_name_that_no_database_stores_is_escaped(world, mode, strange):
    kind = type("Bad", (Exception,), {"__qualname__": f"Bad{strange}"})
    letter = lettered(world, mode, kind("no"))
    assert letter.error_type.endswith(f"Bad{ESCAPED[strange]}")


@pytest.mark.parametrize("strange", STRANGE)
def test_key_that_no_database_stores_is_escaped(world, mode, strange):
    letter = lettered(world, mode, Bad("no"), key=lambda item: f"order{strange}{item}")
    assert letter.key == f"order{ESCAPED[strange]}2"


@pytest.mark.parametrize("strange", STRANGE)
def test_equal_stored_keys_are_numbered(world, mode, strange):
    settings = {"skip": SkipPolicy(on=Bad), "retry": SimpleRetryPolicy(1)}
    step = world.step([2, 2], process=fails_at_two(Bad()), key=lambda _: strange, **settings)
    assert run(step, mode).dead_lettered == 2
    assert [letter.ordinal for letter in DeadLetters(world.jobs).page()] == [1, 2]


@pytest.mark.parametrize("strange", STRANGE)
def test_source_name_that_no_database_stores_is_escaped(world, mode, strange):
    letter = lettered(world, mode, Bad("no"), reader=SequenceReader([1, 2, 3], f"in{strange}"))
    assert letter.source == f"in{ESCAPED[strange]}"


def long(length):
    """A string that does not compress."""
    return "".join(random.Random(length).choices("abcdefghijklmnopqrstuvwxyzäöü🙂", k=length))


@pytest.mark.parametrize("length", [500, 501, 100_000])
def test_item_with_a_long_key_is_found_by_it(world, mode, length):
    letter = lettered(world, mode, Bad("no"), key=lambda item: f"{long(length - 1)}{item}")
    key = f"{long(length - 1)}2"

    assert (letter.key[:400], len(letter.key)) == (key[:400], 500)
    assert DeadLetters(world.jobs).page(key=key) == [letter]
    assert DeadLetters(world.jobs).page(key=letter.key) == [letter]
    assert DeadLetters(world.jobs).page(key=key[:-1] + "3") == []
    assert world.step().replay(key=key).replayed == (letter.id,)


def test_key_of_500_characters_is_stored_unchanged(world, mode):
    assert lettered(world, mode, Bad("no"), key=lambda _: long(500)).key == long(500)


def test_items_of_sources_with_long_names_have_distinct_keys(world, mode):
    def fails(item):
        raise Bad

    for end in "ab":
        source = SequenceReader([1], f"{long(100_000)}{end}")
        step = world.step(
            reader=source, process=fails, retry=SimpleRetryPolicy(1), skip=SkipPolicy(on=Bad)
        )
        assert run(step, mode, {"end": end}).dead_lettered == 1
    first, second = DeadLetters(world.jobs).page()
    assert first.source != second.source
    assert first.key != second.key
    assert first.source[:400] == first.key[:400] == long(100_000)[:400]


@pytest.mark.parametrize("strange", STRANGE)
def test_payload_changed_by_storage_is_not_replayed(world, mode, strange):
    letter = lettered(world, mode, Bad("no"), codec=Text(f"two{strange}"))
    assert (letter.payload, letter.replayable) == (f"two{ESCAPED[strange]}", False)
    step = world.step(codec=Text(f"two{strange}"))
    replayed = step.replay() if mode == "sync" else asyncio.run(step.replay_async())
    assert replayed.skipped == (letter.id,)


@pytest.mark.parametrize("text", ["", "plain", "Größe 🙂", "a\\x00b", "a\nb"])
def test_storable_text_stays_unchanged(text):
    assert sanitize_text(text) == text


def test_each_surrogate_is_escaped():
    assert sanitize_text("\ud83d\ude42\x00") == "\\ud83d\\ude42\\x00"


class Unprintable:
    """An item that no codec encodes, and whose repr() fails."""

    def __repr__(self):
        raise Bad


def test_item_without_any_text_has_a_letter_that_cannot_be_replayed(sqlite, mode):
    def process(item):
        raise Bad

    settings = {"retry": SimpleRetryPolicy(1), "skip": SkipPolicy(on=Bad)}
    assert run(sqlite.step([Unprintable()], process=process, **settings), mode).dead_lettered == 1
    letter = DeadLetters(sqlite.jobs).page()[0]
    assert letter.payload == "<no text: repr() of Unprintable failed>"
    assert not letter.replayable
