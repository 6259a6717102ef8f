"""Number of transactions of the search for items at fault."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import NeverRetryPolicy, SimpleRetryPolicy
from retrytemplate.batch import SkipPolicy
from retrytemplate.batch.engine.fault_search import FaultSearch
from tests.batch.test_scenarios import Bad, Flaky, always, skipping
from tests.support.step_fixture import accounted, run


def isolated(size, at_fault, *, halving=True):
    """The items found, and the number of transactions after the first failure."""
    search, found, transactions = FaultSearch(range(size), halving=halving), [], 0
    while part := search.part():
        transactions += 1
        if not at_fault.intersection(part):
            search.part_succeeded()
        elif search.part_failed():
            found += part
    return found, transactions


@pytest.mark.parametrize(
    ("size", "bad", "most"),
    [(100, 1, 14), (100, 5, 46), (100, 10, 74), (100, 50, 120), (1000, 1, 20), (10_000, 1, 27)],
)
def test_fault_search_has_a_bounded_mean_number_of_transactions(size, bad, most):
    chance = random.Random(17)
    placements = [set(chance.sample(range(size), bad)) for _ in range(200)]
    mean = sum(isolated(size, at_fault)[1] for at_fault in placements) / len(placements)
    assert mean <= most


@given(size=st.integers(1, 200), data=st.data(), halving=st.booleans())
def test_fault_search_finds_exactly_the_items_at_fault(size, data, halving):
    at_fault = data.draw(st.sets(st.integers(0, size - 1)))
    found, transactions = isolated(size, at_fault, halving=halving)
    assert found == sorted(at_fault)
    assert transactions <= 2 * size


@given(size=st.integers(1, 100))
def test_linear_search_takes_a_transaction_per_item(size):
    assert isolated(size, {0}, halving=False)[1] == size


def test_linear_search_can_be_chosen(sqlite, mode):
    step = sqlite.step(
        [1, 2, 3], write=always(2), fault_search="linear", retry=NeverRetryPolicy(), **skipping()
    )
    run(step, mode)
    assert sqlite.writes() == [[1, 2, 3], [1], [2], [3]]
    assert (sqlite.rows(), sqlite.letters()) == ([1, 3], [2])


def test_chunk_search_gives_up_the_whole_chunk(sqlite, mode):
    step = sqlite.step(
        range(1, 7), write=always(2), fault_search="chunk", retry=NeverRetryPolicy(), **skipping()
    )
    report = run(step, mode)
    assert (sqlite.rows(), sqlite.letters()) == ([4, 5, 6], [1, 2, 3])
    assert accounted(report)


def test_isolated_item_has_all_its_attempts(sqlite, mode):
    """Failures in a chunk are not counted for an item: they may be transient."""
    step = sqlite.step([1, 2], write=always(2), retry=SimpleRetryPolicy(3), **skipping())
    run(step, mode)
    assert sqlite.writes() == [[1, 2]] * 3 + [[1]] + [[2]] * 3
    assert len(sqlite.letter(2).attempts) == 3


def test_failure_that_is_not_skippable_starts_no_search(sqlite, mode):
    step = sqlite.step(
        [1, 2, 3], write=always(2), retry=NeverRetryPolicy(), skip=SkipPolicy(on=OSError)
    )
    report = run(step, mode)
    assert (report.status, sqlite.writes()) == ("failed", [[1, 2, 3]])


def test_resumed_run_does_not_repeat_parts_of_a_failed_search(sqlite, mode):
    def write(item, _):
        if item == 3:
            raise Bad
        if item == 4:
            raise OSError("disk full")

    items = range(1, 6)
    broken = sqlite.step(items, write=write, chunk_size=5, retry=NeverRetryPolicy(), **skipping())
    report = run(broken, mode)
    assert (report.status, report.pending) == ("failed", 2)
    assert (sqlite.rows(), sqlite.letters()) == ([1, 2], [3])
    assert accounted(report)
    report = run(sqlite.step(items, chunk_size=5), mode)
    assert sqlite.rows() == [1, 2, 4, 5]
    assert (report.read, report.written, report.dead_lettered, report.pending) == (5, 4, 1, 0)


def test_items_that_fail_now_and_then_have_their_own_attempts_each(sqlite, mode):
    """No attempt at the whole chunk succeeds, although no item is at fault."""
    fails = {item: Flaky(item) for item in range(1, 9)}

    def write(item, _):
        fails[item](item)

    step = sqlite.step(range(1, 9), write=write, chunk_size=8, retry=SimpleRetryPolicy(2))
    report = run(step, mode)
    assert (report.status, report.written, report.dead_lettered) == ("completed", 8, 0)
    assert sqlite.rows() == [1, 2, 3, 4, 5, 6, 7, 8]
