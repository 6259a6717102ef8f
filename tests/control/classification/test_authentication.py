"""Denied access: one attempt, one alert; errors of the notifier are suppressed."""

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


def unauthorized(status=401):
    error = urllib.error.HTTPError("/", status, "expired", {}, None)
    error.close()
    return error


class InvalidPassword(Exception):
    sqlstate = "28P01"


class DatabaseError(Exception):
    """The base error of drivers by PEP 249."""


class OperationalError(DatabaseError):
    """The PEP 249 error of server failures."""


class AccessDenied(DatabaseError):
    errno = 1045


def raising(failure):
    raise failure


@pytest.fixture
def alerts():
    return []


@pytest.fixture
def template(alerts):
    """A template that retries every failure."""
    alert = AuthenticationAlert(alerts.append)
    return RetryTemplate(MaxAttemptsRetryPolicy(3), name="billing", listeners=[alert])


@pytest.mark.statement("S4-76")
@pytest.mark.parametrize(
    "failure",
    [unauthorized(), unauthorized(407), InvalidPassword(), AccessDenied()],
    ids=["401", "407", "SQLSTATE", "vendor's code"],
)
def test_authentication_failure_ends_the_call_with_one_alert(template, alerts, failure):
    outcome = template.outcome(raising, failure)
    assert (outcome.attempts, outcome.exception) == (1, failure)
    assert alerts == [AuthenticationFailed(name="billing", attempt=1, error=failure)]


@pytest.mark.parametrize(
    "reported",
    [
        'password authentication failed for user "kim"',
        'no pg_hba.conf entry for host "10.0.0.7", user "kim", database "prices", no encryption',
        'pg_hba.conf rejects connection for host "10.0.0.7", user "kim", database "prices"',
        'role "kim" is not permitted to log in',
    ],
)
def test_psycopg_message_of_a_denied_login_sends_an_alert(template, alerts, reported):
    words = f'connection failed: connection to server at "db", port 5432 failed: FATAL:  {reported}'
    assert template.outcome(raising, OperationalError(words)).attempts == 1
    assert len(alerts) == 1


@pytest.mark.statement("S4-76")
def test_alert_is_sent_before_the_call_has_ended(alerts):
    def recovery(context):
        return len(alerts)

    alert = AuthenticationAlert(alerts.append)
    template = RetryTemplate(listeners=[alert], recovery=recovery)
    assert template.call(raising, unauthorized()) == 1


@pytest.mark.parametrize(
    "failure", [unauthorized(403), unauthorized(500), ValueError(), TimeoutError()]
)
def test_other_failures_are_retried_without_an_alert(template, alerts, failure):
    assert template.outcome(raising, failure).attempts == 3
    assert alerts == []


@pytest.mark.statement("S4-76")
def test_credentials_that_expire_between_two_attempts_end_them(template, alerts):
    failures = [TimeoutError(), unauthorized(), TimeoutError()]
    assert template.outcome(lambda: raising(failures.pop(0))).attempts == 2
    assert [each.attempt for each in alerts] == [2]


@pytest.mark.statement("S4-76")
def test_nested_templates_report_one_failure_once(template, alerts):
    outcome = template.outcome(template.call, raising, unauthorized())
    assert (outcome.attempts, len(alerts)) == (1, 1)


@pytest.mark.statement("S4-76")
def test_chained_failures_are_reported_once(template, alerts):
    def partner():
        try:
            template.call(raising, unauthorized())
        except OSError as error:
            raise RuntimeError("no prices today") from error

    outcome = template.outcome(partner)
    assert isinstance(outcome.exception, RuntimeError)
    assert (outcome.attempts, len(alerts)) == (1, 1)


def test_alert_of_a_chain_has_the_outermost_failure(template, alerts):
    outer = unauthorized()
    outer.__cause__ = unauthorized()
    template.outcome(raising, outer)
    assert [each.error for each in alerts] == [outer]


@pytest.mark.statement("S4-76")
def test_next_failure_is_reported_again(template, alerts):
    for _ in range(2):
        template.outcome(raising, unauthorized())
    assert len(alerts) == 2


def test_each_alert_is_notified(alerts):
    listeners = [AuthenticationAlert(alerts.append), AuthenticationAlert(alerts.append)]
    RetryTemplate(listeners=listeners).outcome(raising, unauthorized())
    assert len(alerts) == 2


def test_each_denied_member_of_a_group_is_reported(template, alerts):
    members = [unauthorized(), TimeoutError(), unauthorized()]
    nested = ExceptionGroup("all", [members[0], ExceptionGroup("some", members[1:])])
    assert template.outcome(raising, nested).attempts == 1
    assert {each.error for each in alerts} == {members[0], members[2]}


def test_group_that_is_a_cause_is_reported_once(template, alerts):
    group = ExceptionGroup("all", [unauthorized(), unauthorized()])
    outer = RuntimeError("no prices today")
    outer.__cause__ = group
    assert template.outcome(raising, outer).attempts == 1
    assert [each.error for each in alerts] == [group]


def test_cycle_of_causes_ends(template, alerts):
    error, group = unauthorized(), ExceptionGroup("round", [unauthorized()])
    error.__cause__, group.exceptions[0].__cause__ = group, error
    assert template.outcome(raising, error).attempts == 1
    assert [each.error for each in alerts] == [error]


def test_reported_failure_can_be_sent_to_another_process():
    failure = ConnectionError("expired")
    failure.status = 401
    alert = AuthenticationAlert(lambda event: None)
    RetryTemplate(listeners=[alert]).outcome(raising, failure)
    assert pickle.dumps(failure)


def test_exception_without_attributes_is_reported(template, alerts):
    class Frozen(Exception):
        status = 401

        def __setattr__(self, name, value):
            if name.startswith("_retry"):
                raise AttributeError(name)
            super().__setattr__(name, value)

    assert template.outcome(raising, Frozen()).attempts == 1
    assert len(alerts) == 1


@pytest.mark.statement("S4-76")
def test_error_of_a_notifier_is_suppressed(caplog):
    def broken(event):
        raise RuntimeError("no pager")

    failure = unauthorized()
    template = RetryTemplate(listeners=[AuthenticationAlert(broken)])
    outcome = template.outcome(raising, failure)
    assert (outcome.attempts, outcome.exception) == (1, failure)
    assert "no pager" in caplog.text


def test_interrupt_in_a_notifier_is_raised():
    def interrupted(event):
        raise KeyboardInterrupt

    template = RetryTemplate(listeners=[AuthenticationAlert(interrupted)])
    with pytest.raises(KeyboardInterrupt):
        template.call(raising, unauthorized())


def test_notifier_that_returns_an_awaitable_is_logged(caplog):
    async def later():
        pass

    template = RetryTemplate(listeners=[AuthenticationAlert(lambda event: later())])
    assert template.outcome(raising, unauthorized()).attempts == 1
    assert "returned an awaitable" in caplog.text


@pytest.mark.statement("S4-76")
def test_alert_may_call_the_enclosing_strategies(alerts):
    """No lock is held: another thread can use the same objects."""
    budget, breaker = RetryBudget(), CircuitBreaker("billing")
    template = None

    def notify(event):
        thread = threading.Thread(
            target=lambda: alerts.append(template.call(breaker.call, int, "1"))
        )
        thread.start()
        thread.join(20)
        alerts.append(template.call(breaker.call, int, "2"))

    template = RetryTemplate(guards=[budget], listeners=[AuthenticationAlert(notify)])
    template.outcome(breaker.call, raising, unauthorized())
    assert alerts == [1, 2]


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: type(loop).__name__)
@pytest.mark.statement("S4-76")
def test_asynchronous_authentication_failure_sends_one_alert(template, alerts, loop):
    async def fetch():
        raise unauthorized()

    async def main():
        return await template.outcome_async(fetch)

    assert loop.run(main).attempts == 1
    assert len(alerts) == 1


def test_user_classifier_decides_what_is_reported(alerts):
    class TokenExpired(Exception):
        pass

    alert = AuthenticationAlert(alerts.append, failures=CodeClassifier({TokenExpired: True}))
    template = RetryTemplate(listeners=[alert])
    assert template.outcome(raising, TokenExpired()).attempts == 1
    assert template.outcome(raising, unauthorized()).attempts == 3
    assert len(alerts) == 1


def test_redelivered_message_is_tried_again(template, alerts):
    """The credentials may have been renewed meanwhile."""

    def work(context):
        raise unauthorized()

    for _ in range(2):
        with pytest.raises(OSError, match="expired"):
            template.execute(work, state=RetryState("order-17"))
    assert [each.attempt for each in alerts] == [1, 2]


def test_denied_call_with_a_key_in_place_ends(template, alerts):
    state = RetryState("order-17", rollback_for=lambda error: False)
    with pytest.raises(ExhaustedRetryError):
        template.execute(lambda context: raising(unauthorized()), state=state)
    assert [each.attempt for each in alerts] == [1]


def test_alert_is_a_listener_of_a_preset(alerts):
    template = FAST_IO.template(listeners=[AuthenticationAlert(alerts.append)])
    assert template.outcome(raising, unauthorized()).attempts == 1
    assert len(alerts) == 1


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
