"""The orders file: its lines, their orders, and the errors of faulty lines."""

import runpy
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

from retrytemplate.demo.orders import (
    InvalidOrder,
    Line,
    NotAnOrdersFile,
    Order,
    OrdersFile,
    shipped,
)

HEADER = b"order_id,placed_on,customer,sku,quantity\n"
GOOD = b"O-1,2026-11-20,Sato Ltd,SKU-0042,3"


def parse(raw: bytes) -> Order:
    return Line(2, raw).parse()


@pytest.fixture
def write(tmp_path):
    def write(content: bytes) -> Path:
        path = tmp_path / "orders.csv"
        path.write_bytes(content)
        return path

    return write


def test_valid_line_is_parsed_as_an_order():
    assert parse(GOOD) == Order("O-1", date(2026, 11, 20), "Sato Ltd", "SKU-0042", 3)


@pytest.mark.parametrize(
    "raw",
    [
        GOOD + b"\r",
        b" O-1 , 2026-11-20 , Sato Ltd , SKU-0042 , 3 ",
        b'"O-1","2026-11-20","Sato Ltd","SKU-0042","3"',
    ],
    ids=["carriage return", "spaces", "quotes"],
)
def test_harmless_deviations_are_accepted(raw):
    assert parse(raw) == parse(GOOD)


def test_quoted_comma_belongs_to_the_value():
    assert parse(b'O-1,2026-11-20,"Sato, Ito & Co.",SKU-0042,3').customer == "Sato, Ito & Co."


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "the line is blank"),
        (b"\r", "the line is blank"),
        (b",,,,", "the line is blank"),
        (b",2026-11-20,Sato Ltd,SKU-0042,3", "order_id is missing"),
        (b"O-1,,Sato Ltd,SKU-0042,3", "placed_on is missing"),
        (b"O-1,2026-11-20, ,SKU-0042,3", "customer is missing"),
        (b"O-1,2026-11-20,Sato Ltd,,3", "sku is missing"),
        (b"O-1,2026-11-20,Sato Ltd,SKU-0042,", "quantity is missing"),
        (b"O-1,2026-02-30,Sato Ltd,SKU-0042,3", "placed_on must be like 2026-11-20"),
        (b"O-1,2026-11-20,Sato Ltd", "the line has 3 fields, the header 5"),
        (b"O-1,2026-11-20,Sato, Ito,SKU-0042,3", "the line has 6 fields, the header 5"),
        (b'O-1,2026-11-20,"Sato Ltd,SKU-0042,3', "the line is not valid CSV"),
        (b"O-1,2026-11-20,S\xf6rensen,SKU-0042,3", "the line is not UTF-8"),
    ],
)
def test_faulty_line_raises_with_the_reason(raw, problem):
    with pytest.raises(InvalidOrder, match=problem):
        parse(raw)


@pytest.mark.parametrize(
    "quantity",
    ["0", "-2", "+3", "3.0", "1e3", "NaN", "two", "1O", "1_000", "٣", "10001", "9" * 5000],
)
def test_quantity_must_be_from_1_to_10000(quantity):
    with pytest.raises(InvalidOrder, match="quantity must be a whole number from 1 to 10000"):
        parse(f"O-1,2026-11-20,Sato Ltd,SKU-0042,{quantity}".encode())


def test_lines_are_numbered_as_in_an_editor(write):
    orders = OrdersFile.read(write(HEADER + GOOD + b"\n\n" + GOOD + b"\n"))
    assert [(line.number, line.raw) for line in orders.lines] == [(2, GOOD), (3, b""), (4, GOOD)]


def test_last_line_needs_no_line_end(write):
    assert len(OrdersFile.read(write(HEADER + GOOD)).lines) == 1


def test_unclosed_quote_affects_its_own_line_only(write):
    orders = OrdersFile.read(write(HEADER + b'O-1,"open,,,\n' + GOOD + b"\n"))
    assert orders.lines[1].parse() == parse(GOOD)


def test_byte_order_mark_is_not_part_of_the_first_column(write):
    assert OrdersFile.read(write(b"\xef\xbb\xbf" + HEADER + GOOD)).lines[0].parse() == parse(GOOD)


def test_columns_may_be_in_any_order_and_among_others(write):
    content = b"quantity,note,sku,customer,placed_on,order_id\n3,-,SKU-0042,Sato Ltd,2026-11-20,O-1"
    assert OrdersFile.read(write(content)).lines[0].parse() == parse(GOOD)


def test_header_alone_is_a_file_without_orders(write):
    assert OrdersFile.read(write(HEADER)).lines == ()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "missing: order_id, placed_on, customer, sku, quantity"),
        (b"order_id;placed_on;customer;sku;quantity\n", "is not a CSV of orders"),
        (b"order_id,placed_on,customer,sku\n", "missing: quantity"),
        (b"sku," + HEADER, "names a column twice"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "its first line cannot be read"),
        (b'"order_id,placed_on\n', "its first line cannot be read"),
    ],
    ids=["empty", "semicolons", "a column less", "a column twice", "an image", "an open quote"],
)
def test_file_with_an_invalid_header_is_rejected(write, content, problem):
    with pytest.raises(NotAnOrdersFile, match=problem):
        OrdersFile.read(write(content))


def test_missing_file_is_rejected_by_name(tmp_path):
    with pytest.raises(NotAnOrdersFile, match=r"cannot read .*nowhere\.csv: No such file"):
        OrdersFile.read(tmp_path / "nowhere.csv")


def test_directory_is_rejected(tmp_path):
    with pytest.raises(NotAnOrdersFile, match="cannot read"):
        OrdersFile.read(tmp_path)


def test_line_of_any_encoding_can_be_shown():
    assert Line(2, b"S\xf6rensen").text == "S\\xf6rensen"


def test_shipped_file_equals_the_output_of_its_tool():
    tool = Path(__file__).parents[2] / "tools" / "make_orders.py"
    assert runpy.run_path(str(tool))["orders_file"]() == shipped().read_bytes()


def kind_of(problem: str) -> str:
    number, _, rest = problem.removeprefix("the line has ").partition(" ")
    if rest == "fields, the header 5":
        return "too few fields" if int(number) < 5 else "too many fields"
    return problem.split(",")[0].split(":")[0]


def test_shipped_file_has_the_expected_faults():
    problems = Counter()
    orders = Counter()
    for line in OrdersFile.read(shipped()).lines:
        try:
            orders[line.parse().order_id] += 1
        except InvalidOrder as problem:
            problems[kind_of(str(problem))] += 1
    assert sum(orders.values()) + sum(problems.values()) == 3000
    assert max(orders.values()) >= 2
    assert shipped().read_bytes().startswith(b"\xef\xbb\xbf")
    assert set(problems) == {
        "too few fields",
        "too many fields",
        "customer is missing",
        "order_id is missing",
        "placed_on must be like 2026-11-20",
        "quantity is missing",
        "quantity must be a whole number from 1 to 10000",
        "sku is missing",
        "the line is blank",
        "the line is not valid CSV",
        "the line is not UTF-8",
    }
