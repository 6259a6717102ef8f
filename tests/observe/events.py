"""Events for the tests of sinks."""

from retrytemplate.observe import Event

NOW = 1_800_000_000.0


def event(type="call.failed", subject="charge", **values):
    """An event with a time; *values* replace its fields."""
    return Event(**{"type": type, "subject": subject, "severity": 30, "time": NOW} | values)


class Events(list):
    """A sink that keeps all events."""

    emit = list.append

    @property
    def subjects(self):
        return [each.subject for each in self]
