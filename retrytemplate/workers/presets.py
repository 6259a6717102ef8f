"""Settings for five classes of work: limits, and what follows when one is reached."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.validation import check_span, checked_by, to_seconds
from retrytemplate._internal.values import Value
from retrytemplate.backoff.exponential import ExponentialBackoff
from retrytemplate.control.classification.failure_kind import TRANSIENT_ERRORS
from retrytemplate.control.pipeline.pipeline import Pipeline
from retrytemplate.control.timeout.timeout import Timeout
from retrytemplate.errors import MisuseError
from retrytemplate.policies.simple import SimpleRetryPolicy
from retrytemplate.template import RetryTemplate
from retrytemplate.workers.crash_attribution import RedeliveryPolicy
from retrytemplate.workers.runtime.shutdown import Shutdown

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.control.idempotency.operations import Operations


@frozen(eq=False, repr=False)
class Mutation(Value):
    """Calls that change something in another service.

    :param limit: seconds for each call, or a ``timedelta``, above 0; default 5.
    """

    limit: float = field(default=5.0, converter=to_seconds, validator=checked_by(check_span))

    def pipeline(self, operations: Operations, key: Callable[..., Any]) -> Pipeline:
        """Strategies that make the call once for a key, within the limit.

        A call that reaches the limit has an unknown outcome.  The next call of its key asks
        ``operations.lookup`` first, and calls the service only if there was no effect.

        :param operations: with a ``lookup``; on a cache that the processes share.
        :param key: a function with the parameters of the call; returns the key of the operation.
        :raises MisuseError: if ``operations`` has no ``lookup``.
        """
        if operations.lookup is None:
            raise MisuseError(
                "operations must have a lookup, because the outcome of a call that reaches its "
                "limit is unknown: pass Operations(lookup=)"
            )
        timeout = Timeout(self.limit, kind="mutation")
        return Pipeline(operations.idempotent(key), timeout, name="mutation")


USER_READ = Timeout(2.0, kind="user_read", name="user_read")
"""Reads that a user waits for: a strategy with a limit of 2 s, at which all child work is
cancelled."""

MUTATION = Mutation()
"""Changes in another service: 5 s, once for each idempotency key, and a lookup after an unknown
outcome; see ``pipeline``."""

WORKER: MappingProxyType[str, Any] = MappingProxyType(
    {
        "attempt_timeout": 30.0,
        "settle_timeout": 5.0,
        "retry": RedeliveryPolicy(max_attempts=5, max_crashes=2),
        "backoff": ExponentialBackoff(initial=1.0, maximum=300.0, jitter="full"),
        "shutdown": Shutdown(),
    }
)
"""Settings of a ``WorkerRuntime``: 30 s for each message; a cancelled one is delivered again,
uncounted."""

BATCH: MappingProxyType[str, Any] = MappingProxyType(
    {
        "chunk_size": 100,
        "retry": RetryTemplate(
            SimpleRetryPolicy(3, classifier=TRANSIENT_ERRORS),
            ExponentialBackoff(initial=0.5, maximum=10.0, jitter="full"),
            attempt_timeout=5.0,
        ),
    }
)
"""Settings of a ``ChunkStep``: 100 items for each chunk, 5 s for each call of the processor, and 3
attempts.  A step keeps its progress and resumes."""

CLEANUP: MappingProxyType[str, Any] = MappingProxyType({"timeout": 1.0})
"""Settings of ``shielded``: 1 s; a failure is logged as an error and passed to ``on_failed``."""
