"""The settings of a job repository."""

from datetime import timedelta

import pytest

from retrytemplate.batch import JobRepository
from tests.support.step_fixture import run

ALLOWED = "must be a number of seconds or a datetime.timedelta from 0.01 to 1000000, got"


@pytest.mark.parametrize("name", ["lease", "timeout"])
@pytest.mark.parametrize(
    "value", [0, -1, 0.009, 1e11, 10**30, timedelta(days=12), float("inf"), float("nan"), "5", True]
)
def test_timeout_beyond_the_drivers_range_is_rejected(name, value):
    with pytest.raises((TypeError, ValueError), match=f"{name} {ALLOWED}"):
        JobRepository("sqlite:///jobs.db", **{name: value})


@pytest.mark.parametrize("seconds", [0.01, 1_000_000, timedelta(seconds=0.01)])
def test_times_at_the_limits_are_accepted(seconds):
    jobs = JobRepository("sqlite:///jobs.db", seconds, timeout=seconds)
    assert jobs.lease == jobs.timeout > 0


def test_longest_times_are_accepted_by_the_drivers(world, mode):
    with JobRepository(world.url, 1_000_000, world.prefix, timeout=1_000_000) as jobs:
        assert run(world.step([1], repository=jobs), mode).written == 1


@pytest.mark.parametrize("prefix", [float("nan"), None, True, 7, b"batch", "", "a" * 41, "Batch"])
def test_prefix_that_is_not_a_name_is_rejected(prefix):
    with pytest.raises(ValueError, match="prefix must be 1 to 40 of a-z, 0-9 and _"):
        JobRepository("sqlite:///jobs.db", prefix=prefix)
