"""The table of automatic triggers: which cause may stop which scopes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from retrytemplate._internal.validation import checked_by, read_seconds, to_seconds
from retrytemplate.control.switch.model import NAMED_KINDS
from retrytemplate.control.switch.validation import check_expires_in, check_when_expired
from retrytemplate.errors import TriggerRefusedError

if TYPE_CHECKING:
    from retrytemplate.control.switch.model import SwitchScope

HUMAN: Final = "human"
"""In a table of triggers: only a human may stop anything for this cause."""


def _scopes(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not value or not set(value) <= set(NAMED_KINDS):
        raise ValueError(
            f"{name} must be some of {', '.join(NAMED_KINDS)}: everything at once is never stopped "
            f"automatically, got {value!r}"
        )


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@frozen
class Automatic:
    """The automatic stop that a cause triggers.

    :param scopes: of which kinds; everything at once is not among them.
    :param expires_in: seconds, or a ``timedelta``; a stop of its own is never permanent.
    :param when_expired: ``"resume"``, or ``"keep"``: it stays stopped, and you are reminded.

    >>> Automatic(scopes=["experiment"], expires_in=3600)
    Automatic(scopes=('experiment',), expires_in=3600, when_expired='resume')
    """

    scopes: tuple[str, ...] = field(converter=_tuple, validator=checked_by(_scopes))
    expires_in: float = field(
        default=86400.0, converter=to_seconds, validator=checked_by(check_expires_in)
    )
    when_expired: str = field(default="resume", validator=checked_by(check_when_expired))

    def __str__(self) -> str:
        return f"{' or '.join(self.scopes)}, for {self.expires_in:g} s"


DEFAULT_TRIGGERS: Mapping[str, Any] = MappingProxyType(
    {
        "ratio mismatch": Automatic(scopes=("experiment",)),
        "guardrail": Automatic(scopes=("experiment", "feature")),
        "provider outage": Automatic(scopes=("segment",)),
        "leak": HUMAN,
        "policy report": HUMAN,
        "security incident": HUMAN,
    }
)
"""Causes that may stop something by themselves, and those that need a human."""


def check_triggers(name: str, value: Any) -> None:
    """Raise unless it is a table of causes."""
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping of causes to Automatic or HUMAN, got {value!r}")
    for cause, rule in value.items():
        if not isinstance(cause, str) or not cause.strip():
            raise TypeError(f"{name}: each cause must be a non-empty str, got {cause!r}")
        if rule != HUMAN and not isinstance(rule, Automatic):
            raise TypeError(f"{name}: {cause!r} must be Automatic(...) or HUMAN, got {rule!r}")


def find_rule(triggers: Mapping[str, Any], cause: str, scope: SwitchScope) -> Automatic:
    """The rule by which a cause may stop this.

    :raises TriggerRefusedError: no rule allows it.
    """
    rule = triggers.get(cause)
    if isinstance(rule, Automatic) and scope.kind in rule.scopes:
        return rule
    what = "needs a human" if rule == HUMAN else f"does not stop a {scope.kind}"
    why = f"{cause!r} {what}" if rule is not None else f"no cause is called {cause!r}"
    table = "; ".join(f"{each!r}: {rule}" for each, rule in triggers.items()) or "none at all"
    raise TriggerRefusedError(f"{scope} is not stopped automatically: {why}. Allowed are {table}")


def trigger_duration(rule: Automatic, cause: str, expires_in: Any) -> float:
    """For how many seconds a cause stops something; None: as long as it may.

    :raises TriggerRefusedError: that is longer than it may.
    """
    if expires_in is None:
        return rule.expires_in
    seconds: float = read_seconds("expires_in", expires_in, check_expires_in)
    if seconds > rule.expires_in:
        raise TriggerRefusedError(
            f"{cause!r} stops for {rule.expires_in:g} s at most, got {seconds:g} s"
        )
    return seconds
