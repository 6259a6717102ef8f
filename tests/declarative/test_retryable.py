"""``retryable`` on functions, methods and classes."""

import functools
import inspect

import pytest

from retrytemplate import (
    CircuitBreakerRetryPolicy,
    ExhaustedRetryError,
    ExponentialBackoff,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    MemoryRetryContextCache,
    MisuseError,
    RecordedFailure,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    current_context,
    retryable,
)
from retrytemplate.testing import Recorder, VirtualClock, no_waiting, run
from tests.support.flaky import RemoteError, Trouble

# -- decorated objects -------------------------------------------------------------------------


@pytest.mark.statement("S2-50")
def test_function_retries_named_errors_for_unchanged_callers():
    trouble = Trouble(2)

    @retryable(retry_on=(RemoteError,), max_attempts=3)
    def add(one, /, two, *, three=3):
        trouble()
        return one, two, three

    assert add(1, two=2) == (1, 2, 3)
    assert trouble.calls == 3


def test_unnamed_error_is_raised_immediately():
    trouble = Trouble(1, KeyError)

    @retryable(retry_on=(RemoteError,))
    def work():
        trouble()

    with pytest.raises(KeyError):
        work()
    assert trouble.calls == 1


def test_default_is_three_attempts():
    trouble = Trouble(9)

    @retryable(retry_on=RemoteError)
    def work():
        trouble()

    with pytest.raises(RemoteError, match="failure 3"):
        work()
    assert trouble.calls == 3


def test_retry_on_accepts_a_predicate():
    trouble = Trouble(1)

    @retryable(retry_on=lambda error: "failure" in str(error))
    def work():
        trouble()
        return "done"

    assert work() == "done"


def test_not_on_excludes_classes():
    class Fatal(RemoteError):
        pass

    trouble = Trouble(2, Fatal)

    @retryable(retry_on=RemoteError, not_on=Fatal)
    def work():
        trouble()

    with pytest.raises(Fatal):
        work()
    assert trouble.calls == 1


async def test_coroutine_function_retries():
    trouble = Trouble(2)

    @retryable(retry_on=RemoteError)
    async def work(number):
        trouble()
        return number

    assert inspect.iscoroutinefunction(work)
    assert await work(17) == 17
    assert trouble.calls == 3


class Kinds:
    def __init__(self, failures=2):
        self.trouble = Trouble(failures)

    @retryable(retry_on=RemoteError)
    def method(self, number):
        self.trouble()
        return number

    @retryable(retry_on=RemoteError)
    async def coroutine_method(self, number):
        self.trouble()
        return number

    @retryable(retry_on=RemoteError)
    @classmethod
    def above_class_method(cls, trouble):
        trouble()
        return cls

    @classmethod
    @retryable(retry_on=RemoteError)
    def below_class_method(cls, trouble):
        trouble()
        return cls

    @retryable(retry_on=RemoteError)
    @staticmethod
    def above_static_method(trouble):
        trouble()
        return "static"

    @staticmethod
    @retryable(retry_on=RemoteError)
    def below_static_method(trouble):
        trouble()
        return "static"


def test_method_retries():
    assert Kinds().method(17) == 17


def test_coroutine_method_retries():
    assert run(Kinds().coroutine_method(17)) == 17


@pytest.mark.parametrize("name", ["above_class_method", "below_class_method"])
@pytest.mark.parametrize("holder", [Kinds, Kinds()], ids=["class", "instance"])
def test_classmethod_retries_on_either_side_of_the_decorator(holder, name):
    assert getattr(holder, name)(Trouble(2)) is Kinds


@pytest.mark.parametrize("name", ["above_static_method", "below_static_method"])
@pytest.mark.parametrize("holder", [Kinds, Kinds()], ids=["class", "instance"])
def test_staticmethod_retries_on_either_side_of_the_decorator(holder, name):
    assert getattr(holder, name)(Trouble(2)) == "static"


def test_generator_function_retries_until_its_first_item():
    trouble = Trouble(2)

    @retryable(retry_on=RemoteError)
    def numbers():
        trouble()
        yield from (1, 2)

    assert inspect.isgeneratorfunction(numbers)
    assert list(numbers()) == [1, 2]


async def test_async_generator_function_retries_until_its_first_item():
    trouble = Trouble(2)

    @retryable(retry_on=RemoteError)
    async def numbers():
        trouble()
        yield 1
        yield 2

    assert inspect.isasyncgenfunction(numbers)
    assert [number async for number in numbers()] == [1, 2]


@pytest.mark.statement("S0-04")
def test_name_docstring_signature_and_annotations_stay():
    def work(order: str, /, *, region: str = "eu") -> int:
        """Does the work."""
        return len(order + region)

    decorated = retryable(retry_on=RemoteError)(work)
    for attribute in ("__name__", "__qualname__", "__doc__", "__module__", "__annotations__"):
        assert getattr(decorated, attribute) == getattr(work, attribute)
    assert inspect.signature(decorated) == inspect.signature(work)
    assert inspect.unwrap(decorated) is work


# -- settings ----------------------------------------------------------------------------------


@pytest.mark.statement("S0-01")
async def test_one_template_guards_any_coroutine_function():
    clock = VirtualClock()
    template = RetryTemplate(
        SimpleRetryPolicy(4, retry_on=(RemoteError, TimeoutError)),
        ExponentialBackoff(initial=1.0, multiplier=3.0, maximum=5.0),
        attempt_timeout=2.0,
        clock=clock,
    )
    guard = retryable(template=template)

    @guard
    async def fetch(trouble, *, name):
        trouble()
        return name

    @guard
    async def store(trouble):
        trouble()
        return "stored"

    assert await fetch(Trouble(3), name="a") == "a"
    assert clock.sleeps == [1.0, 3.0, 5.0]
    assert await store(Trouble(1)) == "stored"
    with pytest.raises(KeyError):
        await store(Trouble(1, KeyError))


@pytest.mark.statement("S0-03")
def test_functions_follow_a_replaced_shared_policy():
    def program(policy):
        @retryable(policy=policy)
        def one(trouble):
            trouble()

        @retryable(policy=policy)
        def two(trouble):
            trouble()

        return one, two

    for attempts in (2, 5):
        for function in program(SimpleRetryPolicy(attempts, retry_on=RemoteError)):
            trouble = Trouble(9)
            with pytest.raises(RemoteError):
                function(trouble)
            assert trouble.calls == attempts


@pytest.mark.statement("S0-03")
def test_numbers_that_are_callables_are_read_at_every_call():
    clock = VirtualClock()
    settings = {"attempts": 2, "delay": 2.0}
    template = RetryTemplate(
        SimpleRetryPolicy(lambda: settings["attempts"], retry_on=RemoteError),
        FixedBackoff(lambda: settings["delay"]),
        clock=clock,
    )

    @retryable(template=template)
    def work(trouble):
        trouble()

    for attempts, delay in ((2, 2.0), (5, 3.0)):
        settings.update(attempts=attempts, delay=delay)
        clock.sleeps.clear()
        with pytest.raises(RemoteError):
            work(Trouble(9))
        assert clock.sleeps == [delay] * (attempts - 1)


def test_max_attempts_callable_is_read_at_every_call():
    limits = iter([1, 3])

    @retryable(retry_on=RemoteError, max_attempts=lambda: next(limits))
    def work(trouble):
        trouble()

    for attempts in (1, 3):
        trouble = Trouble(9)
        with pytest.raises(RemoteError):
            work(trouble)
        assert trouble.calls == attempts


def test_backoff_is_slept():
    @retryable(retry_on=RemoteError, backoff=FixedBackoff(7.0))
    def work(trouble):
        trouble()

    with no_waiting(VirtualClock()) as clock:
        work(Trouble(2))
    assert clock.sleeps == [7.0, 7.0]


@pytest.mark.statement("S2-50")
def test_listeners_are_called():
    recorder = Recorder()

    @retryable(retry_on=RemoteError, listeners=[recorder])
    def work(trouble):
        trouble()
        return "done"

    work(Trouble(1))
    assert recorder.results == ["done"]


@pytest.mark.statement("S2-50")
def test_policy_argument_is_used():
    @retryable(policy=MaxAttemptsRetryPolicy(2))
    def work(trouble):
        trouble()

    trouble = Trouble(9, KeyError)
    with pytest.raises(KeyError):
        work(trouble)
    assert trouble.calls == 2


@pytest.mark.statement("S2-50")
def test_template_is_used_unchanged():
    recorder = Recorder()
    template = RetryTemplate(
        MaxAttemptsRetryPolicy(2), listeners=[recorder], recovery=lambda context: "recovered"
    )

    @retryable(template=template)
    def work():
        raise RemoteError

    class Service:
        @retryable(template=template)
        def work(self):
            raise RemoteError

    assert work() == Service().work() == "recovered"
    assert recorder.results == []


def test_listener_registered_later_is_called():
    template, recorder = RetryTemplate(), Recorder()

    @retryable(template=template)
    def work():
        return "done"

    template.register_listener(recorder)
    work()
    assert recorder.results == ["done"]


# -- the name in logs and metrics ---------------------------------------------------------------


def name_inside():
    return current_context().name


def test_label_defaults_to_the_qualified_name():
    @retryable(retry_on=RemoteError)
    def plain():
        return name_inside()

    @retryable(retry_on=RemoteError, label="charge")
    def labelled():
        return name_inside()

    assert plain() == f"{__name__}.{plain.__qualname__}"
    assert labelled() == "charge"


def test_label_defaults_to_the_name_of_a_given_template():
    def named(template, **how):
        return retryable(template=template, **how)(name_inside)()

    assert named(RetryTemplate(name="orders")) == "orders"
    assert named(RetryTemplate(name="orders"), label="charge") == "charge"
    assert named(RetryTemplate()) == f"{__name__}.name_inside"


def test_partials_and_callable_objects_have_labels():
    class Work:
        def __call__(self):
            return name_inside()

    guard = retryable(retry_on=RemoteError)
    assert guard(functools.partial(name_inside))() == f"{__name__}.name_inside"
    assert guard(Work())() == f"{__name__}.{Work.__qualname__}"


# -- recovery by a function ---------------------------------------------------------------------


def test_fallback_gets_the_failure_and_the_arguments():
    def fallback(error, order_id, /, *rest, region, **more):
        return error, order_id, rest, region, more

    @retryable(retry_on=RemoteError, recover=fallback)
    def work(order_id, /, *rest, region, **more):
        raise failure

    failure = RemoteError("down")
    assert work(1, 2, 3, region="eu", x=4) == (failure, 1, (2, 3), "eu", {"x": 4})


def test_fallback_is_called_for_errors_that_are_not_retryable():
    @retryable(retry_on=RemoteError, recover=lambda error: type(error))
    def work():
        raise KeyError

    assert work() is KeyError


@pytest.mark.parametrize(
    ("fallback", "expected"),
    [
        (lambda error: "no more", "no more"),
        (lambda error, number: number, 1),
        (lambda error, number, region: (number, region), (1, "eu")),
        (lambda error, *rest: rest, (1, "eu")),
        (lambda error, number, *, size: (number, size), (1, 5)),
        (lambda error, *, region: region, "eu"),
        (lambda error, number, **more: (number, more), (1, {"size": 5})),
        (lambda error, number, region, size="S": size, 5),
    ],
)
@pytest.mark.parametrize("how", ["by place", "by name"])
def test_fallback_gets_the_arguments_that_it_takes(fallback, expected, how):
    @retryable(retry_on=RemoteError, recover=fallback)
    def work(order_id, region="eu", *, size):
        raise RemoteError

    call = functools.partial(work, 1) if how == "by place" else functools.partial(work, order_id=1)
    assert call(size=5) == expected


def test_fallback_of_a_method_gets_the_instance():
    class Service:
        @retryable(retry_on=RemoteError, recover=lambda error, self, number: (self, number))
        def work(self, number):
            raise RemoteError

    service = Service()
    assert service.work(17) == (service, 17)


async def test_coroutine_function_accepts_both_kinds_of_fallback():
    async def asynchronous(error, number):
        return "asynchronous", number

    @retryable(retry_on=RemoteError, recover=asynchronous)
    async def one(number):
        raise RemoteError

    @retryable(retry_on=RemoteError, recover=lambda error, number: ("plain", number))
    async def two(number):
        raise RemoteError

    assert await one(1) == ("asynchronous", 1)
    assert await two(2) == ("plain", 2)


def test_fallback_of_a_generator_function_supplies_the_items():
    @retryable(retry_on=RemoteError, recover=lambda error, number: [number, number + 1])
    def numbers(number):
        raise RemoteError
        yield

    assert list(numbers(3)) == [3, 4]


@pytest.mark.parametrize("kind", ["list", "asynchronous generator"])
async def test_fallback_of_an_async_generator_function_supplies_the_items(kind):
    async def later(error, number):
        yield number
        yield number + 1

    fallback = later if kind != "list" else lambda error, number: [number, number + 1]

    @retryable(retry_on=RemoteError, recover=fallback)
    async def numbers(number):
        raise RemoteError
        yield

    assert [number async for number in numbers(3)] == [3, 4]


def test_fallback_of_a_partial_gets_only_the_arguments_of_the_call():
    def work(bound, given, *, by_name, other):
        raise RemoteError

    inner = functools.partial(work, "bound", by_name="bound")
    guard = retryable(retry_on=RemoteError, recover=lambda error, *a, **k: (a, k))
    assert guard(inner)("given", other=2) == (("given",), {"other": 2})


def test_fallback_may_raise_the_failure_again():
    failure = RemoteError("down")

    def fallback(error):
        raise error

    @retryable(retry_on=RemoteError, recover=fallback)
    def work():
        raise failure

    with pytest.raises(RemoteError) as caught:
        work()
    assert caught.value is failure


def test_builtin_without_signature_can_be_guarded_and_can_recover():
    guarded = retryable(retry_on=StopIteration, recover=lambda error, *rest: "over")(next)
    assert guarded(iter([])) == "over"
    assert retryable(retry_on=RemoteError, recover=print)(Trouble(9))() is None


def test_recovery_without_an_attempt_gets_an_exhausted_error():
    class GiveUp(Recorder):
        def open(self, context):
            context.give_up()

    @retryable(retry_on=RemoteError, listeners=[GiveUp()], recover=lambda error: error)
    def work():
        raise AssertionError

    assert isinstance(work(), ExhaustedRetryError)


# -- stateful -----------------------------------------------------------------------------------


@pytest.mark.parametrize("asynchronous", [False, True], ids=["plain", "coroutine"])
def test_key_makes_the_retry_stateful(asynchronous):
    trouble = Trouble(9)
    guard = retryable(
        retry_on=RemoteError,
        max_attempts=2,
        key=lambda order_id: order_id,
        recover=lambda error, order_id: ("dead", type(error), error.type_name, order_id),
    )

    @guard
    def deliver(order_id):
        trouble()

    @guard
    async def deliver_later(order_id):
        trouble()

    def call(order_id):
        return run(deliver_later(order_id)) if asynchronous else deliver(order_id)

    for calls in (1, 2):
        with pytest.raises(RemoteError):
            call("order-17")
        assert trouble.calls == calls
    name = f"{RemoteError.__module__}.RemoteError"
    assert call("order-17") == ("dead", RecordedFailure, name, "order-17")
    assert trouble.calls == 2


@pytest.mark.parametrize("kind", ["generator", "asynchronous generator"])
async def test_stateful_generator_keeps_failures(kind):
    trouble = Trouble(1)

    async def items(order_id):
        if kind == "generator":
            return list(plain(order_id))
        return [item async for item in asynchronous(order_id)]

    guard = retryable(retry_on=RemoteError, key=lambda order_id: order_id)

    @guard
    def plain(order_id):
        trouble()
        yield current_context().attempt

    @guard
    async def asynchronous(order_id):
        trouble()
        yield current_context().attempt

    with pytest.raises(RemoteError):
        await items("a")
    assert await items("a") == [2]


def test_exhausted_stateful_call_without_recovery_raises():
    @retryable(retry_on=RemoteError, max_attempts=1, key=lambda order_id: order_id)
    def deliver(order_id):
        raise RemoteError

    with pytest.raises(RemoteError):
        deliver(1)
    with pytest.raises(ExhaustedRetryError):
        deliver(1)


@pytest.mark.parametrize("call", [lambda f: f(17, 2), lambda f: f(order_id=17, amount=2)])
def test_key_function_gets_as_many_arguments_as_it_takes(call):
    @retryable(retry_on=RemoteError, key=lambda order: order)
    def deliver(order_id, amount):
        return current_context().key

    assert call(deliver) == 17


def test_key_function_of_a_method_gets_the_instance():
    class Service:
        prefix = "eu"

        @retryable(retry_on=RemoteError, key=lambda self, number: (self.prefix, number))
        def deliver(self, number):
            return current_context().key

    assert Service().deliver(17) == ("eu", 17)


def test_key_of_none_keeps_no_state():
    trouble = Trouble(9)

    @retryable(retry_on=RemoteError, max_attempts=1, key=lambda order_id: None)
    def deliver(order_id):
        trouble()

    for _ in range(3):
        with pytest.raises(RemoteError):
            deliver(1)
    assert trouble.calls == 3


def test_key_function_may_return_a_retry_state():
    @retryable(
        retry_on=RemoteError, key=lambda order_id: RetryState(order_id, rollback_for=KeyError)
    )
    def deliver(order_id):
        trouble()
        return "done"

    trouble = Trouble(2)
    assert deliver(1) == "done"  # retried in place: it does not roll back


def test_functions_under_one_decorator_do_not_share_keys():
    guard = retryable(retry_on=RemoteError, max_attempts=1, key=lambda order_id: order_id)

    @guard
    def charge(order_id):
        raise RemoteError("charge")

    @guard
    def ship(order_id):
        raise RemoteError("ship")

    with pytest.raises(RemoteError, match="charge"):
        charge(1)
    with pytest.raises(RemoteError, match="ship"):
        ship(1)


def test_template_keeps_keys_in_its_cache_under_its_name():
    cache = MemoryRetryContextCache()
    template = RetryTemplate(name="charge", cache=cache)

    @retryable(template=template, key=lambda order_id: order_id)
    def deliver(order_id):
        raise RemoteError

    with pytest.raises(RemoteError):
        deliver("order-17")
    assert "charge/s:order-17" in cache


def test_circuit_breaker_is_a_policy_with_one_key():
    policy = CircuitBreakerRetryPolicy(MaxAttemptsRetryPolicy(1), open_timeout=5, reset_timeout=20)
    trouble = Trouble(9)

    @retryable(policy=policy, key=lambda: RetryState("circuit", rollback_for=KeyError))
    def work():
        trouble()

    for _ in range(3):
        with pytest.raises((RemoteError, ExhaustedRetryError)):
            work()
    assert trouble.calls == 1


# -- rejected when the function is decorated ------------------------------------------------------


def test_bare_decorator_is_rejected_with_advice():
    with pytest.raises(MisuseError, match="name the retryable errors"):

        @retryable
        def work(): ...

    with pytest.raises(MisuseError, match="name the retryable errors"):

        @retryable
        class Work: ...


@pytest.mark.parametrize("how", [{}, {"max_attempts": 5}, {"backoff": FixedBackoff(1.0)}])
def test_decorator_without_retryable_errors_is_rejected(how):
    with pytest.raises(MisuseError, match="name the retryable errors"):
        retryable(**how)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("retry_on", RemoteError),
        ("not_on", RemoteError),
        ("max_attempts", 3),
        ("backoff", FixedBackoff(1.0)),
        ("policy", MaxAttemptsRetryPolicy(3)),
        ("listeners", [Recorder()]),
    ],
)
def test_setting_of_the_template_is_rejected_with_a_template(name, value):
    with pytest.raises(MisuseError, match=f"^{name} and template= are mutually exclusive"):
        retryable(template=RetryTemplate(), **{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("retry_on", RemoteError), ("not_on", RemoteError), ("max_attempts", 3)]
)
def test_setting_of_the_policy_is_rejected_with_a_policy(name, value):
    with pytest.raises(MisuseError, match=f"^{name} and policy= are mutually exclusive"):
        retryable(policy=MaxAttemptsRetryPolicy(3), **{name: value})


def test_error_names_all_settings_rejected_with_a_template():
    with pytest.raises(MisuseError, match=r"^retry_on and max_attempts and template= are"):
        retryable(template=RetryTemplate(), retry_on=RemoteError, max_attempts=3)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("template", SimpleRetryPolicy(), "template must be a RetryTemplate"),
        ("policy", RetryTemplate(), "policy must be a RetryPolicy"),
        ("retry_on", "ConnectionError", "retry_on must be"),
        ("backoff", 1.0, "backoff must be"),
        ("max_attempts", "3", "max_attempts must be"),
        ("recover", 17, "recover must be"),
        ("key", "order_id", "key must be a synchronous callable"),
        ("label", "", "label must be"),
        ("label", 17, "label must be"),
        ("listeners", None, "listeners must be a list or tuple, got None"),
        ("listeners", Recorder(), "listeners must be a list or tuple, got <"),
    ],
)
def test_setting_of_a_wrong_type_is_rejected_by_name(name, value, message):
    how = {} if name in ("template", "policy") else {"retry_on": RemoteError}
    with pytest.raises(TypeError, match=message):
        retryable(**{**how, name: value})


def test_max_attempts_below_one_is_rejected():
    with pytest.raises(ValueError, match="max_attempts"):
        retryable(retry_on=RemoteError, max_attempts=0)


def test_fallback_that_cannot_take_the_arguments_is_rejected():
    guard = retryable(retry_on=RemoteError, recover=lambda error, one, two: None)
    with pytest.raises(TypeError, match=r"recover must take \(error, order_id\), or fewer of them"):

        @guard
        def work(order_id): ...


def test_fallback_that_cannot_take_the_failure_is_rejected():
    guard = retryable(retry_on=RemoteError, recover=lambda: None)
    with pytest.raises(TypeError, match=r"recover must take \(error\)"):

        @guard
        def work(): ...


def test_key_function_that_cannot_take_the_arguments_is_rejected():
    guard = retryable(retry_on=RemoteError, key=lambda order_id: order_id)
    with pytest.raises(TypeError, match=r"key must take \(\), or fewer of them"):

        @guard
        def work(): ...


async def _later(*arguments):
    return arguments


async def _items(*arguments):
    yield arguments


@pytest.mark.parametrize("fallback", [_later, _items], ids=["coroutine", "generator"])
def test_async_fallback_of_a_sync_function_is_rejected(fallback):
    guard = retryable(retry_on=RemoteError, recover=fallback)
    with pytest.raises(MisuseError, match="recover must be a plain function"):

        @guard
        def work(): ...


def test_async_key_function_is_rejected():
    with pytest.raises(TypeError, match="key must be a synchronous callable"):
        retryable(retry_on=RemoteError, key=_later)


@pytest.mark.parametrize("target", [property(lambda self: 1), 17, None], ids=type)
def test_retryable_rejects_objects_other_than_functions(target):
    with pytest.raises(TypeError, match="retryable takes a function, a method or a class"):
        retryable(retry_on=RemoteError)(target)


def test_class_without_public_methods_is_rejected():
    with pytest.raises(MisuseError, match="Empty has no public method to retry"):

        @retryable(retry_on=RemoteError)
        class Empty:
            def _private(self): ...
