"""The objects of a call that only the garbage collector frees."""

import gc
from contextlib import contextmanager


@contextmanager
def no_collector():
    """Disable the garbage collector, and exclude older objects from later collections.

    Thousands of tests may have left older objects.
    """
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.enable()


def left_by(call, *, times=20, looks=5):
    """The objects in cycles after *times* calls: the minimum of *looks* measurements.

    A call leaves the same objects each time.  A thread of an earlier test may end meanwhile and
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
