"""``intercept``: a proxy of an object whose selected methods retry."""

import copy
import functools
import inspect
import operator
import pickle
import re
import types
import weakref

import attrs
import pytest

from retrytemplate import (
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    MisuseError,
    RetryTemplate,
    current_context,
    intercept,
)
from retrytemplate.testing import VirtualClock
from tests.support.flaky import RemoteError


class Service:
    """A service on the other side."""

    kind = "remote"

    def __init__(self, failures=0):
        self.failures = failures
        self.calls = 0
        self.callback = len

    def _try(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise RemoteError(f"failure {self.calls}")
        return self.calls

    def do_remote_call(self, *args, **kwargs):
        """Calls the other side."""
        return self._try(), args, kwargs

    async def remote_call_later(self):
        return self._try()

    def remote_calls(self):
        self._try()
        yield from (1, 2)

    @classmethod
    def remote_call_of_class(cls):
        return cls, current_context() is not None

    @staticmethod
    def remote_call_of_nobody():
        return current_context() is not None

    @property
    def remote_call_count(self):
        assert current_context() is None
        return self.calls

    @functools.cached_property
    def remote_call_kept(self):
        return lambda: current_context() is not None

    class remote_call_error(Exception):  # matches the pattern on purpose
        pass

    def local(self):
        return self._try()

    def outer(self):
        return self.do_remote_call()


three = RetryTemplate(MaxAttemptsRetryPolicy(3))
PATTERN = r".*remote_call.*"


def around(service, pattern=PATTERN, template=three):
    return intercept(service, pattern, template)


# -- what retries ---------------------------------------------------------------------------------


@pytest.mark.statement("S2-51")
def test_methods_whose_whole_name_matches_retry():
    service = Service(2)
    assert around(service).do_remote_call(1, two=2) == (3, (1,), {"two": 2})
    assert around(Service(2), "remote_calls").remote_calls is not None
    assert list(around(Service(2)).remote_calls()) == [1, 2]


@pytest.mark.statement("S2-51")
async def test_coroutine_methods_retry():
    proxy = around(Service(2))
    assert inspect.iscoroutinefunction(proxy.remote_call_later)
    assert await proxy.remote_call_later() == 3


@pytest.mark.statement("S2-51")
def test_classmethods_and_staticmethods_retry():
    assert around(Service()).remote_call_of_class() == (Service, True)
    assert around(Service()).remote_call_of_nobody() is True


@pytest.mark.parametrize(
    "pattern", ["remote_call", "do_remote", "DO_REMOTE_CALL", "do_remote_cal."]
)
def test_pattern_must_match_the_whole_name(pattern):
    proxy = around(Service(1), f"local|{pattern}")
    if pattern == "do_remote_cal.":
        proxy.do_remote_call()
    else:
        with pytest.raises(RemoteError):
            proxy.do_remote_call()


def test_compiled_pattern_keeps_its_flags():
    assert around(Service(2), re.compile("DO_REMOTE_CALL", re.IGNORECASE)).do_remote_call()[0] == 3


def test_methods_that_do_not_match_do_not_retry():
    with pytest.raises(RemoteError):
        around(Service(1)).local()


def test_calls_inside_the_object_do_not_retry():
    with pytest.raises(RemoteError):
        around(Service(1)).outer()


def test_original_object_does_not_retry():
    service = Service(1)
    around(service)
    with pytest.raises(RemoteError):
        service.do_remote_call()


def test_bound_template_recovers():
    bound = three.bind(recovery=lambda context: "recovered")
    assert around(Service(9), template=bound).do_remote_call() == "recovered"


def test_any_object_with_wrap_is_accepted():
    class Twice:
        def wrap(self, fn):
            return lambda: (fn(), fn())

    assert around(Service(), "local", Twice()).local() == (1, 2)


def test_backoff_of_the_template_is_slept():
    clock = VirtualClock()
    around(
        Service(1), template=RetryTemplate(backoff=FixedBackoff(2), clock=clock)
    ).do_remote_call()
    assert clock.sleeps == [2]


def test_intercepted_method_keeps_name_docstring_and_signature():
    method = around(Service()).do_remote_call
    assert method.__name__ == "do_remote_call"
    assert method.__doc__ == "Calls the other side."
    assert inspect.signature(method) == inspect.signature(Service().do_remote_call)


def test_method_is_wrapped_once_and_again_after_replacement():
    service = Service()
    proxy = around(service)
    assert proxy.do_remote_call is proxy.do_remote_call
    service.do_remote_call = lambda: current_context() is not None
    assert proxy.do_remote_call() is True


def test_callable_attribute_retries_and_class_attribute_does_not():
    service = Service()
    service.remote_call_hook = lambda: current_context() is not None
    proxy = around(service)
    assert proxy.remote_call_hook() is True
    assert proxy.remote_call_error is Service.remote_call_error


def test_methods_from_getattr_retry():
    class Dynamic:
        def __getattr__(self, name):
            return lambda: (name, current_context() is not None)

    assert around(Dynamic()).remote_call_17() == ("remote_call_17", True)
    assert around(Dynamic()).other() == ("other", False)


def test_functions_of_a_module_can_be_intercepted():
    module = types.ModuleType("remote")
    module.fetch = lambda: current_context() is not None
    assert around(module, "fetch").fetch() is True


# -- unchanged behaviour --------------------------------------------------------------------------


def test_proxy_is_an_instance_of_the_class():
    proxy = around(Service())
    assert isinstance(proxy, Service)
    assert proxy.__class__ is Service
    assert proxy.__doc__ == Service.__doc__
    assert proxy.__module__ == Service.__module__


def test_attributes_are_read_set_and_deleted_on_the_object():
    service = Service()
    proxy = around(service)
    assert proxy.kind == "remote"
    proxy.kind = "near"
    assert service.kind == "near"
    del proxy.kind
    assert service.kind == "remote"
    with pytest.raises(AttributeError, match="'Service' object has no attribute 'missing'"):
        _ = proxy.missing
    assert proxy.__dict__ is service.__dict__
    assert dir(proxy) == dir(service)


def test_properties_are_read_from_the_object():
    proxy = around(Service(1))
    proxy.do_remote_call()
    assert proxy.remote_call_count == 2
    assert proxy.remote_call_kept() is False


def test_object_with_slots_can_be_intercepted():
    class Slotted:
        __slots__ = ("value",)

        def remote_call(self):
            return self.value, current_context() is not None

    proxy = around(Slotted())
    proxy.value = 17
    assert proxy.remote_call() == (17, True)
    with pytest.raises(AttributeError):
        proxy.other = 1


def test_frozen_objects_stay_frozen():
    @attrs.frozen
    class Frozen:
        value: int

        def remote_call(self):
            return self.value

    proxy = around(Frozen(17))
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        proxy.value = 18
    assert proxy == Frozen(17)
    assert hash(proxy) == hash(Frozen(17))
    assert attrs.asdict(proxy) == {"value": 17}


class Container:
    def __init__(self, items=()):
        self.items = list(items)

    def remote_call(self):
        return self.items

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter(self.items)

    def __contains__(self, item):
        return item in self.items

    def __getitem__(self, index):
        return self.items[index]

    def __setitem__(self, index, item):
        self.items[index] = item

    def __delitem__(self, index):
        del self.items[index]

    def __call__(self, *args, key=None):
        return args, key, current_context()

    def __eq__(self, other):
        return isinstance(other, Container) and self.items == other.items

    def __lt__(self, other):
        return self.items < other.items

    __hash__ = None

    def __repr__(self):
        return f"Container({self.items})"

    def __str__(self):
        return "a container"

    def __format__(self, spec):
        return f"formatted {spec}"

    def __bool__(self):
        return bool(self.items)

    def __int__(self):
        return sum(self.items)

    __index__ = __int__

    def __add__(self, other):
        return Container([*self.items, *other])

    def __radd__(self, other):
        return Container([*other, *self.items])

    def __iadd__(self, other):
        self.items += other
        return self

    def __enter__(self):
        self.items.append("entered")
        return self

    def __exit__(self, *error):
        self.items.append(error[0])
        return True


def test_special_methods_reach_the_object():
    container = Container([1, 2])
    proxy = around(container)
    assert len(proxy) == 2
    assert list(proxy) == [1, 2]
    assert 2 in proxy
    assert proxy[0] == 1
    proxy[0] = 3
    del proxy[1]
    assert container.items == [3]
    assert proxy(1, key=2) == ((1,), 2, None)
    assert proxy
    assert not around(Container())
    assert (repr(proxy), str(proxy), f"{proxy:x}") == (
        "Container([3])",
        "a container",
        "formatted x",
    )
    assert (int(proxy), operator.index(proxy)) == (3, 3)


def test_special_methods_never_retry():
    assert around(Container(), ".*")()[2] is None


def test_operators_take_objects_and_proxies_on_either_side():
    one, two = Container([1]), Container([2])
    assert around(one) == one == around(one) == around(Container([1]))
    assert one == around(one)
    assert around(one) != around(two)
    assert around(one) < two
    assert around(one) < around(two)
    more = [2]
    assert (around(one) + more).items == [1, 2]
    assert (more + around(one)).items == [2, 1]


class Kept(dict):
    def remote_call(self):
        return current_context() is not None


def test_operators_of_built_in_classes_take_proxies():
    assert around(Kept(a=1)) == around(Kept(a=1))
    assert around(Kept(a=1)) | around(Kept(b=2)) == {"a": 1, "b": 2}
    assert around(Kept(a=1)).remote_call() is True


def test_method_that_returns_the_object_returns_the_proxy():
    proxy = same = around(Container([1]))
    proxy += [2]
    assert proxy is same
    with proxy as inside:
        assert inside is proxy
        raise KeyError
    assert proxy.items == [1, 2, "entered", KeyError]


class Session:
    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        return True

    def __aiter__(self):
        self.left = 2
        return self

    async def __anext__(self):
        if not self.left:
            raise StopAsyncIteration
        self.left -= 1
        return self.left

    def __await__(self):
        yield from ()
        return "awaited"

    def remote_call(self):
        return current_context() is not None


async def test_asynchronous_special_methods_reach_the_object():
    proxy = around(Session())
    async with proxy as inside:
        assert inside is proxy
        assert inside.remote_call() is True
        raise KeyError
    assert [number async for number in proxy] == [1, 0]
    assert await proxy == "awaited"


def test_proxy_has_no_special_methods_that_the_class_lacks():
    proxy = around(Service())
    for use in (len, iter, callable, next):
        if use is callable:
            assert not callable(proxy)
        else:
            with pytest.raises(TypeError):
                use(proxy)
    with pytest.raises(TypeError, match="unhashable"):
        hash(around(Container()))


def test_equality_and_hash_by_identity_are_kept():
    service = Service()
    proxy = around(service)
    assert proxy == service
    assert service == proxy
    assert hash(proxy) == hash(service)
    assert proxy != Service()
    assert {service: 1}[proxy] == 1


def test_proxy_supports_weak_references():
    proxy = around(Service())
    assert weakref.ref(proxy)() is proxy


def test_proxy_of_an_iterator_is_an_iterator():
    class Numbers:
        def __iter__(self):
            return self

        def __next__(self):
            return 17

        def remote_call(self): ...

    proxy = around(Numbers())
    assert iter(proxy) is proxy
    assert next(proxy) == 17


def test_class_can_be_intercepted_and_called():
    proxy = around(Service, "remote_call_of_nobody")
    assert proxy.remote_call_of_nobody() is True
    assert isinstance(proxy(3), Service)
    assert proxy(3).failures == 3
    assert isinstance(proxy, type)


def test_intercepted_object_can_be_intercepted_again():
    other = RetryTemplate(MaxAttemptsRetryPolicy(2))
    proxy = around(around(Service(2)), "local", other)
    assert isinstance(proxy, Service)
    assert proxy.do_remote_call()[0] == 3
    service = Service(1)
    assert around(around(service), "local", other).local() == 2


# -- copies and pickles ---------------------------------------------------------------------------


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
def test_copy_of_a_proxy_wraps_a_copy_of_the_object(make):
    service = Service(2)
    proxy = around(service)
    other = make(proxy)
    assert other.do_remote_call()[0] == 3
    assert (other.calls, service.calls) == (3, 0)


def test_deep_copy_keeps_shared_objects():
    service = Service()
    both = copy.deepcopy([service, around(service)])
    both[1].kind = "changed"
    assert both[0].kind == "changed"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_a_proxy_raises_with_advice(protocol):
    with pytest.raises(MisuseError, match="pickle the Service and intercept it again"):
        pickle.dumps(around(Service()), protocol)


# -- rejected -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern", ["nothing", "remote_call_count", "remote_call_error", "__init__"]
)
def test_pattern_without_a_match_is_rejected(pattern):
    with pytest.raises(
        ValueError, match=f"pattern must match a method of Service, got '{pattern}'"
    ):
        around(Service(), pattern)


@pytest.mark.parametrize("pattern", ["(", 17, None, b".*"])
def test_invalid_pattern_is_rejected(pattern):
    with pytest.raises(ValueError, match="pattern must be a regular expression"):
        around(Service(), pattern)


def test_template_without_wrap_is_rejected():
    with pytest.raises(TypeError, match="template must be an object with the method wrap"):
        around(Service(), template=MaxAttemptsRetryPolicy(3))


def test_search_for_a_match_reads_no_property():
    class Touchy:
        @property
        def remote_call_state(self):
            raise AssertionError

        def remote_call(self):
            return "called"

    assert around(Touchy()).remote_call() == "called"
