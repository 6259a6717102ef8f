"""How many transactions it takes to find the items at fault."""

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
    """The items found, and the transactions it took after the first failure."""
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
def test_the_mean_number_of_transactions_over_200_placements_is_bounded(size, bad, most):
    chance = random.Random(17)
    placements = [set(chance.sample(range(size), bad)) for _ in range(200)]
    mean = sum(isolated(size, at_fault)[1] for at_fault in placements) / len(placements)
    assert mean <= most


@given(size=st.integers(1, 200), data=st.data(), halving=st.booleans())
def test_every_item_at_fault_is_found_and_no_other_one(size, data, halving):
    at_fault = data.draw(st.sets(st.integers(0, size - 1)))
    found, transactions = isolated(size, at_fault, halving=halving)
    assert found == sorted(at_fault)
    assert transactions <= 2 * size


@given(size=st.integers(1, 100))
def test_one_by_one_takes_a_transaction_an_item(size):
    assert isolated(size, {0}, halving=False)[1] == size


def test_one_by_one_can_be_chosen(sqlite, way):
    step = sqlite.step(
        [1, 2, 3], write=always(2), fault_search="linear", retry=NeverRetryPolicy(), **skipping()
    )
    run(step, way)
    assert sqlite.writes() == [[1, 2, 3], [1], [2], [3]]
    assert (sqlite.rows(), sqlite.letters()) == ([1, 3], [2])


def test_a_whole_chunk_can_be_given_up(sqlite, way):
    step = sqlite.step(
        range(1, 7), write=always(2), fault_search="chunk", retry=NeverRetryPolicy(), **skipping()
    )
    report = run(step, way)
    assert (sqlite.rows(), sqlite.letters()) == ([4, 5, 6], [1, 2, 3])
    assert accounted(report)


def test_an_item_by_itself_has_all_its_attempts(sqlite, way):
    """In company an item is not blamed: what failed there may be transient."""
    step = sqlite.step([1, 2], write=always(2), retry=SimpleRetryPolicy(3), **skipping())
    run(step, way)
    assert sqlite.writes() == [[1, 2]] * 3 + [[1]] + [[2]] * 3
    assert len(sqlite.letter(2).attempts) == 3


def test_a_failure_that_is_not_to_be_skipped_is_not_searched_for(sqlite, way):
    step = sqlite.step(
        [1, 2, 3], write=always(2), retry=NeverRetryPolicy(), skip=SkipPolicy(on=OSError)
    )
    report = run(step, way)
    assert (report.status, sqlite.writes()) == ("failed", [[1, 2, 3]])


def test_resumed_run_does_not_repeat_parts_of_a_failed_search(sqlite, way):
    def write(item, _):
        if item == 3:
            raise Bad
        if item == 4:
            raise OSError("disk full")

    items = range(1, 6)
    broken = sqlite.step(items, write=write, chunk_size=5, retry=NeverRetryPolicy(), **skipping())
    report = run(broken, way)
    assert (report.status, report.pending) == ("failed", 2)
    assert (sqlite.rows(), sqlite.letters()) == ([1, 2], [3])
    assert accounted(report)
    report = run(sqlite.step(items, chunk_size=5), way)
    assert sqlite.rows() == [1, 2, 4, 5]
    assert (report.read, report.written, report.dead_lettered, report.pending) == (5, 4, 1, 0)


def test_items_that_fail_now_and_then_have_their_own_attempts_each(sqlite, way):
    """No attempt at the whole chunk succeeds, though no item is at fault."""
    fails = {item: Flaky(item) for item in range(1, 9)}

    def write(item, _):
        fails[item](item)

    step = sqlite.step(range(1, 9), write=write, chunk_size=8, retry=SimpleRetryPolicy(2))
    report = run(step, way)
    assert (report.status, report.written, report.dead_lettered) == ("completed", 8, 0)
    assert sqlite.rows() == [1, 2, 3, 4, 5, 6, 7, 8]
