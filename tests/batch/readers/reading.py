"""Reading to the end, in one go or with a new cursor at every position."""

import json

from retrytemplate.batch import ReadError

__all__ = ["in_pieces", "items", "whole"]


def whole(reader, limit=1000, position=None):
    """Every (source, number, item), the broken ones as what is wrong with them."""
    found = []
    with reader.open(position) as cursor:
        while records := cursor.read(limit):
            assert len(records) <= limit
            found += listed(records)
    return found


def in_pieces(reader, limit):
    """The same, each piece by a cursor of its own, from a position that was JSON meanwhile."""
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
