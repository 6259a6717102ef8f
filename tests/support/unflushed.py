"""No SQLite database that SQLAlchemy opens is flushed to the disk: no test cuts the power.

What a process has written is in the file although the process is killed.
"""

from sqlalchemy import event
from sqlalchemy.pool import Pool


@event.listens_for(Pool, "connect")
def write_without_flush(connection, _):
    if "sqlite" in type(connection).__module__:
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous = off")
        cursor.close()
