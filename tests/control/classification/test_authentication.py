"""Denied access: one attempt, one message, and nothing that the messenger can break."""

import asyncio
import pickle
import threading
import urllib.error

import pytest

from retrytemplate import (
    ExhaustedRetryError,
    MaxAttemptsRetryPolicy,
    RetryState,
    RetryTemplate,
)
from retrytemplate.control import (
    FAST_IO,
    AuthenticationAlert,
    AuthenticationFailed,
    CircuitBreaker,
    CodeClassifier,
    RetryBudget,
)
from tests.support.event_loops import LOOPS


def refused(status=401):
    error = urllib.error.HTTPError("/", status, "expired", {}, None)
    error.close()
    return error


class InvalidPassword(Exception):
    sqlstate = "28P01"


class DatabaseError(Exception):
    """What PEP 249 asks every driver to have."""


class OperationalError(DatabaseError):
    """As PEP 249 names what the server is to blame for."""


class AccessDenied(DatabaseError):
    errno = 1045


def raising(failure):
    raise failure


@pytest.fixture
def told():
    return []


@pytest.fixture
def template(told):
    """One that would retry whatever there is."""
    alert = AuthenticationAlert(told.append)
    return RetryTemplate(MaxAttemptsRetryPolicy(3), name="billing", listeners=[alert])


@pytest.mark.statement("S4-76")
@pytest.mark.parametrize(
    "failure",
    [refused(), refused(407), InvalidPassword(), AccessDenied()],
    ids=["401", "407", "SQLSTATE", "vendor's code"],
)
def test_no_second_attempt_and_one_message_at_once(template, told, failure):
    outcome = template.outcome(raising, failure)
    assert (outcome.attempts, outcome.exception) == (1, failure)
    assert told == [AuthenticationFailed(name="billing", attempt=1, error=failure)]


@pytest.mark.parametrize(
    "said",
    [
        'password authentication failed for user "kim"',
        'no pg_hba.conf entry for host "10.0.0.7", user "kim", database "prices", no encryption',
        'pg_hba.conf rejects connection for host "10.0.0.7", user "kim", database "prices"',
        'role "kim" is not permitted to log in',
    ],
)
def test_so_it_is_where_psycopg_has_only_the_words_of_the_server(template, told, said):
    words = f'connection failed: connection to server at "db", port 5432 failed: FATAL:  {said}'
    assert template.outcome(raising, OperationalError(words)).attempts == 1
    assert len(told) == 1


@pytest.mark.statement("S4-76")
def test_alert_is_sent_before_the_call_has_ended(told):
    def recovery(context):
        return len(told)

    alert = AuthenticationAlert(told.append)
    template = RetryTemplate(listeners=[alert], recovery=recovery)
    assert template.call(raising, refused()) == 1


@pytest.mark.parametrize("failure", [refused(403), refused(500), ValueError(), TimeoutError()])
def test_other_failures_are_retried_without_an_alert(template, told, failure):
    assert template.outcome(raising, failure).attempts == 3
    assert told == []


@pytest.mark.statement("S4-76")
def test_credentials_that_expire_between_two_attempts_end_them(template, told):
    failures = [TimeoutError(), refused(), TimeoutError()]
    assert template.outcome(lambda: raising(failures.pop(0))).attempts == 2
    assert [each.attempt for each in told] == [2]


@pytest.mark.statement("S4-76")
def test_nested_templates_report_one_failure_once(template, told):
    outcome = template.outcome(template.call, raising, refused())
    assert (outcome.attempts, len(told)) == (1, 1)


@pytest.mark.statement("S4-76")
def test_so_do_errors_that_were_raised_from_one_another(template, told):
    def partner():
        try:
            template.call(raising, refused())
        except OSError as error:
            raise RuntimeError("no prices today") from error

    outcome = template.outcome(partner)
    assert isinstance(outcome.exception, RuntimeError)
    assert (outcome.attempts, len(told)) == (1, 1)


def test_alert_of_a_chain_has_the_outermost_failure(template, told):
    outer = refused()
    outer.__cause__ = refused()
    template.outcome(raising, outer)
    assert [each.error for each in told] == [outer]


@pytest.mark.statement("S4-76")
def test_the_next_failure_is_another_one(template, told):
    for _ in range(2):
        template.outcome(raising, refused())
    assert len(told) == 2


def test_each_alert_is_notified(told):
    listeners = [AuthenticationAlert(told.append), AuthenticationAlert(told.append)]
    RetryTemplate(listeners=listeners).outcome(raising, refused())
    assert len(told) == 2


def test_each_denied_member_of_a_group_is_reported(template, told):
    members = [refused(), TimeoutError(), refused()]
    nested = ExceptionGroup("all", [members[0], ExceptionGroup("some", members[1:])])
    assert template.outcome(raising, nested).attempts == 1
    assert {each.error for each in told} == {members[0], members[2]}


def test_of_a_group_that_is_a_cause_one_message(template, told):
    group = ExceptionGroup("all", [refused(), refused()])
    outer = RuntimeError("no prices today")
    outer.__cause__ = group
    assert template.outcome(raising, outer).attempts == 1
    assert [each.error for each in told] == [group]


def test_a_cycle_of_causes_ends(template, told):
    error, group = refused(), ExceptionGroup("round", [refused()])
    error.__cause__, group.exceptions[0].__cause__ = group, error
    assert template.outcome(raising, error).attempts == 1
    assert [each.error for each in told] == [error]


def test_reported_failure_can_be_sent_to_another_process():
    failure = ConnectionError("expired")
    failure.status = 401
    alert = AuthenticationAlert(lambda event: None)
    RetryTemplate(listeners=[alert]).outcome(raising, failure)
    assert pickle.dumps(failure)


def test_exception_without_attributes_is_reported(template, told):
    class Frozen(Exception):
        status = 401

        def __setattr__(self, name, value):
            if name.startswith("_retry"):
                raise AttributeError(name)
            super().__setattr__(name, value)

    assert template.outcome(raising, Frozen()).attempts == 1
    assert len(told) == 1


@pytest.mark.statement("S4-76")
def test_a_notifier_that_fails_breaks_nothing(caplog):
    def broken(event):
        raise RuntimeError("no pager")

    failure = refused()
    template = RetryTemplate(listeners=[AuthenticationAlert(broken)])
    outcome = template.outcome(raising, failure)
    assert (outcome.attempts, outcome.exception) == (1, failure)
    assert "no pager" in caplog.text


def test_an_interrupt_in_it_passes():
    def interrupted(event):
        raise KeyboardInterrupt

    template = RetryTemplate(listeners=[AuthenticationAlert(interrupted)])
    with pytest.raises(KeyboardInterrupt):
        template.call(raising, refused())


def test_what_would_have_to_be_awaited_is_logged(caplog):
    async def later():
        pass

    template = RetryTemplate(listeners=[AuthenticationAlert(lambda event: later())])
    assert template.outcome(raising, refused()).attempts == 1
    assert "returned an awaitable" in caplog.text


@pytest.mark.statement("S4-76")
def test_alert_may_call_the_enclosing_strategies(told):
    """No lock is held meanwhile: another thread goes through the same things."""
    budget, breaker = RetryBudget(), CircuitBreaker("billing")
    template = None

    def notify(event):
        thread = threading.Thread(target=lambda: told.append(template.call(breaker.call, int, "1")))
        thread.start()
        thread.join(20)
        told.append(template.call(breaker.call, int, "2"))

    template = RetryTemplate(guards=[budget], listeners=[AuthenticationAlert(notify)])
    template.outcome(breaker.call, raising, refused())
    assert told == [1, 2]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: type(loop).__name__)
@pytest.mark.statement("S4-76")
def test_so_it_is_in_asynchronous_code(template, told, loop):
    async def fetch():
        raise refused()

    async def main():
        return await template.outcome_async(fetch)

    assert loop.run(main).attempts == 1
    assert len(told) == 1


def test_a_failure_of_your_own_may_be_one(told):
    class TokenExpired(Exception):
        pass

    alert = AuthenticationAlert(told.append, failures=CodeClassifier({TokenExpired: True}))
    template = RetryTemplate(listeners=[alert])
    assert template.outcome(raising, TokenExpired()).attempts == 1
    assert template.outcome(raising, refused()).attempts == 3
    assert len(told) == 1


def test_redelivered_message_is_tried_again(template, told):
    """The credentials may have been renewed meanwhile."""

    def work(context):
        raise refused()

    for _ in range(2):
        with pytest.raises(OSError, match="expired"):
            template.execute(work, state=RetryState("order-17"))
    assert [each.attempt for each in told] == [1, 2]


def test_where_a_keyed_call_stays_it_ends(template, told):
    state = RetryState("order-17", rollback_for=lambda error: False)
    with pytest.raises(ExhaustedRetryError):
        template.execute(lambda context: raising(refused()), state=state)
    assert [each.attempt for each in told] == [1]


def test_with_a_preset_it_is_a_listener_like_any(told):
    template = FAST_IO.template(listeners=[AuthenticationAlert(told.append)])
    assert template.outcome(raising, refused()).attempts == 1
    assert len(told) == 1


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ([None], {}, "notify must be callable"),
        ([asyncio.sleep], {}, "notify must be a plain function"),
        ([print], {"failures": OSError}, "failures must be an ExceptionClassifier"),
    ],
)
def test_wrong_settings_are_rejected(arguments, keywords, message):
    with pytest.raises(TypeError, match=message):
        AuthenticationAlert(*arguments, **keywords)
