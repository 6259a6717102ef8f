"""The renewal of a run's lease while its process works on it."""

import asyncio
import threading

import pytest

from retrytemplate.batch.errors import RunLostError
from retrytemplate.batch.journal import runs
from retrytemplate.batch.runner import heartbeat
from retrytemplate.batch.runner.heartbeat import AsyncHeartbeat, Heartbeat
from tests.support.step_fixture import run

LEASE = 0.003


class Renewals:
    """Answers renewals in order: raises an exception, or succeeds; sets ``last`` at the last."""

    def __init__(self, *answers):
        self.answers, self.last = list(answers), threading.Event()

    def __call__(self):
        answer = self.answers.pop(0) if self.answers else None
        if not self.answers:
            self.last.set()
        if answer is not None:
            raise answer

    async def asynchronous(self):
        self()


def beat(renewals, mode):
    """A heartbeat that ran until the last answer."""
    if mode == "sync":
        with Heartbeat(renewals, LEASE) as made:
            assert renewals.last.wait(10)
        return made

    async def main():
        async with AsyncHeartbeat(renewals.asynchronous, LEASE) as made:
            assert await asyncio.to_thread(renewals.last.wait, 10)
        return made

    return asyncio.run(main())


def test_renewal_that_fails_is_tried_again(mode):
    beat(Renewals(OSError("no connection"), None), mode).check()


def test_lease_has_time_for_three_renewals(monkeypatch):
    rests = []
    monkeypatch.setattr(heartbeat, "repeat_until_stopped", lambda _, rest: rests.append(rest) or ())
    with Heartbeat(heartbeat.never, lease=30.0):
        pass
    assert rests == [10.0]


async def test_renewal_in_progress_is_completed_by_the_end_of_the_run():
    begun, answer, renewed = asyncio.Event(), asyncio.Event(), []

    async def renew():
        begun.set()
        await answer.wait()
        renewed.append(True)

    async with AsyncHeartbeat(renew, LEASE):
        await begun.wait()
        asyncio.get_running_loop().call_soon(answer.set)
    assert renewed


def test_run_that_another_process_has_taken_is_reported(mode):
    lost = beat(Renewals(None, RunLostError("run 1 is another's")), mode)
    with pytest.raises(RunLostError, match="run 1"):
        lost.check()


def test_lease_is_renewed_while_an_item_is_processed(sqlite, mode, monkeypatch):
    renewed = threading.Event()
    monkeypatch.setattr(heartbeat, "SHARE", 1e-4)
    monkeypatch.setattr(runs, "renew", lambda *_: renewed.set())

    def process(item):
        return item if renewed.wait(10) else None

    async def process_async(item):
        return await asyncio.to_thread(process, item)

    step = sqlite.step([1], processor=process if mode == "sync" else process_async)
    assert run(step, mode).written == 1


def test_lost_lease_ends_the_run_before_its_next_effect(sqlite, mode, monkeypatch):
    def check(_):
        raise RunLostError("run 1 is another's")

    kind = Heartbeat if mode == "sync" else AsyncHeartbeat
    monkeypatch.setattr(kind, "check", check)
    with pytest.raises(RunLostError):
        run(sqlite.step([1]), mode)
    assert sqlite.calls == []
