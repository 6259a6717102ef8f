"""``recover``: which method recovers, and with which arguments."""

from collections.abc import Iterator
from itertools import count
from typing import Annotated, Any, Generic, Optional, TypeVar, Union

import pytest

from retrytemplate import (
    ExhaustedRetryError,
    MisuseError,
    RetryState,
    RetryTemplate,
    recover,
    retryable,
)
from retrytemplate.testing import Recorder
from tests.declarative import later
from tests.support.flaky import RemoteError
from tests.support.gc_probe import left_by


class NearError(RemoteError):
    pass


class OtherError(Exception):
    pass


guard = retryable(retry_on=(RemoteError,), max_attempts=2)


class Service:
    """Raises the exception that it was created with."""

    def __init__(self, failure=RemoteError):
        self.failure = failure("down") if isinstance(failure, type) else failure

    @guard
    def call(self, one, two=2):
        raise self.failure


# -- which one ----------------------------------------------------------------------------------


class Nearest(Service):
    @recover
    def any(self, error: Exception):
        return "any"

    @recover
    def remote(self, error: RemoteError):
        return "remote"

    @recover
    def near(self, error: NearError):
        return "near"


@pytest.mark.parametrize(
    ("failure", "name"),
    [(NearError, "near"), (RemoteError, "remote"), (OtherError, "any"), (OSError, "any")],
)
def test_most_specific_exception_class_decides(failure, name):
    assert Nearest(failure).call(1) == name


def test_specific_class_has_priority_over_matching_arguments():
    class Both(Service):
        @recover
        def fitting(self, error: RemoteError, one, two):
            return "fitting"

        @recover
        def near(self, error: NearError):
            return "near"

    assert Both(NearError).call(1) == "near"


@pytest.mark.parametrize(
    "annotation",
    [
        RemoteError | OtherError,
        Union[RemoteError, OtherError],  # noqa: UP007  # the old spelling is tried too
        Annotated[RemoteError | OtherError, "a note"],
        "RemoteError | OtherError",
    ],
    ids=str,
)
@pytest.mark.parametrize("failure", [RemoteError, OtherError, NearError])
def test_each_class_of_a_union_is_recovered(annotation, failure):
    class Either(Service):
        def recoverer(self, error, one):
            return type(error), one

        recoverer.__annotations__["error"] = annotation
        recoverer = recover(recoverer)

    assert Either(failure).call(1) == (failure, 1)


def test_most_specific_class_of_a_union_counts():
    class Two(Service):
        @recover
        def wide(self, error: OSError | NearError):
            return "union"

        @recover
        def exact(self, error: RemoteError):
            return "single"

    assert Two(NearError).call(1) == "union"
    assert Two(RemoteError).call(1) == "single"


def test_groups_are_taken_by_their_class():
    class Grouped(Service):
        @recover
        def group(self, error: ExceptionGroup[OtherError]):
            return len(error.exceptions)

    assert Grouped(ExceptionGroup("all", [OtherError(), OtherError()])).call(1) == 2


def test_causes_are_ignored():
    class Caused(Service):
        @guard
        def call(self):
            raise RemoteError from OtherError()

        @recover
        def cause(self, error: OtherError):
            return "cause"

    with pytest.raises(RemoteError):
        Caused().call()


def test_recoverer_without_exception_has_the_lowest_priority():
    class Last(Service):
        @recover
        def last(self, one: int, two: int):
            return "last", one, two

        @recover
        def remote(self, error: RemoteError):
            return "remote"

    assert Last(RemoteError).call(1) == "remote"
    assert Last(OtherError).call(1) == ("last", 1, 2)


def test_recoverer_may_take_no_arguments():
    class Last(Service):
        @recover
        def last(self):
            return "last"

    assert Last().call(1) == "last"


def test_first_of_equally_specific_recoverers_is_called():
    class Equal(Service):
        @recover
        def first(self, error: RemoteError):
            return "first"

        @recover
        def second(self, error: RemoteError):
            return "second"

    assert Equal().call(1) == "first"


def test_later_recoverer_with_matching_arguments_is_called():
    class Equal(Service):
        @recover
        def first(self, error: RemoteError, one):
            return "first"

        @recover
        def text(self, error: RemoteError, one: str, two: int):
            return "text"

        @recover
        def number(self, error: RemoteError, one: float, two: Optional[int]):  # noqa: UP045  # as above
            return "number"

    assert Equal().call("a") == "text"
    assert Equal().call(1) == "number"
    assert Equal().call(1, two=None) == "number"
    assert Equal().call([], 2) == "first"


def test_last_of_the_recoverers_with_matching_arguments_is_called():
    class Equal(Service):
        @recover
        def first(self, error: RemoteError, one: int):
            return "first"

        @recover
        def second(self, error: RemoteError, one: int, two: Optional[int]):  # noqa: UP045  # as above
            return "second"

        @recover
        def third(self, error: RemoteError, one: int, two: Optional[int]):  # noqa: UP045  # as above
            return "third"

    assert Equal().call(1, 2) == "third"


# -- the arguments ------------------------------------------------------------------------------


class Arguments(Service):
    @recover
    def none(self, error: RemoteError):
        return (error,)

    @recover
    def fewer(self, error: NearError, one):
        return error, one

    @recover
    def more(self, error: OtherError, one, two, three, four=4, *, five, six=6):
        return error, one, two, three, four, five, six

    @recover
    def all(self, error: OSError, *args, **kwargs):
        return error, args, kwargs


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (RemoteError("down"), ()),
        (NearError("down"), (1,)),
        (OtherError("down"), (1, 2, None, 4, None, 6)),
    ],
    ids=["none", "fewer", "more"],
)
@pytest.mark.parametrize("call", [lambda s: s.call(1), lambda s: s.call(two=2, one=1)])
def test_missing_arguments_of_a_recoverer_are_none(failure, expected, call):
    assert call(Arguments(failure)) == (failure, *expected)


def test_recoverer_with_var_arguments_gets_the_original_call():
    failure = OSError()
    assert Arguments(failure).call(1, two=3) == (failure, (1,), {"two": 3})


def test_keyword_only_arguments_are_passed_by_name():
    class Named:
        @guard
        def call(self, one, *, size, **more):
            raise RemoteError

        @recover
        def remote(self, error: RemoteError, one, size):
            return one, size

        @recover
        def near(self, error: Exception, *, size, colour):
            return size, colour

    assert Named().call(1, size=5) == (1, 5)
    assert Named().call(1, size=5, colour="red") == (1, 5)


# -- return types -------------------------------------------------------------------------------


class Animal: ...


class Dog(Animal): ...


class Puppy(Dog): ...


def returning(failing, *recovering):
    """Which of the recoverers with these return types recovers the method with that one."""

    def call(self):
        raise RemoteError

    call.__annotations__["return"] = failing
    call.__qualname__ = "returning.<locals>.Made.call"
    members = {"call": guard(call)}
    for index, kind in enumerate(recovering):

        def method(self, error: RemoteError, index=index):
            return index

        method.__annotations__["return"] = kind
        members[f"recover_{index}"] = recover(method)
    made = type("Made", (), {**members, "__qualname__": "returning.<locals>.Made"})
    try:
        return made().call()
    except RemoteError:
        return None


T = TypeVar("T")


class Box(Generic[T]): ...


@pytest.mark.parametrize(
    ("failing", "recovering", "index"),
    [
        (Dog, [Dog], 0),
        (Dog, [Animal], 0),
        (Dog, [object], 0),
        (Dog, [Puppy], 0),
        (Dog, [str], None),
        (Dog, [str, Animal], 1),
        (Dog, [Animal, Dog], 1),
        (Dog, [Puppy, Dog, Dog], 1),
        (None, [Dog, None], 1),
        (None, [object], None),
        (Dog, [None], None),
        (Dog, [Any, Dog], 1),
        (Dog, [Any], 0),
        (Any, [str, None], 0),
        (list[int], [list[str], list[int]], 1),
        (list[int], [list[str]], None),
        (list[int], [list], 0),
        (list[list[int]], [list[list[str]]], None),
        (Box[int], [Box[str], Box[int]], 1),
        (Dog | None, [Dog], 0),
        (Dog | None, [str], None),
        (Dog | None, [Dog, None, Dog | None], 2),
        (Iterator[int], [list[int], Iterator[int]], 1),
        (T, [Dog], 0),
        ("Missing", [Dog], 0),
    ],
    ids=str,
)
def test_recoverer_needs_a_return_type_that_fits(failing, recovering, index):
    assert returning(failing, *recovering) == index


# -- no match -----------------------------------------------------------------------------------


class OnlyOther(Service):
    @recover
    def other(self, error: OtherError):
        return "other"


def test_same_exception_is_raised_when_no_recoverer_matches():
    service = OnlyOther(RemoteError)
    with pytest.raises(RemoteError) as caught:
        service.call(1)
    assert caught.value is service.failure
    assert caught.value.__notes__ == [
        "retry: 2 attempts failed; reason: attempts exhausted",
    ]


def test_template_recovery_runs_when_no_recoverer_matches():
    class Templated:
        @retryable(template=RetryTemplate(recovery=lambda context: "template"))
        def call(self):
            raise RemoteError

        @recover
        def other(self, error: OtherError):
            return "other"

    assert Templated().call() == "template"


def test_no_recovery_hook_is_called_when_no_recoverer_matches():
    recorder = Recorder()

    class Recording:
        @retryable(retry_on=RemoteError, listeners=[recorder])
        def call(self):
            raise RemoteError

        @recover
        def other(self, error: OtherError): ...

    with pytest.raises(RemoteError):
        Recording().call()
    assert recorder.values("on_recovery") == []


# -- the class and its instance ---------------------------------------------------------------


def test_recoverer_gets_the_instance():
    class Mine(Service):
        @recover
        def remote(self, error: RemoteError):
            return self

    service = Mine()
    assert service.call(1) is service


def test_subclass_adds_recoverers_and_overrides_without_decorator():
    class Sub(Nearest):
        def remote(self, error: RemoteError):
            return "overridden", super().remote(error)

        @recover
        def more(self, error: OSError):
            return "more"

    assert Sub(RemoteError).call(1) == ("overridden", "remote")
    assert Sub(ConnectionError).call(1) == "more"
    assert Nearest(ConnectionError).call(1) == "any"


def test_subclass_removes_a_recoverer_with_none():
    class Sub(Nearest):
        near = None

    assert Sub(NearError).call(1) == "remote"


def test_recoverer_of_a_subclass_precedes_its_equals():
    class Sub(Nearest):
        @recover
        def own(self, error: RemoteError):
            return "own"

    assert Sub(RemoteError).call(1) == "own"


def test_classmethod_is_recovered_by_classmethods_and_staticmethods():
    class Classy:
        @retryable(retry_on=RemoteError)
        @classmethod
        def call(cls, failure):
            raise failure

        @recover
        def instance(self, error: RemoteError):
            return "instance"

        @recover
        @classmethod
        def remote(cls, error: RemoteError):
            return cls, "remote"

        @staticmethod
        @recover
        def other(error: OtherError, failure):
            return "static", error is failure

    assert Classy.call(RemoteError()) == (Classy, "remote")
    assert Classy.call(OtherError()) == ("static", True)
    assert Classy().call(RemoteError()) == (Classy, "remote")


def test_function_ignores_recoverers_of_its_first_argument():
    @guard
    def call(service):
        raise RemoteError

    with pytest.raises(RemoteError):
        call(Nearest())


def test_staticmethod_ignores_recoverers_of_its_first_argument():
    class Static(Nearest):
        @guard
        @staticmethod
        def static(service):
            raise RemoteError

    with pytest.raises(RemoteError):
        Static.static(Static())


async def test_coroutine_method_is_recovered_by_either_kind():
    class Asynchronous:
        def __init__(self, failure):
            self.failure = failure

        @guard
        async def call(self, one):
            raise self.failure

        @recover
        async def remote(self, error: RemoteError, one):
            return "coroutine", one

        @recover
        def other(self, error: OtherError, one):
            return "plain", one

    assert await Asynchronous(RemoteError).call(1) == ("coroutine", 1)
    assert await Asynchronous(OtherError).call(1) == ("plain", 1)


def test_plain_method_is_not_recovered_by_a_coroutine_function():
    class Both(Service):
        @recover
        async def asynchronous(self, error: RemoteError):
            return "coroutine"

        @recover
        def plain(self, error: Exception):
            return "plain"

    assert Both().call(1) == "plain"


# -- by name ------------------------------------------------------------------------------------


class Named(Nearest):
    @retryable(retry_on=RemoteError, recover="remote")
    def named(self, failure):
        raise failure

    @recover
    def given(self, error: RemoteError, failure):
        return "given", failure is error

    @retryable(retry_on=RemoteError, recover=given)
    def by_itself(self, failure):
        raise failure

    @retryable(retry_on=RemoteError, recover="either")
    @classmethod
    def class_named(cls, failure):
        raise failure

    @recover
    @classmethod
    def either(cls, error: Exception):
        return cls, "either"


def test_named_recoverer_precedes_nearer_classes():
    assert Named().named(NearError()) == "remote"


def test_named_recoverer_of_another_error_class_is_not_called():
    with pytest.raises(OtherError):
        Named().named(OtherError())


def test_recoverer_passed_as_object_is_the_method_of_the_instance():
    assert Named().by_itself(NearError()) == ("given", True)


def test_recoverer_of_a_classmethod_can_be_named():
    assert Named.class_named(NearError()) == (Named, "either")


def test_named_recoverer_can_be_overridden():
    class Sub(Named):
        def remote(self, error: RemoteError):
            return "overridden"

    assert Sub().named(NearError()) == "overridden"


def test_method_with_named_recoverer_is_a_plain_function_of_its_class():
    assert type(vars(Named)["named"]) is type(lambda: 0)


def refusals(body):
    """The error raised by creating a class with this body; Python 3.11 wraps it."""
    with pytest.raises((RuntimeError, MisuseError)) as caught:
        type("Rejected", (Nearest,), body)
    error = caught.value
    return error if isinstance(error, MisuseError) else error.__cause__


def test_unknown_or_unmarked_name_is_rejected_with_the_class():
    def call(self): ...

    call.__qualname__ = "Rejected.call"
    named = retryable(retry_on=RemoteError, recover="fallback")
    assert "fallback does not exist" in str(refusals({"call": named(call)}))
    body = {"call": named(call), "fallback": lambda self, error: None}
    assert "fallback is not marked @recover" in str(refusals(body))


def test_named_coroutine_recoverer_of_sync_method_is_rejected():
    def call(self): ...

    async def fallback(self, error: Exception): ...

    call.__qualname__ = "Rejected.call"
    named = retryable(retry_on=RemoteError, recover="fallback")
    body = {"call": named(call), "fallback": recover(fallback)}
    assert "fallback, which a synchronous method cannot await" in str(refusals(body))


def test_class_decorator_checks_the_name_immediately():
    with pytest.raises(MisuseError, match="fallback does not exist"):

        @retryable(retry_on=RemoteError, recover="fallback")
        class Work:
            def call(self): ...

    @retryable(retry_on=RemoteError, recover="any")
    class Good(Nearest):
        def other(self):
            raise RemoteError

    assert Good().other() == "any"


@pytest.mark.parametrize("kind", [lambda f: f, staticmethod], ids=["function", "staticmethod"])
def test_recoverer_name_without_instance_is_rejected(kind):
    with pytest.raises(MisuseError, match="names a method"):

        @retryable(retry_on=RemoteError, recover="fallback")
        @kind
        def call(): ...


# -- stateful -----------------------------------------------------------------------------------


class Stateful:
    """Its attempts were exhausted in an earlier execution: the failure is a recorded one."""

    numbers = count()

    def __init__(self, failure):
        self.failure = failure
        self.own = next(self.numbers)

    @retryable(policy=RetryTemplate().policy, key=lambda self, number: (self.own, number))
    def call(self, number):
        raise self.failure

    @recover
    def near(self, error: NearError, number):
        return "near", error.type_name, number

    @recover
    def io(self, error: OSError, number):
        return "io", error.type_name, number


def exhausted(service):
    for _ in range(3):
        with pytest.raises(type(service.failure)):
            service.call(17)
    return service.call(17)


class NearestError(NearError):
    pass


@pytest.mark.parametrize(
    ("failure", "name"),
    [(NearError(), "near"), (NearestError(), "near"), (ConnectionResetError(), "io")],
)
def test_recorded_failure_is_recovered_by_the_class_it_names(failure, name):
    kind = type(failure)
    type_name = kind.__name__ if name == "io" else f"{__name__}.{kind.__name__}"
    assert exhausted(Stateful(failure)) == (name, type_name, 17)


def test_recorded_failure_without_match_raises_exhausted_retry_error():
    with pytest.raises(ExhaustedRetryError):
        exhausted(Stateful(RemoteError()))


def test_key_without_a_match_starts_again():
    service = Stateful(RemoteError())
    with pytest.raises(ExhaustedRetryError):
        exhausted(service)
    with pytest.raises(RemoteError):
        service.call(17)


def test_recorded_failure_is_taken_by_recoverer_of_all_exceptions():
    class Every(Stateful):
        @recover
        def every(self, error: Exception, number):
            return "every", number

    assert exhausted(Every(RemoteError())) == ("every", 17)


def test_stateless_failure_is_recovered_with_the_exception_object():
    class InPlace:
        @retryable(
            retry_on=RemoteError, key=lambda self: RetryState("one", rollback_for=OtherError)
        )
        def call(self):
            raise RemoteError

        @recover
        def remote(self, error: RemoteError):
            return type(error)

    assert InPlace().call() is RemoteError


# -- annotations that are texts -----------------------------------------------------------------


def test_string_annotations_are_resolved_once_the_class_exists():
    assert later.Early().call() == ("early", "late")


def test_annotations_that_are_texts_find_classes_local_to_a_function():
    assert later.local_service().call(1) == ("local", 1)


def test_annotation_that_cannot_be_resolved_is_named():
    message = r"'OnlyForTypes' of error in .*Unresolved\.remote cannot be resolved"
    with pytest.raises(MisuseError, match=message):
        later.Unresolved().call()


def test_unresolved_annotation_of_an_argument_is_ignored():
    assert later.Unresolved().other(1) == ("other", 1)


# -- marking ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["error", "exc", "e", "exception"])
def test_parameter_named_like_an_exception_needs_an_annotation(name):
    namespace = {"error": lambda self, error: 0, "exc": lambda self, exc: 0}
    namespace |= {"e": lambda self, e: 0, "exception": lambda self, exception: 0}
    with pytest.raises(TypeError, match=f"the parameter {name} of .* must have an annotation"):
        recover(namespace[name])


@pytest.mark.parametrize(
    "what", [17, pytest.param(property(lambda self: 1), id="property"), int], ids=str
)
def test_recover_rejects_objects_other_than_methods(what):
    with pytest.raises(TypeError, match="recover marks a method"):
        recover(what)


def test_recover_returns_the_same_method():
    def method(self): ...

    assert recover(method) is method


def test_recovered_call_leaves_no_garbage():
    class Clean(Service):
        def __init__(self): ...

        @guard
        def call(self, one):
            raise RemoteError("down")

        @recover
        def remote(self, error: RemoteError, one):
            return one

    service = Clean()
    assert left_by(lambda: service.call(1)) == 0
