"""What fails so many times and then lets pass, for functions that call it."""


class RemoteError(Exception):
    """The other side's."""


class Trouble:
    """Raises so many times, counts every time."""

    def __init__(self, failures, kind=RemoteError):
        self.failures = failures
        self.kind = kind
        self.calls = 0

    def __call__(self):
        self.calls += 1
        if self.calls <= self.failures:
            raise self.kind(f"failure {self.calls}")
