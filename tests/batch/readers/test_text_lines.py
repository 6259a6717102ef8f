"""Files that change while they are read, or between two runs."""

import os
from types import SimpleNamespace

import pytest

from retrytemplate.batch import (
    CsvReader,
    FilesReader,
    JsonLinesReader,
    ReaderError,
    ReadError,
    SkipPolicy,
)
from retrytemplate.batch.readers.text_lines import RecordedFile
from tests.batch.readers.reading import items, whole
from tests.support.step_fixture import run


def in_files(path, **settings):
    return FilesReader([path], lambda each: CsvReader(each, fields=["id"], **settings))


KINDS = {
    "csv": lambda path: CsvReader(path, fields=["id"]),
    "json lines": JsonLinesReader,
    "files": in_files,
}


@pytest.fixture(params=KINDS)
def source(request, tmp_path):
    """A file of numbers, its reader, and a function from an item to its number."""
    path = tmp_path / "numbers"
    number = int if request.param == "json lines" else lambda item: int(item["id"])
    return SimpleNamespace(path=path, reader=KINDS[request.param](path), number=number)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "numbers"


def append(path, text):
    with path.open("a") as file:
        file.write(text)


def rewrite(path, offset, text):
    """Overwrite bytes in place: the file and its length stay."""
    with path.open("r+") as file:
        file.seek(offset)
        file.write(text)


def lines(numbers):
    return "".join(f"{number}\n" for number in numbers)


# A last line without its end.


def test_last_line_without_its_end_is_read_alone(source):
    source.path.write_text("1\n2\n12")
    with source.reader.open() as cursor:
        pieces = [cursor.read(10).items for _ in range(3)]
    assert [[source.number(item) for item in piece] for piece in pieces] == [[1, 2], [12], []]


def test_last_line_that_grows_before_it_is_read_becomes_one_record(source, sqlite):
    source.path.write_text("1\n2\n12")

    def processor(item):
        number = source.number(item)
        if number == 1:
            append(source.path, "50\n3\n")
        return number

    report = sqlite.step(reader=source.reader, processor=processor, chunk_size=10).run()
    assert (report.status, sqlite.rows()) == ("completed", [1, 2, 3, 1250])


@pytest.mark.parametrize("piece", ["processor", "writer"])
def test_last_line_that_grows_before_its_commit_is_not_written(path, sqlite, mode, piece):
    path.write_text("1\n2\n12")

    def grow(number):
        if number == 12:
            append(path, "50\n")

    def process(item):
        if piece == "processor":
            grow(item)
        return item

    def write(number, _):
        if piece == "writer":
            grow(number)

    step = sqlite.step(reader=JsonLinesReader(path), processor=process, write=write, chunk_size=10)
    report = run(step, mode)
    assert (report.status, sqlite.rows()) == ("failed", [1, 2])
    assert isinstance(report.exception, ReaderError)
    assert "has grown in the middle of its last record" in str(report.exception)
    assert run(step, mode).status == "completed"
    assert sqlite.rows() == [1, 2, 1250]


def test_last_line_that_grows_before_its_dead_letter_leaves_none(sqlite, path):
    path.write_text('1\n{"id"')

    class Growing(JsonLinesReader):
        def open(self, position=None):
            cursor = super().open(position)
            read = cursor.read

            def read_and_grow(limit):
                records = read(limit)
                if records.broken:
                    append(path, ": 17}\n")
                return records

            cursor.read = read_and_grow
            return cursor

    step = sqlite.step(
        reader=Growing(path),
        processor=lambda item: item["id"] if isinstance(item, dict) else item,
        skip=SkipPolicy(on=ReadError),
    )
    report = step.run()
    assert (report.status, report.dead_lettered, sqlite.letters()) == ("failed", 0, [])
    assert step.run().status == "completed"
    assert sqlite.rows() == [1, 17]


def test_last_line_that_grows_after_its_commit_ends_the_run(source, sqlite):
    source.path.write_text("1\n12")

    def after_commit(numbers):
        if 12 in numbers:
            append(source.path, "50\n")

    step = sqlite.step(reader=source.reader, processor=source.number, after_commit=after_commit)
    report = step.run()
    assert (report.status, sqlite.rows()) == ("failed", [1, 12])
    assert "has grown in the middle of its last record" in str(report.exception)
    assert step.run().status == "failed"


def test_complete_lines_may_be_appended_at_any_time(source, sqlite):
    source.path.write_text("1\n2\n")

    def write(number, _):
        if number < 5:
            append(source.path, f"{number + 2}\n")

    step = sqlite.step(reader=source.reader, processor=source.number, write=write, chunk_size=1)
    assert step.run().status == "completed"
    assert sqlite.rows() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("strict", [True, False])
def test_csv_record_with_an_open_quote_is_read_alone_at_the_end(path, strict):
    path.write_text('id\n1\n"2\n')
    with CsvReader(path, strict=strict).open() as cursor:
        assert cursor.read(10).items == [{"id": "1"}]
        append(path, '3"\n')
        assert cursor.read(10).items == [{"id": "2\n3"}]


@pytest.mark.parametrize("strict", [True, False])
def test_csv_record_with_an_open_quote_that_grows_is_an_error(path, strict):
    path.write_text('id\n"2\n')
    with CsvReader(path, strict=strict).open() as cursor:
        assert len(cursor.read(10)) == 1
        position = cursor.position
        cursor.verify()
        append(path, '3"\n')
        for check in (cursor.verify, lambda: cursor.read(10)):
            with pytest.raises(ReaderError, match="has grown in the middle of its last record"):
                check()
    with pytest.raises(ReaderError, match="has grown in the middle of its last record"):
        CsvReader(path, strict=strict).open(position)


def test_csv_header_that_grows_is_an_error(path):
    path.write_text("id,na")
    with CsvReader(path).open() as cursor:
        append(path, "me\n1,Sato\n")
        with pytest.raises(ReaderError, match="has grown in the middle of its last record"):
            cursor.read(10)


def test_file_of_a_byte_order_mark_may_grow(path):
    path.write_bytes(b"\xef\xbb\xbf")
    with JsonLinesReader(path).open() as cursor:
        assert not cursor.read(10)
        append(path, "1\n")
        assert cursor.read(10).items == [1]


# Truncated, rewritten, replaced.


def failed_run(source, sqlite, change, at=500):
    """The report of a run over a file that changes when one item is processed."""

    def processor(item):
        if source.number(item) == at:
            change()
        return source.number(item)

    step = sqlite.step(reader=source.reader, processor=processor, chunk_size=100)
    report = step.run()
    assert (report.status, type(report.exception)) == ("failed", ReaderError)
    return report


def test_file_that_grew_and_was_truncated_ends_the_run(source, sqlite):
    source.path.write_text(lines(range(517)))

    def change():
        append(source.path, lines(range(517, 1000)))
        source.path.write_text("")

    report = failed_run(source, sqlite, change)
    assert "became shorter" in str(report.exception)
    assert report.written == 500


def test_file_cut_behind_the_position_ends_the_run(path):
    path.write_text(lines(range(10)))
    with JsonLinesReader(path).open() as cursor:
        cursor.read(2)
        append(path, lines(range(10, 20)))
        cursor.read(2)
        os.truncate(path, 20)
        with pytest.raises(ReaderError, match="became shorter: it had 50 bytes, and has 20"):
            cursor.read(2)


def test_file_truncated_and_refilled_ends_the_run(source, sqlite):
    source.path.write_text(lines(range(600)))

    def change():
        source.path.write_text(lines(range(10_000, 11_000)))

    report = failed_run(source, sqlite, change)
    assert "has changed, up to byte" in str(report.exception)
    assert max(sqlite.rows()) < 600


def test_file_rewritten_in_place_behind_its_first_line_ends_the_run(source, sqlite):
    source.path.write_text(lines(range(1000)))

    def change():
        with source.path.open("r+") as file:
            file.write(lines(range(100)))
            file.write("9" * 20)

    report = failed_run(source, sqlite, change, at=700)
    assert "has changed, up to byte" in str(report.exception)


@pytest.mark.parametrize("count", [0, 2])
def test_file_rewritten_in_place_behind_the_position_is_read_as_it_is(source, count):
    """More lines than a buffer holds, so a buffer from before would end inside a line."""
    source.path.write_text(lines(range(10_000, 14_000)))
    with source.reader.open() as cursor:
        found = list(cursor.read(count).items) if count else []
        rewrite(source.path, 6 * count, lines(range(24_000 + count, 28_000)))
        while records := cursor.read(100):
            found += records.items
    expected = [*range(10_000, 10_000 + count), *range(24_000 + count, 28_000)]
    assert [source.number(item) for item in found] == expected


def test_file_rewritten_in_place_inside_a_chunk_is_an_error(source, monkeypatch):
    source.path.write_text(lines(range(10_000, 14_000)))
    read = RecordedFile.readinto

    def rewrite_and_read(file, buffer):
        if file.tell() > 0:
            rewrite(source.path, 6000, lines(range(25_000, 28_000)))
        return read(file, buffer)

    monkeypatch.setattr(RecordedFile, "readinto", rewrite_and_read)
    error = pytest.raises(ReaderError, match="has changed, up to byte 24000")
    with source.reader.open() as cursor, error:
        cursor.read(4000)


@pytest.mark.parametrize("changed", [3, 1500, 3000])
def test_verify_compares_all_bytes_of_the_last_records(source, changed):
    source.path.write_text(lines(range(1000, 2000)))
    with source.reader.open() as cursor:
        cursor.read(601)
        rewrite(source.path, changed, "7")
        with pytest.raises(ReaderError, match="has changed, up to byte 3005"):
            cursor.verify()


def test_read_compares_the_bytes_of_earlier_reads(source):
    source.path.write_text(lines(range(1000, 2000)))
    with source.reader.open() as cursor:
        cursor.read(300)
        cursor.read(1)
        rewrite(source.path, 1400, "7")
        with pytest.raises(ReaderError, match="has changed, up to byte"):
            cursor.read(1)


def test_file_replaced_by_another_ends_the_run(source, sqlite):
    source.path.write_text(lines(range(600)))

    def change():
        other = source.path.with_suffix(".new")
        other.write_text(source.path.read_text())
        other.replace(source.path)

    report = failed_run(source, sqlite, change)
    assert "was replaced by another file" in str(report.exception)


def test_file_that_is_removed_is_read_to_its_end(source):
    source.path.write_text(lines(range(4)))
    with source.reader.open() as cursor:
        found = list(cursor.read(2).items)
        source.path.unlink()
        found += cursor.read(2).items
    assert [source.number(item) for item in found] == [0, 1, 2, 3]


def test_relative_path_names_the_same_file_in_another_folder(path, tmp_path, monkeypatch):
    path.write_text(lines(range(4)))
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / path.name).write_text("another\n")
    monkeypatch.chdir(tmp_path)
    with JsonLinesReader(path.name).open() as cursor:
        cursor.read(2)
        monkeypatch.chdir("below")
        assert cursor.read(2).items == [2, 3]


@pytest.mark.parametrize("changed", [3, 1500, 3000])
def test_resume_compares_both_ends_of_the_part_that_was_read(source, changed):
    text = lines(range(1000, 2000))
    source.path.write_text(text)
    with source.reader.open() as cursor:
        cursor.read(601)
        position = cursor.position
    assert len(items(whole(source.reader, position=position))) == 399
    source.path.write_text(f"{text[:changed]}7{text[changed + 1 :]}")
    if changed == 1500:  # neither among the first nor among the last bytes that were read
        assert len(items(whole(source.reader, position=position))) == 399
        return
    with pytest.raises(ReaderError, match="has changed, up to byte 3005"):
        source.reader.open(position)


def test_resume_accepts_a_file_mended_behind_the_position(source):
    source.path.write_text("1\n2\n3 is not a number\n4\n")
    with source.reader.open() as cursor:
        cursor.read(2)
        position = cursor.position
    source.path.write_text("1\n2\n3\n4\n")
    found = whole(source.reader, position=position)
    assert [source.number(item) for item in items(found)] == [3, 4]
