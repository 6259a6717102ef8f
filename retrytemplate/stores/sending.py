"""How commands and scripts are sent to Redis: as orders of a step, once or again.

An order is a key, the command about it, and whether it may come twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrytemplate.stores.connections import ScriptMissingError
from retrytemplate.stores.performers import twice

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.stores.performers import Step
    from retrytemplate.stores.scripts import Script

    Command = tuple[Any, ...]
    Asked = Callable[[str | None, Command], Step[Any]]

__all__ = ["evaluated", "once", "repeated"]


def once(key: str | None, command: Command) -> Step[Any]:
    """Ask for what would be done a second time."""
    return (yield key, command, False)


def repeated(key: str | None, command: Command) -> Step[Any]:
    """Ask for what looks only, or recognises itself."""
    return (yield from twice((key, command, True)))


def evaluated(asked: Asked, script: Script, key: str | None, *rest: Any) -> Step[Any]:
    """Run a script by its name; by its text where the server does not know it yet.

    :param rest: the number of the names of keys, these, and the arguments.
    """
    try:
        return (yield from asked(key, ("EVALSHA", script.sha, *rest)))
    except ScriptMissingError:
        return (yield from asked(key, ("EVAL", script.text, *rest)))
