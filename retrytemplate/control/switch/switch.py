"""The kill switch: what operators stop, and what it takes to let it run again."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._checks import delay, duration, has_methods, plain, span, text, whole
from retrytemplate.clock import given_or_system
from retrytemplate.control.events import check_listeners, listeners_of, tell
from retrytemplate.control.switch import rules
from retrytemplate.control.switch.canary import shares_of, verdict
from retrytemplate.control.switch.copies import Copy, ticks_of
from retrytemplate.control.switch.entries import AuditRecord, Decision
from retrytemplate.control.switch.expiry import check_when_expired, until
from retrytemplate.control.switch.guard import SwitchGuard
from retrytemplate.control.switch.report import SwitchReport, SwitchSnapshot, lines_of
from retrytemplate.control.switch.scopes import Scopes, SwitchScope, scope_of
from retrytemplate.control.switch.stores import MemorySwitchStore
from retrytemplate.control.switch.telling import Chronicle, check_notifiers
from retrytemplate.control.switch.triggers import (
    DEFAULT_TRIGGERS,
    allowed_by,
    check_triggers,
    length_of,
)
from retrytemplate.control.switch.watcher import Watcher
from retrytemplate.control.switch.words import Words
from retrytemplate.control.switch.writing import Writer
from retrytemplate.errors import SwitchStoreError
from retrytemplate.state import encode_key
from retrytemplate.stores.forks import follow

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from re import Pattern
    from types import TracebackType
    from typing import Self

    from retrytemplate._checks import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.copies import View
    from retrytemplate.control.switch.entries import SwitchEntry
    from retrytemplate.control.switch.stores import SwitchStore
    from retrytemplate.control.switch.writing import Command

__all__ = ["KillSwitch"]

LOG = logging.getLogger("retrytemplate.control.switch")
UNKNOWN = "stop", "run"
STORE = "load", "commit", "records", "claim_untold", "told", "close"
# Seconds between two rounds of the watcher; a check finds out by itself what is older than it may.
SHORTEST_ROUND, LONGEST_ROUND = 0.05, 60.0
UNTOLD = Decision(False, "what is stopped is not known: the store has not answered yet")


@define(eq=False, init=False, repr=False)
class KillSwitch:
    """Stops work at once, for a stated reason, until somebody lets it run again, step by step.

    :param store: where it is kept what is stopped; None: in memory, for this process alone.
    :param stale_after: seconds within which a change in another process is seen here, while the
        store answers; 0: every check asks the store.
    :param name: in errors, events and reports.
    :param scopes: the names that there are, by ``"segment"``, ``"feature"``, ``"experiment"``;
        others are refused.  None: any name is one.
    :param triggers: what may stop something automatically, and what.
    :param unknown: ``"stop"`` or ``"run"``, where the store has never answered this process.
    :param reason_length: letters that a reason has, and a justification, at least.
    :param incident: a regular expression that the reason of a stop has to contain.
    :param listeners: told of changes, of a store that is lost, and of calls that are refused.
    :param notifiers: functions of an ``AuditRecord``, called once for each change by one of all
        processes (again, where one fails).
    :param nag_every: seconds between two reminders of what stays stopped though its time is up.
    :param clock: dates and measures.
    :raises ValueError, TypeError: for what makes no sense.

    Safe for threads and tasks.

    >>> switch = KillSwitch()
    >>> record = switch.stop(
    ...     segment="finance", reason="leak suspected, incident 4711", by="kim", expires_in=3600
    ... )
    >>> allowed, reason = switch.check(segment="finance")
    >>> allowed, reason
    (False, "segment 'finance' is stopped by kim: leak suspected, incident 4711")
    >>> record = switch.resume(segment="finance", by="lee", justification="found and mended")
    >>> bool(switch.check(segment="finance"))
    True
    """

    name: str
    store: SwitchStore
    _scopes: Scopes
    _asked: Mapping[Any, tuple[SwitchScope, ...]]
    _triggers: Mapping[str, Any]
    _unknown: Decision
    _words: Words
    _nag_every: float
    _listeners: tuple[Any, ...]
    _tell: Callable[[Iterable[ControlEvent]], None]
    _clock: Clock
    _copy: Copy
    _writer: Writer
    _chronicle: Chronicle
    _heard: View | None
    _watcher: Watcher
    _is_quiet: Callable[[], bool]

    def __init__(
        self,
        store: SwitchStore | None = None,
        stale_after: Seconds = 5.0,
        *,
        name: str = "switch",
        scopes: Mapping[str, Iterable[str]] | None = None,
        triggers: Mapping[str, Any] = DEFAULT_TRIGGERS,
        unknown: str = "stop",
        reason_length: int = 12,
        incident: str | Pattern[str] | None = None,
        listeners: Iterable[Any] = (),
        notifiers: Iterable[Callable[[AuditRecord], Any]] = (),
        nag_every: Seconds = 86400.0,
        clock: Clock | None = None,
    ) -> None:
        self._clock = given_or_system(clock)
        self.store = MemorySwitchStore(clock=clock) if store is None else store
        has_methods("store", self.store, *STORE)
        age: float = duration(stale_after)
        delay("stale_after", age)
        text("name", name)
        if unknown not in UNKNOWN:
            raise ValueError(f"unknown must be one of {', '.join(UNKNOWN)}, got {unknown!r}")
        check_triggers("triggers", triggers)
        self.name, self._scopes, self._triggers = name, Scopes(scopes), dict(triggers)
        self._asked = self._scopes.known
        self._unknown = rules.ALLOWED if unknown == "run" else UNTOLD
        self._words = Words(reason_length, incident)
        self._nag_every = duration(nag_every)
        span("nag_every", self._nag_every)
        self._listeners, tellers = listeners_of(listeners), listeners_of(notifiers)
        check_listeners("listeners", self._listeners)
        check_notifiers("notifiers", tellers)
        self._tell = partial(tell, self._listeners)
        now = ticks_of(self._clock)
        self._copy = Copy(self.store, name, age, now)
        self._writer = Writer(self._copy, self._clock, self._tell)
        self._heard = None
        self._chronicle = Chronicle(self.store, name, tellers, now)
        self._watcher = Watcher(self, min(max(age / 2, SHORTEST_ROUND), LONGEST_ROUND))
        self._is_quiet = quietness(self._copy)
        follow(self)

    # Commands.

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

        :param reason: why, so that somebody else understands it.
        :param by: who stops it.
        :param expires_in: how long; or ``permanent=True``, until somebody lets it run.
        :param when_expired: ``"lift"``: then it runs by itself; ``"stay"``: it stays stopped, and
            you are reminded.  None: everything stays, anything less is lifted.
        :raises SwitchRefusedError: the reason says nothing, or nothing was said of the end.
        :raises UnknownScopeError: there is nothing of that name.
        :raises SwitchStoreError: the store does not answer.

        What is stopped already is stopped anew: the later of the two ends holds.
        """
        scope = self._scope(everything, segment, feature, experiment)
        self._words.check_reason(reason)
        text("by", by)
        if when_expired is None:
            when_expired = "stay" if everything else "lift"
        check_when_expired("when_expired", when_expired)
        until(expires_in, permanent, 0.0)

        def command(entries: Mapping[SwitchScope, SwitchEntry], now: float) -> rules.Change:
            return rules.stop(
                entries,
                scope,
                reason=reason,
                by=by,
                now=now,
                until=until(expires_in, permanent, now),
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
        :raises SwitchStoreError: the store does not answer.
        """
        scope = self._scope(everything, segment, feature, experiment)
        self._words.check("justification", justification)
        text("by", by)
        if not isinstance(override, bool):
            raise TypeError(f"override must be True or False, got {override!r}")
        command = partial(
            _resume,
            scope=scope,
            by=by,
            justification=justification,
            canary=shares_of(canary),
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
        :raises SwitchRefusedError: no canary runs, or somebody has changed it meanwhile.
        :raises SwitchStoreError: the store does not answer.

        With the last step it runs as it did before.
        """
        scope = self._scope(everything, segment, feature, experiment)
        self._words.check("justification", justification)
        text("by", by)
        if healthy is not None and not isinstance(healthy, bool):
            plain("healthy", healthy)
        seen = rules.canary_of(self._writer.read().entries, scope)
        well, why = verdict(healthy, justification)

        def command(entries: Mapping[SwitchScope, SwitchEntry], now: float) -> rules.Change:
            return rules.advance(entries, seen, by=by, justification=why, now=now, healthy=well)

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
        :raises SwitchStoreError: the store does not answer.

        A canary that runs goes back to none.
        """
        scope = self._scope(False, segment, feature, experiment)
        text("cause", cause)
        rule = allowed_by(self._triggers, cause, scope)
        text("reason", reason)  # however short: nobody is there who could find a better one
        seconds = length_of(rule, cause, expires_in)
        by = f"automatic: {cause}"

        def command(entries: Mapping[SwitchScope, SwitchEntry], now: float) -> rules.Change:
            return rules.stop(
                entries,
                scope,
                reason=reason,
                by=by,
                now=now,
                until=now + seconds,
                when_expired=rule.when_expired,
                cause=cause,
            )

        made = [each for each in self._write(command) if (each.scope, each.by) == (scope, by)]
        return made[-1] if made else None

    def _scope(self, *given: Any) -> SwitchScope:
        scope = scope_of(*given)
        self._scopes.check(scope)
        return scope

    # Checks.

    def check(
        self,
        *,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        key: Any = None,
    ) -> Decision:
        """Whether this may run now: everything is asked for first, then what is named, in order.

        :param key: whose work it is; while a canary runs, it decides.
        :raises UnknownScopeError: there is nothing of that name.
        :raises InconsistentKeyError: for what is no key.

        It gives a pair, too: ``allowed, reason = switch.check(...)``.  A store that does not answer
        makes it raise nothing: what was last known holds.
        """
        try:
            asked = self._asked[segment, feature, experiment]
        except (KeyError, TypeError):  # the latter: no name at all
            asked = self._scopes.asked(segment, feature, experiment)
        if key is not None and type(key) is not str:
            encode_key(key)
        return rules.ALLOWED if self._is_quiet() else self._decide(asked, _giving(key))

    def guard(
        self,
        *,
        segment: str | None = None,
        feature: str | None = None,
        experiment: str | None = None,
        key: Any = None,
    ) -> SwitchGuard:
        """A guard for templates, and a strategy for pipelines, that lets pass what may run.

        :param key: whose work it is, or a function of the context that gives it (of None, outside
            of a template).
        :raises UnknownScopeError: there is nothing of that name.

        >>> from retrytemplate import RetryTemplate
        >>> switch = KillSwitch()
        >>> template = RetryTemplate(guards=[switch.guard(segment="finance")])
        >>> template.call(int, "17")
        17
        """
        asked = self._scopes.asked(segment, feature, experiment)
        if key is not None and not callable(key):
            encode_key(key)
        return SwitchGuard(self, asked, key)

    def _decide(self, asked: tuple[SwitchScope, ...], key: Callable[[], Any]) -> Decision:
        """Look at what is stopped, and ask the store where that is due."""
        if not self._copy.is_fresh():
            self._catch_up()
        return self._known(asked, key)

    def _known(self, asked: tuple[SwitchScope, ...], key: Callable[[], Any]) -> Decision:
        view = self._copy.view
        if view is None:
            return self._unknown
        return rules.decide(view.entries, asked, key, self._clock.time())

    def _rest(self, decision: Decision) -> float | None:
        """Seconds until what was refused is lifted by itself."""
        entry = decision.entry
        if entry is None or entry.until is None or entry.when_expired != "lift":
            return None
        return max(0.0, entry.until - self._clock.time())

    def _catch_up(self) -> None:
        if self.store.shared:
            self._watcher.ensure()
        self._tell(self._copy.catch_up())
        self._tell_news()

    # Looking.

    def start(self) -> None:
        """Ask the store, and begin to watch it: without it the first check does."""
        self.refresh()
        self._watcher.ensure()

    def refresh(self) -> None:
        """Ask the store now, lift what has had its time, and tell what nobody has told.

        The watching thread does it every ``stale_after`` / 2 seconds.  Where the store does not
        answer, the listeners are told, and nothing is raised.
        """
        self._tell(self._copy.refresh())
        if self._copy.lost_at is not None:
            return
        try:
            self._look_after()
            self._tell_news()
            self._chronicle.notify()
        except Exception:
            LOG.warning("%s: the store was lost on the way", self.name, exc_info=True)

    def report(self) -> SwitchReport:
        """All that is stopped, with its age, reason, who did it, and the end; ``str`` shows it.

        >>> switch = KillSwitch()
        >>> record = switch.stop(
        ...     feature="export", reason="wrong totals, incident 4712", by="kim", permanent=True
        ... )
        >>> [(str(each.entry.scope), each.state) for each in switch.report().lines]
        [("feature 'export'", 'stopped')]
        """
        self.refresh()
        view, now = self._copy.view, self._clock.time()
        if view is None:
            raise SwitchStoreError(f"the store of {self.name!r} has not answered yet: {self._why}")
        lines = lines_of(view.entries.values(), now)
        stale = self._copy.age if self._copy.lost_at is not None else None
        return SwitchReport(name=self.name, at=now, lines=lines, stale=stale)

    def audit(self, limit: int = 100) -> tuple[AuditRecord, ...]:
        """The latest changes, the newest first.

        :raises SwitchStoreError: the store does not answer, or holds what cannot be read.
        """
        whole("limit", limit, 1)
        found = _asking(self.store.records, limit=limit)
        return tuple(AuditRecord.from_text(each.text) for each in found)

    def snapshot(self) -> SwitchSnapshot:
        """What this process knows, without a look at the store.

        >>> KillSwitch().snapshot().entries
        ()
        """
        view = self._copy.view
        return SwitchSnapshot(
            name=self.name,
            version=None if view is None else view.version,
            entries=() if view is None else tuple(view.entries.values()),
            age=self._copy.age,
            error=self._why,
        )

    @property
    def _why(self) -> str | None:
        return self._copy.error

    def close(self) -> None:
        """End the watching thread; the store is left to whoever made it.

        Checks go on, and look for themselves.
        """
        self._watcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<KillSwitch {self.name!r}: {self.store!r}>"

    # Writing.

    def _write(self, command: Command) -> tuple[AuditRecord, ...]:
        """Carry out a command on what the store holds, whoever else writes at the same time.

        :raises SwitchStoreError: the store does not answer: nothing was changed.
        """
        if self._listeners:
            _asking(self._chronicle.begin)
        records = self._writer.write(command)
        if records:
            self._written()
        return records

    def _written(self) -> None:
        """What follows a change; it stands, whatever goes wrong now."""
        self._tell_news()
        try:
            self._chronicle.notify()
        except Exception:
            LOG.warning("%s: the store was lost, others will tell", self.name, exc_info=True)
        if self.store.shared or self._has_work():
            self._watcher.ensure()

    # Time.

    def _watch(self) -> bool:
        """A round of the watcher; whether there is to be another one."""
        self.refresh()
        return self.store.shared or self._has_work()

    def _has_work(self) -> bool:
        view = self._copy.view
        timed = view is not None and any(not each.permanent for each in view.entries.values())
        return timed or self._chronicle.has_to_try_again

    def _look_after(self) -> None:
        view = self._copy.view
        command = partial(rules.due, nag_every=self._nag_every)
        if view is None:
            return
        if self._copy.missing or command(view.entries, self._clock.time()).records:
            self._write(command)

    def _tell_news(self) -> None:
        """Tell the listeners what has led to the present view, unless they have been told."""
        view = self._copy.view
        if self._listeners and view is not self._heard:
            try:
                self._tell(self._chronicle.news())
                self._heard = view
            except Exception:
                LOG.warning("%s: the changes cannot be read", self.name, exc_info=True)

    def _forked(self) -> None:
        self._copy.forked()
        self._chronicle.forked()
        self._watcher.forked()


def quietness(copy: Copy) -> Callable[[], bool]:
    """Whether nothing is stopped, as fast as can be."""
    if not copy.store.shared:
        return lambda: copy._is_version(copy.quiet_version)
    now = copy.now
    return lambda: now() < copy.quiet_until


def _giving(key: Any) -> Callable[[], Any]:
    return lambda: key


def _resume(
    entries: Mapping[SwitchScope, SwitchEntry], now: float, **settings: Any
) -> rules.Change:
    return rules.resume(entries, now=now, **settings)


def _asking(method: Callable[..., Any], **given: Any) -> Any:
    try:
        return method(**given)
    except SwitchStoreError:
        raise
    except Exception as exc:
        raise SwitchStoreError(f"the store of the kill switch cannot be read: {exc}") from exc
