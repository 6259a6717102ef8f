"""Errors can be copied and pickled, as a pool of processes does."""

import copy
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from retrytemplate import AttemptRecord, Rejected, RetryError, errors

FIELDS = {
    "AttemptInProgressError": {"worker": "host:17:1", "lease_until": 1794300000.5},
    "AttemptLostError": {"worker": "host:17:1!", "exclusive": True},
    "MissingExtraError": {"name": "rich"},
    "RetryLater": {"retry_after": 2.5},
    "UnacceptableResultError": {"result": {"status": 202}},
} | {
    kind.__name__: {"name": "billing", "retry_after": 2.5}
    for kind in (Rejected, *Rejected.__subclasses__())
}
HISTORY = (AttemptRecord(1, None, 1794300000.5, "OSError", "reset"),)


def made(name):
    kind = getattr(errors, name)
    if kind is errors.RecordedFailure:
        return kind("ValueError", "no price", kind("builtins.KeyError", "'sku'"))
    return kind("what happened", **FIELDS.get(name, {}))


def pickled(protocol):
    return lambda error: pickle.loads(pickle.dumps(error, protocol))  # noqa: S301  # our own


COPIES = [copy.copy, copy.deepcopy, *map(pickled, range(pickle.HIGHEST_PROTOCOL + 1))]
every_copy = pytest.mark.parametrize(
    "make_copy", COPIES, ids=["copy", "deepcopy", *map(str, range(len(COPIES) - 2))]
)


@every_copy
@pytest.mark.parametrize("name", errors.__all__)
def test_pickled_error_equals_the_original(name, make_copy):
    error = made(name)
    error.add_note("attempts: 2")
    back = make_copy(error)

    assert back is not error
    assert (type(back), str(back), back.args) == (type(error), str(error), error.args)
    assert back.__notes__ == ["attempts: 2"]
    assert {each: getattr(back, each) for each in FIELDS.get(name, ())} == FIELDS.get(name, {})


@every_copy
@pytest.mark.parametrize("name", [each for each in errors.__all__ if each.endswith("Error")])
def test_pickled_error_keeps_its_history(name, make_copy):
    error = made(name)
    error.history, error.attempts = HISTORY, 1
    back = make_copy(error)

    assert (back.history, back.attempts) == (HISTORY, 1)


@every_copy
def test_pickled_recorded_failure_keeps_its_causes(make_copy):
    back = make_copy(made("RecordedFailure"))

    assert (back.type_name, back.message) == ("ValueError", "no price")
    assert (back.cause.type_name, back.cause.message) == ("builtins.KeyError", "'sku'")
    assert back.__cause__ is back.cause
    assert back.cause.__cause__ is None


class ShopError(RetryError):
    """A user's exception with other arguments than its base class."""

    def __init__(self, *, order, reason):
        super().__init__(f"order {order}: {reason}")
        self.order = order


@every_copy
def test_pickled_custom_error_with_other_arguments_is_equal(make_copy):
    back = make_copy(ShopError(order=17, reason="no price"))

    assert (type(back), str(back), back.order) == (ShopError, "order 17: no price", 17)


def too_early():
    raise errors.RetryLater("too early", retry_after=2.5)


def test_process_pool_returns_an_error():
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    with pool, pytest.raises(errors.RetryLater, match="too early") as caught:
        pool.submit(too_early).result()

    assert caught.value.retry_after == 2.5


def test_deadline_error_without_arguments_has_known_outcome():
    assert errors.DeadlineExceededError().outcome_unknown is False
