"""Lua scripts of Redis, sent at most once or repeated when that is safe."""

from __future__ import annotations

from hashlib import sha1
from typing import TYPE_CHECKING, Any

from retrytemplate._storage.operation_runner import Operation, retry_once_if_answer_lost
from retrytemplate._storage.redis_connection import ScriptMissingError

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = tuple[Any, ...]
    Send = Callable[[str | None, Command], Operation[Any]]


def send_once(key: str | None, command: Command) -> Operation[Any]:
    """Send a command that must not run twice."""
    return (yield key, command, False)


def send_idempotent(key: str | None, command: Command) -> Operation[Any]:
    """Send a command that only reads, or recognises its repetition."""
    return (yield from retry_once_if_answer_lost((key, command, True)))


def eval_script(send: Send, script: Script, key: str | None, *rest: Any) -> Operation[Any]:
    """Run a script by its digest, or by its text if the server does not have it yet.

    :param rest: the number of the names of keys, these, and the arguments.
    """
    try:
        return (yield from send(key, ("EVALSHA", script.sha, *rest)))
    except ScriptMissingError:
        return (yield from send(key, ("EVAL", script.text, *rest)))


CLOCK = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function whole(number) return string.format('%.0f', number) end
local function after(seconds) return now + seconds * 1000000 end
"""


class Script:
    """A script and its digest, by which a server that has it runs it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
