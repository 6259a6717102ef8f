"""What a call leaves behind that only the collector frees."""

import gc
from contextlib import contextmanager


@contextmanager
def no_collector():
    """What reference counting alone does not free stays; what is older is in no collection.

    Nor is it afterwards: it may be what thousands of tests have left.
    """
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.enable()


def left_by(call, *, times=20, looks=5):
    """The objects in cycles after so many calls: the least of a few looks.

    What a call leaves, it leaves each time.  A thread of an earlier test may end meanwhile and
    leave something once.
    """
    least = None
    for _ in range(looks):
        with no_collector():
            for _ in range(times):
                call()
            found = gc.collect()
        least = found if least is None else min(least, found)
        if not least:
            break
    return least
