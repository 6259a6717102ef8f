"""A database, and sinks of events on the same table of it."""

from retrytemplate.observe import SQLEventSink
from tests.support.sql_caches import SQLStore

__all__ = ["EventStore"]


class EventStore(SQLStore):
    """Operations of a test on the table of events in SQLite or PostgreSQL."""

    tables = ("event", "meta")

    def sink(self, **settings):
        self.caches.append(SQLEventSink(self.url, **{"prefix": self.prefix} | settings))
        return self.caches[-1]

    def rows(self):
        return self.sql("SELECT * FROM {0}_event ORDER BY number")
