"""Events as lines of a file."""

import json
import os
from itertools import count

import pytest

from retrytemplate.observe import JsonLinesSink
from retrytemplate.observe.sinks import json_lines
from tests.observe.events import NOW, event


@pytest.fixture
def file(tmp_path):
    return tmp_path / "events.jsonl"


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def subjects(file):
    return [each["subject"] for each in read(file)]


def test_each_line_is_a_cloudevent(file):
    first, second = event(data={"attempts": 3}), event("alert.raised")
    sink = JsonLinesSink(file, source="/shop")
    sink.emit(first)
    sink.emit_many([second])
    assert read(file) == [each.to_cloudevent("/shop") for each in (first, second)]


def test_values_without_json_are_written_as_text(file):
    data = {"limit": float("inf"), "at": object, "list": [float("nan")], "ok": 1.5, "none": None}
    JsonLinesSink(file).emit(event(data=data))
    assert read(file)[0]["data"] == {
        "limit": "inf",
        "at": "<class 'object'>",
        "list": "[nan]",
        "ok": 1.5,
        "none": None,
    }


def test_line_breaks_and_broken_characters_stay_in_their_line(file):
    JsonLinesSink(file).emit(event(subject="a\nb\u2028\ud800\0"))
    assert subjects(file) == ["a\nb\u2028\ud800\0"]


def in_children(work, number=2):
    children = []
    for place in range(number):
        child = os.fork()
        if not child:
            work(place)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * number


def test_lines_of_two_processes_are_whole(file):
    sink = JsonLinesSink(file)

    def work(place):
        for number in range(200):
            sink.emit(event(subject=f"{place}-{number}", data={"text": str(place) * 9000}))

    in_children(work)
    written = read(file)
    assert len(written) == 400
    for place in "01":
        own = [each["subject"] for each in written if each["subject"][0] == place]
        assert own == [f"{place}-{number}" for number in range(200)]


def test_file_is_opened_again_after_a_rotation(file):
    sink = JsonLinesSink(file)
    sink.emit(event(subject="before"))
    file.rename(file.with_suffix(".old"))
    sink.emit(event(subject="after"))
    assert (subjects(file.with_suffix(".old")), subjects(file)) == (["before"], ["after"])


def test_large_file_is_renamed_before_a_write(file):
    sink = JsonLinesSink(file, max_bytes=1)
    for subject in ("a", "b", "c"):
        sink.emit(event(subject=subject))
    old = file.with_name(f"{file.name}.1")
    assert (subjects(old), subjects(file)) == (["b"], ["c"])
    assert sorted(each.name for each in file.parent.iterdir()) == [file.name, old.name]


def test_one_of_several_processes_renames_a_large_file(file):
    sink, line = JsonLinesSink(file, max_bytes=60_000), {"text": "x" * 700}

    def work(place):
        for _ in range(25):
            sink.emit(event(data=line))

    in_children(work, number=4)
    old = file.with_name(f"{file.name}.1")
    assert len(read(old)) + len(read(file)) == 100
    assert len(read(old)) > 40


def test_file_that_another_process_renames_is_not_renamed_again(file, monkeypatch):
    sink, numbers = JsonLinesSink(file, max_bytes=1), count()
    sink.emit(event(subject="a"))
    samestat = os.path.samestat

    def rename_before(*states):
        if not next(numbers):
            file.rename(file.with_suffix(".other"))
            file.write_text("")
            return samestat(states[0], file.stat())
        return samestat(*states)

    monkeypatch.setattr(os.path, "samestat", rename_before)
    sink.emit(event(subject="b"))
    assert (subjects(file.with_suffix(".other")), subjects(file)) == (["a"], ["b"])
    assert not file.with_name(f"{file.name}.1").exists()


def test_full_disk_raises():
    with pytest.raises(OSError, match="No space left"):
        JsonLinesSink("/dev/full").emit(event())


def test_missing_folder_raises(tmp_path):
    with pytest.raises(FileNotFoundError):
        JsonLinesSink(tmp_path / "missing" / "events.jsonl").emit(event())


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"path": ""}, "path"), ({"source": ""}, "source"), ({"max_bytes": 0}, "max_bytes")],
)
def test_setting_out_of_range_is_rejected(settings, text):
    with pytest.raises((TypeError, ValueError), match=f"{text} must be"):
        JsonLinesSink(**{"path": "events.jsonl"} | settings)


def test_page_has_the_matching_events_of_both_files_newest_first(tmp_path):
    sink = JsonLinesSink(tmp_path / "events.jsonl", max_bytes=1)
    for number in range(2):
        sink.emit(event(subject=f"s{number}", time=NOW + number))
    assert [each.subject for each in sink.page()] == ["s1", "s0"]
    assert [each.subject for each in sink.page(since=NOW + 1)] == ["s1"]
    [newest] = sink.page(limit=1)
    assert [each.subject for each in sink.page(before=newest.id)] == ["s0"]


def test_page_returns_equal_events(tmp_path):
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    made = event(data={"attempt": 1}, execution_id="e1", correlation={"request_id": "r-1"})
    sink.emit(made)
    assert sink.page() == [made]


def test_page_of_a_file_that_is_missing_is_empty(tmp_path):
    assert JsonLinesSink(tmp_path / "events.jsonl").page() == []


def test_page_leaves_out_lines_of_other_programs(tmp_path):
    sink = JsonLinesSink(tmp_path / "events.jsonl")
    sink.emit(event(subject="s0"))
    with open(sink.path, "a") as file:
        file.write('\nno event\n[]\n{"type": 7}\n{"half')
    assert [each.subject for each in sink.page()] == ["s0"]


@pytest.mark.parametrize("block", [1, 7, 64, 65_536])
def test_lines_are_read_from_the_end_in_blocks_of_any_size(tmp_path, monkeypatch, block):
    monkeypatch.setattr(json_lines, "BLOCK", block)
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n\nthree is longer\nlast")
    with path.open("rb") as file:
        found = [*json_lines.lines_backwards(file)]
    assert found == [b"last", b"three is longer", b"two", b"one"]
