"""The kill switch: what operators stop, and what it takes to let it run again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import define

from retrytemplate._internal.validation import (
    delay,
    duration,
    has_methods,
    span,
    span_or_none,
    text,
    whole,
)
from retrytemplate._storage.fork_safety import follow
from retrytemplate.clock import given_or_system
from retrytemplate.control.events import check_listeners, listeners_of, tell
from retrytemplate.control.switch import rules
from retrytemplate.control.switch.audit import read_record
from retrytemplate.control.switch.canary import KEY
from retrytemplate.control.switch.commands import Commands
from retrytemplate.control.switch.copies import Copy, answered, ticks_of
from retrytemplate.control.switch.entries import Decision
from retrytemplate.control.switch.guard import SwitchGuard
from retrytemplate.control.switch.outages import Outages
from retrytemplate.control.switch.questions import Question
from retrytemplate.control.switch.report import SwitchReport, SwitchSnapshot, lines_of
from retrytemplate.control.switch.scopes import Scopes
from retrytemplate.control.switch.stores import MemorySwitchStore
from retrytemplate.control.switch.telling import Chronicle, check_notifiers
from retrytemplate.control.switch.triggers import DEFAULT_TRIGGERS, check_triggers
from retrytemplate.control.switch.words import Words
from retrytemplate.control.switch.writing import Writer
from retrytemplate.control.watcher import Watcher
from retrytemplate.errors import SwitchStoreError
from retrytemplate.state import encode_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from re import Pattern
    from types import TracebackType
    from typing import Self

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.control.events import ControlEvent
    from retrytemplate.control.switch.audit import UnreadableRecord
    from retrytemplate.control.switch.copies import View
    from retrytemplate.control.switch.entries import AuditRecord
    from retrytemplate.control.switch.stores import SwitchStore
    from retrytemplate.control.switch.writing import Command

__all__ = ["KillSwitch"]

UNKNOWN = "stop", "run"
STORE = "load", "commit", "records", "claim_untold", "told", "close"
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
    :param nag_every: seconds between two reminders of what stays stopped though its time is up.
    :param tell_back: seconds; what is older, and nobody was told of, the notifiers are not told any
        more.  None: they are, however old it is.
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
        nag_every: Seconds = 86400.0,
        tell_back: Seconds | None = 604800.0,
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
        self._unknown = rules.ALLOWED if unknown == "run" else UNTOLD
        self._words = Words(reason_length, incident)
        self._nag_every = duration(nag_every)
        span("nag_every", self._nag_every)
        since = None if tell_back is None else duration(tell_back)
        span_or_none("tell_back", since)
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
        return rules.ALLOWED if question.is_clear() else self._decide(question, _giving(key))

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
        return rules.decide(view.entries, question.scopes, key, self._clock.time())

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
        command = partial(rules.due, nag_every=self._nag_every)
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
