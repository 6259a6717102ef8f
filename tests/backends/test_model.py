"""Claims on a few keys, in any order, by several workers: every cache does what a model of it says.

In memory a claim has no lease: there none runs out.
"""

from itertools import count

import pytest
from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    precondition,
    rule,
    run_state_machine_as_test,
)

from retrytemplate import (
    AlreadyCompletedError,
    AttemptInProgressError,
    LeaseLostError,
    MemoryRetryContextCache,
)
from retrytemplate.testing import VirtualClock
from tests.backends.conftest import failing, opened

LEASE = 30.0
KEYS = ("a",)
OLDER = st.sampled_from([0, 0, 0, 1, 2])  # how many later claims there are
WORKERS = ("one", "two", "three")

examples = count(1)


@define
class Row:
    """The row of a key; ``failures`` None: no record."""

    failures: int | None = None
    phase: str = "attempting"
    claim: object = None  # who holds the key; its lease may be over
    over: bool = False
    lost: str | None = None

    @property
    def worker(self):
        return None if self.claim is None else self.claim.worker


class LostHolder:
    """Restore the worker of a lost attempt as the holder of the key."""

    def __init__(self, worker):
        self.worker = worker


def with_a_claim(**arguments):
    """A rule that needs a claim, the last one or another."""
    return lambda method: precondition(lambda self: self.claims)(
        rule(older=OLDER, **arguments)(method)
    )


class Claims(RuleBasedStateMachine):
    """Every step on the caches and on the model.

    :param caches: one for each process, all on the same store.
    :param age: lets seconds pass in the store; None: claims have no leases there.
    """

    def __init__(self, caches, age):
        super().__init__()
        self.caches = caches
        self.age = age
        self.example = next(examples)
        self.rows = {}
        self.claims = []
        self.fences = dict.fromkeys(KEYS, 0)

    def name(self, key):
        return f"example {self.example}/{key}"

    def claim(self, older):
        return self.claims[-1 - older % len(self.claims)]

    def row_of(self, claim):
        """The row that the claim holds; None where it holds none any more."""
        row = self.rows.get(claim.key[-1])
        return row if row is not None and row.claim is claim else None

    # -- taking a key ------------------------------------------------------------------------------

    @rule(
        key=st.sampled_from(KEYS),
        worker=st.sampled_from(WORKERS),
        fresh=st.sampled_from([False, False, False, True]),
        cache=st.integers(0, 1),
    )
    def begin(self, key, worker, fresh, cache):
        row = self.rows.get(key) or Row()
        begin = self.caches[cache].begin
        if row.claim is not None and row.worker != worker and not row.over:
            with pytest.raises(AttemptInProgressError) as caught:
                begin(self.name(key), worker=worker, fresh=fresh)
            assert caught.value.worker == row.worker
            return
        if row.phase == "done" and not fresh:
            if row.worker != worker:  # else it is both completed and in progress
                with pytest.raises(AlreadyCompletedError):
                    begin(self.name(key), worker=worker)
            return
        claim = begin(self.name(key), worker=worker, fresh=fresh)
        if row.phase == "attempting" and row.claim is not None and row.worker != worker:
            row.lost = row.lost or row.worker
        if row.phase == "idle":
            row.phase = "attempting"
        row.claim, row.over = claim, False
        self.rows[key] = row
        assert claim.fence > self.fences[key]
        self.fences[key] = claim.fence
        assert claim.lost == (None if fresh else row.lost)
        kept = None if fresh else row.failures
        assert (None if claim.record is None else claim.record.failures) == kept
        if kept is not None and row.phase == "recovering":
            assert claim.record.phase == "recovering"
        self.claims.append(claim)

    # -- with a claim, in force or not -------------------------------------------------------------

    @with_a_claim()
    def renew(self, older):
        claim = self.claim(older)
        row = self.row_of(claim)
        if self.write(row, lambda cache: cache.renew(claim)):
            row.over = False

    @with_a_claim(
        failures=st.integers(1, 9),
        held=st.booleans(),
        phase=st.sampled_from(["idle", "recovering"]),
    )
    def fail(self, older, failures, held, phase):
        claim = self.claim(older)
        row = self.row_of(claim)
        record = failing(claim, failures, held=held, phase=phase)
        if self.write(row, lambda cache: cache.fail(claim, record)):
            row.failures, row.phase, row.lost, row.over = failures, phase, None, False
            row.claim = claim if held else None

    @with_a_claim(remember=st.sampled_from([None, 1e9]))
    def succeed(self, older, remember):
        claim = self.claim(older)
        row = self.row_of(claim)
        if self.write(row, lambda cache: cache.succeed(claim, remember=remember)):
            self.rows[claim.key[-1]] = None if remember is None else Row(phase="done")

    def write(self, row, step):
        """Make a step of a claim; whether it was in force."""
        if row is not None:
            step(self.caches[0])
            return True
        with pytest.raises(LeaseLostError):
            step(self.caches[0])
        return False

    @with_a_claim()
    def release(self, older):
        claim = self.claim(older)
        self.caches[0].release(claim)
        row = self.row_of(claim)
        if row is None:
            return
        row.claim = None
        if row.lost is not None:  # the next worker finds it again
            row.claim, row.over, row.lost = LostHolder(row.lost), True, None
        elif row.phase == "attempting":
            row.phase = "idle"
            if row.failures is None:
                self.rows[claim.key[-1]] = None

    @with_a_claim()
    def look(self, older):
        claim = self.claim(older)
        row = self.row_of(claim)
        assert self.caches[1].holds(claim) == (row is not None and not row.over)
        self.peek(claim.key[-1])

    # -- steps without a claim --------------------------------------------------------------------

    @rule(key=st.sampled_from(KEYS))
    def forget(self, key):
        self.caches[1].forget(self.name(key))
        self.rows[key] = None

    def peek(self, key):
        record, row = self.caches[1].peek(self.name(key)), self.rows.get(key)
        assert (None if record is None else record.failures) == (row and row.failures)

    @precondition(lambda self: self.age is not None)
    @rule()
    def leases_run_out(self):
        self.age(LEASE + 1)
        for row in filter(None, self.rows.values()):
            row.over = True

    @precondition(lambda self: self.age is not None)
    @rule(key=st.sampled_from(KEYS), worker=st.sampled_from(WORKERS))
    def take_over(self, key, worker):
        self.leases_run_out()
        self.begin(key, worker, fresh=False, cache=1)

    def teardown(self):
        for key in KEYS:
            self.peek(key)
            self.forget(key)


@pytest.mark.timeout(180)  # to find a short example where it fails
@pytest.mark.parametrize("number", [60, pytest.param(300, marks=pytest.mark.stress)])
@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "valkey", "memory"])
def test_every_cache_does_what_the_model_says(kind, number, request):
    if kind == "memory":
        caches, age = [MemoryRetryContextCache()] * 2, None
    else:
        store = opened(kind, request)
        request.addfinalizer(store.close)
        # The clock stands: nothing is renewed but by a step of ours.
        caches, age = [store.cache(clock=VirtualClock()) for _ in range(2)], store.age
    caches[0].peek("any")  # the tables are there
    run_state_machine_as_test(
        lambda: Claims(caches, age),
        settings=settings(max_examples=number, stateful_step_count=30),
    )
