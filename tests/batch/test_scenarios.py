"""The scenarios in which the reference loses, duplicates or wrongly skips items."""

import pytest

from retrytemplate import SimpleRetryPolicy
from retrytemplate.batch import SkipPolicy
from tests.support.step_fixture import accounted, run


class Bad(Exception):
    """What the item at fault raises."""


class Flaky:
    """Fails for one item this number of times, then never again."""

    def __init__(self, item, times=1):
        self.item, self.times = item, times

    def __call__(self, item, _=None):
        if item == self.item and self.times:
            self.times -= 1
            raise Bad(f"item {item}")
        return item


def always(*at_fault):
    def fail(item, _=None):
        if item in at_fault:
            raise Bad(f"item {item}")
        return item

    return fail


def skipping(**settings):
    return {"skip": SkipPolicy(on=Bad), **settings}


def test_case_a_item_that_fails_once_is_processed_again_alone(world, mode):
    step = world.step([1, 2, 3], process=Flaky(2), retry=SimpleRetryPolicy(2))
    report = run(step, mode)
    assert (report.status, report.read, report.written, report.rollbacks) == ("completed", 3, 3, 0)
    assert world.processed() == [1, 2, 2, 3]
    assert world.writes() == [[1, 2, 3]]
    assert world.rows() == [1, 2, 3]


def test_case_b_item_that_always_fails_is_dead_lettered_alone(world, mode):
    step = world.step([1, 2, 3], process=always(2), retry=SimpleRetryPolicy(2), **skipping())
    report = run(step, mode)
    assert (report.written, report.dead_lettered, report.rollbacks) == (2, 1, 0)
    assert world.processed() == [1, 2, 2, 3]
    assert (world.rows(), world.letters()) == ([1, 3], [2])
    letter = world.letter(2)
    assert (letter.phase, len(letter.attempts)) == ("process", 2)


def test_case_c_item_that_cannot_be_written_is_dead_lettered_alone(world, mode):
    step = world.step(
        [1, 2, 3, 4], write=always(2), retry=SimpleRetryPolicy(1), chunk_size=4, **skipping()
    )
    report = run(step, mode)
    assert (report.written, report.dead_lettered) == (3, 1)
    assert (world.rows(), world.letters()) == ([1, 3, 4], [2])
    assert world.processed() == [1, 2, 3, 4]
    assert world.writes() == [[1, 2, 3, 4], [1, 2], [1], [2], [3, 4]]
    assert report.rollbacks == 3
    assert accounted(report)


def test_case_d_failed_write_leaves_nothing_of_its_attempt(world, mode):
    step = world.step([1, 2, 3], write=Flaky(3), retry=SimpleRetryPolicy(2))
    report = run(step, mode)
    assert (report.written, report.retries, report.rollbacks) == (3, 1, 1)
    assert world.writes() == [[1, 2, 3], [1, 2, 3]]
    assert world.rows() == [1, 2, 3]


def test_case_f_items_skipped_in_processor_and_writer_have_letters(world, mode):
    step = world.step(
        [1, 2, 3], process=always(1), write=always(2), retry=SimpleRetryPolicy(1), **skipping()
    )
    report = run(step, mode)
    assert (world.rows(), world.letters()) == ([3], [1, 2])
    assert [world.letter(number).phase for number in (1, 2)] == ["process", "write"]
    assert (report.written, report.dead_lettered, report.skipped) == (1, 2, 2)


def test_case_g_failure_that_is_not_skippable_ends_the_run_and_rolls_back(world, mode):
    step = world.step([1, 2, 3], process=always(2), retry=SimpleRetryPolicy(1))
    report = run(step, mode)
    assert (report.status, report.written, report.dead_lettered) == ("failed", 0, 0)
    assert isinstance(report.exception, Bad)
    assert world.processed() == [1, 2]
    assert (world.rows(), world.letters()) == ([], [])


def test_case_g_run_is_resumed_after_the_cause_is_fixed(world, mode):
    broken = world.step(range(1, 6), process=always(5), retry=SimpleRetryPolicy(1))
    assert run(broken, mode).status == "failed"
    assert world.rows() == [1, 2, 3]
    report = run(world.step(range(1, 6)), mode)
    assert (report.status, report.read, report.written) == ("completed", 5, 5)
    assert world.rows() == [1, 2, 3, 4, 5]


class Mutable:
    """An item whose equality changes with its value."""

    def __init__(self, number):
        self.number, self.value = number, 0

    def __eq__(self, other):
        return isinstance(other, Mutable) and other.value == self.value

    def __hash__(self):
        return hash(self.value)


@pytest.mark.parametrize("phase", ["process", "write"])
def test_cases_k_and_l_changing_item_is_retried_to_its_limit(world, mode, phase):
    tried = []

    def processor(item):
        item.value += 1
        if phase == "process":
            tried.append(item.number)
            raise Bad
        return item

    def writer(items, transaction):
        tried.extend(item.number for item in items)
        raise Bad

    step = world.step(
        [Mutable(1)],
        processor=processor,
        writer=writer,
        retry=SimpleRetryPolicy(3),
        **skipping(),
    )
    report = run(step, mode)
    assert (tried, report.dead_lettered, report.status) == ([1, 1, 1], 1, "completed")
    assert len(world.letter(1).attempts) == 3
    assert not world.letter(1).replayable


def test_cases_m_and_n_one_of_two_equal_items_is_retried_to_its_limit(world, mode):
    same = [Mutable(1), Mutable(2)]
    tried = []

    def processor(item):
        tried.append(item.number)
        if item.number == 2:
            raise Bad
        return 1

    step = world.step(same, processor=processor, retry=SimpleRetryPolicy(3), **skipping())
    report = run(step, mode)
    assert tried == [1, 2, 2, 2]
    assert (report.written, report.dead_lettered, world.letters()) == (1, 1, [2])
