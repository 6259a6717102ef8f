"""The reader of several files."""

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.batch import (
    CsvReader,
    FilesReader,
    ForwardReader,
    JsonLinesReader,
    ReaderError,
    SequenceReader,
)
from tests.batch.readers.reading import in_pieces, items, whole


@pytest.fixture
def files(tmp_path):
    """A function that writes files of numbers, by name."""

    def write(**contents):
        paths = [tmp_path / f"{name}.csv" for name in contents]
        for path, numbers in zip(paths, contents.values(), strict=True):
            path.write_text("\n".join(["id", *map(str, numbers)]))
        return paths

    return write


def in_lists(lists):
    """A reader of lists instead of files."""
    names = [str(number) for number in range(len(lists))]
    return FilesReader(names, lambda name: SequenceReader(lists[int(name)], name))


@given(st.lists(st.lists(st.integers(), max_size=4), min_size=1), st.integers(1, 3))
def test_pieces_equal_the_whole_and_do_not_cross_files(lists, limit):
    expected = [
        (str(index), number, item)
        for index, numbers in enumerate(lists)
        for number, item in enumerate(numbers, start=1)
    ]
    assert whole(in_lists(lists), limit) == expected
    assert in_pieces(in_lists(lists), limit) == expected


def test_record_names_its_own_file(files):
    first, second = files(a=[1, 2], b=[3])
    assert in_pieces(FilesReader([first, second]), 5) == [
        (str(first), 1, {"id": "1"}),
        (str(first), 2, {"id": "2"}),
        (str(second), 1, {"id": "3"}),
    ]


def test_reader_of_a_file_can_be_chosen(tmp_path):
    path = tmp_path / "orders.txt"
    path.write_text("a;b\n1;2\n")
    assert items(whole(FilesReader([path], partial(CsvReader, delimiter=";")))) == [
        {"a": "1", "b": "2"}
    ]
    assert len(items(whole(FilesReader([path], JsonLinesReader)))) == 2


def test_files_are_read_in_the_order_of_the_list(files):
    paths = files(b=[1], a=[2])
    assert [item["id"] for item in items(whole(FilesReader(paths)))] == ["1", "2"]
    assert [item["id"] for item in items(whole(FilesReader(sorted(paths))))] == ["2", "1"]


def read_up_to(paths, count):
    """A position after this number of pieces."""
    with FilesReader(paths).open() as cursor:
        for _ in range(count):
            cursor.read(1)
        return cursor.position


def test_files_may_be_added_at_the_end(files):
    position = read_up_to(files(a=[1]), 2)
    assert items(whole(FilesReader(files(a=[1], b=[2])), position=position)) == [{"id": "2"}]


@pytest.mark.parametrize("others", ["b", "ba", "xb", "ac", ""])
def test_other_files_are_rejected(files, others):
    a, b, c, x = files(a=[1], b=[2, 3], c=[4], x=[5])
    position = read_up_to([a, b], 2)
    paths = [{"a": a, "b": b, "c": c, "x": x}[name] for name in others] or [a]
    with pytest.raises(ReaderError, match="are not those that were read before") as caught:
        FilesReader(paths).open(position)
    assert str(b) in str(caught.value)


def test_missing_file_is_reported(files):
    a, b = files(a=[1], b=[2])
    with FilesReader([a, b]).open() as cursor:
        cursor.read(1)
        b.unlink()
        with pytest.raises(ReaderError, match="No such file"):
            cursor.read(1)
        with pytest.raises(ReaderError, match="No such file"):
            cursor.read(1)


def test_progress_counts_files(files):
    with FilesReader(files(a=[1], b=[2])).open() as cursor:
        cursor.read(1)
        assert cursor.progress == 0.5
        cursor.read(1)
        assert cursor.progress == 1


@pytest.mark.parametrize(
    ("paths", "each", "error", "message"),
    [
        ("orders.csv", CsvReader, TypeError, "paths must be paths of files, .* got 'orders.csv'"),
        (Path("a.csv"), CsvReader, TypeError, "paths must be paths of files, .* got PosixPath"),
        (7, CsvReader, TypeError, "paths must be paths of files, .* got 7"),
        ([], CsvReader, ValueError, r"paths must be paths of files, each once, at least one, got"),
        (["a", "b", "a"], CsvReader, ValueError, "paths must be paths of files, each once"),
        ([7], CsvReader, TypeError, "path must be a non-empty str or os.PathLike, got 7"),
        (["a"], None, TypeError, "each must make a reader of a path, got None"),
        (["a"], str, TypeError, "each must make a seekable reader, made 'a'"),
        (
            ["a"],
            lambda path: ForwardReader([]),
            TypeError,
            "each must make a seekable reader",
        ),
    ],
)
def test_bad_settings_are_rejected(paths, each, error, message):
    with pytest.raises(error, match=message):
        FilesReader(paths, each)


def test_repr_shows_the_readers():
    assert repr(FilesReader(["a.csv"])) == "FilesReader([CsvReader('a.csv')])"
