"""Scopes, entries, decisions and audit records of a kill switch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from attrs import define, field, frozen

from retrytemplate._internal.validation import check_flag
from retrytemplate.errors import SwitchRefusedError, UnknownScopeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Set
    from typing import Self


GLOBAL = "global"
NAMED_KINDS = ("segment", "feature", "experiment")
"""The kinds that have names, in the order in which they are checked."""


@frozen
class SwitchScope:
    """A scope that can be stopped.

    :param kind: ``"global"``, ``"segment"``, ``"feature"`` or ``"experiment"``.
    :param name: which one; None: everything.

    >>> str(SwitchScope("segment", "finance")), str(SwitchScope("global"))
    ("segment 'finance'", 'everything')
    """

    kind: str
    name: str | None = None

    def __str__(self) -> str:
        return "everything" if self.name is None else f"{self.kind} {self.name!r}"


EVERYTHING = SwitchScope(GLOBAL)


def named_scope(kind: str, name: Any) -> SwitchScope:
    """The scope of that kind and name."""
    if not isinstance(name, str) or not name or name != name.strip():
        raise TypeError(
            f"{kind} must be a name: a string without leading or trailing spaces, got {name!r}"
        )
    return SwitchScope(kind, name)


@define(eq=False, init=False)
class DeclaredScopes:
    """The declared scopes; None: any name is valid."""

    _declared: Mapping[str, Set[str]] | None

    def __init__(self, declared: Mapping[str, Iterable[str]] | None) -> None:
        self._declared = None if declared is None else _checked(declared)

    def check(self, scope: SwitchScope) -> None:
        """Raise unless it is one that was declared.

        :raises UnknownScopeError: it is not among them.
        """
        if self._declared is None or scope.name is None:
            return
        known = self._declared.get(scope.kind, frozenset())
        if scope.name not in known:
            some = ", ".join(map(repr, sorted(known))) or "none"
            raise UnknownScopeError(f"there is no {scope}; the {scope.kind}s declared are: {some}")

    def required(self, *names: Any) -> tuple[SwitchScope, ...]:
        """The scopes that must not be stopped for a call, in the order of the check.

        :param names: one for each of the ``NAMED_KINDS``; None: not given.
        :raises UnknownScopeError: one of them was not declared.

        >>> [str(each) for each in DeclaredScopes(None).required("finance", None, "prices")]
        ['everything', "segment 'finance'", "experiment 'prices'"]
        """
        found = (EVERYTHING, *_named_scopes(names))
        for scope in found:
            self.check(scope)
        return found

    def resolve(self, everything: Any, *names: Any) -> SwitchScope:
        """The one scope that a command names.

        :raises SwitchRefusedError: it names none, or more than one.
        :raises UnknownScopeError: the scope was not declared.

        >>> DeclaredScopes(None).resolve(False, "finance", None, None)
        SwitchScope(kind='segment', name='finance')
        """
        check_flag("everything", everything)
        found = [*([EVERYTHING] if everything else []), *_named_scopes(names)]
        if len(found) != 1:
            got = " and ".join(map(str, found)) or "none"
            raise SwitchRefusedError(
                "pass exactly one of everything=True, segment=, feature=, experiment=, got " + got
            )
        self.check(found[0])
        return found[0]


def _named_scopes(names: tuple[Any, ...]) -> Iterator[SwitchScope]:
    for kind, name in zip(NAMED_KINDS, names, strict=True):
        if name is not None:
            yield named_scope(kind, name)


def _checked(declared: Any) -> Mapping[str, Set[str]]:
    if not isinstance(declared, Mapping) or not set(declared) <= set(NAMED_KINDS):
        raise TypeError(
            f"scopes must be a mapping of {', '.join(NAMED_KINDS)} to their names, or None, "
            f"got {declared!r}"
        )
    return {kind: _names(kind, names) for kind, names in declared.items()}


def _names(kind: str, names: Any) -> Set[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"scopes: the names of {kind} must be a collection of str, got {names!r}")
    return frozenset(named_scope(f"scopes: each {kind}", name).name or "" for name in names)


ACTIONS = (
    "stopped",
    "resumed",
    "advanced",
    "rolled_back",
    "expired",
    "overdue",
    "restored",
)


@frozen(kw_only=True)
class SwitchEntry:
    """A stopped scope, for all keys or for a part of them.

    :param reason: why it was stopped, and ``by``: who stopped it.
    :param since: when it was stopped, and ``until``: when that ends (seconds since the epoch);
        None: never by itself.
    :param when_expired: ``"resume"``: then the scope runs again; ``"keep"``: it stays stopped, with
        reminders.
    :param cause: the cause of an automatic stop; None: a human stopped it.
    :param canary: the steps of the canary, in per cent; ``step``: the number of steps taken.
    :param reminded: the time of the last reminder that it is overdue.
    """

    scope: SwitchScope
    reason: str
    by: str
    since: float
    until: float | None = None
    when_expired: str = "resume"
    cause: str | None = None
    canary: tuple[float, ...] = ()
    step: int = 0
    reminded: float | None = None

    @property
    def share(self) -> float:
        """The keys that run, in per cent: 0 while it is stopped wholly."""
        return self.canary[self.step - 1] if self.step else 0.0

    @property
    def permanent(self) -> bool:
        """Whether it has no end."""
        return self.until is None

    def is_over(self, now: float) -> bool:
        """Whether its time is up."""
        return self.until is not None and self.until <= now

    def is_expired(self, now: float) -> bool:
        """Whether the stop has expired and stops nothing any more."""
        return self.when_expired == "resume" and self.is_over(now)

    def __str__(self) -> str:
        return f"{self.scope} is stopped by {self.by}: {self.reason}"


@frozen(kw_only=True)
class AuditRecord:
    """One change: who, when, what and why.

    :param action: ``"stopped"``, ``"resumed"``, ``"advanced"``, ``"rolled_back"``, ``"expired"``
        (its time is up, and it runs), ``"overdue"`` (its time is up, and it stays stopped) or
        ``"restored"`` (a store had lost it).
    :param at: seconds since the epoch.
    :param reason: why it was stopped, or the justification of the later change.
    :param share: the keys that run from then on, in per cent.
    :param until: when the stop ends by itself; None: never.
    :param override: whether a rule was set aside.
    :param id: a unique identifier.
    """

    action: str
    scope: SwitchScope
    at: float
    by: str
    reason: str
    share: float = 0.0
    until: float | None = None
    when_expired: str = "resume"
    override: bool = False
    id: str = field(factory=lambda: uuid4().hex)

    def __str__(self) -> str:
        how = f" ({self.share:g} % of the keys)" if self.action == "advanced" else ""
        override = ", with an override" if self.override else ""
        action = self.action.replace("_", " ")
        return f"{self.scope} {action}{how} by {self.by}{override}: {self.reason}"


class _Pair(NamedTuple):
    allowed: bool
    reason: str = ""


class Decision(_Pair):
    """Whether a call may be made: a pair ``allowed, reason``, true if it may.

    :param allowed: whether it may.
    :param reason: why not; empty if it may.
    :param entry: the entry that stops it, or admits it as part of its percentage; None: no entry.

    >>> allowed, reason = Decision(True)
    >>> bool(Decision(False, "stopped"))
    False
    """

    entry: SwitchEntry | None = None

    def __new__(cls, allowed: bool, reason: str = "", entry: SwitchEntry | None = None) -> Self:
        made = super().__new__(cls, allowed, reason)
        made.entry = entry
        return made

    @property
    def scope(self) -> str | None:
        """The kind of the stopped scope; None: no scope is stopped."""
        return None if self.entry is None else self.entry.scope.kind

    @property
    def name(self) -> str | None:
        """The name of the stopped scope; None: everything is stopped, or nothing."""
        return None if self.entry is None else self.entry.scope.name

    def __bool__(self) -> bool:
        return self.allowed


@frozen
class Document:
    """All entries of a store.

    :param store: an id that the first write gives it: one that has lost all gets another.
    """

    entries: Mapping[SwitchScope, SwitchEntry] = field(factory=dict)
    store: str | None = None


@frozen(kw_only=True)
class UnreadableRecord:
    """A stored change that cannot be read.

    :param number: of the record, in its store.
    :param reason: why it cannot be read.
    :param later: whether a later version of the library has written it, and can read it.
    """

    number: int
    reason: str
    later: bool

    def __str__(self) -> str:
        return self.reason
