"""The circuits in a store: found, as JSON, and on the screen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.cli import _stores
from retrytemplate.cli.usage import UsageError, WorkError
from retrytemplate.errors import CircuitStoreError

if TYPE_CHECKING:
    from argparse import Namespace

    from retrytemplate.control import RedisCircuitStore
    from retrytemplate.control.circuits.records import Seen

__all__ = ["as_json", "looked", "show"]

ALLOWED = "of Redis or Valkey, such as redis://host/0"
CIRCUIT_HEADS = (
    "circuit",
    "state",
    "for",
    "left",
    "calls",
    "failures",
    "slow",
    "permits",
    "by",
    "reason",
)
NUMBERS = ("for", "left", "calls", "failures", "slow", "permits")
REFUSING, PROBING = 2, 1


def looked(args: Namespace) -> tuple[dict[str, Seen], list[str]]:
    """How those stand that the arguments name, or all; and what is wrong with the others.

    :raises UsageError: there is no URL, or none that can serve.
    :raises WorkError: the store cannot be reached.
    """
    from retrytemplate.control import RedisCircuitStore

    url = _stores.url_of(args, ALLOWED)
    family, driven = _stores.located(url)
    if family != _stores.REDIS:
        raise UsageError(f"--store: a URL {ALLOWED}: circuits are shared nowhere else")
    try:
        store = RedisCircuitStore(driven, prefix=args.store_prefix)
    except (TypeError, ValueError) as error:
        raise _stores.refused(error, url) from None
    try:
        return _found(store, args.names)
    except CircuitStoreError as error:
        raise WorkError(_stores.without_secrets(error, url)) from None
    finally:
        store.close()


def _found(store: RedisCircuitStore, names: list[str]) -> tuple[dict[str, Seen], list[str]]:
    from redis import ConnectionError, TimeoutError

    found: dict[str, Seen] = {}
    wrong = list[str]()
    for name in names or store.names():
        try:
            seen = store.look(name)
        except CircuitStoreError as error:
            if isinstance(error.__cause__, ConnectionError | TimeoutError):
                raise
            wrong.append(str(error))
        else:
            if seen is not None:
                found[name] = seen
            elif names:  # else it went meanwhile
                wrong.append(f"there is no circuit {name!r} in the store")
    return found, wrong


def as_json(name: str, seen: Seen) -> dict[str, Any]:
    """All that is known of one."""
    return {
        "name": name,
        "state": seen.state,
        "gauge": seen.gauge,
        "generation": seen.generation,
        "since": seen.since,
        "age": seen.now - seen.since,
        "until": seen.until,
        "left": seen.left,
        "calls": seen.calls,
        "failures": seen.failures,
        "slow": seen.slow,
        "permits": seen.probes,
        "successes": seen.successes,
        "opened": seen.opened,
        "by": seen.by,
        "reason": seen.reason,
    }


def show(found: dict[str, Seen]) -> None:
    """A line for each."""
    from retrytemplate.cli._screen import Screen

    screen = Screen()
    if not found:
        screen.say("No circuit is in the store.")
        return
    rows = [_cells(name, seen) for name, seen in found.items()]
    screen.table(CIRCUIT_HEADS, rows, map(_style, found.values()), numbers=NUMBERS)


def _cells(name: str, seen: Seen) -> tuple[str, ...]:
    from retrytemplate.cli._words import span

    return (
        name,
        seen.state,
        span(seen.now - seen.since),
        "" if seen.left is None else span(seen.left),
        str(seen.calls),
        str(seen.failures),
        str(seen.slow),
        str(seen.probes),
        seen.by or "",
        seen.reason or "",
    )


def _style(seen: Seen) -> str | None:
    if seen.gauge >= REFUSING:
        return "red"
    return "yellow" if seen.gauge == PROBING else None
