"""Callbacks that cause events for listeners."""


class Stopped(BaseException):
    """Not an ``Exception``: like a cancellation."""


def failing(context):
    raise ConnectionError("down")


def fails(times):
    """A callback that fails a number of times, then succeeds."""
    left = [times]

    def callback(context):
        if left[0]:
            left[0] -= 1
            raise ConnectionError("down")
        return "ok"

    return callback
