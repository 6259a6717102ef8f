"""The writer of a table, on SQLite and PostgreSQL."""

import sys
from datetime import date, datetime
from decimal import Decimal
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Date,
    DateTime,
    Integer,
    Numeric,
    Text,
    create_engine,
    delete,
    text,
)

from retrytemplate import MissingExtraError
from retrytemplate.batch import UpsertWriter
from tests.support.database import KINDS, Place


@pytest.fixture(params=KINDS)
def place(request):
    made = Place(request.param, request)
    yield made
    made.close()


@pytest.fixture
def orders(place):
    return place.table(
        Column("id", Integer, primary_key=True), Column("sku", Text), Column("cents", Integer)
    )


def write(place, writer, *chunks):
    """Write chunks, each in a transaction of its own."""
    for items in chunks:
        with place.engine.begin() as transaction:
            assert writer(items, transaction) is None


def order(number, sku="A", cents=100):
    return {"id": number, "sku": sku, "cents": cents}


def test_new_rows_are_put_in_and_others_replaced(place, orders):
    write(place, UpsertWriter(orders), [order(1), order(2)], [order(2, "B", 250), order(3)])
    assert place.rows(orders) == [order(1), order(2, "B", 250), order(3)]


def test_upsert_is_part_of_the_given_transaction(place, orders):
    with place.engine.connect() as connection:
        UpsertWriter(orders)([order(1)], connection)
        connection.rollback()
    assert place.rows(orders) == []


async def test_asynchronous_transaction_is_awaited(place, orders):
    async with place.awaited() as engine:
        for items in ([order(1)], [order(1, "B"), order(2)]):
            async with engine.begin() as transaction:
                assert await UpsertWriter(orders)(items, transaction) is None
    assert place.rows(orders) == [order(1, "B"), order(2)]


def test_last_of_items_with_the_same_key_is_written(place, orders):
    write(place, UpsertWriter(orders), [order(1, "A"), order(2), order(1, "B")])
    assert place.rows(orders) == [order(1, "B"), order(2)]


def test_empty_list_writes_nothing(place, orders):
    write(place, UpsertWriter(orders), [], ())
    assert place.rows(orders) == []


def test_selected_columns_can_be_replaced(place, orders):
    writer = UpsertWriter(orders, update=["cents"])
    write(place, writer, [order(1, "A", 100)], [order(1, "B", 250)])
    assert place.rows(orders) == [order(1, "A", 250)]


@pytest.mark.parametrize("update", [(), ("cents",)])
def test_existing_row_can_be_kept(place, orders, update):
    writer = UpsertWriter(orders, update=update)
    write(place, writer, [order(1, "A")], [{"id": 1, "sku": "B"}, {"id": 2, "sku": "C"}])
    assert place.rows(orders) == [order(1, "A"), order(2, "C", None)]


def test_item_with_only_a_key_is_written(place, orders):
    write(place, UpsertWriter(orders), [{"id": 1}, {"id": 1}], [{"id": 1}])
    assert place.rows(orders) == [order(1, None, None)]


def test_columns_that_an_item_does_not_have_stay_as_they_are(place, orders):
    write(
        place,
        UpsertWriter(orders),
        [order(1)],
        [{"id": 1, "cents": 5}, {"sku": "B", "id": 1}, {"id": 2, "sku": "C"}],
    )
    assert place.rows(orders) == [order(1, "B", 5), order(2, "C", None)]


FIELDS = st.fixed_dictionaries(
    {"id": st.integers(1, 4)},
    optional={"sku": st.none() | st.sampled_from("ABC"), "cents": st.none() | st.integers(0, 9)},
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(chunks=st.lists(st.lists(FIELDS, max_size=6), max_size=3))
def test_upserted_rows_equal_a_dict_model(place, orders, chunks):
    with place.engine.begin() as connection:
        connection.execute(delete(orders))
    held = {}
    for item in (item for items in chunks for item in items):
        held[item["id"]] = order(item["id"], None, None) | held.get(item["id"], {}) | item
    write(place, UpsertWriter(orders), *chunks)
    assert place.rows(orders) == [held[number] for number in sorted(held)]


def test_key_can_have_several_columns(place):
    table = place.table(
        Column("shop", Text, primary_key=True),
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("sku", Text),
    )
    rows = [{"shop": "x", "id": 1, "sku": "A"}, {"shop": "y", "id": 1, "sku": "B"}]
    write(place, UpsertWriter(table, key=("shop", "id")), rows, [rows[1] | {"sku": "C"}])
    assert place.rows(table) == [rows[0], rows[1] | {"sku": "C"}]


def test_values_are_converted_for_their_columns(place):
    table = place.table(
        Column("id", Integer, primary_key=True),
        Column("day", Date),
        Column("paid", Boolean),
        Column("price", Numeric(10, 2)),
        Column("tags", JSON),
    )
    row = {"id": 1, "day": date(2026, 11, 21), "paid": True, "price": Decimal("1.50"), "tags": [1]}
    write(place, UpsertWriter(table), [row | {"paid": False}], [row])
    assert place.rows(table) == [row]


def test_defaults_of_columns_are_for_new_rows(place):
    table = place.table(
        Column("id", Integer, primary_key=True),
        Column("sku", Text),
        Column("state", Text, default="new"),
        Column("at", DateTime(timezone=True), server_default=text("CURRENT_TIMESTAMP")),
    )
    writer = UpsertWriter(table)
    write(place, writer, [{"id": 1, "sku": "A", "state": "done"}], [{"id": 1, "sku": "B"}])
    write(place, writer, [{"id": 2, "sku": "C"}])
    rows = [(row["id"], row["sku"], row["state"]) for row in place.rows(table)]
    assert rows == [(1, "B", "done"), (2, "C", "new")]
    assert all(isinstance(row["at"], datetime) for row in place.rows(table))


def test_names_that_sql_would_stumble_over(place):
    table = place.table(
        Column("the id%", Integer, primary_key=True),
        Column("select", Text),
        Column('a "b" (c):d', Text),
    )
    row = {"the id%": 1, "select": "it's", 'a "b" (c):d': "%s ? :x"}
    write(place, UpsertWriter(table, key=["the id%"]), [row | {"select": None}], [row])
    assert place.rows(table) == [row]


def test_any_mapping_is_accepted_as_item(place, orders):
    write(place, UpsertWriter(orders), [MappingProxyType(order(1))])
    with place.engine.begin() as connection:
        row = connection.execute(orders.select()).mappings().one()
        UpsertWriter(orders)([row], connection)
    assert place.rows(orders) == [order(1)]


@pytest.mark.parametrize(
    ("item", "error", "message"),
    [
        (
            order(1) | {"colour": "red"},
            ValueError,
            r"columns of .* only \(id, sku, cents\), got 'c",
        ),
        ({"sku": "A"}, ValueError, "an item must have its key, and lacks id"),
        ({}, ValueError, "an item must have its key, and lacks id"),
        ((1, "A", 100), TypeError, r"an item must be a mapping of columns, got \(1, 'A', 100\)"),
    ],
)
def test_item_that_is_not_a_row_is_rejected(place, orders, item, error, message):
    with place.engine.begin() as transaction, pytest.raises(error, match=message):
        UpsertWriter(orders)([item], transaction)
    assert place.rows(orders) == []


@pytest.fixture
def sqlite(request):
    made = Place("sqlite", request)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"table": "orders"}, TypeError, "table must be a sqlalchemy Table, got 'orders'"),
        ({"key": "id"}, TypeError, r"key must name columns of .* in a list or tuple, got 'id'"),
        ({"key": 7}, TypeError, r"key must name columns of .* in a list or tuple, got 7"),
        ({"key": [1]}, TypeError, r"key must name columns of .* in a list or tuple, got \[1\]"),
        ({"key": ()}, ValueError, "key must name one column at least, got none"),
        ({"key": ["number"]}, ValueError, r"key must name columns of .* \(id, sku\), got \('numb"),
        ({"update": ["number"]}, ValueError, r"update must name columns of .* \(id, sku\), got"),
        ({"update": ["id"]}, ValueError, "update must name no column of the key"),
    ],
)
def test_bad_settings_are_rejected(sqlite, arguments, error, message):
    table = sqlite.table(Column("id", Integer, primary_key=True), Column("sku", Text))
    with pytest.raises(error, match=message):
        UpsertWriter(**{"table": table} | arguments)


def test_value_that_is_not_a_connection_is_rejected(sqlite):
    table = sqlite.table(Column("id", Integer, primary_key=True))
    with pytest.raises(TypeError, match="transaction must be a connection of sqlalchemy, got None"):
        UpsertWriter(table)([], None)


def test_other_kinds_of_databases_are_rejected(sqlite):
    table = sqlite.table(Column("id", Integer, primary_key=True))
    engine = create_engine(sqlite.url)
    engine.dialect.name = "oracle"
    with (
        engine.connect() as connection,
        pytest.raises(ValueError, match="transaction must be of SQLite or PostgreSQL, got oracle"),
    ):
        UpsertWriter(table)([{"id": 1}], connection)
    engine.dispose()


def test_missing_sqlalchemy_is_named_with_its_extra(monkeypatch):
    for module in list(sys.modules):
        if module.partition(".")[0] == "sqlalchemy":
            monkeypatch.setitem(sys.modules, module, None)
    expected = r"^an UpsertWriter needs sqlalchemy: install retrytemplate\[batch\]$"
    with pytest.raises(MissingExtraError, match=expected):
        UpsertWriter(None)


def test_cached_statements_are_bounded(sqlite):
    names = [f"c{number}" for number in range(130)]
    table = sqlite.table(
        Column("id", Integer, primary_key=True), *(Column(name, Text) for name in names)
    )
    writer = UpsertWriter(table)
    write(sqlite, writer, [{"id": 1, name: "x"} for name in names])
    assert set(sqlite.rows(table)[0].values()) == {1, "x"}
    assert len(writer._prepared) <= 100


def test_repr_shows_the_arguments(sqlite):
    table = sqlite.table(Column("id", Integer, primary_key=True), Column("sku", Text))
    shown = repr(UpsertWriter(table, update=["sku"]))
    assert shown == f"UpsertWriter('{table}', key=('id',), update=('sku',))"
