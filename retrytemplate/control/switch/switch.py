"""The kill switch: state, checks and commands."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.validation import (
    delay,
    duration,
    has_methods,
    plain,
    span,
    span_or_none,
    text,
    whole,
)
from retrytemplate._storage.fork_safety import follow
from retrytemplate.clock import given_or_system
from retrytemplate.control._poller import Watcher
from retrytemplate.control.events import check_listeners, listeners_of, tell
from retrytemplate.control.switch import transitions
from retrytemplate.control.switch.cache import Copy, answered, ticks_of
from retrytemplate.control.switch.canary import KEY, shares_of, verdict
from retrytemplate.control.switch.codec import read_record
from retrytemplate.control.switch.guard import Question, SwitchGuard
from retrytemplate.control.switch.model import Decision, Scopes, scope_of
from retrytemplate.control.switch.notifier import Chronicle, Outages, check_notifiers
from retrytemplate.control.switch.report import SwitchReport, SwitchSnapshot, lines_of
from retrytemplate.control.switch.store.base import MemorySwitchStore
from retrytemplate.control.switch.triggers import (
    DEFAULT_TRIGGERS,
    allowed_by,
    check_triggers,
    length_of,
)
from retrytemplate.control.switch.validation import Words, lasting
from retrytemplate.control.switch.writer import Writer
from retrytemplate.errors import SwitchStoreError
from retrytemplate.state import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from re import Pattern
    from types import TracebackType
    from typing import Self

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.cache import View
    from retrytemplate.control.switch.model import AuditRecord, SwitchScope, UnreadableRecord
    from retrytemplate.control.switch.store.base import SwitchStore
    from retrytemplate.control.switch.writer import Command

__all__ = ["Commands", "KillSwitch"]


class Commands(ABC):
    """Gives ``stop``, ``resume``, ``advance`` and ``trigger`` to what writes them down.

    Each looks at what it is told, and leaves the rest to the rules.
    """

    __slots__ = ()

    _scopes: Scopes
    _triggers: Mapping[str, Any]
    _words: Words
    _writer: Writer

    @abstractmethod
    def _write(self, command: Command) -> tuple[AuditRecord, ...]:
        """Carry out a command on what the store holds, whoever else writes at the same time.

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

        :param reason: why, so that somebody else understands it.
        :param by: who stops it.
        :param expires_in: how long; or ``permanent=True``, until somebody lets it run.
        :param when_expired: ``"resume"``: then it runs by itself; ``"keep"``: it stays stopped, and
            you are reminded.  None: everything stays, anything less is lifted.
        :raises SwitchRefusedError: the reason says nothing, nothing was said of the end, or what is
            permanent is to be lifted by itself.
        :raises UnknownScopeError: there is nothing of that name.
        :raises SwitchStoreError: the store does not answer.
        :raises ValueError: for an end that is not to come.

        What is stopped already is stopped anew: the later of the two ends holds.
        """
        scope = self._scope(everything, segment, feature, experiment)
        self._words.check_reason(reason)
        text("by", by)
        seconds = lasting(expires_in, permanent, when_expired)
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
        self._words.check("justification", justification)
        text("by", by)
        if not isinstance(override, bool):
            raise TypeError(f"override must be True or False, got {override!r}")
        command = partial(
            transitions.resume,
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
        :raises UnknownScopeError: there is nothing of that name.
        :raises SwitchStoreError: the store does not answer.

        With the last step it runs as it did before.
        """
        scope = self._scope(everything, segment, feature, experiment)
        self._words.check("justification", justification)
        text("by", by)
        if healthy is not None and not isinstance(healthy, bool):
            plain("healthy", healthy)
        seen = transitions.canary_of(self._writer.read().entries, scope)
        well, why = verdict(healthy, justification)
        command = partial(transitions.advance, seen=seen, by=by, justification=why, healthy=well)
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
        text("cause", cause)
        rule = allowed_by(self._triggers, cause, scope)
        text("reason", reason)  # however short: nobody is there who could find a better one
        seconds = length_of(rule, cause, expires_in)
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
        scope = scope_of(*given)
        self._scopes.check(scope)
        return scope


UNKNOWN = "stop", "run"
STORE = "load", "commit", "records", "claim_pending_notifications", "mark_notified", "close"
# Seconds between two rounds of the watcher; a check finds out by itself what is older than it may.
SHORTEST_ROUND, LONGEST_ROUND = 0.05, 60.0
MOST_QUESTIONS = 1024  # that are remembered
UNTOLD = Decision(False, "what is stopped is not known: the store has not answered yet")


@define(eq=False, init=False, repr=False)
class KillSwitch(Commands):
    """Stops work at once, for a stated reason, until somebody lets it run again, step by step.

    :param store: where it is kept what is stopped; None: in memory, for this process alone.
    :param stale_after: seconds within which a change in another process is seen here, while the
        store answers; 0: every check asks the store.
    :param name: in errors, events and reports.
    :param scopes: the names that there are, by ``"segment"``, ``"feature"``, ``"experiment"``;
        others are refused.  None: any name is one.
    :param triggers: what may stop something automatically, and what.
    :param unknown: ``"stop"`` or ``"run"``, where the store has never answered this process.
    :param reason_length: characters of a reason or a justification, at least; surrounding spaces
        do not count.
    :param incident: a regular expression that the reason of a stop has to contain.
    :param listeners: told of changes, of a store that is lost, and of calls that are refused.
    :param notifiers: functions of an ``AuditRecord``, called once for each change by one of all
        processes (again, where one fails).
    :param reminder_interval: seconds between two reminders of a stop that is overdue.
    :param max_notification_age: seconds; the notifiers receive no older change.  None: they receive
        every change, however old it is.
    :param clock: dates and measures.

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
    _questions: dict[tuple[Any, ...], Question]
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
    _outages: Outages
    _heard: View | None
    _watcher: Watcher

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
        reminder_interval: Seconds = 86400.0,
        max_notification_age: Seconds | None = 604800.0,
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
        self._unknown = transitions.ALLOWED if unknown == "run" else UNTOLD
        self._words = Words(reason_length, incident)
        self._nag_every = duration(reminder_interval)
        span("reminder_interval", self._nag_every)
        since = None if max_notification_age is None else duration(max_notification_age)
        span_or_none("max_notification_age", since)
        self._listeners, tellers = listeners_of(listeners), listeners_of(notifiers)
        check_listeners("listeners", self._listeners)
        check_notifiers("notifiers", tellers)
        self._tell = partial(tell, self._listeners)
        now = ticks_of(self._clock)
        self._copy = Copy(self.store, name, age, now)
        self._writer = Writer(self._copy, self._clock, self._tell)
        self._outages = Outages(name)
        self._heard = None
        self._chronicle = Chronicle(self.store, name, tellers, now, self._clock.time, since)
        period = min(max(age / 2, SHORTEST_ROUND), LONGEST_ROUND)
        self._watcher = Watcher(self._watch, period, name="retrytemplate-switch")
        self._questions = {}
        follow(self)

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
            question = self._questions[segment, feature, experiment]
        except (KeyError, TypeError):  # the latter: no name at all
            question = self._question(segment, feature, experiment)
        if key is not None and type(key) is not str:
            encode_key(key, KEY)
        return transitions.ALLOWED if question.is_clear() else self._decide(question, _giving(key))

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
        question = self._question(segment, feature, experiment)
        if key is not None and not callable(key):
            encode_key(key, KEY)
        return SwitchGuard(self, question, key)

    def _question(self, *names: str | None) -> Question:
        question = Question(self._copy, self._scopes.asked(*names))
        if len(self._questions) >= MOST_QUESTIONS:
            self._questions.clear()
        self._questions[names] = question
        return question

    def _decide(self, question: Question, key: Callable[[], Any]) -> Decision:
        """Look at what is stopped, and ask the store where that is due."""
        if not self._copy.is_fresh():
            self._catch_up()
        return self._known(question, key)

    def _known(self, question: Question, key: Callable[[], Any]) -> Decision:
        view = self._copy.view
        if view is None:
            return self._unknown
        question.look(view)
        return transitions.decide(view.entries, question.scopes, key, self._clock.time())

    def _rest(self, decision: Decision) -> float | None:
        """Seconds until what was refused is lifted by itself."""
        entry = decision.entry
        if entry is None or entry.until is None or entry.when_expired != "resume":
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
        self._outages.attempt(self._look_after, "what is due cannot be written")
        self._tell_news()
        self._notify()

    def report(self) -> SwitchReport:
        """All that is stopped, with its age, reason, who did it, and the end; ``str`` shows it.

        :raises SwitchStoreError: the store has never answered.

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

    def audit(self, limit: int = 100) -> tuple[AuditRecord | UnreadableRecord, ...]:
        """The latest changes, the newest first; one that cannot be read says why.

        :raises SwitchStoreError: the store does not answer.
        """
        whole("limit", limit, 1)
        return tuple(map(read_record, answered(self.store.records, limit=limit)))

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
        if self._listeners:
            answered(self._chronicle.begin)
        records = self._writer.write(command)
        if records:
            self._written()
        return records

    def _written(self) -> None:
        """What follows a change; it stands, whatever goes wrong now."""
        self._tell_news()
        self._notify()
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
        command = partial(transitions.due, reminder_interval=self._nag_every)
        if view is None:
            return
        if self._copy.missing or command(view.entries, self._clock.time()).records:
            self._write(command)

    def _tell_news(self) -> None:
        """Tell the listeners what has led to the present view, unless they have been told."""
        if self._listeners and self._copy.view is not self._heard:
            self._outages.attempt(self._tell_all, "the changes cannot be read")

    def _tell_all(self) -> None:
        view = self._copy.view
        self._tell(self._chronicle.news())
        self._heard = view

    def _notify(self) -> None:
        trouble = "the notifiers cannot be told, others will tell them"
        self._outages.attempt(self._chronicle.notify, trouble)

    def _forked(self) -> None:
        self._copy.forked()
        self._watcher.forked()


def _giving(key: Any) -> Callable[[], Any]:
    return lambda: key
