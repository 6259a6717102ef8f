"""The error of processes that crash again and again."""

from __future__ import annotations

from retrytemplate.errors import RetryError


class CrashLoopError(RetryError):
    """Processes crashed repeatedly, and no item or message can be the cause.

    Ends a run of a ``ChunkStep`` whose process crashed with no item isolated.  Raised by
    ``WorkerRuntime.run`` at the start, if processes of its name crashed before their first message.
    The reader, the client of the queue or the machine may cause the crashes.  Mend the cause, then
    resume the run, or start the worker again.
    """
