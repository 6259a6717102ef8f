"""Any history of two workers on one queue equals that of a model in memory."""

import asyncio
from tempfile import TemporaryDirectory

from attrs import define
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from retrytemplate.workers import DeadLetter, SQLSource
from tests.support.job_queues import JobStore

LEASE = 100.0


@define
class Expected:
    """A job of the model; *due* is the end of its delay or lease."""

    id: str
    priority: int
    due: float
    state: str = "waiting"
    fence: int = 0
    deliveries: int = 0
    crashes: int = 0


class Workers(RuleBasedStateMachine):
    """Times move by at least 50 s in one step: the duration of a test does not count."""

    deliveries = Bundle("deliveries")

    def __init__(self):
        super().__init__()
        self.folder = TemporaryDirectory()
        self.store = JobStore("sqlite", f"sqlite:///{self.folder.name}/jobs.db")
        self.runner = asyncio.Runner()
        self.jobs = self.store.queue()
        self.sources = [SQLSource(self.jobs, lease=LEASE) for _ in range(2)]
        self.run(self.jobs.prepare())
        self.model = {}
        self.now = 0.0

    def run(self, coroutine):
        return self.runner.run(coroutine)

    def teardown(self):
        self.run(self.jobs.close())
        self.runner.close()
        self.store.close()
        self.folder.cleanup()

    def is_due(self, job):
        return job.state in ("waiting", "running") and job.due <= self.now

    def holds(self, delivery):
        job, fence, _ = delivery
        return job.fence == fence and job.state == "running"

    @rule(key=st.sampled_from("ab"), delay=st.sampled_from([0, 0, 150]), priority=st.integers(0, 1))
    def enqueue(self, key, delay, priority):
        job_id = self.run(self.jobs.enqueue(key, key, delay=delay, priority=priority))
        job = self.model.setdefault(key, Expected(job_id, priority, self.now + delay))
        assert job.id == job_id

    @rule(target=deliveries, worker=st.integers(0, 1))
    def receive(self, worker):
        source = self.sources[worker]
        messages = self.run(source.receive(1, 0.0))
        due = [job for job in self.model.values() if self.is_due(job)]
        assert len(messages) == min(1, len(due))
        if not messages:
            return Expected("", 0, 0.0), -1, None
        [message] = messages
        [job] = [job for job in due if job.id == message.id]
        assert job.priority == max(each.priority for each in due)
        job.crashes += job.state == "running"
        job.state, job.due = "running", self.now + LEASE
        job.fence += 1
        job.deliveries += 1
        assert message.delivery_count == job.deliveries
        return job, job.fence, message

    @rule(target=deliveries)
    def lose_a_lease(self):
        self.age(200)
        return self.receive(0)

    @rule(delivery=deliveries)
    def acknowledge(self, delivery):
        job, fence, message = delivery
        if message is not None:
            rejected = self.run(self.sources[0].acknowledge([message]))
            is_ours = job.fence == fence and job.state in ("running", "completed")
            assert (rejected == []) is is_ours
            if is_ours:
                job.state = "completed"

    @rule(delivery=deliveries, delay=st.sampled_from([0, 150]))
    def requeue(self, delivery, delay):
        job, _, message = delivery
        if message is not None:
            is_ours = self.holds(delivery)
            self.run(self.sources[0].requeue(message, delay, "failed"))
            if is_ours:
                job.state, job.due = "waiting", self.now + delay

    @rule(delivery=deliveries)
    def release(self, delivery):
        job, _, message = delivery
        if message is not None:
            is_ours = self.holds(delivery)
            self.run(self.sources[1].release([message]))
            if is_ours:
                job.state, job.due, job.deliveries = "waiting", self.now, job.deliveries - 1

    @rule(delivery=deliveries)
    def extend(self, delivery):
        job, fence, message = delivery
        if message is not None:
            lost = self.run(self.sources[0].extend([message]))
            is_ours = job.fence == fence and job.state in ("running", "completed")
            assert (lost == []) is is_ours
            if self.holds(delivery):
                job.due = self.now + LEASE

    @rule(delivery=deliveries)
    def dead_letter(self, delivery):
        job, _, message = delivery
        if message is not None:
            is_ours = self.holds(delivery)
            letter = DeadLetter("l", "k", "bad", "handler", 1, 0, (), 1.0, 2.0, message)
            self.run(self.sources[0].dead_letter(message, letter))
            if is_ours:
                job.state = "dead_lettered"

    @rule(key=st.sampled_from("ab"))
    def replay(self, key):
        job = self.model.get(key)
        if job is not None:
            done = self.run(self.jobs.replay(job.id, by="ada", reason="fixed"))
            assert done is (job.state == "dead_lettered")
            if done:
                job.state, job.due, job.deliveries, job.crashes = "waiting", self.now, 0, 0

    @rule(seconds=st.sampled_from([50, 200, 200]))
    def age(self, seconds):
        self.store.age(seconds)
        self.now += seconds

    @invariant()
    def rows_equal_the_model(self):
        if not self.model:
            return
        for job in self.model.values():
            row = self.store.row(job.id)
            found = [row[name] for name in ("state", "fence", "deliveries", "crashes")]
            assert found == [job.state, job.fence, job.deliveries, job.crashes]


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
