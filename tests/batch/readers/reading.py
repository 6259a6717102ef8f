"""Read to the end at once or with a new cursor at every position; a source that waits."""

import asyncio
import json

from retrytemplate.batch import ReadError

__all__ = ["Source", "in_pieces", "items", "whole"]


def whole(reader, limit=1000, position=None):
    """Every (source, number, item); broken ones as their problem."""
    found = []
    with reader.open(position) as cursor:
        while records := cursor.read(limit):
            assert len(records) <= limit
            found += listed(records)
    return found


def in_pieces(reader, limit):
    """The same, each piece read by a new cursor from a position that was converted to JSON."""
    found = []
    position = None
    while True:
        with reader.open(position) as cursor:
            records = cursor.read(limit)
            position = json.loads(json.dumps(cursor.position))
        if not records:
            return found
        found += listed(records)


def listed(records):
    for index, item in enumerate(records.items):
        error = records.broken.get(index)
        if error is not None:
            assert isinstance(error, ReadError)
            assert (error.source, error.number) == (records.source, records.number(index))
            assert error.text == item
        yield records.source, records.number(index), item if error is None else error


def items(found):
    return [item for _, _, item in found]


class Source:
    """Returns the queued items and waits for more; None ends it."""

    def __init__(self, *items):
        self._queue = asyncio.Queue()
        self.put(*items)

    def put(self, *items):
        for item in items:
            self._queue.put_nowait(item)

    @property
    def empty(self):
        return self._queue.empty()

    def __aiter__(self):
        return self

    async def __anext__(self):
        item = await self._queue.get()
        if item is None:
            raise StopAsyncIteration
        return item
