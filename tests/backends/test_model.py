"""Claims on a few keys by several workers, in any order, compared with a model of a cache.

In memory a claim has no lease: there none runs out.
"""

from functools import partial
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
    """A rule that needs a claim: the last one or an earlier one."""
    return lambda method: precondition(lambda self: self.claims)(
        rule(older=OLDER, **arguments)(method)
    )


class Claims(RuleBasedStateMachine):
    """Every step on the caches and on the model.

    :param caches: one for each process, all on the same store.
    :param age: lets seconds pass in the store; None: claims have no leases there.
    :param engine: for transactions with other work; None: the store has none.
    """

    def __init__(self, caches, age, engine):
        super().__init__()
        self.caches = caches
        self.age = age
        self.engine = engine
        self.example = next(examples)
        self.rows = {}
        self.claims = []
        self.fences = dict.fromkeys(KEYS, 0)

    def name(self, key):
        return f"example {self.example}/{key}"

    def claim(self, older):
        return self.claims[-1 - older % len(self.claims)]

    def row_of(self, claim):
        """The row that the claim holds, or None."""
        row = self.rows.get(claim.key[-1])
        return row if row is not None and row.claim is claim else None

    # -- taking a key ------------------------------------------------------------------------------

    @rule(
        key=st.sampled_from(KEYS),
        worker=st.sampled_from(WORKERS),
        fresh=st.sampled_from([False, False, False, True]),
        cache=st.integers(0, 1),
        takeover=st.sampled_from([None, None, *WORKERS]),
    )
    def begin(self, key, worker, fresh, cache, takeover=None):
        row = self.rows.get(key) or Row()
        begin = self.caches[cache].begin
        if self.age is None:
            takeover = None
        else:
            begin = partial(begin, takeover=takeover)
        if row.claim is not None and row.worker not in (worker, takeover) and not row.over:
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
        end=st.sampled_from([None, "commit", "rollback"]),
    )
    def fail(self, older, failures, held, phase, end):
        claim = self.claim(older)
        row = self.row_of(claim)
        record = failing(claim, failures, held=held, phase=phase)

        def step(cache):
            if held or self.engine is None or end is None:
                return cache.fail(claim, record)
            with self.engine.connect() as connection:
                cache.fail(claim, record, connection=connection)
                getattr(connection, end)()

        written = self.write(row, step)
        if written and (held or self.engine is None or end != "rollback"):
            row.failures, row.phase, row.lost, row.over = failures, phase, None, False
            row.claim = claim if held else None

    @with_a_claim(remember=st.sampled_from([None, 1e9]))
    def succeed(self, older, remember):
        claim = self.claim(older)
        row = self.row_of(claim)
        if self.write(row, lambda cache: cache.succeed(claim, remember=remember)):
            self.rows[claim.key[-1]] = None if remember is None else Row(phase="done")

    def write(self, row, step):
        """Run a step of a claim; return whether the claim was held."""
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
def test_cache_matches_the_model_in_any_history(kind, number, request):
    if kind == "memory":
        caches, age, engine = [MemoryRetryContextCache()] * 2, None, None
    else:
        store = opened(kind, request)
        request.addfinalizer(store.close)
        # The clock stands: nothing is renewed but by a step of ours.
        caches, age = [store.cache(clock=VirtualClock()) for _ in range(2)], store.age
        engine = getattr(store, "engine", None)
    caches[0].peek("any")  # the tables are there
    run_state_machine_as_test(
        lambda: Claims(caches, age, engine),
        settings=settings(max_examples=number, stateful_step_count=30),
    )
