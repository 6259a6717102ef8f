"""The reader of a query, on SQLite and PostgreSQL."""

import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest
from sqlalchemy import (
    Column,
    DateTime,
    Integer,
    Numeric,
    Text,
    create_engine,
    event,
    insert,
    select,
    union_all,
)

from retrytemplate import MissingExtraError
from retrytemplate.batch import QueryReader, ReaderError
from tests.batch.place import KINDS, Place
from tests.batch.readers.reading import in_pieces, items, listed, whole

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
def test_it_is_read_alike_whole_and_from_every_position(place, orders, limit):
    reader = QueryReader(select(orders), engine=place.engine)
    expected = [("query", number, order) for number, order in enumerate(ORDERS, start=1)]
    assert whole(reader, limit) == in_pieces(reader, limit) == expected


def test_a_text_will_do(place, orders):
    reader = QueryReader(f"SELECT id, sku FROM {orders} WHERE id > 4", engine=place.engine)
    assert items(in_pieces(reader, 2)) == ORDERS[2:]


def test_several_columns_may_be_the_key(place, orders):
    expected = sorted(ORDERS, key=lambda order: (order["sku"], order["id"]))
    for statement in (select(orders), f"SELECT * FROM {orders}"):
        reader = QueryReader(statement, ["sku", "id"], engine=place.engine)
        assert items(in_pieces(reader, 2)) == expected


def test_the_key_may_be_computed(place, orders):
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


def test_a_union_is_read_as_one(place, orders):
    statement = union_all(
        select(orders.c.id).where(orders.c.id > 10), select(orders.c.id).where(orders.c.id < 4)
    )
    reader = QueryReader(statement, engine=place.engine)
    assert [item["id"] for item in items(in_pieces(reader, 2))] == [2, 3, 11, 13, 17]


def test_what_comes_behind_the_last_key_is_read_too(place, orders):
    with QueryReader(select(orders), engine=place.engine).open() as cursor:
        cursor.read(100)
        assert not cursor.read(100)
        place.put(orders, [{"id": 1, "sku": "before"}, {"id": 19, "sku": "behind"}])
        assert cursor.read(100).items == [{"id": 19, "sku": "behind"}]


def test_no_transaction_stays_open_between_two_reads(place, orders):
    with QueryReader(select(orders), engine=place.engine).open() as cursor:
        cursor.read(2)
        assert place.engine.pool.checkedout() == 0


def test_no_read_goes_over_the_rows_before_it(sqlite):
    orders = sqlite.table(Column("id", Integer, primary_key=True), rows=[{"id": 1}, {"id": 2}])
    said = []
    event.listen(sqlite.engine, "before_cursor_execute", lambda *args: said.append(args[2:4]))
    in_pieces(QueryReader(select(orders), engine=sqlite.engine), 1)
    statement, (after, limit, offset) = said[1]
    assert (after, limit, offset) == (1, 2, 0)
    with sqlite.engine.connect() as connection:
        plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", (1, 2, 0)).all())
    assert "SEARCH" in plan
    assert "SCAN" not in plan


async def test_an_asynchronous_engine_is_awaited(place, orders):
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
    [(DateTime(timezone=True), datetime(2026, 11, 21, tzinfo=UTC)), (Numeric, Decimal("1.5"))],
)
def test_a_key_that_the_journal_cannot_keep_is_refused_at_the_first_read(place, kind, value):
    table = place.table(Column("id", kind), rows=[{"id": value}])
    with (
        QueryReader(select(table), engine=place.engine).open() as cursor,
        pytest.raises(ReaderError, match="it must be of int or text, never null; cast it"),
    ):
        cursor.read(10)


def test_a_key_that_is_null_is_refused(place):
    table = place.table(Column("id", Integer), rows=[{"id": 1}, {"id": None}])
    with (
        QueryReader(select(table), engine=place.engine).open() as cursor,
        pytest.raises(ReaderError, match=r"cannot begin anew behind the key \[None\] of id"),
    ):
        cursor.read(10)


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_a_key_that_is_not_unique_is_refused_also_across_pages(place, limit):
    table = place.table(Column("id", Integer), rows=[{"id": 1}, {"id": 2}, {"id": 2}])
    with pytest.raises(ReaderError, match=r"query has two rows with the key \[2\]"):
        whole(QueryReader(select(table), engine=place.engine), limit)


def test_a_text_without_the_key_among_its_columns_is_refused_at_the_first_read(sqlite):
    with (
        QueryReader("SELECT 1 AS ID", engine=sqlite.engine).open() as cursor,
        pytest.raises(ReaderError, match="query has the columns ID: its key must be of them, and"),
    ):
        cursor.read(10)


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
def test_a_position_of_something_else_is_refused(sqlite, position):
    with pytest.raises(ReaderError, match="query cannot"):
        QueryReader("SELECT 1 AS id", engine=sqlite.engine).open(position)


@pytest.mark.parametrize("clause", ["order_by", "limit", "offset"])
def test_a_statement_with_an_order_or_a_limit_of_its_own_is_refused(sqlite, clause):
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
def test_bad_settings_are_refused(sqlite, arguments, error, message):
    table = sqlite.table(Column("id", Integer), Column("sku", Text))
    if arguments.get("statement") == "insert":
        arguments = {"statement": insert(table)}
    with pytest.raises(error) as caught:
        QueryReader(**{"statement": select(table), "engine": sqlite.engine} | arguments)
    assert str(caught.value).startswith(message)


def test_without_sqlalchemy_the_error_names_the_extra(monkeypatch):
    for module in list(sys.modules):
        if module.partition(".")[0] == "sqlalchemy":
            monkeypatch.setitem(sys.modules, module, None)
    expected = r"^a QueryReader needs sqlalchemy: pip install 'retrytemplate\[batch\]'$"
    with pytest.raises(MissingExtraError, match=expected):
        QueryReader("SELECT 1 AS id", engine=None)


def test_it_shows_no_password():
    engine = create_engine("postgresql+psycopg://me:secret@host/data")
    assert repr(QueryReader("SELECT 1 AS id", engine=engine)) == (
        "QueryReader(key=('id',), engine=Engine(postgresql+psycopg://me:***@host/data), "
        "name='query')"
    )
