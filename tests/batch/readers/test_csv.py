"""The reader of CSV files."""

import csv
import io
import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.batch import CsvReader, ReaderError, ReadError
from tests.batch.readers.reading import in_pieces, items, whole

NAMES = ("id", "customer", "note")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.text('",\r\n;a', max_size=8)
ROWS = st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=12)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders.csv"


@pytest.fixture(scope="module")
def one_path(tmp_path_factory):
    """A file that every hypothesis example overwrites."""
    return tmp_path_factory.mktemp("csv") / "orders.csv"


def written(path, rows, encoding="utf-8", **dialect):
    with open(path, "w", newline="", encoding=encoding) as file:
        csv.writer(file, **dialect).writerows([NAMES, *rows])
    return path


def raw(path, content):
    path.write_bytes(content)
    return path


@given(rows=ROWS, limit=st.integers(1, 5), encoding=st.sampled_from(["utf-8", "utf-8-sig"]))
def test_csv_output_is_read_alike_whole_and_from_every_position(one_path, rows, limit, encoding):
    reader = CsvReader(written(one_path, rows, encoding))
    expected = [
        (str(one_path), number, dict(zip(NAMES, row, strict=True)))
        for number, row in enumerate(rows, start=1)
    ]
    assert whole(reader) == expected
    assert in_pieces(reader, limit) == expected


@given(
    lines=st.lists(st.sampled_from(["1,2,3", "", "1,2", '"a', 'b",2,3', "\xff,2,3", '"x"y,2,3'])),
    limit=st.integers(1, 4),
    ends=st.booleans(),
)
def test_pieces_of_a_broken_file_equal_the_whole(one_path, lines, limit, ends):
    content = "\n".join(["id,customer,note", *lines]) + "\n" * ends
    reader = CsvReader(raw(one_path, content.encode("latin-1")))
    assert list(map(repr, in_pieces(reader, limit))) == list(map(repr, whole(reader)))


def test_lines_may_end_as_on_any_system(path):
    reader = CsvReader(raw(path, b"id,note\r\n1,a\r\n2,b\n3,c"))
    assert items(whole(reader)) == [
        {"id": "1", "note": "a"},
        {"id": "2", "note": "b"},
        {"id": "3", "note": "c"},
    ]


def test_blank_lines_are_no_records_and_do_not_shorten_a_piece(path):
    reader = CsvReader(raw(path, b"\nid\n\n1\n\n\n2\n3\n\n"))
    with reader.open() as cursor:
        assert cursor.read(2).items == [{"id": "1"}, {"id": "2"}]
        assert cursor.read(2).items == [{"id": "3"}]
        assert not cursor.read(2)


def test_smaller_limit_returns_the_first_of_the_same_records(path):
    reader = CsvReader(raw(path, b"id\n1\n\n2\n\n3\n"))
    for limit in (1, 2, 3):
        with reader.open() as cursor:
            assert [item["id"] for item in cursor.read(limit).items] == ["1", "2", "3"][:limit]


def test_other_encoding_is_read(path):
    reader = CsvReader(written(path, [("1", "Müller", "€")], "cp1252"), encoding="cp1252")
    assert items(in_pieces(reader, 1)) == [{"id": "1", "customer": "Müller", "note": "€"}]


def test_other_dialect_is_read(path):
    reader = CsvReader(written(path, [("1", "a\tb", "")], dialect="excel-tab"), dialect="excel-tab")
    assert items(in_pieces(reader, 1)) == [{"id": "1", "customer": "a\tb", "note": ""}]


def test_field_names_can_be_given_for_a_file_without_header(path):
    reader = CsvReader(raw(path, b"1,a\n2,b\n"), fields=["id", "note"])
    assert items(in_pieces(reader, 1)) == [{"id": "1", "note": "a"}, {"id": "2", "note": "b"}]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"1,2", "2 fields where there should be 3"),
        (b"1,2,3,4", "4 fields where there should be 3"),
        (b"1,\xff,3", "not utf-8: 'utf-8' codec can't decode byte 0xff in position 2"),
        (b'1,"2"2,3', "no CSV: ',' expected after '\"'"),
        (b"1,2\r2,3", "no CSV: new-line character seen in unquoted field"),
    ],
)
def test_broken_record_is_reported_and_its_neighbours_are_read(path, line, problem):
    reader = CsvReader(raw(path, b"id,customer,note\n1,a,b\n" + line + b"\n3,c,d\n"))
    before, broken, after = items(whole(reader))
    assert (before["id"], after["id"]) == ("1", "3")
    assert str(broken).startswith(f"{path}, record 2: {problem}")
    assert broken.text == line.decode("utf-8", "backslashreplace") + "\n"


def test_bad_byte_in_a_later_line_breaks_the_whole_record(path):
    reader = CsvReader(raw(path, b'id,note\n1,"a\nb\xff\nc"\n2,d\n'))
    broken, good = items(in_pieces(reader, 1))
    assert broken.text == '1,"a\nb\\xff\nc"\n'
    assert good == {"id": "2", "note": "d"}


def test_unclosed_quote_breaks_the_record(path):
    reader = CsvReader(raw(path, b'id,note\n1,"a\n2,b\n'))
    (broken,) = items(whole(reader))
    assert "unexpected end of data" in str(broken)
    assert broken.text == '1,"a\n2,b\n'


def test_field_over_the_csv_limit_is_broken(path):
    length = csv.field_size_limit() + 1
    reader = CsvReader(raw(path, b"id\n" + b"x" * length + b"\n2\n"))
    broken, good = items(whole(reader))
    assert "field larger than field limit" in str(broken)
    assert good == {"id": "2"}


def test_file_may_grow_between_two_cursors(path):
    reader = CsvReader(raw(path, b"id\n1\n"))
    with reader.open() as cursor:
        cursor.read(10)
        position = cursor.position
    with path.open("ab") as file:
        file.write(b"2\n")
    assert whole(reader, position=position) == [(str(path), 2, {"id": "2"})]


def changed(path, before, after):
    """A reader, and its position before the file was changed."""
    reader = CsvReader(raw(path, before))
    with reader.open() as cursor:
        cursor.read(2)
        position = cursor.position
    raw(path, after)
    return reader, position


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (b"id\n1\n", "became shorter: it had 7 bytes, and has 5"),
        (b"no\n1\n2\n3\n", "has changed, up to byte 7"),
        (b"id\n1\n3\n3\n", "has changed, up to byte 7"),
    ],
)
def test_changed_file_is_rejected(path, after, message):
    reader, position = changed(path, b"id\n1\n2\n3\n", after)
    with pytest.raises(ReaderError, match=message) as caught:
        reader.open(position)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).endswith(
        "restore it, or start the run again with on_existing='restart'"
    )


def test_file_that_grew_within_its_last_line_is_rejected(path):
    reader, position = changed(path, b"id\n2", b"id\n23\n")
    with pytest.raises(ReaderError, match="has grown in the middle of its last record"):
        reader.open(position)


def test_file_truncated_during_a_read_returns_no_partial_record(path):
    with CsvReader(raw(path, b"id\n" + b"12\n" * io.DEFAULT_BUFFER_SIZE)).open() as cursor:
        cursor.read(1)
        os.truncate(path, io.DEFAULT_BUFFER_SIZE * 2)
        for _ in range(2):
            with pytest.raises(ReaderError, match="became shorter"):
                cursor.read(10**6)


def test_missing_file_is_reported_at_open_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = CsvReader("orders.csv")
    with pytest.raises(ReaderError, match="No such file") as caught:
        reader.open()
    assert str(caught.value).startswith(f"orders.csv cannot be read (in {Path.cwd()})")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_pipe_is_rejected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    holder = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(ReaderError, match="give its lines to a ForwardReader"):
        CsvReader(tmp_path / "pipe").open()
    os.close(holder)


@pytest.mark.parametrize("content", [b"", b"\n\n", b"id,id\n", b"\xff\n", b'"id\n'])
def test_file_without_names_is_rejected(path, content):
    with pytest.raises(ReaderError, match="does not begin with the names of its fields"):
        CsvReader(raw(path, content)).open()


@pytest.mark.parametrize(
    "position", [7, {}, {"number": 1}, {"offset": "7", "number": 1, "check": 1}, {"offset": True}]
)
def test_position_of_another_reader_is_rejected(path, position):
    with pytest.raises(ReaderError, match="not a position of this reader"):
        CsvReader(raw(path, b"id\n1\n")).open(position)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"path": 7}, TypeError, "path must be a non-empty str or os.PathLike, got 7"),
        ({"path": ""}, TypeError, "path must be a non-empty str or os.PathLike, got ''"),
        ({"encoding": None}, TypeError, "encoding must be a str, got None"),
        ({"encoding": "utf-16"}, ValueError, "got 'utf-16': convert the file"),
        ({"encoding": "cp037"}, ValueError, "got 'cp037': convert the file"),
        ({"encoding": "rot13"}, ValueError, "got the unknown 'rot13'"),
        ({"encoding": "klingon"}, ValueError, "got the unknown 'klingon'"),
        ({"fields": "id"}, TypeError, "fields must be .*, in a list or tuple, got 'id'"),
        ({"fields": 7}, TypeError, "fields must be .*, in a list or tuple, got 7"),
        (
            {"fields": [1]},
            TypeError,
            r"fields must be distinct names, .*, got \[1\]",
        ),
        ({"fields": []}, ValueError, r"fields must be distinct names, at least one, got \[\]"),
        ({"fields": ["a", "a"]}, ValueError, "fields must be distinct names"),
        ({"delimiter": ";;"}, TypeError, "dialect must be what csv.reader takes"),
        ({"dialect": "klingon"}, ValueError, "dialect must be what csv.reader takes"),
        ({"colour": "red"}, TypeError, "dialect must be what csv.reader takes"),
    ],
)
def test_bad_settings_are_rejected(arguments, error, message):
    with pytest.raises(error, match=message):
        CsvReader(**{"path": "orders.csv"} | arguments)


def test_repr_shows_the_arguments():
    assert repr(CsvReader("a.csv")) == "CsvReader('a.csv')"
    shown = repr(CsvReader("a.csv", "cp1252", delimiter=";"))
    assert shown == "CsvReader('a.csv', encoding='cp1252', delimiter=';')"


def test_read_error_can_be_pickled(path):
    (error,) = items(whole(CsvReader(raw(path, b"id\n1,2\n"))))
    again = pickle.loads(pickle.dumps(error))  # noqa: S301  # made here
    assert (str(again), again.text, again.number) == (str(error), "1,2\n", 1)
    assert isinstance(again, ReadError)


def test_progress_is_measured_in_bytes(path):
    with CsvReader(raw(path, b"id\n1\n222222\n")).open() as cursor:
        cursor.read(1)
        assert cursor.progress == 5 / 12
        cursor.read(1)
        assert cursor.progress == 1


def test_position_is_json_of_a_few_bytes(path):
    with CsvReader(written(path, [("1", "ü", "")])).open() as cursor:
        cursor.read(1)
        assert len(json.dumps(cursor.position)) < 80
