"""Whether a process has ended, by its fingerprint."""

import os

import pytest

from retrytemplate._storage import process_liveness as liveness
from retrytemplate._storage.process_liveness import (
    is_process_gone,
    is_this_process,
    is_worker_gone,
    process_fingerprint,
    register_active_worker,
)


@pytest.fixture
def child():
    """A child process that waits, its fingerprint, and a function that ends it."""
    reader, writer = os.pipe()
    number = os.fork()
    if number == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)

    def end():
        os.close(writer)
        os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)

    where = process_fingerprint().rsplit(" ", 2)[0]
    yield " ".join([where, *liveness._process(str(number))]), end, number
    os.waitpid(number, 0)


def test_ended_process_is_gone_also_before_its_parent_waits_for_it(child):
    fingerprint, end, _ = child
    assert not is_process_gone(fingerprint)
    end()
    assert is_process_gone(fingerprint)


def test_other_process_with_the_same_number_is_not_the_holder(child):
    fingerprint, end, _ = child
    assert is_process_gone(fingerprint + "0")
    end()


def test_process_hidden_from_proc_is_not_gone(child, monkeypatch):
    fingerprint, end, number = child

    def hidden(name):
        raise FileNotFoundError(name)

    process_fingerprint()
    monkeypatch.setattr(liveness, "_process", hidden)
    assert not is_process_gone(fingerprint)
    end()
    assert is_process_gone(fingerprint.replace(f" {number} ", " 4194305 "))


@pytest.mark.parametrize("place", [0, 1])
def test_process_of_another_namespace_or_host_is_not_known_to_be_gone(place):
    parts = process_fingerprint().split(" ")
    parts[place], parts[2] = "another", "4194305"
    assert not is_process_gone(" ".join(parts))


@pytest.mark.parametrize("text", [None, "", "x", "a b", "a b c d", "pid:[1] boot x y"])
def test_unreadable_fingerprint_is_not_known_to_be_gone(text):
    assert not is_process_gone(text)


def test_number_no_process_can_have_is_gone():
    where, _, start = process_fingerprint().rsplit(" ", 2)
    assert not is_process_gone(f"{where} {'9' * 30} {start}")


def test_fingerprint_is_unknown_where_proc_shows_another_namespace(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 1)
    process_fingerprint.cache_clear()
    try:
        assert process_fingerprint() is None
        assert not is_process_gone("any boot 1 1")
    finally:
        process_fingerprint.cache_clear()


def test_forked_process_has_a_fingerprint_of_its_own():
    fingerprint = process_fingerprint()
    number = os.fork()
    if number == 0:
        os._exit(is_this_process(fingerprint))
    assert os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) == 0
    assert is_this_process(fingerprint)


def test_worker_of_this_process_is_gone_unless_it_is_registered():
    fingerprint = process_fingerprint()
    with register_active_worker("one"):
        assert not is_worker_gone("one", fingerprint)
        assert is_worker_gone("two", fingerprint)
    assert is_worker_gone("one", fingerprint)
    assert not is_process_gone(fingerprint)
