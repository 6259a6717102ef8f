"""Lua scripts of Redis, sent at most once or repeated when that is safe."""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Any

from retrytemplate._storage.operation_runner import twice
from retrytemplate._storage.redis_connection import ScriptMissingError

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate._storage.operation_runner import Step

__all__ = ["CLOCK", "Script", "evaluated", "once", "repeated"]


if TYPE_CHECKING:
    Command = tuple[Any, ...]
    Asked = Callable[[str | None, Command], Step[Any]]


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


CLOCK = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function whole(number) return string.format('%.0f', number) end
local function after(seconds) return now + seconds * 1000000 end
"""


class Script:
    """A script and the name by which a server that has seen it knows it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
