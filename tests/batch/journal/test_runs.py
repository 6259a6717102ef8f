"""The rows of the runs."""

import random

import pytest

from tests.support.step_fixture import run


@pytest.fixture(scope="module")
def text():
    """One that is long, and not to be compressed."""
    return "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=100_000))


def test_a_run_is_known_by_its_parameters_however_long(world, way, text):
    first = run(world.step([1]), way, {"text": text})
    assert run(world.step([2]), way, {"text": text}) == first
    assert run(world.step([3]), way, {"text": f"{text}b"}).run_id != first.run_id
    assert world.rows() == [1, 3]


def test_the_name_of_a_step_is_as_long_as_it_may_be(world, way, text):
    assert run(world.step([1], name=text[:500]), way).status == "completed"
    with pytest.raises(ValueError, match="name must have 500 characters at most, got 501"):
        world.step(name=text[:501])
