"""The reader of files with a JSON value a line."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.batch import JsonLinesReader, ReaderError
from tests.batch.readers.reading import in_pieces, items, whole

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner)
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "orders.jsonl"


@pytest.fixture(scope="module")
def one_path(tmp_path_factory):
    """A file that every hypothesis example overwrites."""
    return tmp_path_factory.mktemp("json") / "orders.jsonl"


def raw(path, content):
    path.write_bytes(content)
    return path


@given(st.lists(VALUES, max_size=8), st.integers(1, 4), st.booleans(), st.booleans())
def test_json_output_is_read_alike_whole_and_from_every_position(
    one_path, values, limit, ascii_only, bom
):
    lines = "".join(json.dumps(value, ensure_ascii=ascii_only) + "\n" for value in values)
    reader = JsonLinesReader(raw(one_path, b"\xef\xbb\xbf" * bom + lines.encode()))
    assert items(whole(reader)) == values
    assert in_pieces(reader, limit) == whole(reader)


def test_blank_lines_are_no_values_and_do_not_shorten_a_piece(path):
    with JsonLinesReader(raw(path, b"\n1\n\n  \r\n2\r\n3")).open() as cursor:
        assert cursor.read(2).items == [1, 2]
        assert cursor.read(2).items == [3]
        assert not cursor.read(2)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (b"{", "invalid JSON: Expecting property name"),
        (b"1 2", "invalid JSON: Extra data"),
        (b'"\xff"', "invalid JSON: 'utf-8' codec can't decode byte 0xff"),
        (b"[NaN]", "invalid JSON: NaN is not JSON"),
        (b"-Infinity", "invalid JSON: -Infinity is not JSON"),
        (b"[" * 100_000, "invalid JSON: maximum recursion depth"),
        (b"9" * 5000, "invalid JSON: Exceeds the limit"),
    ],
    ids=lambda value: value[:10],
)
def test_broken_line_is_reported_and_its_neighbours_are_read(path, line, problem):
    before, broken, after = items(in_pieces(JsonLinesReader(raw(path, b"1\n" + line + b"\n3")), 1))
    assert (before, after) == (1, 3)
    assert str(broken).startswith(f"{path}, record 2: {problem}")
    assert broken.text == line.decode("utf-8", "backslashreplace") + "\n"


def test_changed_file_is_rejected(path):
    reader = JsonLinesReader(raw(path, b"1\n2\n"))
    with reader.open() as cursor:
        cursor.read(1)
    raw(path, b"3\n2\n")
    with pytest.raises(ReaderError, match="has changed, up to byte 2"):
        reader.open(cursor.position)


def test_value_that_is_not_a_path_is_rejected():
    with pytest.raises(TypeError, match="path must be a non-empty str"):
        JsonLinesReader(None)


def test_repr_shows_the_path():
    assert repr(JsonLinesReader("a.jsonl")) == "JsonLinesReader('a.jsonl')"
