"""A call that fails N times and then succeeds, for functions that use it."""


class RemoteError(Exception):
    """The error of the other side."""


class Trouble:
    """Raises N times, and counts all calls."""

    def __init__(self, failures, kind=RemoteError):
        self.failures = failures
        self.kind = kind
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.kind(f"failure {self.calls}")
