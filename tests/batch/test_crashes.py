"""Items that crash their process, and a supervisor that starts it again.

RETRYTEMPLATE_SEEDS is the number of runs with many items in flight, 20 by default; half of them are
on each database.
"""

import json
import os
from itertools import count
from random import Random

import pytest
from attrs import evolve

from retrytemplate.batch import ReaderError
from tests.support.crash_worker import Mill, Plan, go, go_together

SEEDS = int(os.environ.get("RETRYTEMPLATE_SEEDS", "20"))
MOST_STARTS = 30
DIED = "retrytemplate.batch.errors.ProcessCrashedError"

SYNC_AND_ASYNC = ["sync", pytest.param("async", marks=pytest.mark.stress)]

turns = count(1)


@pytest.fixture(scope="module")
def mills(place_of_mills, forked):
    url, folder = place_of_mills
    made = {mode: Mill(url, "crash", mode, folder) for mode in ("sync", "async")}
    made["sync"].prepare()
    for mill in made.values():
        forked.warm(mill.run, Plan(), next(turns))
    yield made
    made["sync"].clear()


@pytest.fixture
def supervise(forked):
    """Start a process again after each crash; the number of crashes."""

    def run(mill, plan, turn):
        for crashes in range(MOST_STARTS):
            if forked.run(go, mill, plan, turn) == 0:
                return crashes
        return pytest.fail(f"still dying after {MOST_STARTS} starts")

    return run


def poisoned(plan, mill, turn):
    """Whether the crashing items are dead letters and all others are written once."""
    return mill.result(turn) == [plan.written, sorted(plan.deadly)]


@pytest.mark.parametrize("place", ["process", "write"])
@pytest.mark.parametrize(
    "crash",
    [
        "is killed",
        *(pytest.param(each, marks=pytest.mark.stress) for each in ("exits", "segfaults")),
    ],
)
@pytest.mark.parametrize("mode", SYNC_AND_ASYNC)
def test_poison_item_costs_three_crashes(mills, supervise, mode, crash, place):
    mill, turn = mills[mode], next(turns)
    plan = Plan(items=120, chunk_size=100, deadly={57: crash}, place=place)
    assert supervise(mill, plan, turn) == 3
    assert poisoned(plan, mill, turn)
    (letter,) = mill.letters(turn)
    assert (letter.phase, letter.error_type) == ("crash", DIED)
    attempts = json.loads(letter.attempts)
    assert [each["type_name"] for each in attempts] == [DIED, DIED]
    assert len({each["process"] for each in attempts}) == 2
    row = mill.row(turn)
    assert (row.crashes, row.dead_lettered, row.skipped, row.read) == (3, 1, 0, 120)


@pytest.mark.parametrize(
    "items",
    [
        [30, 99],
        *(pytest.param(each, marks=pytest.mark.stress) for each in ([1, 2], [1, 50, 51, 52, 100])),
    ],
)
def test_poison_items_in_one_chunk_cost_one_crash_and_two_each(mills, supervise, items):
    mill, turn = mills["sync"], next(turns)
    plan = Plan(items=120, chunk_size=100, deadly=dict.fromkeys(items, "is killed"))
    assert supervise(mill, plan, turn) == 1 + 2 * len(items)
    assert poisoned(plan, mill, turn)


@pytest.mark.stress
def test_crash_in_a_chunk_of_a_thousand_finds_the_same_item(mills, supervise):
    mill, turn = mills["sync"], next(turns)
    plan = Plan(items=1000, chunk_size=1000, deadly={700: "is killed"})
    assert supervise(mill, plan, turn) == 3
    assert poisoned(plan, mill, turn)


@pytest.mark.parametrize("seeds", [1, pytest.param(SEEDS // 2, marks=pytest.mark.stress)])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_crashing_item_among_many_in_flight_is_given_up_alone(mills, supervise, mode, seeds):
    mill = mills[mode]
    for seed in range(seeds):
        turn = next(turns)
        deadly = {1 + seed * 7 % 24: "is killed"}
        plan = Plan(items=24, chunk_size=24, deadly=deadly, concurrency=16, seed=seed)
        assert supervise(mill, plan, turn) == 3, f"seed {seed}"
        assert poisoned(plan, mill, turn), f"seed {seed}"


def test_items_of_a_stream_are_kept_across_crashes(mills, supervise):
    mill, turn = mills["sync"], next(turns)
    plan = Plan(items=25, chunk_size=10, deadly=dict.fromkeys([12, 25], "exits"), forward=True)
    assert supervise(mill, plan, turn) == 6
    assert poisoned(plan, mill, turn)


def test_broken_records_of_a_stream_stay_broken_after_a_crash(mills, supervise):
    mill, turn = mills["sync"], next(turns)
    plan = Plan(items=9, chunk_size=5, deadly={2: "exits"}, torn=frozenset([4]), forward=True)
    assert supervise(mill, plan, turn) == 3
    assert mill.result(turn) == [plan.written, [2, 4]]
    letter = mill.letters(turn)[-1]
    assert (letter.phase, letter.payload, letter.replayable) == ("read", "?", 0)
    assert letter.error_message == "items, record 4: is torn"


@pytest.mark.parametrize("mode", SYNC_AND_ASYNC)
def test_crashes_in_the_reader_end_the_run(mills, supervise, mode):
    mill, turn = mills[mode], next(turns)
    plan = Plan(items=9, chunk_size=4, deadly={6: "is killed"}, place="read")
    assert supervise(mill, plan, turn) == 4
    row = mill.row(turn)
    assert (row.status, row.written, row.dead_lettered) == ("failed", 4, 0)
    assert "CrashLoopError" in row.error
    report = mill.run(Plan(items=9, chunk_size=4), turn)  # it is mended
    assert (report.status, report.written) == ("completed", 9)


# Several runs in one process: the crash of one is attributed to no item of another.


def supervise_together(forked, mill, plans):
    """Start a process again after each crash; the number of crashes."""
    for crashes in range(MOST_STARTS):
        if forked.run(go_together, mill, plans) == 0:
            return crashes
    return pytest.fail(f"still crashing after {MOST_STARTS} starts")


def plans_with(poisons, runs, seed):
    """The plan of each turn, with random poison items in all of them together."""
    random = Random(seed)
    plans = {next(turns): Plan(items=24, chunk_size=8, seed=seed, fuse=0.02) for _ in range(runs)}
    for _ in range(poisons):
        turn = random.choice(list(plans))
        free = set(range(1, 25)) - set(plans[turn].deadly)
        deadly = plans[turn].deadly | {random.choice(sorted(free)): "is killed"}
        plans[turn] = evolve(plans[turn], deadly=deadly)
    return plans


def check_together(mill, plans, crashes):
    poisons = sum(len(plan.deadly) for plan in plans.values())
    assert crashes <= 3 * poisons
    for turn, plan in plans.items():
        assert poisoned(plan, mill, turn), (turn, mill.result(turn), plan.deadly)


@pytest.mark.parametrize("mode", SYNC_AND_ASYNC)
def test_crash_is_attributed_to_no_item_of_another_thread(mills, forked, mode):
    plan = Plan(items=6, chunk_size=6, seed=1, fuse=0.02)
    plans = {next(turns): evolve(plan, deadly={4: "is killed"}), next(turns): plan}
    check_together(mills[mode], plans, supervise_together(forked, mills[mode], plans))


@pytest.mark.stress
@pytest.mark.parametrize("poisons", [2, 5])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_only_poison_items_of_three_threads_are_dead_lettered(mills, forked, mode, poisons):
    for seed in range(SEEDS // 4):
        plans = plans_with(poisons, 3, seed)
        check_together(mills[mode], plans, supervise_together(forked, mills[mode], plans))


# After a clean end no item is suspect.


def suspect(forked, mill, plan, turn):
    """Crash at item 3 twice; the second process isolates the items."""
    for _ in range(2):
        assert forked.run(go, mill, plan, turn) != 0
    assert mill.checkpoint(turn).isolating
    assert mill.checkpoint(turn).isolated_item == 2


def has_no_suspect(mill, turn):
    checkpoint = mill.checkpoint(turn)
    return (
        not checkpoint.isolating
        and checkpoint.isolated_item is None
        and mill.row(turn).worker is None
    )


@pytest.mark.parametrize("mode", SYNC_AND_ASYNC)
def test_interrupted_run_has_no_suspect(mills, forked, mode):
    mill, turn = mills[mode], next(turns)
    plan = Plan(deadly={3: "is killed"}, max_crashes=9)
    suspect(forked, mill, plan, turn)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            mill.run(evolve(plan, deadly={3: "is interrupted"}), turn)
        assert has_no_suspect(mill, turn)
    report = mill.run(Plan(), turn)
    assert (report.status, report.dead_lettered, report.crashes) == ("completed", 0, 2)
    assert mill.result(turn) == [list(range(1, 9)), []]


def test_stopped_run_has_no_suspect(mills, forked):
    mill, turn = mills["sync"], next(turns)
    plan = Plan(deadly={3: "is killed"}, max_crashes=9)
    suspect(forked, mill, plan, turn)
    step = mill.step(Plan(), turn, mill.looking)
    step.stop()
    assert step.run({"turn": turn}).status == "stopped"
    assert has_no_suspect(mill, turn)
    assert mill.run(Plan(), turn).written == 8


# Items that were read are not lost if the source has changed.


def test_source_shorter_than_the_chunk_in_flight_ends_the_run(mills, forked):
    mill = mills["sync"]
    for items in (4, 6):
        turn = next(turns)
        suspect_at = Plan(deadly={7: "is killed"}, chunk_size=4, max_crashes=9)
        for _ in range(2):
            assert forked.run(go, mill, suspect_at, turn) != 0
        report = mill.run(Plan(items=items), turn)
        assert report.status == "failed"
        assert isinstance(report.exception, ReaderError)
        report = mill.run(Plan(), turn)
        assert (report.status, report.written) == ("completed", 8)
