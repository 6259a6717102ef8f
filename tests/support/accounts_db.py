"""Two accounts on a PostgreSQL server, and conflicts between transactions on them."""

import threading
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.pool import NullPool

from retrytemplate import current_context

__all__ = ["Bank", "bank", "driven"]

PATIENCE = 20.0


def driven(url):
    """The server's URL with the driver that the tests have."""
    return sa.make_url(url).set(drivername="postgresql+psycopg")


@contextmanager
def bank(url, schema):
    """Two accounts in a separate schema."""
    options = f"-c deadlock_timeout=10ms -c search_path={schema}"
    engine = sa.create_engine(driven(url), connect_args={"options": options}, poolclass=NullPool)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP SCHEMA IF EXISTS {schema} CASCADE"))
        connection.execute(sa.text(f"CREATE SCHEMA {schema}"))
        connection.execute(sa.text("CREATE TABLE account (id int PRIMARY KEY, cents int)"))
        connection.execute(sa.text("INSERT INTO account VALUES (1, 0), (2, 0)"))
    yield Bank(engine)
    with engine.begin() as connection:
        connection.execute(sa.text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


class Bank:
    """Work on the accounts; failures occur in the first attempt only."""

    def __init__(self, engine):
        self.engine = engine

    def add(self, connection, account=1):
        connection.execute(sa.text(f"UPDATE account SET cents = cents + 1 WHERE id = {account}"))

    def cents(self, account=1):
        with self.engine.connect() as connection:
            return connection.scalar(sa.text(f"SELECT cents FROM account WHERE id = {account}"))

    def overtaken(self):
        """Add a cent to a balance that another transaction changed since the read."""
        serial = self.engine.execution_options(isolation_level="SERIALIZABLE")
        with serial.begin() as connection:
            connection.execute(sa.text("SELECT * FROM account")).all()
            if current_context().attempt == 1:
                with self.engine.begin() as other:
                    self.add(other)
            self.add(connection)

    def cut_off(self):
        """Ask a server that has just dropped the connection."""
        with self.engine.connect() as connection:
            if current_context().attempt == 1:
                own = connection.scalar(sa.text("SELECT pg_backend_pid()"))
                with self.engine.connect() as other:
                    other.execute(sa.text(f"SELECT pg_terminate_backend({own}, 5000)"))
            return connection.scalar(sa.text("SELECT 17"))

    def deadlock(self, template):
        """Two transfers that wait for each other: their outcomes, that of the victim last."""
        both = threading.Barrier(2, timeout=PATIENCE)
        ended = threading.Event()
        outcomes = []

        def move(source, target):
            if current_context().attempt > 1:  # its lock could overtake the waiting survivor
                assert ended.wait(PATIENCE)
            with self.engine.begin() as connection:
                self.add(connection, source)
                if current_context().attempt == 1:
                    both.wait()
                self.add(connection, target)

        def worker(*accounts):
            outcomes.append(template.outcome(move, *accounts))
            ended.set()

        threads = [threading.Thread(target=worker, args=args) for args in ((1, 2), (2, 1))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(outcomes, key=lambda each: each.attempts)
