"""Denied access: no second attempt, and an alert at once."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from attrs import field, frozen

from retrytemplate._internal.validation import check_function, checked_by, instance_of
from retrytemplate.classify.exceptions import (
    ExceptionClassifier,
    iter_causes,
    iter_leaf_exceptions,
    safe_getattr,
)
from retrytemplate.control.classification.codes import OptionalNameClassifier
from retrytemplate.control.classification.libraries import OverridingClassifier, connect_error_texts
from retrytemplate.control.events import call_listener
from retrytemplate.listeners.base import RetryListener

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._engine.context import RetryContext

ALERTED_ATTR = "_retrytemplate_alerted"
# What PostgreSQL says where its code is 28.
PG_LOGIN_FAILED = re.compile(
    r"FATAL:\s+(?:.* authentication failed|no pg_hba\.conf entry|pg_hba\.conf rejects"
    r"|role .* (?:does not exist|is not permitted to log in))"
)


def _is_login_failure(exc: BaseException) -> bool | None:
    return True if any(map(PG_LOGIN_FAILED.search, connect_error_texts(exc))) else None


AUTHENTICATION_ERRORS: ExceptionClassifier = OverridingClassifier(
    {},
    of=OptionalNameClassifier(
        {},
        status={401: True, 407: True},
        sqlstate={"28": True},
        vendor={1045: True},  # MySQL
        named={
            "redis.exceptions.AuthenticationError": True,
            "valkey.exceptions.AuthenticationError": True,
        },
    ),
    override=_is_login_failure,
)
"""Credentials that are wrong, or have expired: HTTP 401 and 407, SQLSTATE class 28 and what
PostgreSQL says in its place when psycopg connects, MySQL's 1045, a wrong password of Redis."""


@frozen(kw_only=True)
class AuthenticationFailed:
    """The argument of a notifier: a failed authentication.

    :param name: of the template; None: it has none.
    :param attempt: which one it was, from 1.
    :param error: the failure; of several that were raised from one another, the outermost that is
        one.

    >>> failed = AuthenticationFailed(name="billing", attempt=1, error=OSError("401"))
    >>> f"{failed.name}, attempt {failed.attempt}: {failed.error}"
    'billing, attempt 1: 401'
    """

    name: str | None
    attempt: int
    error: BaseException


@frozen(eq=False)
class AuthenticationAlert(RetryListener):
    """Ends the attempts when access was denied, and sends an alert, once for each failure.

    A listener for any template: in ``RetryTemplate(listeners=[AuthenticationAlert(notify)])``.  It
    has the last word, whatever the policy says of such a failure.  With a key the failure leaves as
    any other does, and the next delivery is an attempt.  Templates around each other, and errors
    that are raised from one another, make no second message.

    :param notify: called with an ``AuthenticationFailed``, in the calling thread, with no lock
        held.  Its exceptions are logged, and the call continues.
    :param failures: an ``ExceptionClassifier`` that says which those are; it classifies the failure
        and its causes one by one, of a group each member and its causes.

    >>> import urllib.error
    >>> from retrytemplate import RetryTemplate
    >>> def page(event):
    ...     print(f"{event.name}: {event.error}")
    >>> template = RetryTemplate(name="billing", listeners=[AuthenticationAlert(page)])
    >>> def expired():
    ...     raise urllib.error.HTTPError("/", 401, "token expired", {}, None)
    >>> template.outcome(expired).attempts
    billing: HTTP Error 401: token expired
    1
    """

    notify: Callable[[AuthenticationFailed], Any] = field(validator=checked_by(check_function))
    failures: ExceptionClassifier = field(
        default=AUTHENTICATION_ERRORS,
        kw_only=True,
        validator=instance_of(ExceptionClassifier, "an ExceptionClassifier"),
    )
    _mark: str = field(init=False, repr=False, factory=lambda: uuid4().hex)

    def on_error(self, context: RetryContext, exception: BaseException) -> None:
        for member in iter_leaf_exceptions(exception):
            matching = [each for each in iter_causes(member) if self.failures.classify(each)]
            if not matching:
                continue
            if not context.rethrows(exception):  # what leaves is not retried here
                context.give_up()
            # Of errors that are raised from one another any may be all that another template sees.
            alerted = [self._mark_alerted(each) for each in matching]
            if not any(alerted):
                event = AuthenticationFailed(
                    name=context.name, attempt=context.attempt, error=matching[0]
                )
                call_listener(self.notify, event)

    def _mark_alerted(self, failure: BaseException) -> bool:
        """Whether an alert was sent for it before; mark it."""
        marks = safe_getattr(failure, ALERTED_ATTR)
        if isinstance(marks, tuple) and self._mark in marks:
            return True
        with suppress(Exception):  # a frozen exception does not take it
            setattr(failure, ALERTED_ATTR, (*(marks or ()), self._mark))
        return False
