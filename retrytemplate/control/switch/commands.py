"""Commands of a kill switch: their arguments are checked, then the rules are applied."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from retrytemplate._internal.validation import (
    check_function,
    check_text,
)
from retrytemplate.control.switch import transitions
from retrytemplate.control.switch.canary import evaluate_health, parse_canary
from retrytemplate.control.switch.model import DeclaredScopes, resolve_scope
from retrytemplate.control.switch.triggers import (
    find_rule,
    trigger_duration,
)
from retrytemplate.control.switch.validation import ReasonPolicy, resolve_expiry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.control.switch.model import AuditRecord, SwitchScope
    from retrytemplate.control.switch.writer import Command, Writer

__all__ = ["SwitchCommands"]


class SwitchCommands(ABC):
    """Gives ``stop``, ``resume``, ``advance`` and ``trigger`` to what writes them down.

    Each checks its arguments, and leaves the rest to the rules.
    """

    __slots__ = ()

    _scopes: DeclaredScopes
    _triggers: Mapping[str, Any]
    _reason_policy: ReasonPolicy
    _writer: Writer

    @abstractmethod
    def _write(self, command: Command) -> tuple[AuditRecord, ...]:
        """Carry out a command on the state in the store, also with concurrent writers.

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
        """Stop something from now on: exactly one of the four.

        :param reason: why, in words that other operators understand.
        :param by: who stops it.
        :param expires_in: how long; or ``permanent=True``, until an operator resumes it.
        :param when_expired: ``"resume"``: then it runs by itself; ``"keep"``: it stays stopped, and
            you are reminded.  None: everything stays, anything less is lifted.
        :raises SwitchRefusedError: the reason says nothing, nothing was said of the end, or what is
            permanent is to be lifted by itself.
        :raises UnknownScopeError: there is nothing of that name.
        :raises SwitchStoreError: the store does not answer.
        :raises ValueError: for an end that is not to come.

        A stopped scope is stopped again: the later of the two ends holds.
        """
        scope = self._scope(everything, segment, feature, experiment)
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
        """Let something run again.

        :param by: who approves of it.
        :param justification: why it may.
        :param canary: shares of the keys in per cent, as ``(5, 25, 100)``: the first from now on,
            each other with an ``advance``.  None: all at once.
        :param override: all at once though everything was stopped.
        :raises SwitchRefusedError: it is not stopped, the justification says nothing, or everything
            was stopped and is to be back at once.
        :raises UnknownScopeError: there is nothing of that name.
        :raises SwitchStoreError: the store does not answer.
        """
        scope = self._scope(everything, segment, feature, experiment)
        self._reason_policy.check("justification", justification)
        check_text("by", by)
        if not isinstance(override, bool):
            raise TypeError(f"override must be True or False, got {override!r}")
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
        """Take the next step of a canary, or back to none where things are not well.

        :param healthy: whether they are: a bool, or a function that looks, and has until then all
            the time it needs; what it raises means no.  None: the justification says so.
        :raises SwitchRefusedError: no canary runs, or it was changed meanwhile.
        :raises UnknownScopeError: there is nothing of that name.
        :raises SwitchStoreError: the store does not answer.

        With the last step it runs as it did before.
        """
        scope = self._scope(everything, segment, feature, experiment)
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
        """Stop something automatically, where the table of triggers allows it for this cause.

        :param cause: what has happened, as the table calls it.
        :param expires_in: how long; None: as long as the table says, which is the longest.
        :returns: None where it is stopped already.
        :raises TriggerRefusedError: the table does not allow it, or leaves it to a human.
        :raises UnknownScopeError: there is nothing of that name.
        :raises SwitchStoreError: the store does not answer.

        A canary that runs goes back to none.
        """
        scope = self._scope(False, segment, feature, experiment)
        check_text("cause", cause)
        rule = find_rule(self._triggers, cause, scope)
        check_text("reason", reason)  # however short: no person is there to improve it
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

    def _scope(self, *given: Any) -> SwitchScope:
        scope = resolve_scope(*given)
        self._scopes.check(scope)
        return scope
