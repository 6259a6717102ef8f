"""The reader of a query, on SQLite and PostgreSQL."""

import os
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Table,
    Text,
    create_engine,
    event,
    insert,
    select,
    union_all,
)

from retrytemplate import MissingExtraError
from retrytemplate.batch import QueryReader, ReaderError, Records
from tests.batch.readers.reading import in_pieces, items, listed, whole
from tests.support.database import KINDS, Place

ORDERS = [{"id": number, "sku": f"S{number % 3}"} for number in (2, 3, 5, 7, 11, 13, 17)]


@pytest.fixture(params=KINDS)
def place(request):
    made = Place(request.param, request)
    yield made
    made.close()


@pytest.fixture
def sqlite(request):
    made = Place("sqlite", request)
    yield made
    made.close()


@pytest.fixture
def orders(place):
    return place.table(
        Column("id", Integer, primary_key=True), Column("sku", Text), rows=reversed(ORDERS)
    )


@pytest.mark.parametrize("limit", [1, 3, 7, 100])
def test_query_is_read_alike_whole_and_from_every_position(place, orders, limit):
    reader = QueryReader(select(orders), engine=place.engine)
    expected = [("query", number, order) for number, order in enumerate(ORDERS, start=1)]
    assert whole(reader, limit) == in_pieces(reader, limit) == expected


def test_query_can_be_a_string(place, orders):
    reader = QueryReader(f"SELECT id, sku FROM {orders} WHERE id > 4", engine=place.engine)
    assert items(in_pieces(reader, 2)) == ORDERS[2:]


def test_several_columns_may_be_the_key(place, orders):
    expected = sorted(ORDERS, key=lambda order: (order["sku"], order["id"]))
    for statement in (select(orders), f"SELECT * FROM {orders}"):
        reader = QueryReader(statement, ["sku", "id"], engine=place.engine)
        assert items(in_pieces(reader, 2)) == expected


def test_query_key_can_be_computed(place, orders):
    statement = select((-orders.c.id).label("turned"), orders.c.sku)
    reader = QueryReader(statement, "turned", engine=place.engine)
    assert [item["turned"] for item in items(in_pieces(reader, 2))] == [
        -17,
        -13,
        -11,
        -7,
        -5,
        -3,
        -2,
    ]


def test_union_is_read_as_one_query(place, orders):
    statement = union_all(
        select(orders.c.id).where(orders.c.id > 10), select(orders.c.id).where(orders.c.id < 4)
    )
    reader = QueryReader(statement, engine=place.engine)
    assert [item["id"] for item in items(in_pieces(reader, 2))] == [2, 3, 11, 13, 17]


def test_rows_after_the_last_key_are_read(place, orders):
    with QueryReader(select(orders), engine=place.engine).open() as cursor:
        cursor.read(100)
        assert not cursor.read(100)
        place.put(orders, [{"id": 1, "sku": "before"}, {"id": 19, "sku": "behind"}])
        assert cursor.read(100).items == [{"id": 19, "sku": "behind"}]


def test_no_transaction_is_open_between_two_reads(place, orders):
    with QueryReader(select(orders), engine=place.engine).open() as cursor:
        cursor.read(2)
        assert place.engine.pool.checkedout() == 0


def test_read_does_not_scan_the_rows_before_it(sqlite):
    orders = sqlite.table(Column("id", Integer, primary_key=True), rows=[{"id": 1}, {"id": 2}])
    statements = []
    event.listen(sqlite.engine, "before_cursor_execute", lambda *args: statements.append(args[2:4]))
    in_pieces(QueryReader(select(orders), engine=sqlite.engine), 1)
    statement, values = next(each for each in statements if "> ?" in each[0])
    assert (1, 2, 0) in zip(values, values[1:], values[2:], strict=False)  # key, limit, offset
    with sqlite.engine.connect() as connection:
        plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all())
    assert f"SEARCH {orders}" in plan
    assert f"SCAN {orders}" not in plan


async def test_asynchronous_engine_is_awaited(place, orders):
    found, position = [], None
    async with place.awaited() as engine:
        reader = QueryReader(select(orders), engine=engine)
        while True:
            async with reader.open(position) as cursor:
                records = await cursor.read(3)
                position = cursor.position
            if not records:
                break
            found += listed(records)
    assert items(found) == ORDERS


@pytest.mark.parametrize(
    ("kind", "value"),
    [(LargeBinary, b"1"), (Numeric, Decimal("1.5"))],
)
def test_key_that_the_journal_cannot_keep_is_rejected(place, kind, value):
    table = place.table(Column("id", kind), rows=[{"id": value}])
    with (
        QueryReader(select(table), engine=place.engine).open() as cursor,
        pytest.raises(ReaderError, match="it must be of int or text, never null; cast it"),
    ):
        cursor.read(10)


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_key_that_is_not_unique_is_rejected_across_pages(place, limit):
    table = place.table(Column("id", Integer), rows=[{"id": 1}, {"id": 2}, {"id": 2}])
    with pytest.raises(ReaderError, match=r"query has two rows with the key \[2\]"):
        whole(QueryReader(select(table), engine=place.engine), limit)


def test_key_of_a_text_is_the_column_that_the_database_finds(sqlite):
    reader = QueryReader("SELECT 1 AS ID UNION SELECT 2", engine=sqlite.engine)
    assert items(in_pieces(reader, 1)) == [{"ID": 1}, {"ID": 2}]


@pytest.mark.parametrize(
    "position",
    [
        3,
        {},
        {"after": 2, "number": 1},
        {"after": [2]},
        {"after": [], "number": 1},
        {"after": [2, 3], "number": 1},
        {"after": [{"a": 1}], "number": 1},
        {"after": [True], "number": 1},
    ],
)
def test_position_of_another_source_is_rejected(sqlite, position):
    with pytest.raises(ReaderError, match="query cannot"):
        QueryReader("SELECT 1 AS id", engine=sqlite.engine).open(position)


@pytest.mark.parametrize("clause", ["order_by", "limit", "offset"])
def test_statement_with_order_or_limit_is_rejected(sqlite, clause):
    table = sqlite.table(Column("id", Integer))
    statement = getattr(select(table), clause)(table.c.id if clause == "order_by" else 1)
    with pytest.raises(ValueError, match="statement must have no order and no limit"):
        QueryReader(statement, engine=sqlite.engine)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"statement": 7}, TypeError, "statement must be a select() of sqlalchemy or a str, got 7"),
        ({"statement": "insert"}, TypeError, "statement must be a select()"),
        ({"key": 7}, TypeError, "key must be the name of a column, or several distinct ones"),
        ({"key": [7]}, TypeError, "key must be the name of a column"),
        ({"key": []}, ValueError, "key must be the name of a column"),
        ({"key": ["id", "id"]}, ValueError, "key must be the name of a column"),
        ({"key": "number"}, ValueError, "key must be of the columns id, sku, got ('number',)"),
        ({"engine": "sqlite://"}, TypeError, "engine must be an engine of sqlalchemy, got 'sqlite"),
        ({"name": ""}, TypeError, "name must be a non-empty str, got ''"),
    ],
)
def test_bad_settings_are_rejected(sqlite, arguments, error, message):
    table = sqlite.table(Column("id", Integer), Column("sku", Text))
    if arguments.get("statement") == "insert":
        arguments = {"statement": insert(table)}
    with pytest.raises(error) as caught:
        QueryReader(**{"statement": select(table), "engine": sqlite.engine} | arguments)
    assert str(caught.value).startswith(message)


def test_missing_sqlalchemy_is_named_with_its_extra(monkeypatch):
    for module in list(sys.modules):
        if module.partition(".")[0] == "sqlalchemy":
            monkeypatch.setitem(sys.modules, module, None)
    expected = r"^a QueryReader needs sqlalchemy: install retrytemplate\[batch\]$"
    with pytest.raises(MissingExtraError, match=expected):
        QueryReader("SELECT 1 AS id", engine=None)


def test_repr_shows_no_password():
    engine = create_engine("postgresql+psycopg://me:secret@host/data")
    assert repr(QueryReader("SELECT 1 AS id", engine=engine)) == (
        "QueryReader(key=('id',), engine=Engine(postgresql+psycopg://me:***@host/data), "
        "name='query')"
    )


# Keys that the database compares otherwise than Python.


def words_of(place, kind, words=()):
    """A table whose column of words has that type, and is text to SQLAlchemy."""
    name = place.table(Column("number", Integer)).name
    with place.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {name} ADD COLUMN word {kind}")
    table = Table(name, MetaData(), Column("number", Integer), Column("word", Text))
    place.put(table, [{"number": at, "word": word} for at, word in enumerate(words)])
    return table


@pytest.fixture
def insensitive(place):
    """Makes a table whose words the database compares without regard to case."""
    if place.kind == "sqlite":
        return lambda *words: words_of(place, "TEXT COLLATE NOCASE", words)
    with place.engine.begin() as connection:
        connection.exec_driver_sql("CREATE EXTENSION IF NOT EXISTS citext")
    return lambda *words: words_of(place, "CITEXT", words)


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("as_text", [False, True])
def test_key_that_only_the_database_takes_for_equal_is_an_error(place, insensitive, limit, as_text):
    table = insensitive("a", "B", "b", "c")
    statement = f"SELECT * FROM {table}" if as_text else select(table)
    reader = QueryReader(statement, "word", engine=place.engine)
    with pytest.raises(ReaderError, match="query has two rows with the key"):
        whole(reader, limit)


def test_several_key_columns_equal_to_the_database_alone_are_an_error(place, insensitive):
    table = insensitive("a", "B", "b")
    statement = select(table.c.word, (table.c.number // 5).label("fifth"))
    with pytest.raises(ReaderError, match="query has two rows with the key"):
        whole(QueryReader(statement, ["fifth", "word"], engine=place.engine), 2)


def test_no_row_is_lost_when_the_database_orders_without_case(place, insensitive):
    words = ["a", "B", "c", "D", "e", "\N{LATIN SMALL LETTER E WITH ACUTE}"]
    table = insensitive(*words)
    for statement in (select(table), f"SELECT * FROM {table}"):
        reader = QueryReader(statement, "word", engine=place.engine)
        found = [item["word"] for item in items(in_pieces(reader, 2))]
        assert sorted(found) == sorted(words)
        reader = QueryReader(statement, ["word", "number"], engine=place.engine)
        assert len(in_pieces(reader, 1)) == len(words)


def test_equal_words_are_read_where_another_column_makes_the_key_unique(place, insensitive):
    table = insensitive("a", "A", "b", "B")
    reader = QueryReader(select(table), ["word", "number"], engine=place.engine)
    assert [item["word"] for item in items(in_pieces(reader, 1))] == ["a", "A", "b", "B"]


def test_no_row_is_lost_when_the_column_has_its_own_order(request):
    place = Place("postgresql", request)
    kind = f"level_{os.getpid()}"
    with place.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE TYPE {kind} AS ENUM ('c', 'B', 'a')")
    table = words_of(place, kind)
    with place.engine.begin() as connection:
        connection.exec_driver_sql(f"INSERT INTO {table} VALUES (1, 'a'), (2, 'B'), (3, 'c')")
    reader = QueryReader(select(table), "word", engine=place.engine)
    assert [item["word"] for item in items(in_pieces(reader, 1))] == ["c", "B", "a"]
    place.close()


@pytest.mark.parametrize("key", ["id", ["id", "part"], ["part", "id"]])
def test_null_key_is_an_error_before_any_row_is_read(place, key):
    rows = [{"id": number, "part": 1} for number in range(5)]
    table = place.table(Column("id", Integer), Column("part", Integer))
    place.put(table, [*rows, {"id": None, "part": 1}])
    for statement in (select(table), f"SELECT * FROM {table}"):
        reader = QueryReader(statement, key, engine=place.engine)
        with (
            reader.open() as cursor,
            pytest.raises(ReaderError, match=r"query has a row whose key .* has a null"),
        ):
            cursor.read(2)


async def test_null_key_is_an_error_with_an_asynchronous_engine(place):
    table = place.table(Column("id", Integer), rows=[{"id": 1}, {"id": 2}, {"id": None}])
    async with (
        place.awaited() as engine,
        QueryReader(select(table), engine=engine).open() as cursor,
    ):
        with pytest.raises(ReaderError, match="has a null"):
            await cursor.read(1)


@pytest.mark.parametrize(
    ("kind", "literal"),
    [
        ("REAL", "1.5"),
        ("DOUBLE PRECISION", "0.1"),
        ("TIMESTAMP", "'2026-03-29 02:30:00'"),
        ("TIMESTAMP WITH TIME ZONE", "'2026-03-29 02:30:00+02'"),
    ],
)
def test_key_of_a_float_or_a_time_is_read_or_an_error(place, kind, literal):
    table = place.table(Column("number", Integer))
    with place.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN at {kind}")
        connection.exec_driver_sql(f"INSERT INTO {table} VALUES (1, {literal})")
    reader = QueryReader(f"SELECT * FROM {table}", "at", engine=place.engine)
    if place.kind == "sqlite" and "TIME" in kind:  # a text to the database
        assert len(whole(reader)) == 1
        return
    with pytest.raises(ReaderError, match="it must be of int or text"):
        whole(reader)


def test_key_of_a_column_that_sqlalchemy_converts_is_read_as_it_is_stored(sqlite):
    times = [datetime(2026, 11, day, tzinfo=UTC) for day in (1, 2, 3)]
    table = sqlite.table(Column("at", DateTime), rows=[{"at": time} for time in times])
    reader = QueryReader(select(table), "at", engine=sqlite.engine)
    found = [item["at"] for item in items(in_pieces(reader, 1))]
    assert found == [time.replace(tzinfo=None) for time in times]


def test_times_with_a_zone_are_read_by_their_text(place):
    zones = ("01:30:00+02", "01:30:00+01", "00:30:00+00")
    table = place.table(Column("number", Integer))
    with place.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN at TIMESTAMP WITH TIME ZONE")
        for number, zone in enumerate(zones):
            connection.exec_driver_sql(
                f"INSERT INTO {table} VALUES ({number}, '2026-10-25 {zone}')"
            )
    text = f"SELECT number, CAST(at AS TEXT) AS at FROM {table}"
    reader = QueryReader(text, "at", engine=place.engine)
    if place.kind == "sqlite":
        assert len(in_pieces(reader, 1)) == 3
        return
    # Two of them are the same point in time, hence the same text in a session.
    with pytest.raises(ReaderError, match="query has two rows with the key"):
        in_pieces(reader, 1)
    reader = QueryReader(text, ["at", "number"], engine=place.engine)
    assert len(in_pieces(reader, 1)) == 3


@pytest.mark.parametrize("wrong", ["17", -1, 1.5, True])
def test_wrong_fingerprint_is_named(wrong):
    with pytest.raises((TypeError, ValueError), match=r"^fingerprint must be an int >= 0, got"):
        Records([], "orders", 1, fingerprint=wrong)
