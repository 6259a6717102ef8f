"""The table of dispositions in the engine's documentation, row by row."""

import re
from pathlib import Path

import pytest

import retrytemplate._engine as engine
from retrytemplate import (
    AlreadyCompletedError,
    ExhaustedRetryError,
    Guard,
    MemoryRetryContextCache,
    MisuseError,
    Rejected,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    TerminatedRetryError,
    Veto,
)
from retrytemplate._engine.execution import Execution
from retrytemplate.errors import AttemptInProgressError
from retrytemplate.policies import RetryPolicy
from retrytemplate.testing import VirtualClock, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "internals" / "engine.md"
KEY = "order-17"
STORED_KEY = RetryTemplate().scoped_key(KEY)


class Failure(Exception):
    """A failed attempt."""


class Scenario:
    """A template with a key, which stores the disposition of each execution."""

    def __init__(self, dispositions):
        self.dispositions = dispositions
        self.cache = MemoryRetryContextCache()
        self.during = []

    def record(self):
        return self.cache.peek(STORED_KEY)

    def execute(self, *, fails=False, raises=None, recovery=None, state=None, **settings):
        async def attempt(context):
            self.during.append(self.record())
            if raises is not None:
                raise raises
            if fails is True or (fails and context.attempt <= fails):
                raise Failure
            return context.attempt

        settings = {"clock": VirtualClock(), "cache": self.cache} | settings
        template = RetryTemplate(settings.pop("policy", SimpleRetryPolicy(2)), **settings)
        state = state or RetryState(KEY)
        return run(template.execute_async(attempt, recovery=recovery, state=state))


@pytest.fixture
def scenario(monkeypatch):
    dispositions = []
    original = Execution.run

    def recording(self, *arguments):
        reply = yield from original(self, *arguments)
        dispositions.append(self.disposition.upper())
        return reply

    monkeypatch.setattr(Execution, "run", recording)
    return Scenario(dispositions)


def rows():
    """The rows of the table in the documentation of the engine: event, disposition, record."""
    lines = re.findall(r"^\| (.+) \|$", engine.__doc__, re.MULTILINE)
    return [tuple(cell.strip() for cell in line.split(" | ")) for line in lines[1:]]


class Vetoing(RetryListener):
    def open(self, context):
        raise Veto("closed for maintenance")


class FailingOnError(RetryListener):
    def on_error(self, context, failure):
        raise ValueError("a defect of the listener")


class Rejecting(Guard):
    def admit(self, context):
        raise Rejected("no capacity")


class Unresolved(RetryPolicy):
    def allows(self, failures, failure):
        return True

    def resolved(self):
        raise ValueError("a defect of the settings")


def test_not_started_leaves_the_key_unchanged(scenario):
    with pytest.raises(Failure):
        scenario.execute(fails=True)
    before = scenario.record()
    with pytest.raises(ValueError, match="defect of the settings"):
        scenario.execute(policy=Unresolved())
    claim = scenario.cache.begin(STORED_KEY, worker="another:1:1")
    with pytest.raises(AttemptInProgressError):
        scenario.execute()
    scenario.cache.release(claim)
    assert scenario.dispositions[1:] == ["NOT_STARTED"] * 2
    assert scenario.record() == before


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"listeners": [Vetoing()]}, TerminatedRetryError),
        ({"guards": [Rejecting()]}, Rejected),
        ({"raises": MisuseError("a defect of the caller")}, MisuseError),
    ],
    ids=["veto", "guard", "passthrough"],
)
def test_released_does_not_count_the_attempt(scenario, settings, error):
    with pytest.raises(error):
        scenario.execute(**settings)
    assert scenario.dispositions == ["RELEASED"]
    assert scenario.record() is None


def test_completed_deletes_the_record(scenario):
    with pytest.raises(Failure):
        scenario.execute(fails=True)
    assert scenario.execute() == 2
    assert scenario.dispositions[1:] == ["COMPLETED"]
    assert scenario.record() is None


def test_completed_leaves_a_marker_with_remember(scenario):
    scenario.execute(state=RetryState(KEY, remember=60.0))
    assert scenario.dispositions == ["COMPLETED"]
    with pytest.raises(AlreadyCompletedError):
        scenario.execute()


def test_failure_retried_in_the_call_is_recorded_before_the_next_attempt(scenario):
    state = RetryState(KEY, rollback_for=lambda failure: False)
    assert scenario.execute(fails=1, state=state) == 2
    assert scenario.dispositions == ["COMPLETED"]
    first, second = scenario.during
    assert first is None
    assert (second.failures, second.worker is not None) == (1, True)


def test_rethrown_failure_is_retained(scenario):
    with pytest.raises(Failure):
        scenario.execute(fails=True)
    assert scenario.dispositions == ["RETAINED"]
    assert (scenario.record().phase, scenario.record().attempts) == ("idle", 1)


def test_error_of_on_error_retains_the_failure(scenario):
    with pytest.raises(ValueError, match="defect of the listener"):
        scenario.execute(fails=True, listeners=[FailingOnError()])
    assert scenario.dispositions == ["RETAINED"]
    assert scenario.record().attempts == 1


def test_recovery_runs_in_the_recovering_phase_and_completes(scenario):
    phases = []

    async def recovery(context):
        phases.append((context.exhausted, scenario.record().phase))
        return "recovered"

    with pytest.raises(Failure):
        scenario.execute(fails=True, policy=SimpleRetryPolicy(1))
    assert scenario.execute(recovery=recovery, policy=SimpleRetryPolicy(1)) == "recovered"
    assert phases == [(True, "recovering")]
    assert scenario.dispositions[1:] == ["COMPLETED"]
    assert scenario.record() is None


def test_exhausted_without_recovery_completes_the_key(scenario):
    with pytest.raises(Failure):
        scenario.execute(fails=True, policy=SimpleRetryPolicy(1))
    with pytest.raises(ExhaustedRetryError):
        scenario.execute(policy=SimpleRetryPolicy(1))
    assert scenario.dispositions[1:] == ["COMPLETED"]
    assert scenario.record() is None


def test_recovery_that_raises_runs_again_with_the_next_delivery(scenario):
    async def failing(context):
        raise ValueError("a defect of the recovery")

    async def recovery(context):
        return "recovered"

    policy = SimpleRetryPolicy(1)
    with pytest.raises(Failure):
        scenario.execute(fails=True, policy=policy)
    with pytest.raises(ValueError, match="defect of the recovery"):
        scenario.execute(recovery=failing, policy=policy)
    assert scenario.record().phase == "recovering"
    assert scenario.execute(recovery=recovery, policy=policy) == "recovered"
    assert scenario.dispositions[1:] == ["COMPLETED"] * 2
    assert scenario.record() is None


def test_signal_before_the_first_failure_releases_the_key(scenario):
    with pytest.raises(KeyboardInterrupt):
        scenario.execute(raises=KeyboardInterrupt())
    assert scenario.dispositions == ["RELEASED"]
    assert scenario.record() is None


def test_signal_after_a_failure_retains_it(scenario):
    class Interrupting(RetryListener):
        def on_error(self, context, failure):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        scenario.execute(fails=True, listeners=[Interrupting()])
    assert scenario.dispositions == ["RETAINED"]
    assert scenario.record().attempts == 1


def test_table_in_the_page_is_the_one_of_the_engine():
    table = re.search(r"^\| event .*?(?=\n\n)", engine.__doc__, re.MULTILINE | re.DOTALL).group()
    assert table in PAGE.read_text(encoding="utf-8")


def test_each_disposition_is_in_the_table():
    named = {row[1] for row in rows()}
    assert named == {"NOT_STARTED", "RELEASED", "COMPLETED", "RETAINED", "EXHAUSTED", "none yet"}
