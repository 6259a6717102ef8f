"""A context cache whose store fails for some operations."""

from retrytemplate import CacheUnavailableError, MemoryRetryContextCache


class Down(MemoryRetryContextCache):
    """In memory; ``down(step, record)`` says whether a step fails.

    ``lost`` is the worker whose attempt the next claim finds lost, as in a durable cache.
    """

    lost = None

    def __init__(self, down, error=CacheUnavailableError, on_store_error="raise"):
        super().__init__()
        self.down, self.error = down, error
        self.on_store_error = on_store_error

    def begin(self, key, **how):
        if self.down("begin", self._load(key)):
            raise self.error("down")
        claim = super().begin(key, **how)
        claim.lost, self.lost = self.lost, None
        return claim

    def fail(self, claim, record):
        if self.down("fail", record):
            raise self.error("down")
        super().fail(claim, record)

    def succeed(self, claim, **how):
        if self.down("succeed", claim.record):
            raise self.error("down")
        super().succeed(claim, **how)

    def peek(self, key):
        if self.down("peek", self._load(key)):
            raise self.error("down")
        return super().peek(key)

    def swap(self, key, record, version):
        if self.down("swap", record):
            raise self.error("down")
        return super().swap(key, record, version)
