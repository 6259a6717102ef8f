"""``retryable`` on a class: which of its methods retry."""

import abc

import attrs
import pytest

from retrytemplate import MaxAttemptsRetryPolicy, current_context, recover, retryable
from retrytemplate.testing import run
from tests.support.flaky import RemoteError, Trouble


class Base:
    def inherited(self):
        return self._attempt()

    def overridden(self):
        return self._attempt()

    def _attempt(self):
        return current_context() and current_context().attempt


@retryable(policy=MaxAttemptsRetryPolicy(2))
class Service(Base):
    """A service."""

    constant = len

    class Inner:
        pass

    def __init__(self, failures=1):
        assert current_context() is None
        self.trouble = Trouble(failures)

    def method(self):
        self.trouble()
        return self._attempt()

    async def coroutine_method(self):
        self.trouble()
        return self._attempt()

    @classmethod
    def class_method(cls, trouble):
        trouble()
        return cls

    @staticmethod
    def static_method(trouble):
        trouble()
        return "static"

    @retryable(policy=MaxAttemptsRetryPolicy(3))
    def own(self):
        self.trouble()
        return self._attempt()

    @property
    def reading(self):
        return self._attempt()

    @recover
    def recoverer(self, error: Exception):
        return "recovered", self._attempt()

    def _private(self):
        return self._attempt()


def test_decorated_class_retries_all_kinds_of_public_methods():
    assert Service().method() == 2
    assert run(Service().coroutine_method()) == 2
    assert Service.class_method(Trouble(1)) is Service
    assert Service.static_method(Trouble(1)) == "static"
    assert isinstance(vars(Service)["class_method"], classmethod)
    assert isinstance(vars(Service)["static_method"], staticmethod)


def test_class_decorator_wraps_inherited_methods_not_the_base():
    assert Service().inherited() == 1
    assert Base().inherited() is None


def test_class_decorator_leaves_other_members_unchanged():
    service = Service()
    assert service._private() is None
    assert service.reading is None
    assert service.recoverer(KeyError()) == ("recovered", None)
    assert Service.constant is len
    assert isinstance(Service.Inner, type)
    assert Service.__doc__ == "A service."


def test_method_of_a_decorated_class_keeps_its_own_decorator():
    assert Service(failures=2).own() == 3
    assert Service(failures=2).method() == ("recovered", 2)


def test_method_overridden_in_a_subclass_is_not_guarded():
    class Sub(Service):
        def overridden(self):
            return super().overridden(), self._attempt()

    assert Sub().overridden() == (1, None)
    assert Sub().method() == 2


def test_abstract_methods_are_left_alone_and_stay_abstract():
    @retryable(retry_on=RemoteError)
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def missing(self): ...

        def there(self):
            return "there"

    assert Abstract.__abstractmethods__ == {"missing"}
    assert not hasattr(Abstract.missing, "__wrapped__")


def test_class_with_slots_or_attrs_can_be_decorated():
    @retryable(retry_on=RemoteError)
    @attrs.frozen
    class Point:
        x: int
        trouble: Trouble

        def read(self):
            self.trouble()
            return self.x

    assert Point(3, Trouble(2)).read() == 3


def test_fallback_of_a_class_is_used_by_every_method():
    @retryable(retry_on=RemoteError, recover=lambda error, self: "fallback")
    class Two:
        def one(self):
            raise RemoteError

        def two(self):
            raise RemoteError

    assert Two().one() == Two().two() == "fallback"


def test_methods_of_a_decorated_class_do_not_share_keys():
    @retryable(retry_on=RemoteError, max_attempts=1, key=lambda self, order_id: order_id)
    class Two:
        def one(self, order_id):
            raise RemoteError("one")

        def two(self, order_id):
            raise RemoteError("two")

    for method in (Two().one, Two().two):
        with pytest.raises(RemoteError, match=method.__name__):
            method(1)
