"""The source of the tests' processes: a fork server with the modules already imported."""

import multiprocessing

__all__ = ["processes"]

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "tests.support.no_log_output",
        "pytest",
        "psycopg",
        "sqlalchemy.dialects.postgresql.psycopg",
        "sqlalchemy.dialects.sqlite",
        "tests.support.crash_worker",
        "tests.control.breaker.redis.hammering",
        "tests.control.switch.working",
        "tests.support.acknowledging_worker",
        "tests.support.crashing_worker",
        "tests.support.stress_worker",
        "tests.support.stalling_worker",
        "aiosqlite",
        "sqlalchemy.ext.asyncio",
        "retrytemplate.backends.sql.cache",
        "redis.asyncio",
        "retrytemplate.backends.redis.cache",
        "tests.support.queue_receiver",
        "tests.support.queue_workers",
    ]
)
