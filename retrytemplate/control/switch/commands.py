"""Commands of a kill switch: argument checks, then the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.validation import (
    check_flag,
    check_function,
    check_text,
)
from retrytemplate.control.switch import transitions
from retrytemplate.control.switch.canary import evaluate_health, parse_canary
from retrytemplate.control.switch.triggers import (
    find_rule,
    trigger_duration,
)
from retrytemplate.control.switch.validation import ReasonPolicy, resolve_expiry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.control.switch.model import AuditRecord, DeclaredScopes
    from retrytemplate.control.switch.writer import Command, Writer


class SwitchCommands(ABC):
    """Provides ``stop``, ``resume``, ``advance`` and ``trigger`` to a switch."""

    __slots__ = ()

    _scopes: DeclaredScopes
    _triggers: Mapping[str, Any]
    _reason_policy: ReasonPolicy
    _writer: Writer

    @abstractmethod
    def _write(self, command: Command) -> tuple[AuditRecord, ...]:
        """Commit a command to the store, also with concurrent writers.

        :raises SwitchStoreError: the store does not answer: nothing was changed.
        """

    def stop(
        self,
        *,
        everything: bool = False,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        reason: str,
        by: str,
        expires_in: Seconds | None = None,
        permanent: bool = False,
        when_expired: str | None = None,
    ) -> AuditRecord:
        """Stop one scope from now on: exactly one of the first four arguments names it.

        :param everything: True: all scopes.
        :param reason: why, for other operators; at least ``reason_length`` characters.
        :param by: the operator.
        :param expires_in: seconds, or a ``timedelta``, of at most ten years.
        :param permanent: True, instead of ``expires_in``: until an operator resumes it.
        :param when_expired: ``"resume"``: then the scope runs again; ``"keep"``: it stays stopped,
            with reminders.  None, the default: ``"keep"`` for everything, else ``"resume"``.
        :raises SwitchRefusedError: the reason is too short or names no incident; neither or both of
            ``expires_in`` and ``permanent``; ``permanent`` with ``"resume"``; not one scope.
        :raises UnknownScopeError: the scope was not declared.
        :raises SwitchStoreError: the store does not answer; nothing was changed.
        :raises ValueError: ``expires_in`` or ``when_expired`` is not valid.

        If the scope is stopped already, the later of the two ends holds.
        """
        scope = self._scopes.resolve(everything, segment, feature, experiment)
        self._reason_policy.check_reason(reason)
        check_text("by", by)
        seconds = resolve_expiry(expires_in, permanent, when_expired)
        if when_expired is None:
            when_expired = "keep" if everything else "resume"
        command = partial(
            transitions.stop,
            scope=scope,
            reason=reason,
            by=by,
            seconds=seconds,
            when_expired=when_expired,
        )
        return self._write(command)[-1]

    def resume(
        self,
        *,
        everything: bool = False,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        by: str,
        justification: str,
        canary: Sequence[float] | None = None,
        override: bool = False,
    ) -> AuditRecord:
        """Resume a stopped scope, at once or with a canary.

        :param by: the operator who approves it.
        :param justification: why; at least ``reason_length`` characters.
        :param canary: percentages of the keys, such as ``(5, 25, 100)``: the first from now on,
            each further one with an ``advance``.  None, the default: all keys at once.
        :param override: True: resume everything at once.  Default False.
        :raises SwitchRefusedError: the scope is not stopped, the justification is too short, or
            everything would be resumed at once without ``override``.
        :raises UnknownScopeError: the scope was not declared.
        :raises SwitchStoreError: the store does not answer; nothing was changed.
        """
        scope = self._scopes.resolve(everything, segment, feature, experiment)
        self._reason_policy.check("justification", justification)
        check_text("by", by)
        check_flag("override", override)
        command = partial(
            transitions.resume,
            scope=scope,
            by=by,
            justification=justification,
            canary=parse_canary(canary),
            override=override,
        )
        return self._write(command)[-1]

    def advance(
        self,
        *,
        everything: bool = False,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        by: str,
        justification: str,
        healthy: bool | Callable[[], Any] | None = None,
    ) -> AuditRecord:
        """Take the next step of a canary; if unhealthy, stop all keys again.

        :param by: the operator.
        :param justification: why; at least ``reason_length`` characters.
        :param healthy: a bool, or a function without parameters that checks it, without a time
            limit; an exception means False.  None, the default: the justification confirms it.
        :raises SwitchRefusedError: no canary runs, or it was changed during the check.
        :raises UnknownScopeError: the scope was not declared.
        :raises SwitchStoreError: the store does not answer; nothing was changed.

        The last step ends the stop.
        """
        scope = self._scopes.resolve(everything, segment, feature, experiment)
        self._reason_policy.check("justification", justification)
        check_text("by", by)
        if healthy is not None and not isinstance(healthy, bool):
            check_function("healthy", healthy)
        seen = transitions.find_canary(self._writer.read().entries, scope)
        is_healthy, reason = evaluate_health(healthy, justification)
        command = partial(
            transitions.advance, seen=seen, by=by, justification=reason, healthy=is_healthy
        )
        return self._write(command)[-1]

    def trigger(
        self,
        cause: str,
        *,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        reason: str,
        expires_in: Seconds | None = None,
    ) -> AuditRecord | None:
        """Stop a scope automatically, if the table of triggers allows it for this cause.

        :param cause: a cause of the table.
        :param expires_in: seconds, or a ``timedelta``; None, the default: the longest time that the
            table allows.
        :returns: None if the scope is stopped already.
        :raises TriggerRefusedError: the table does not allow it, or leaves it to a human.
        :raises UnknownScopeError: the scope was not declared.
        :raises SwitchStoreError: the store does not answer; nothing was changed.

        A running canary is ended: all keys are stopped again.
        """
        scope = self._scopes.resolve(False, segment, feature, experiment)
        check_text("cause", cause)
        rule = find_rule(self._triggers, cause, scope)
        check_text("reason", reason)  # of any length: no operator wrote it
        seconds = trigger_duration(rule, cause, expires_in)
        by = f"automatic: {cause}"
        command = partial(
            transitions.stop,
            scope=scope,
            reason=reason,
            by=by,
            seconds=seconds,
            when_expired=rule.when_expired,
            cause=cause,
        )
        made = [each for each in self._write(command) if (each.scope, each.by) == (scope, by)]
        return made[-1] if made else None
