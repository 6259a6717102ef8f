"""A state by itself: the conditions of a stateful execution."""

import copy
import operator
import pickle

import pytest

from retrytemplate import ExceptionClassifier, RetryState


def pickled(state):
    return pickle.loads(pickle.dumps(state))  # noqa: S301  # our own


@pytest.mark.parametrize("driver", [copy.copy, copy.deepcopy, pickled])
@pytest.mark.parametrize(
    "state",
    [
        RetryState("order-17", force_refresh=True, defer_backoff="raise", remember=60),
        RetryState(("eu", 17, b"x")),
        RetryState("key", exclusive=False),
        RetryState("key", rollback_for=OSError),
        RetryState("key", rollback_for=(OSError, KeyError)),
        RetryState("key", rollback_for=ExceptionClassifier({OSError: True})),
        RetryState("key", rollback_for=operator.truth),
        RetryState.untracked(rollback_for=OSError),
    ],
    ids=repr,
)
def test_copy_equals_the_original(state, driver):
    again = driver(state)

    assert (again, hash(again), repr(again)) == (state, hash(state), repr(state))
    assert (again.rolls_back is None) == (state.rolls_back is None)
    if state.rolls_back is not None:
        failures = OSError(), KeyError(), ValueError()
        assert [*map(again.rolls_back, failures)] == [*map(state.rolls_back, failures)]
