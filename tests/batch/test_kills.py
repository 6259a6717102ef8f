"""A process killed between any two statements loses nothing and writes nothing twice.

RETRYTEMPLATE_KILLS is the number of runs with failures drawn at random, on each database, 50 by
default; many of them need a longer --timeout.
"""

import os
from itertools import count

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.crash_worker import ALWAYS, Mill, Plan, go_to

MANY = int(os.environ.get("RETRYTEMPLATE_KILLS", "50"))
KILLED = -9

turns = count(1)


@pytest.fixture(scope="module")
def mills(place_of_mills, forked):
    """A mill for each way to run a step, on the same tables."""
    url, folder = place_of_mills
    made = {mode: Mill(url, "mill", mode, folder) for mode in ("sync", "async")}
    made["sync"].prepare()
    for mill in made.values():
        forked.warm(mill.run, Plan(write={1: ALWAYS}), next(turns))
    yield made
    made["sync"].clear()


def is_accounted(mill, turn):
    """Whether the journal has the place of each item that was read."""
    row = mill.row(turn)
    return (
        row.read == row.written + row.filtered + row.dead_lettered + mill.checkpoint(turn).waiting
    )


def die(forked, mill, plan, turn, boundary):
    """Run until it is killed at that boundary; whether it was."""
    code = forked.run(go_to, mill, plan, turn, boundary)
    assert code in (0, KILLED)
    assert mill.row(turn) is None or is_accounted(mill, turn)
    return code == KILLED


def ended(mill, plan, turn):
    """The report of the run after the last kill."""
    report = mill.run(plan, turn)
    row = mill.row(turn)
    assert report.status == row.status == "completed"
    assert is_accounted(mill, turn)
    assert (row.read, row.dead_lettered, row.filtered) == (
        plan.items,
        len(plan.dead_lettered),
        len(plan.left_out),
    )
    return report


# Killed once, everywhere.

SOME = range(4, 60, 13)
SCENARIO_E = Plan(
    items=7, chunk_size=5, max_crashes=9, process={6: 1}, write={3: ALWAYS}, filtered=frozenset([4])
)


@pytest.mark.parametrize(
    "boundaries",
    [SOME, pytest.param(range(1, 1000), marks=pytest.mark.stress)],
    ids=["some", "all"],
)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_run_killed_at_a_boundary_ends_as_one_that_was_not(mills, forked, mode, boundaries):
    mill = mills[mode]
    for boundary in boundaries:
        turn = next(turns)
        was_killed = die(forked, mill, SCENARIO_E, turn, boundary)
        ended(mill, SCENARIO_E, turn)
        assert mill.result(turn) == [[1, 2, 5, 6, 7], [3]], f"killed at boundary {boundary}"
        if not was_killed:
            break
    assert boundary > 50


# Killed several times, with any failures.


@st.composite
def plans(draw, **more):
    items, attempts = draw(st.integers(1, 9)), draw(st.integers(1, 3))
    pure = draw(st.booleans())
    often = st.sampled_from([*range(1, attempts), ALWAYS])
    at_fault = st.dictionaries(st.integers(1, items), often, max_size=3)
    some = st.frozensets(st.integers(1, items), max_size=2)
    return Plan(
        items=items,
        chunk_size=draw(st.integers(1, 5)),
        attempts=attempts,
        # In the transaction both would share the attempts.
        process=draw(at_fault) if pure else {},
        write=draw(at_fault),
        filtered=draw(some),
        pure=pure,
        fault_search=draw(st.sampled_from(["bisect", "linear"])),
        rollback=draw(st.sampled_from(["transaction", "savepoint"])),
        max_crashes=9,
        **more,
    )


@st.composite
def streams(draw):
    """Sources that cannot be read again, or not at all."""
    plan = draw(plans(forward=True))
    return evolve(plan, torn=draw(st.frozensets(st.integers(1, plan.items), max_size=2)))


MODES = st.sampled_from(["sync", "async"])
BOUNDARIES = st.lists(st.integers(5, 60), min_size=1, max_size=3)


EXAMPLES = [3, pytest.param(MANY, marks=pytest.mark.stress)]


@pytest.mark.parametrize("examples", EXAMPLES)
def test_item_is_in_one_place_once_after_kills(mills, forked, examples):
    @settings(max_examples=examples)
    @given(plan=plans() | streams(), mode=MODES, boundaries=BOUNDARIES)
    def holds(plan, mode, boundaries):
        mill, turn = mills[mode], next(turns)
        for boundary in boundaries:
            die(forked, mill, plan, turn, boundary)
        report = ended(mill, plan, turn)
        assert mill.result(turn) == [plan.written, plan.dead_lettered]
        assert report.written == len(plan.written)

    holds()


@pytest.mark.parametrize("examples", EXAMPLES)
def test_into_another_database_each_item_is_written_after_kills(mills, forked, examples):
    @settings(max_examples=examples)
    @given(plan=plans(elsewhere=True), mode=MODES, boundaries=BOUNDARIES)
    def holds(plan, mode, boundaries):
        mill, turn = mills[mode], next(turns)
        for boundary in boundaries:
            die(forked, mill, plan, turn, boundary)
        report = ended(mill, plan, turn)
        written, dead = mill.result(turn)
        assert (sorted(set(written)), dead) == (plan.written, plan.dead_lettered)
        assert not report.exactly_once

    holds()
