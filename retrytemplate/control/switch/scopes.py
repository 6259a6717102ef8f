"""What can be stopped: everything, a segment, a feature, an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define, frozen

from retrytemplate.errors import SwitchRefusedError, UnknownScopeError

if TYPE_CHECKING:
    from collections.abc import Set

__all__ = ["EVERYTHING", "GLOBAL", "NAMED", "Scopes", "SwitchScope", "named", "scope_of"]

GLOBAL = "global"
NAMED = ("segment", "feature", "experiment")
"""The kinds that have names, in the order in which they are asked."""


@frozen
class SwitchScope:
    """One thing that can be stopped.

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


def scope_of(
    everything: Any = False, segment: Any = None, feature: Any = None, experiment: Any = None
) -> SwitchScope:
    """The one scope that was named.

    :raises SwitchRefusedError: none was, or more than one.

    >>> scope_of(segment="finance")
    SwitchScope(kind='segment', name='finance')
    """
    if not isinstance(everything, bool):
        raise TypeError(f"everything must be True or False, got {everything!r}")
    found = [EVERYTHING] if everything else []
    names = zip(NAMED, (segment, feature, experiment), strict=True)
    found += [named(kind, name) for kind, name in names if name is not None]
    if len(found) != 1:
        got = " and ".join(map(str, found)) or "none"
        raise SwitchRefusedError(
            "say exactly one of everything=True, segment=, feature= and experiment=, got " + got
        )
    return found[0]


def named(kind: str, name: Any) -> SwitchScope:
    """The scope of that kind and name."""
    if not isinstance(name, str) or not name or name != name.strip():
        raise TypeError(
            f"{kind} must be a name: a text that neither begins nor ends with a space, got {name!r}"
        )
    return SwitchScope(kind, name)


@define(eq=False, init=False)
class Scopes:
    """Which scopes there are; None: any name is one."""

    _declared: Mapping[str, Set[str]] | None

    def __init__(self, declared: Mapping[str, Iterable[str]] | None) -> None:
        self._declared = None if declared is None else _checked(declared)

    def check(self, scope: SwitchScope) -> None:
        """Raise unless it is one that was declared.

        :raises UnknownScopeError: it is none of them.
        """
        if self._declared is None or scope.name is None:
            return
        known = self._declared.get(scope.kind, frozenset())
        if scope.name not in known:
            some = ", ".join(map(repr, sorted(known))) or "none"
            raise UnknownScopeError(f"there is no {scope}; the {scope.kind}s declared are: {some}")

    def asked(self, segment: Any, feature: Any, experiment: Any) -> tuple[SwitchScope, ...]:
        """What has to run for a call, in the order in which it is asked.

        :raises UnknownScopeError: one of them was not declared.
        """
        pairs = zip(NAMED, (segment, feature, experiment), strict=True)
        found = (EVERYTHING, *(named(kind, name) for kind, name in pairs if name is not None))
        for scope in found:
            self.check(scope)
        return found


def _checked(declared: Any) -> Mapping[str, Set[str]]:
    if not isinstance(declared, Mapping) or not set(declared) <= set(NAMED):
        raise TypeError(
            f"scopes must be a mapping of {', '.join(NAMED)} to their names, or None, "
            f"got {declared!r}"
        )
    return {kind: _names(kind, names) for kind, names in declared.items()}


def _names(kind: str, names: Any) -> Set[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise TypeError(f"scopes: those of {kind} must be a collection of names, got {names!r}")
    return frozenset(named(f"scopes: each {kind}", name).name or "" for name in names)
