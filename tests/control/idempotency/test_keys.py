"""The key of an operation: its identity, and rejected retries without a key."""

import asyncio
import contextvars
import threading
from uuid import UUID

import pytest

from retrytemplate import (
    CircuitBreakerRetryPolicy,
    FixedBackoff,
    IdempotencyRequiredError,
    MaxAttemptsRetryPolicy,
    MemoryRetryContextCache,
    MisuseError,
    NoBackoff,
    RetryListener,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
)
from retrytemplate.control import (
    CallRejected,
    ControlListener,
    Operations,
    RequireIdempotency,
    Timeout,
    idempotency_header,
    idempotency_key,
)
from retrytemplate.testing import GuardConformance, VirtualClock
from tests.support.event_loops import LOOPS
from tests.support.gc_probe import left_by


class Down(Exception):
    """The error of every call."""


class Asking:
    """A function that requests its key and fails; ``keys`` are the received ones."""

    def __init__(self, *label):
        self.label = label
        self.keys = []

    def __call__(self, *_):
        self.keys.append(idempotency_key(*self.label))
        raise Down

    async def awaited(self, *_):
        self()


@pytest.fixture
def asking():
    return Asking()


def numbered():
    """A source of keys: k-1, k-2, ..."""
    made = []

    def source():
        made.append(f"k-{len(made) + 1}")
        return made[-1]

    return source


# -- one key per call ------------------------------------------------------------------------------


@pytest.mark.statement("S3-08")
def test_key_is_made_once_per_call_and_kept_over_attempts(asking):
    template = RetryTemplate(SimpleRetryPolicy(4))
    for _ in range(2):
        template.outcome(asking)
    first, second = asking.keys[:4], asking.keys[4:]
    assert len(asking.keys) == 8
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]


@pytest.mark.statement("S3-08")
def test_header_is_the_standard_one_and_kept_over_attempts():
    source, headers = numbered(), []

    def post():
        headers.append(idempotency_header(source=source))
        raise Down

    RetryTemplate(SimpleRetryPolicy(3)).outcome(post)
    assert headers == [{"Idempotency-Key": "k-1"}] * 3
    assert source() == "k-2"


def test_key_is_a_random_uuid_by_default(asking):
    RetryTemplate(SimpleRetryPolicy(1)).outcome(asking)
    assert UUID(asking.keys[0]).version == 4


def by_call(template, asking):
    template.call(asking)


def by_execute(template, asking):
    template.execute(asking)


def by_wrap(template, asking):
    template.wrap(lambda: asking())()


def by_blocks(template, asking):
    for attempt in template.attempts():
        with attempt:
            asking()


def by_wrapped_generator(template, asking):
    @template.wrap
    def generates():
        asking()
        yield

    next(generates())


@pytest.mark.parametrize("driver", [by_call, by_execute, by_wrap, by_blocks, by_wrapped_generator])
@pytest.mark.parametrize(
    "settings",
    [{}, {"backoff": FixedBackoff(1.0)}, {"listeners": [RetryListener()], "attempt_timeout": 60}],
    ids=["inline", "waiting", "by the engine"],
)
def test_key_is_the_same_for_each_entry_point(driver, settings, asking):
    template = RetryTemplate(**{"backoff": NoBackoff(), "clock": VirtualClock()} | settings)
    with pytest.raises(Down):
        driver(template, asking)
    assert len(asking.keys) == 3
    assert len(set(asking.keys)) == 1


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_concurrent_tasks_have_each_their_own_key(loop):
    several = [Asking() for _ in range(3)]
    template = RetryTemplate(backoff=FixedBackoff(1.0), clock=VirtualClock())

    def task(asking):
        async def run():
            assert (await template.outcome_async(asking.awaited)).attempts == 3

        return run

    async def main():
        await loop.together(*map(task, several))

    loop.run(main)
    assert [len(set(each.keys)) for each in several] == [1, 1, 1]
    assert len({key for each in several for key in each.keys}) == 3


def test_threads_that_inherit_the_context_share_the_key():
    barrier, keys = threading.Barrier(8), []

    def hedged():
        def ask():
            barrier.wait(60)
            keys.append(idempotency_key())

        threads = [
            threading.Thread(target=contextvars.copy_context().run, args=(ask,)) for _ in range(8)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    RetryTemplate().call(hedged)
    assert len(keys) == 8
    assert len(set(keys)) == 1


def test_child_tasks_share_the_key():
    async def ask():
        return idempotency_key()

    async def hedged():
        return await asyncio.gather(ask(), ask())

    first, second = asyncio.run(RetryTemplate().call_async(hedged))
    assert first == second


def test_recovery_has_the_key(asking):
    recovered = RetryTemplate().execute(asking, recovery=lambda context: idempotency_key())
    assert {recovered} == set(asking.keys)


@pytest.mark.parametrize("ask", [idempotency_key, idempotency_header])
def test_key_outside_of_an_execution_is_misuse(ask):
    with pytest.raises(MisuseError, match="every call would make another key"):
        ask()


def test_incoming_key_can_be_forwarded():
    def handle(context):
        context.attributes["idempotency_key"] = "from the client"
        return idempotency_key()

    assert RetryTemplate().execute(handle) == "from the client"


def test_request_without_incoming_key_gets_its_own():
    def handle(context):
        context.attributes["idempotency_key"] = None
        return idempotency_key()

    assert UUID(RetryTemplate().execute(handle))


@pytest.mark.parametrize("key", ["", "a\nb", "ä", 17, None], ids=repr)
def test_key_that_no_header_can_hold_is_rejected(key):
    with pytest.raises(ValueError, match="idempotency_key must be a string of printable ASCII"):
        RetryTemplate(SimpleRetryPolicy(1)).call(lambda: idempotency_key(source=lambda: key))


@pytest.mark.parametrize("label", ["", 17])
def test_label_must_be_a_string(label):
    with pytest.raises(TypeError, match="label must be"):
        idempotency_key(label)


def test_source_must_be_callable():
    with pytest.raises(TypeError, match="source must be callable, got 'k-17'"):
        idempotency_key(source="k-17")


# -- across deliveries -----------------------------------------------------------------------------


def deliver(template, asking, key="order-17"):
    with pytest.raises(Down):
        template.execute(asking, state=RetryState(key))


@pytest.mark.statement("S1-82")
def test_redelivery_has_the_same_key(asking):
    template = RetryTemplate(SimpleRetryPolicy(3), name="charge")
    deliver(template, asking)
    deliver(template, asking)
    assert len(set(asking.keys)) == 1


def test_key_is_the_same_in_another_process_without_a_store():
    """As after a crash of the first worker."""
    keys = []
    for cache in (MemoryRetryContextCache(), MemoryRetryContextCache()):
        template = RetryTemplate(cache=cache, name="charge")
        template.execute(lambda context: keys.append(idempotency_key()), state=RetryState("a"))
    assert keys[0] == keys[1] == "4d10a704-44ce-55ef-91b7-e327b9367e3a"


def test_other_messages_and_templates_have_other_keys(asking):
    for name in ("charge", "refund"):
        for key in ("order-17", 17, ("order", 17), "\ud800"):
            deliver(RetryTemplate(name=name), asking, key)
    assert len(set(asking.keys)) == 8


def test_key_is_stored_and_kept_when_the_template_is_renamed(asking):
    cache = MemoryRetryContextCache()
    deliver(RetryTemplate(name="charge", cache=cache), asking)
    record = cache.peek("charge/s:order-17")
    assert record.attributes == {"idempotency_key": asking.keys[0]}


def test_untracked_state_has_no_stable_key(asking):
    template = RetryTemplate(name="charge")
    for _ in range(2):
        with pytest.raises(Down):
            template.execute(asking, state=RetryState.untracked())
    assert len(set(asking.keys)) == 2


def test_circuit_key_is_not_the_key_of_its_calls(asking):
    circuit = CircuitBreakerRetryPolicy(SimpleRetryPolicy(9))
    template = RetryTemplate(circuit, name="billing")
    state = RetryState("billing", rollback_for=lambda error: False)
    for _ in range(3):
        template.outcome(lambda: None)
        template.bind(state=state, recovery=lambda context: None).outcome(asking)
    assert len(asking.keys) == 3
    assert len(set(asking.keys)) == 3


# -- nesting ---------------------------------------------------------------------------------------


def test_key_belongs_to_the_outermost_execution(asking):
    inner = RetryTemplate(SimpleRetryPolicy(2))
    RetryTemplate(SimpleRetryPolicy(3)).outcome(lambda: inner.call(asking))
    assert len(asking.keys) == 6
    assert len(set(asking.keys)) == 1


def test_named_inner_template_has_its_own_stable_key():
    charging, mailing = Asking(), Asking()
    charge = RetryTemplate(SimpleRetryPolicy(2), name="charge")
    mail = RetryTemplate(SimpleRetryPolicy(2), name="mail")

    def handle():
        charge.outcome(charging)
        mail.call(mailing)

    RetryTemplate(SimpleRetryPolicy(2), name="handle").outcome(handle)
    assert len(charging.keys) == len(mailing.keys) == 4
    assert len(set(charging.keys)) == len(set(mailing.keys)) == 1
    assert set(charging.keys) != set(mailing.keys)


def test_labels_distinguish_effects_of_one_operation():
    seen = []

    def work():
        seen.append([idempotency_key(label) for label in (None, "charge", "mail")])
        raise Down

    RetryTemplate(SimpleRetryPolicy(3)).outcome(work)
    assert seen[0] == seen[1] == seen[2]
    assert len(set(seen[0])) == 3


def test_name_and_label_with_the_same_text_have_different_keys():
    outer = RetryTemplate()
    key = "k-17"

    def work(context):
        context.attributes["idempotency_key"] = key
        return idempotency_key("charge"), RetryTemplate(name="charge").call(idempotency_key)

    by_label, by_name = outer.execute(work)
    assert len({key, by_label, by_name}) == 3


def test_nearest_execution_with_a_state_key_is_the_operation(asking):
    items = RetryTemplate(SimpleRetryPolicy(1), name="item")

    def all_items():
        for number in (1, 2):
            with pytest.raises(Down):
                items.execute(asking, state=RetryState(number))

    RetryTemplate().call(all_items)
    once = list(asking.keys)
    assert len(set(once)) == 2
    items.with_(cache=MemoryRetryContextCache()).outcome(lambda: None)
    asking.keys.clear()
    deliver(items.with_(cache=MemoryRetryContextCache()), asking, 1)
    assert asking.keys == once[:1]


def test_execution_started_before_a_deadline_is_found(asking):
    RetryTemplate().outcome(lambda: Timeout(60.0).call(asking))
    assert len(set(asking.keys)) == 1


# -- in an operation -------------------------------------------------------------------------------


@pytest.mark.statement("S1-82")
def test_operation_key_is_used_on_every_attempt_of_every_run(asking):
    operations = Operations(name="payments")
    template = RetryTemplate(SimpleRetryPolicy(2))
    for _ in range(2):
        with pytest.raises(Down):
            operations.call("order-17", template.call, asking)
    assert len(asking.keys) == 4
    assert len(set(asking.keys)) == 1
    with Operations(name="payments").start_once("order-17") as operation:
        assert operation.idempotency_key == asking.keys[0] == idempotency_key()
        operation.fail()


def test_retry_around_an_operation_keeps_its_key(asking):
    operations = Operations()
    RetryTemplate(SimpleRetryPolicy(3), name="outer").outcome(operations.call, "a", asking)
    Operations().idempotent(lambda: "a").wrap(lambda: None)()
    with pytest.raises(Down):
        Operations().call("a", asking)
    assert len(asking.keys) == 4
    assert len(set(asking.keys)) == 1


def test_execution_with_a_state_key_inside_an_operation_is_nearer():
    template = RetryTemplate(name="charge")

    def keyed():
        return template.execute(lambda context: idempotency_key(), state=RetryState("a"))

    assert Operations().call("another", keyed) == keyed()


def test_operation_key_is_not_current_after_its_end():
    operations = Operations()
    operations.call("a", lambda: None)
    with operations.start_once("b") as operation:
        operation.complete()
    with pytest.raises(MisuseError):
        idempotency_key()


def test_coroutine_closed_in_an_operation_leaves_no_current_key():
    async def suspended():
        await asyncio.Event().wait()

    async def main():
        coroutine = Operations().call_async("a", suspended)
        coroutine.send(None)
        coroutine.close()
        with pytest.raises(MisuseError):
            idempotency_key()

    asyncio.run(main())


def test_closed_coroutine_restores_the_key_of_the_outer_operation():
    async def suspended():
        await asyncio.Event().wait()

    async def outer():
        before = idempotency_key()
        coroutine = Operations().call_async("inner", suspended)
        coroutine.send(None)
        coroutine.close()
        return before, idempotency_key()

    before, after = asyncio.run(Operations().call_async("outer", outer))
    assert before == after


def test_operation_block_can_be_nested_in_itself():
    with Operations().start_once("a") as operation:
        with operation:
            assert idempotency_key() == operation.idempotency_key
            operation.complete()
        with pytest.raises(MisuseError):
            idempotency_key()


def test_operation_can_be_left_in_a_copy_of_the_context():
    operation = Operations().start_once("a")
    operation.__enter__()
    operation.complete()

    def leave():
        operation.__exit__(None, None, None)
        with pytest.raises(MisuseError):
            idempotency_key()

    contextvars.copy_context().run(leave)


def test_asynchronous_block_has_the_key_of_its_operation():
    async def main():
        async with await Operations().start_once_async("a") as operation:
            assert idempotency_key() == operation.idempotency_key
            await operation.complete_async()

    asyncio.run(main())


def test_inner_operation_has_its_own_key():
    operations = Operations()

    def outer():
        before = idempotency_key()
        return [before, operations.call("inner", idempotency_key), idempotency_key()]

    before, inner, after = operations.call("outer", outer)
    assert before == after != inner


# -- no retry without a key ------------------------------------------------------------------------


class TestKit(GuardConformance):
    def make(self):
        return RequireIdempotency()


class TestKitOfADeclaredOne(GuardConformance):
    def make(self):
        return RequireIdempotency(idempotent=True)


def guarded(guard=None, **settings):
    guards = [RequireIdempotency() if guard is None else guard]
    return RetryTemplate(**{"policy": SimpleRetryPolicy(3), "guards": guards} | settings)


def failing(*_):
    raise Down


@pytest.mark.statement("S0-34")
def test_call_without_a_key_is_not_retried():
    outcome = guarded(name="payment").outcome(failing)
    assert outcome.attempts == 1
    assert type(outcome.exception) is IdempotencyRequiredError
    assert type(outcome.exception.__cause__) is Down
    assert outcome.exception.name == "idempotency"
    assert str(outcome.exception) == (
        "payment is not retried: without an idempotency key it might have its effect twice"
    )


def test_request_without_incoming_key_is_not_retried():
    def handle(context):
        context.attributes["idempotency_key"] = None
        raise Down

    with pytest.raises(IdempotencyRequiredError):
        guarded().execute(handle)


@pytest.mark.statement("S0-34")
def test_call_that_requested_its_key_is_retried(asking):
    assert guarded().outcome(asking).attempts == 3


@pytest.mark.statement("S0-34")
def test_call_declared_idempotent_is_retried():
    assert guarded(RequireIdempotency(idempotent=True)).outcome(failing).attempts == 3


def test_function_of_the_context_declares_idempotent_failures():
    def never_left(context):
        return isinstance(context.last_exception, ConnectionRefusedError)

    failures = [ConnectionRefusedError(), ConnectionResetError()]

    def send():
        raise failures.pop(0)

    outcome = guarded(RequireIdempotency(idempotent=never_left)).outcome(send)
    assert outcome.attempts == 2
    assert type(outcome.exception.__cause__) is ConnectionResetError


def test_recovery_handles_a_call_that_is_not_retried():
    assert guarded(recovery=lambda context: "look it up").call(failing) == "look it up"


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "trio"])
def test_asynchronous_calls_are_guarded(loop, asking):
    async def awaited():
        raise Down

    async def main():
        template = guarded()
        without, keyed = (
            await template.outcome_async(awaited),
            await template.outcome_async(asking.awaited),
        )
        assert (without.attempts, keyed.attempts) == (1, 3)

    loop.run(main)


def test_key_requested_by_an_inner_template_allows_outer_retries(asking):
    inner = RetryTemplate(SimpleRetryPolicy(1))
    assert guarded().outcome(lambda: inner.call(asking)).attempts == 3


def test_key_of_an_outer_operation_allows_retries_inside(asking):
    once = RetryTemplate(SimpleRetryPolicy(1))
    outcomes = []

    def middle():
        outcomes.append(guarded().outcome(lambda: once.call(asking)))

    once.call(middle)
    Operations().call("a", middle)
    assert [each.attempts for each in outcomes] == [3, 3]


def test_key_of_an_earlier_call_does_not_allow_the_next(asking):
    template = guarded()
    template.outcome(asking)
    assert template.outcome(failing).attempts == 1


def test_redelivery_of_an_operation_with_a_key_is_retried(asking):
    template = guarded(policy=MaxAttemptsRetryPolicy(4), name="charge")
    state = RetryState("order-17", rollback_for=Down)
    with pytest.raises(Down):
        template.execute(asking, state=state)
    calls = []

    def fails_before_it_sends():
        calls.append(current_context().attempt)
        raise OSError

    with pytest.raises(Exception, match="exhausted after 4 failed attempts"):
        template.bind(state=state).call(fails_before_it_sends)
    assert calls == [2, 3, 4]


def test_each_rejection_is_reported():
    events = []

    class Listener(ControlListener):
        def on_event(self, event):
            events.append(event)

    guard = RequireIdempotency(name="payments", listeners=[Listener()])
    outcome = guarded(guard).outcome(failing)
    assert events == [CallRejected(name="payments", error=outcome.exception)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"idempotent": "yes"}, "idempotent must be callable, got 'yes'"),
        ({"idempotent": Asking.awaited}, "idempotent must be a plain function, got the coroutine"),
        ({"name": ""}, "name must be a non-blank str, got ''"),
        ({"listeners": [17]}, "listeners: each must be an object with the methods on_event"),
    ],
)
def test_settings_out_of_range_are_rejected(settings, message):
    with pytest.raises(TypeError, match=message):
        RequireIdempotency(**settings)


def test_asking_leaves_no_cycle():
    def asks():
        RetryTemplate().call(idempotency_key)
        Operations().call("a", idempotency_key)
        RetryTemplate(SimpleRetryPolicy(1), name="a").outcome(Asking())

    assert left_by(asks) == 0


def test_rejected_retry_leaves_no_cycle():
    template = RetryTemplate(guards=[RequireIdempotency()])
    assert type(template.outcome(int, "x").exception) is IdempotencyRequiredError
    assert left_by(lambda: template.outcome(int, "x")) == 0
