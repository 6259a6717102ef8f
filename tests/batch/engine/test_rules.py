"""The dead letters of the rules."""

from retrytemplate import NeverRetryPolicy
from tests.batch.test_scenarios import Bad, skipping
from tests.support.step_fixture import run


class Unprintable:
    """An item that neither the codec nor ``repr`` turns into text."""

    def __repr__(self):
        raise RuntimeError("no text")


def test_item_whose_repr_fails_is_dead_lettered_with_its_type(sqlite, mode):
    def process(item):
        raise Bad("no price")

    step = sqlite.step([Unprintable()], process=process, retry=NeverRetryPolicy(), **skipping())
    assert run(step, mode).dead_lettered == 1
    letter = sqlite.letter(1)
    assert letter.payload == "<no text: repr() of Unprintable failed>"
    assert not letter.replayable
