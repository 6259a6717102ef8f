"""Rows that were damaged: a typed error that names the column, or no harm.

Each test damages one column, or one field of its JSON value, in many ways.
"""

import json
from contextlib import closing
from sqlite3 import DataError, IntegrityError, OperationalError, connect

import pytest
from attrs import asdict
from sqlalchemy import insert

from retrytemplate import SimpleRetryPolicy
from retrytemplate._internal.failure_text import type_name
from retrytemplate._storage import sql_engine as engines
from retrytemplate.batch import (
    DeadLetters,
    ForwardReader,
    JobRepository,
    JobRepositoryError,
    Outbox,
    ReaderError,
    Runs,
    SkipPolicy,
    UnsentMessages,
)
from retrytemplate.batch.engine.checkpoint import Checkpoint, indexes_of, ranges_of
from retrytemplate.batch.journal.repository import JOB_REPOSITORY
from tests.support.step_fixture import World, accounted

ITEMS = range(1, 7)
DEEP = "[" * 100_000

# Damage of a column, as SQL.
LITERALS = (
    "NULL",
    "'x'",
    "''",
    "x'00ff'",
    "CAST(x'ff' AS TEXT)",
    "-1",
    "0",
    "2",
    "0.5",
    "'NaN'",
    "1e300",
    "9e999",
    str(2**63 - 1),
)
# Damage of a checkpoint.
FIELDS = (
    {"pending": [[4, 6]]},
    {"pending": [[1, 2]]},
    {"broken": {"7": "torn"}},
    {"broken": {"1": 5}},
)
# Damage of any JSON value.
TEXTS = ("", "{", "[]", "{}", "null", "17", "NaN", '"x"', "[null]", '{"format": 1}', DEEP)
VALUES = (None, "x", -1, 0.5, 10**30, float("nan"), [], {}, [[5, 1]], [[0, 10**12]], {"x": 1}, True)


class Bad(Exception):
    """The price cannot be computed."""


class Place:
    """A world whose tables are reset to one state before each damage."""

    def __init__(self, folder, reader):
        url = f"sqlite:///{folder}/jobs.db"
        self.world = World(url, "batch")
        self.world.jobs.close()
        engine = engines.transaction_engine(
            engines.parse_url(url, JOB_REPOSITORY), 5.0, JOB_REPOSITORY
        )
        self.jobs = self.world.jobs = JobRepository(engine)
        self.file = f"{folder}/jobs.db"
        self.reader = reader
        self.fail = True
        step = self.step()
        assert step.run().status == "failed"
        self.fail = False
        with self.jobs.transaction() as transaction:
            checkpoint = Checkpoint.from_json(json.loads(self.cell("batch_runs", "checkpoint")))
            assert checkpoint.pending == ((1, 3),)
            crashes = {2: (("elsewhere-1-1", 1.0),)}
            stored = Checkpoint(
                **asdict(checkpoint, recurse=False) | {"crashes": crashes, "isolating": True}
            )
            changed = {"checkpoint": json.dumps(stored.to_json()), "crashes": 1}
            transaction.execute(self.jobs.tables.runs.update().values(changed))
            add = insert(self.jobs.tables.messages)
            waiting = {"message_id": "m1", "run": 1, "step": "copy", "payload": "1", "created": 1}
            transaction.execute(add.values(waiting))
        with closing(connect(self.file)) as connection:
            self.state = connect(":memory:")
            connection.backup(self.state)

    def step(self, **settings):
        def process(item):
            if item == 2 and self.fail:
                raise Bad("no price")
            return item

        def write(item, _):
            if item == 5 and self.fail:
                raise ArithmeticError("no sum")

        return self.world.step(
            reader=self.reader(),
            process=process,
            write=write,
            retry=SimpleRetryPolicy(2),
            skip=SkipPolicy(on=Bad),
            **settings,
        )

    def reset(self):
        with closing(connect(self.file)) as connection:
            self.state.backup(connection)

    def cell(self, table, column):
        with closing(connect(self.file)) as connection:
            return connection.execute(f"SELECT {column} FROM {table}").fetchone()[0]

    def damage(self, table, column, literal, *values):
        """Whether the database takes the damage."""
        self.reset()
        with closing(connect(self.file)) as connection:
            try:
                connection.execute(f"UPDATE {table} SET {column} = {literal}", values)
            except (IntegrityError, OperationalError, DataError):
                return False
            connection.commit()
        return True

    def check(self, table, column, damage, use):
        """Use it: it works as if nothing were damaged, or names the column."""
        try:
            use()
        except JobRepositoryError as error:
            text = str(error)
            named = f"{table}, row " in text and column in text
            assert named or "Could not decode to UTF-8" in text, damage
        for look in (Runs(self.jobs).page, DeadLetters(self.jobs).page):
            try:
                assert len(look()) == 1
            except JobRepositoryError as error:
                assert "Could not decode to UTF-8" in str(error), damage

    def close(self):
        self.state.close()
        self.jobs._given.dispose()


@pytest.fixture(scope="module", params=["sequence", "stream"])
def place(request, tmp_path_factory):
    """A run that failed in its second chunk, with a dead letter and a message that waits."""
    folder = tmp_path_factory.mktemp("damage")
    read = {"sequence": lambda: ITEMS, "stream": lambda: ForwardReader(iter(()))}[request.param]
    first = {"sequence": lambda: ITEMS, "stream": lambda: ForwardReader(iter(ITEMS))}
    made = Place(folder, first[request.param])
    made.reader = read
    yield made
    made.close()


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    made = Place(tmp_path_factory.mktemp("damage"), lambda: ITEMS)
    yield made
    made.close()


def resume(place):
    def use():
        report = place.step().run()
        if report.status != "completed":
            named = type_name(ReaderError), type_name(JobRepositoryError)
            assert report.error.type_name in named
            return
        assert accounted(report)
        assert place.world.rows() == [1, 3, 4, 5, 6]
        assert (report.read, report.written, report.dead_lettered) == (6, 5, 1)

    return use


def fields_of(value, path=()):
    """The places in a JSON value, the inner ones included."""
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = [(0, value[0]), (-1, value[-1])][: len(value)] if value else ()
    for key, inner in items:
        yield (*path, key)
        yield from fields_of(inner, (*path, key))


def damaged_texts(text):
    """The JSON text with one thing damaged."""
    yield from TEXTS
    if isinstance(json.loads(text), dict):
        yield from (json.dumps(json.loads(text) | changed) for changed in FIELDS)
    for path in fields_of(json.loads(text)):
        for value in (..., *VALUES):
            data = json.loads(text)
            holder = data
            for key in path[:-1]:
                holder = holder[key]
            if value is ...:
                del holder[path[-1]]
            elif type(value) is type(holder[path[-1]]) and value == holder[path[-1]]:
                continue
            else:
                holder[path[-1]] = value
            yield json.dumps(data)
        # The order of payloads is not checked: they are the caller's.
        if isinstance(holder, list) and len(holder) > 1 and path[0] != "payloads":
            holder.reverse()
            yield json.dumps(data)


RUN = (
    "id parameters digest generation status fence seq worker process lease_until read written"
    " filtered dead_lettered skipped retries rollbacks crashes checkpoint error progress"
    " exactly_once code_version started taken done_before updated ended"
).split()
LETTER = (
    "run source number item_key ordinal phase payload replayable error_type error_message attempts"
    " code_version state created resolved audit"
).split()


@pytest.mark.parametrize("column", RUN)
def test_damaged_column_of_a_run_is_named_or_harmless(sequence, column):
    for literal in LITERALS:
        if sequence.damage("batch_runs", column, literal):
            sequence.check("batch_runs", column, (column, literal), resume(sequence))


def test_every_column_of_a_run_is_damaged(sequence):
    assert {*RUN, "step"} == set(sequence.jobs.tables.runs.c.keys())


@pytest.mark.parametrize("column", ["lease_until", "worker", "process"])
def test_damaged_column_of_a_held_run_is_named_or_harmless(sequence, column):
    for literal in LITERALS:
        if sequence.damage("batch_runs", column, literal):
            with closing(connect(sequence.file)) as connection:
                held = {"worker": "'elsewhere-1-1'", "lease_until": "1.0", "process": "NULL"}
                held["status"] = "'running'"
                held.pop(column)
                changes = ", ".join(f"{name} = {value}" for name, value in held.items())
                connection.execute(f"UPDATE batch_runs SET {changes}")
                connection.commit()
            sequence.check("batch_runs", column, (column, literal), resume(sequence))


def test_damaged_field_of_a_marker_is_named_or_harmless(place):
    place.reset()
    before = place.cell("batch_runs", "checkpoint")
    for text in damaged_texts(before):
        assert place.damage("batch_runs", "checkpoint", "?", text)
        if json_equal(text, before):
            continue
        place.check("batch_runs", "checkpoint", text, resume(place))


def test_marker_with_more_items_than_were_read_is_rejected(sequence):
    sequence.reset()
    checkpoint = json.loads(sequence.cell("batch_runs", "checkpoint"))
    text = json.dumps(checkpoint | {"count": 10**12})
    assert sequence.damage("batch_runs", "checkpoint", "?", text)
    with pytest.raises(
        JobRepositoryError, match="column checkpoint: count 1000000000000 of 6 read"
    ):
        sequence.step().run()


def json_equal(text, other):
    try:
        return json.loads(text) == json.loads(other)
    except (ValueError, RecursionError):
        return False


def replay(sequence):
    def use():
        report = sequence.step().replay()
        # It is written, or it is still a dead letter.
        [letter] = DeadLetters(sequence.jobs).page()
        assert (2 in sequence.world.rows()) == (letter.state == "replayed")
        resolved = report.failed or report.replayed or report.skipped
        assert resolved or letter.state != "open" or letter.problem

    return use


@pytest.mark.parametrize("column", LETTER)
def test_damaged_column_of_a_dead_letter_is_named_or_harmless(sequence, column):
    for literal in LITERALS:
        if column == "payload" and literal[0] not in "N'xC":
            continue  # another payload, which no check can know
        if sequence.damage("batch_letters", column, literal):
            sequence.check("batch_letters", column, (column, literal), replay(sequence))


def test_every_column_of_a_dead_letter_is_damaged(sequence):
    assert {*LETTER, "id", "step"} == set(sequence.jobs.tables.letters.c.keys())


@pytest.mark.parametrize("column", ["attempts", "audit"])
def test_damaged_field_of_a_dead_letter_is_named_or_harmless(sequence, column):
    sequence.reset()
    sequence.fail = True
    sequence.step().replay()
    before = sequence.cell("batch_letters", column)
    for text in damaged_texts(before):
        assert sequence.damage("batch_letters", column, "?", text)
        sequence.check("batch_letters", column, text, replay(sequence))
    sequence.fail = False


MESSAGE = ["message_id", "payload", "created", "run"]


def test_every_column_of_a_message_is_damaged(sequence):
    # With another step it is a message of that one.
    assert {*MESSAGE, "id", "step"} == set(sequence.jobs.tables.messages.c.keys())


@pytest.mark.parametrize("column", MESSAGE)
def test_damaged_message_is_named_and_not_sent(sequence, column):
    sent = []
    step = sequence.step(outbox=Outbox(sent.append, lambda item: None))
    for literal in ("x'00ff'", "-1" if column in ("created", "run") else "x'ff'"):
        assert sequence.damage("batch_outbox", column, literal)
        report = step.send_outbox()
        assert (report.unsent, sent) == (1, [])
        assert f"batch_outbox, row 1, column {column}" in report.error.message
        [message] = UnsentMessages(sequence.jobs).page()
        assert message.problem == report.error.message


def test_letter_with_a_damaged_audit_is_not_discarded(sequence):
    assert sequence.damage("batch_letters", "audit", "'[1]'")
    with pytest.raises(JobRepositoryError, match=r"batch_letters, row 1, column audit: \[0\] must"):
        DeadLetters(sequence.jobs).discard([1], by="me", reason="a test")


def test_damaged_version_of_the_tables_is_an_error(sequence):
    assert sequence.damage("batch_meta", "value", "'x'")
    says = pytest.raises(JobRepositoryError, match="have version 'x'")
    with JobRepository(f"sqlite:///{sequence.file}") as jobs, says:
        Runs(jobs).page()


def test_run_with_a_damaged_marker_can_be_restarted(sequence):
    assert sequence.damage("batch_runs", "checkpoint", "'{'")
    with closing(connect(sequence.file)) as connection:
        connection.execute("DELETE FROM batch_out")
        connection.commit()
    assert sequence.step().run(on_existing="restart").written == 6


# Ranges of a checkpoint.


def test_no_indexes_have_no_ranges():
    assert ranges_of([]) == ()


def test_ranges_and_indexes_are_inverse():
    assert indexes_of(ranges_of([0, 1, 4])) == [0, 1, 4]
