"""Where the processes of tests come from: a server that has imported what they need."""

import multiprocessing

__all__ = ["processes"]

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "pytest",
        "psycopg",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite",
        "tests.batch.killing",
        "tests.control.circuits.hammering",
        "tests.control.switch.working",
        "tests.stores.acknowledging",
        "tests.stores.crashing",
        "tests.stores.hammering",
        "tests.stores.stalling",
    ]
)
