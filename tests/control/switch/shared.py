"""A store that several switches in one process share, and its faults."""

from retrytemplate.control import ControlListener, MemorySwitchStore

__all__ = ["REASON", "Recorded", "SharedStore", "stopped"]

REASON = "charged twice, incident 9"


class SharedStore(MemorySwitchStore):
    """Memory that counts as shared: switches keep copies of it.

    ``down`` makes every access fail; ``loses_answers`` writes, and fails then; ``loads`` counts.
    """

    shared = True

    def __init__(self, *, clock=None):
        super().__init__(clock=clock)
        self.down = self.loses_answers = False
        self.loads = 0

    def load(self, known):
        self.loads += 1
        self._look()
        return super().load(known)

    def commit(self, expected, document, records):
        self._look()
        done = super().commit(expected, document, records)
        if self.loses_answers:
            raise OSError("connection lost")
        return done

    def records(self, *, before=None, limit=100):
        self._look()
        return super().records(before=before, limit=limit)

    def claim_pending_notifications(self, worker, lease, limit):
        self._look()
        return super().claim_pending_notifications(worker, lease, limit)

    def _look(self):
        if self.down:
            raise OSError("connection reset")

    def wipe(self):
        """Delete everything, like a server without persistence."""
        self._state = 0, ""
        self._records.clear()
        self._last = 0


class Recorded(ControlListener):
    """Records the events."""

    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    @property
    def kinds(self):
        return [type(each).__name__ for each in self.events]

    @property
    def actions(self):
        return [each.record.action for each in self.events if hasattr(each, "record")]


def stopped(switch, **scope):
    """Stop a scope for an hour."""
    scope = scope or {"segment": "billing"}
    return switch.stop(reason=REASON, by="kim", expires_in=3600, **scope)
