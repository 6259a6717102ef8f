"""Connections to Redis that send the commands of one turn of the event loop together."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._storage.redis_connection import AsyncConnections, is_lost, translate_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from retrytemplate._storage.redis_connection import Order


@frozen(eq=False)
class _Command:
    """A command that waits to be sent, or for its answer."""

    order: Order
    step: str
    answer: asyncio.Future[Any]

    @property
    def key(self) -> str | None:
        return self.order[0]


class PipelinedConnections(AsyncConnections):
    """Connections whose commands share a pipeline.

    The commands of a turn of the loop are sent in one write, and their answers are read in order; a
    single one is sent by its own task.  Several pipelines may be in flight, each on its connection.
    A command about a key waits until the earlier ones about it are answered: their order is kept.
    """

    def _open(self) -> None:
        super()._open()
        self._unsent: list[_Command] = []
        self._keys_in_flight = set[str | None]()
        self._pipelines = set[asyncio.Task[None]]()
        self._is_scheduled = False

    async def ask(self, order: Order, step: str, _connection: None = None) -> Any:
        """The server's answer to one command, sent once with others of this turn of the loop."""
        is_first = not (self._is_scheduled or self._unsent or order[0] in self._keys_in_flight)
        if is_first and await self._is_alone():
            return await self._ask_alone(order, step)
        command = _Command(order, step, asyncio.get_running_loop().create_future())
        if is_first:
            self._unsent.insert(0, command)
            self._send_unsent()
        else:
            self._unsent.append(command)
            self._schedule()
        return await command.answer

    async def _is_alone(self) -> bool:
        """Whether no other command is to be sent in this turn of the loop."""
        self._is_scheduled = True
        try:
            await asyncio.sleep(0)
        except BaseException:  # this command is not sent, the others are
            self._send_unsent()
            raise
        self._is_scheduled = False
        return not self._unsent

    async def _ask_alone(self, order: Order, step: str) -> Any:
        self._keys_in_flight.add(order[0])
        try:
            return await super().ask(order, step)
        finally:
            self._end_flight([order[0]])

    def _end_flight(self, keys: Iterable[str | None]) -> None:
        self._keys_in_flight.difference_update(keys)
        if self._unsent:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._send_unsent)

    def _send_unsent(self) -> None:
        """Send what does not wait for an earlier command about its key."""
        self._is_scheduled = False
        batch: list[_Command] = []
        waiting: list[_Command] = []
        for command in self._unsent:
            if not command.answer.done():  # else its task was cancelled: it is not sent
                is_behind = command.key is not None and command.key in self._keys_in_flight
                (waiting if is_behind else batch).append(command)
        self._unsent = waiting
        if batch:
            self._keys_in_flight.update(command.key for command in batch)
            task = asyncio.get_running_loop().create_task(self._run_pipeline(batch))
            self._pipelines.add(task)
            task.add_done_callback(self._pipelines.discard)

    async def _run_pipeline(self, batch: Sequence[_Command]) -> None:
        from redis import ConnectionError, RedisError

        # The error of the commands without an answer; a cancelled task is that of an ending loop.
        error: Exception = ConnectionError("the event loop ended")
        try:
            async with asyncio.timeout(self._timeout), self._permits:
                await self._exchange(batch)
        except (RedisError, TimeoutError) as exc:
            error = exc
            if is_lost(exc):
                await self.release_idle(close=True)
        finally:
            for command in batch:
                self._set_error(command, error)
            self._end_flight(command.key for command in batch)

    async def _exchange(self, batch: Sequence[_Command]) -> None:
        """Send the commands and read their answers; an error as answer is that of one command."""
        from redis import ResponseError

        connection = await self._take(all(command.order[2] for command in batch))
        lost: ResponseError | None = None
        try:
            commands = [command.order[1] for command in batch]
            await connection.send_packed_command(connection.pack_commands(commands))
            for command in batch:
                try:
                    answer = await connection.read_response(disable_decoding=True)
                except ResponseError as exc:
                    self._set_error(command, exc)
                    lost = exc if is_lost(exc) else lost
                else:
                    if not command.answer.done():
                        command.answer.set_result(answer)
        except BaseException:  # an unread answer would be read by the next command
            await connection.disconnect(nowait=True)
            raise
        finally:
            self._idle.append(connection)
        if lost is not None:
            raise lost

    def _set_error(self, command: _Command, error: Exception) -> None:
        if not command.answer.done():
            made = translate_error(error, command.step, command.key, self._owner)
            made.__cause__ = error
            command.answer.set_exception(made)

    async def close(self) -> None:
        """Wait for the answers, and close the connections that are the owner's."""
        while self._unsent or self._pipelines:
            await (asyncio.wait(self._pipelines) if self._pipelines else asyncio.sleep(0))
        await super().close()
