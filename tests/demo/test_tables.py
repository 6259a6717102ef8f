"""The database file: whose it is, and that a transaction is all or nothing."""

import sqlite3
from datetime import date

import pytest

from retrytemplate.demo import DatabaseRefused, Order, Priced, Tables


def priced(line):
    return Priced(line, ORDER, 100, 1)


def write(tables, *items):
    with tables.repository.transaction() as transaction:
        tables.write(items, transaction)


ORDER = Order("O-1", date(2026, 11, 20), "Sato Ltd", "SKU-0042", 3)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "some.db"


def test_an_earlier_run_is_replaced(path):
    for _ in range(2):
        tables = Tables(path)
        write(tables, priced(2))
        assert tables.written() == {2}
        tables.close()


def test_somebody_elses_tables_are_left_alone(path):
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE orders (precious)")
    other.close()
    with pytest.raises(DatabaseRefused, match="is a database of something else"):
        Tables(path)
    other = sqlite3.connect(path)
    assert other.execute("SELECT sql FROM sqlite_master").fetchall() == [
        ("CREATE TABLE orders (precious)",)
    ]
    other.close()


def test_a_file_that_is_no_database_is_refused(path):
    path.write_text("a letter to a friend, rather long, so that it cannot be an empty database")
    with pytest.raises(DatabaseRefused, match="file is not a database"):
        Tables(path)
    assert path.read_text().startswith("a letter")


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(DatabaseRefused, match="cannot write the database"):
        Tables(tmp_path / "nowhere" / "some.db")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(DatabaseRefused, match="cannot write the database"):
        Tables(tmp_path)


def test_a_later_line_of_an_order_counts(path):
    tables = Tables(path)
    write(tables, priced(3), priced(2))
    reader = sqlite3.connect(path)
    assert reader.execute("SELECT line FROM orders").fetchall() == [(3,)]
    reader.close()
    tables.close()


def test_a_run_that_another_one_replaced_writes_nothing_more(path):
    earlier = Tables(path)
    later = Tables(path)
    with pytest.raises(DatabaseRefused, match="another run has replaced"):
        write(earlier, priced(2))
    write(later, priced(2))
    earlier.close()
    assert later.written() == {2}
    later.close()


def test_a_closed_database_leaves_one_file(path):
    Tables(path).close()
    assert list(path.parent.iterdir()) == [path]
