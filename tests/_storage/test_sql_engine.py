"""Engines of SQLAlchemy: their connections."""

from contextlib import ExitStack

from sqlalchemy import create_engine, event

from retrytemplate._storage.sql_engine import CONNECTIONS, engine


def test_connections_that_are_used_at_once_are_kept(tmp_path):
    opened = []
    made = engine(f"sqlite:///{tmp_path}/store.db", 5.0)
    event.listen(made, "connect", lambda *_: opened.append(1))
    for _ in range(3):
        with ExitStack() as used:
            for _ in range(CONNECTIONS):
                used.enter_context(made.connect())
    made.dispose()
    assert len(opened) == CONNECTIONS


def test_engine_of_ours_is_used_without_options(tmp_path):
    made = engine(f"sqlite:///{tmp_path}/store.db", 5.0)
    assert engine(made, 5.0) is made
    given = create_engine(f"sqlite:///{tmp_path}/store.db")
    assert engine(given, 5.0).get_execution_options() == {"isolation_level": "AUTOCOMMIT"}
    serial = made.execution_options(isolation_level="SERIALIZABLE")
    assert engine(serial, 5.0).get_execution_options() == {"isolation_level": "AUTOCOMMIT"}
