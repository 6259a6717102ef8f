"""Codes of failures: where they are found, and the values they map to."""

import asyncio
import concurrent.futures
import errno
import pickle
import socket
import sqlite3
import ssl
import sys
import types
import urllib.error

import httpx
import psycopg
import pytest
import requests
import trio
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    CircuitOpenError,
    ExceptionClassifier,
    ExceptionClassifierRetryPolicy,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import CodeClassifier, Fallback, RetryBudget, allowlist, mapped
from retrytemplate.testing import ClassifierConformance, PolicyConformance


def answered(status):
    """The error of a response with this status."""
    request = httpx.Request("GET", "http://shop.test/")
    response = httpx.Response(status, request=request)
    return httpx.HTTPStatusError(f"{status}", request=request, response=response)


class DatabaseError(Exception):
    """The base error of drivers by PEP 249; MySQL drivers put their code first."""


class Pgcode(Exception):
    """An error with a code attribute, like psycopg2's."""

    def __init__(self, pgcode):
        super().__init__(pgcode)
        self.pgcode = pgcode


class Wrapping(Exception):
    """An error that wraps a driver error, like SQLAlchemy's."""

    def __init__(self, orig, *, connection_invalidated=False):
        super().__init__(str(orig))
        self.orig = orig
        self.connection_invalidated = connection_invalidated


def reset():
    return ConnectionResetError(errno.ECONNRESET, "reset by peer")


CODES = CodeClassifier(
    {ValueError: "a value", DatabaseError: "a database"},
    default="nothing",
    status={429: "slow down", "5xx": "theirs"},
    sqlstate={"40001": "again", "23": "never"},
    vendor={1213: "deadlock", "SQLITE_CONSTRAINT": "broken"},
    errno={"ECONNRESET": "reset"},
)


@pytest.mark.parametrize(
    ("failure", "value"),
    [
        pytest.param(answered(429), "slow down", id="a status"),
        pytest.param(answered(503), "theirs", id="a class of statuses"),
        pytest.param(answered(404), "nothing", id="a status without a rule"),
        pytest.param(psycopg.errors.SerializationFailure(), "again", id="psycopg's SQLSTATE"),
        pytest.param(psycopg.errors.UniqueViolation(), "never", id="a class of SQLSTATEs"),
        pytest.param(Pgcode("40001"), "again", id="psycopg2's SQLSTATE"),
        pytest.param(DatabaseError("40001", "deadlock"), "again", id="pyodbc's SQLSTATE"),
        pytest.param(DatabaseError(1213, "deadlock"), "deadlock", id="MySQL's number"),
        pytest.param(DatabaseError(1064, "syntax"), "a database", id="a number without a rule"),
        pytest.param(reset(), "reset", id="errno"),
        pytest.param(FileNotFoundError(errno.ENOENT, "no"), "nothing", id="errno without a rule"),
        pytest.param(ValueError(1213), "a value", id="a number without a code"),
        pytest.param(KeyError("40001"), "nothing", id="a text without a code"),
    ],
)
@pytest.mark.statement("S0-36")
def test_code_maps_to_its_value(failure, value):
    assert CODES.classify(failure) == value


def test_sqlite_names_its_errors():
    with sqlite3.connect(":memory:") as database:
        database.execute("CREATE TABLE item (id UNIQUE)")
        database.execute("INSERT INTO item VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError) as raised:
            database.execute("INSERT INTO item VALUES (1)")
    database.close()
    assert CODES.classify(raised.value) == "broken"
    exact = CodeClassifier(vendor={"SQLITE_CONSTRAINT_UNIQUE": "twice"})
    assert exact.classify(raised.value) == "twice"


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(Wrapping(reset()), id="orig"),
        pytest.param(urllib.error.URLError(reset()), id="reason"),
        pytest.param(requests.ConnectionError(OSError("aborted", reset())), id="args"),
    ],
)
def test_wrapping_failure_has_the_code_of_its_cause(failure):
    assert CODES.classify(failure) == "reset"


def test_failure_that_wraps_itself_has_no_code():
    failure = Wrapping("text")
    failure.orig = failure
    failure.args = (failure,)
    assert CODES.classify(failure) == "nothing"


class CommandFailed(Exception):
    args = None  # what was called, it seems


class Unreadable(OSError):
    @property
    def args(self):
        raise RuntimeError("not now")

    errno = args


class OfADriver(DatabaseError):
    args = 7


@pytest.mark.parametrize("odd", [CommandFailed, Unreadable, OfADriver])
def test_attribute_of_another_type_is_not_a_code(odd):
    worth = CodeClassifier(default="nothing", vendor={7: "code"}, errno={7: "code"})
    assert worth.classify(odd()) == "nothing"


def test_causes_are_read_with_traverse_causes_only():
    failure = RuntimeError("while paying")
    failure.__cause__ = reset()
    assert CODES.classify(failure) == "nothing"
    through = CodeClassifier(errno={"ECONNRESET": "reset"}, traverse_causes=True)
    assert through.classify(failure) == "reset"


def test_invalidated_connection_counts_as_lost_for_drivers_without_codes():
    dropped = Wrapping(DatabaseError("server closed the connection"), connection_invalidated=True)
    assert CodeClassifier(sqlstate={"08": "gone"}).classify(dropped) == "gone"
    unknown = Wrapping(psycopg.errors.TransactionResolutionUnknown(), connection_invalidated=True)
    worth = CodeClassifier(sqlstate={"08": "gone", "08007": "who knows"})
    assert worth.classify(unknown) == "who knows"


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(socket.gaierror(5, "no such host"), id="a resolver's"),
        pytest.param(ssl.SSLError(5, "syscall"), id="OpenSSL's"),
        pytest.param(ssl.SSLEOFError(5, "EOF"), id="of a subclass"),
    ],
)
def test_numbers_of_others_are_no_errno(failure):
    assert CodeClassifier(errno={5: "input or output"}).classify(failure) is False


def test_override_precedes_code_and_code_precedes_class():
    classes = {DatabaseError: "class"}
    assert CodeClassifier(classes, vendor={7: "code"}).classify(DatabaseError(7)) == "code"
    fatal = CodeClassifier(classes, vendor={7: "code"}, overrides={Exception: "override"})
    assert fatal.classify(DatabaseError(7)) == "override"
    named = CodeClassifier(vendor={7: "code"}, overrides={f"{__name__}.DatabaseError": "name"})
    assert named.classify(DatabaseError(7)) == "name"


def test_named_classes_need_not_be_loaded(monkeypatch):
    worth = CodeClassifier(named={"absent_client.Busy": True})
    assert worth.classify(KeyError()) is False
    module = types.ModuleType("absent_client")
    module.Busy = type("Busy", (Exception,), {"__module__": "absent_client"})
    monkeypatch.setitem(sys.modules, "absent_client", module)
    assert worth.classify(module.Busy()) is True


# Where it goes.


def calls_of(policy, *failures):
    """The number of calls of a function with these failures."""
    left = list(failures)

    def call():
        if left:
            raise left.pop(0)

    return RetryTemplate(policy).outcome(call).attempts


def raising(failure):
    raise failure


@pytest.mark.statement("S0-36")
def test_policy_retries_by_code():
    policy = SimpleRetryPolicy(3, classifier=CodeClassifier(status={503: True, "4xx": False}))
    assert calls_of(policy, answered(503), answered(503)) == 3
    assert calls_of(policy, answered(503), answered(404)) == 2


@pytest.mark.statement("S0-36")
def test_code_selects_its_policy():
    patient, brief = MaxAttemptsRetryPolicy(5), MaxAttemptsRetryPolicy(2)
    chooser = ExceptionClassifierRetryPolicy(
        CodeClassifier({OSError: brief}, status={429: patient, 503: brief, 501: False})
    )
    assert calls_of(chooser, *[answered(429)] * 9) == 5
    assert calls_of(chooser, *[answered(503)] * 9) == 2
    assert calls_of(chooser, answered(429), answered(501)) == 2
    assert calls_of(chooser, answered(404)) == 1
    assert calls_of(chooser, *[OSError()] * 9) == 2
    again = pickle.loads(pickle.dumps(chooser))  # noqa: S301  # our own
    assert calls_of(again, *[answered(429)] * 9) == 5


def test_selected_policy_can_be_read_at_run_time():
    number = [4]
    policy = MaxAttemptsRetryPolicy(lambda: number[0])
    chooser = ExceptionClassifierRetryPolicy(CodeClassifier(status={429: policy}))
    assert calls_of(chooser, *[answered(429)] * 9) == 4
    number[0] = 2
    assert calls_of(chooser, *[answered(429)] * 9) == 2


def test_equal_policies_that_are_two_objects_count_apart():
    two = (MaxAttemptsRetryPolicy(2), MaxAttemptsRetryPolicy(2))
    chooser = ExceptionClassifierRetryPolicy(CodeClassifier(status={429: two[0], 503: two[1]}))
    assert calls_of(chooser, answered(429), answered(503), answered(503), answered(503)) == 3


def test_classifier_of_other_values_selects_no_policy():
    with pytest.raises(TypeError, match="must map to RetryPolicy objects or False, got True"):
        ExceptionClassifierRetryPolicy(CodeClassifier(status={429: True}))
    with pytest.raises(ValueError, match="default and traverse_causes must be left out"):
        ExceptionClassifierRetryPolicy(CodeClassifier(), default=SimpleRetryPolicy())
    with pytest.raises(ValueError, match="default and traverse_causes must be left out"):
        ExceptionClassifierRetryPolicy(CodeClassifier(), traverse_causes=True)
    assert ExceptionClassifierRetryPolicy(CodeClassifier(), default=NeverRetryPolicy())


def test_fallback_and_costs_of_a_budget_use_codes():
    theirs = CodeClassifier(status={"5xx": True})
    answer = Fallback(lambda failure: "cached", on=theirs)
    assert answer.outcome(raising, answered(503)).value == "cached"
    assert answer.outcome(raising, answered(404)).value is None
    costs = CodeClassifier(default=1, status={429: 10})
    budget = RetryBudget.tokens(capacity=20, cost=costs, refund=0)
    template = RetryTemplate(SimpleRetryPolicy(2), guards=[budget])
    template.outcome(raising, answered(429))
    assert budget.snapshot().available == 10


def test_budget_checks_the_costs_of_codes_at_construction():
    with pytest.raises(ValueError, match="cost must be above 0 and at most the capacity of 5"):
        RetryBudget.tokens(capacity=5, cost=CodeClassifier(default=1, status={429: 10}))


# Groups.

WORTH = CodeClassifier({TimeoutError: True}, status={"5xx": True, "4xx": False})


@pytest.mark.statement("S1-55")
def test_group_is_retryable_only_if_every_leaf_is():
    policy = SimpleRetryPolicy(2, classifier=WORTH)
    passing = ExceptionGroup("parts", [answered(503), ExceptionGroup("more", [TimeoutError()])])
    assert calls_of(policy, passing) == 2
    fatal = ExceptionGroup("parts", [answered(503), ExceptionGroup("more", [answered(404)])])
    assert calls_of(policy, fatal) == 1
    unknown = ExceptionGroup("parts", [answered(503), KeyError()])
    assert calls_of(policy, unknown) == 1


@pytest.mark.statement("S1-55")
@pytest.mark.parametrize(
    "cancelled",
    [asyncio.CancelledError, concurrent.futures.CancelledError, trio.Cancelled],
    ids=["asyncio's", "of a thread pool", "trio's"],
)
def test_cancellation_in_a_group_takes_precedence(cancelled):
    group = BaseExceptionGroup("parts", [answered(503), cancelled.__new__(cancelled)])
    calls = []

    def call():
        calls.append(1)
        raise group

    everything = SimpleRetryPolicy(5, classifier=CodeClassifier(default=True))
    with pytest.raises(BaseExceptionGroup):
        RetryTemplate(everything).call(call)
    assert calls == [1]


# Two lists.

RETRYABLE = (TimeoutError, ConnectionError)
NON_RETRYABLE = (PermissionError, OSError)


@pytest.mark.statement("S4-20")
def test_non_retryable_list_precedes_the_retryable_list():
    policy = SimpleRetryPolicy(3, classifier=allowlist([*RETRYABLE, KeyError], NON_RETRYABLE))
    assert calls_of(policy, KeyError(), KeyError()) == 3
    # A TimeoutError is an OSError: it stands in the first list, its base in the second.
    assert calls_of(policy, TimeoutError()) == 1


@pytest.mark.statement("S4-20")
def test_unlisted_failure_is_reraised_immediately():
    assert calls_of(SimpleRetryPolicy(3, classifier=allowlist(RETRYABLE)), LookupError()) == 1


def test_lists_accept_names_of_classes():
    worth = allowlist(["builtins.LookupError"], never=["builtins.KeyError"])
    assert [worth.classify(each) for each in (IndexError(), KeyError())] == [True, False]


@pytest.mark.parametrize("retryable", [LookupError, "builtins.LookupError"])
@pytest.mark.parametrize("never", [KeyError, "builtins.KeyError"])
def test_single_class_is_accepted_as_list(retryable, never):
    worth = allowlist(retryable, never)
    assert [worth.classify(each) for each in (IndexError(), KeyError())] == [True, False]


@pytest.mark.parametrize("name", ["retryable", "never"])
def test_wrong_type_of_list_is_rejected(name):
    with pytest.raises(
        TypeError, match=f"{name} must list exception classes or their names, got 5"
    ):
        allowlist(**{"retryable": [], name: 503})


@pytest.mark.statement("S3-20")
@pytest.mark.parametrize("every", [Exception, BaseException, "builtins.Exception"])
def test_retryable_list_of_every_exception_is_rejected(every):
    for listed in (every, [TimeoutError, every]):
        with pytest.raises(
            ValueError, match="retryable must not contain Exception or BaseException, got "
        ):
            allowlist(listed)


# Other values.


def test_values_become_others():
    codes = mapped(CODES, dict.fromkeys(CODES.values(), 1) | {"reset": 2})
    assert (codes.classify(reset()), codes.classify(KeyError()), codes.classify(None)) == (2, 1, 1)
    assert set(codes.values()) == {1, 2}
    through = mapped(ExceptionClassifier({CircuitOpenError: "open"}), {"open": True, False: False})
    assert calls_of(SimpleRetryPolicy(2, classifier=through), CircuitOpenError()) == 2


def test_value_without_a_mapping_is_rejected():
    with pytest.raises(ValueError, match="to must map 'nothing', a classifier value, got "):
        mapped(CODES, {"reset": 1} | dict.fromkeys(set(CODES.values()) - {"nothing"}))
    with pytest.raises(TypeError, match="classifier must be an ExceptionClassifier, got 'x'"):
        mapped("x", {})


# What goes wrong.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"status": {99: True}}, "keys of status must be 100 to 599 or '1xx' to '5xx', got 99"),
        ({"sqlstate": {40001: True}}, "keys of sqlstate must be codes of five characters.* 40001"),
        ({"sqlstate": {"400": True}}, "keys of sqlstate must be codes of five characters.* '400'"),
        ({"sqlstate": {"4000\uff11": True}}, "keys of sqlstate must be codes of five characters"),
        ({"vendor": {"": True}}, "keys of vendor must be numbers, or names .*, got ''"),
        ({"vendor": {True: True}}, "keys of vendor must be numbers, or names .*, got True"),
        ({"vendor": {"1213": True}}, "keys of vendor must be numbers, or names .*, got '1213'"),
        (
            {"vendor": {"sqlite_busy": True}},
            "keys of vendor .* like 'SQLITE_BUSY', got 'sqlite_busy'",
        ),
        ({"errno": {"ENOTHING": True}}, "keys of errno must be numbers, or names .* 'ENOTHING'"),
        ({"errno": {0: True}}, "keys of errno must be numbers, or names .* got 0"),
        ({"errno": {"errorcode": True}}, "keys of errno must be numbers, .* 'errorcode'"),
        ({"overrides": {"Busy": True}}, "must name exception classes with their module"),
    ],
)
def test_key_that_is_not_a_code_is_rejected(settings, message):
    with pytest.raises(ValueError, match=message):
        CodeClassifier(**settings)


@pytest.mark.parametrize(
    "settings",
    [{"rules": {"OSError": 1}}, {"overrides": {3: 1}}, {"status": 429}, {"errno": ["EIO"]}],
    ids=["a name among classes", "no class", "no table", "a list"],
)
def test_wrong_type_of_table_is_rejected(settings):
    with pytest.raises(TypeError, match=r"must (map|be)"):
        CodeClassifier(**settings)


@given(st.integers(100, 599), st.booleans(), st.booleans())
def test_exact_status_precedes_its_class(status, exact, of_class):
    worth = CodeClassifier(default=None, status={status: exact, f"{status // 100}xx": of_class})
    assert worth.classify(answered(status)) is exact
    other = status + 1 if status % 100 < 99 else status - 1
    assert worth.classify(answered(other)) is of_class


class TestCodes(ClassifierConformance):
    def make(self):
        return CodeClassifier(
            {OSError: 1}, 0, True, status={"5xx": 2}, errno={"EIO": 3}, overrides={KeyError: 4}
        )


class TestMapped(ClassifierConformance):
    def make(self):
        return mapped(allowlist([OSError]), {True: "yes", False: "no"})


class TestChosen(PolicyConformance):
    def make(self):
        some = SimpleRetryPolicy(4)
        rules = CodeClassifier({OSError: some}, False, errno={"EIO": MaxAttemptsRetryPolicy(2)})
        return ExceptionClassifierRetryPolicy(rules)
