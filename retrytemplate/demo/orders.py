"""The orders file: each line is parsed by itself, so that a fault affects one line only."""

from __future__ import annotations

import csv
import json
from datetime import date
from pathlib import Path

from attrs import field, frozen

COLUMNS = ("order_id", "placed_on", "customer", "sku", "quantity")
MOST = 10_000
BOM = b"\xef\xbb\xbf"


class NotAnOrdersFile(ValueError):
    """The file cannot be read, or its first line is not the header of an orders CSV."""


class InvalidOrder(ValueError):
    """A line that is not a valid order; not retryable."""


@frozen
class Order:
    """The content of a valid line."""

    order_id: str
    placed_on: date
    customer: str
    sku: str
    quantity: int


@frozen
class Line:
    """A line of the file.  *number* counts from 1, the header."""

    number: int
    raw: bytes = field(repr=False)
    columns: tuple[str, ...] = field(default=COLUMNS, repr=False)

    @property
    def text(self) -> str:
        """The line as text, with invalid bytes escaped."""
        return self.raw.decode("utf-8", "backslashreplace")

    def parse(self) -> Order:
        """The order of this line.

        :raises InvalidOrder: the line is not valid; the message gives the reason.

        >>> Line(2, b'O-1,2026-11-20,"Sato, Ito & Co.",SKU-0042,3').parse().customer
        'Sato, Ito & Co.'
        >>> Line(3, b"O-1,2026-11-20,,SKU-0042,3").parse()
        Traceback (most recent call last):
        retrytemplate.demo.orders.InvalidOrder: customer is missing
        """
        values = dict(zip(self.columns, self._values(), strict=True))
        return Order(
            order_id=_present(values, "order_id"),
            placed_on=_day(_present(values, "placed_on")),
            customer=_present(values, "customer"),
            sku=_present(values, "sku"),
            quantity=_quantity(_present(values, "quantity")),
        )

    def _values(self) -> list[str]:
        try:
            values = split(self.raw)
        except UnicodeDecodeError as problem:
            raise InvalidOrder(f"the line is not UTF-8: {problem.reason}") from problem
        except csv.Error as problem:
            raise InvalidOrder(f"the line is not valid CSV: {problem}") from problem
        if not any(values):
            raise InvalidOrder("the line is blank")
        if len(values) != len(self.columns):
            raise InvalidOrder(f"the line has {len(values)} fields, the header {len(self.columns)}")
        return values


class LineCodec:
    """Encodes a line for its dead letter: ``text`` for operators, ``raw`` with all bytes.

    >>> codec = LineCodec()
    >>> codec.decode(codec.encode(Line(2, b"\\xff")))
    Line(number=2)
    """

    def encode(self, line: Line) -> str:
        """The line as JSON."""
        whole = {"line": line.number, "columns": line.columns, "text": line.text}
        return json.dumps(whole | {"raw": line.raw.hex()})

    def decode(self, text: str) -> Line:
        """The line of this JSON."""
        kept = json.loads(text)
        return Line(kept["line"], bytes.fromhex(kept["raw"]), tuple(kept["columns"]))


@frozen
class OrdersFile:
    """A file whose header has the columns of an order, in any sequence, among others."""

    path: Path
    lines: tuple[Line, ...] = field(repr=False)

    @classmethod
    def read(cls, path: str | Path) -> OrdersFile:
        """Read all lines.

        :raises NotAnOrdersFile: the file is missing, or no CSV of orders.
        """
        path = Path(path)
        try:
            content = path.read_bytes()
        except OSError as problem:
            raise NotAnOrdersFile(f"cannot read {path}: {problem.strerror or problem}") from problem
        header, *rest = content.removeprefix(BOM).split(b"\n")
        columns = _columns(path, header)
        if rest and not rest[-1]:  # the rest after the last line end
            rest.pop()
        return cls(path, tuple(Line(n, raw, columns) for n, raw in enumerate(rest, start=2)))


def shipped() -> Path:
    """The file that comes with the package: 3 000 orders, some of them faulty."""
    return Path(__file__).with_name("orders.csv")


def split(raw: bytes) -> list[str]:
    """The fields of one line.  An unclosed quote is an error; it must not include later lines."""
    text = raw.decode("utf-8").rstrip("\r")
    return [value.strip() for value in next(csv.reader([text], strict=True), [])]


def _columns(path: Path, header: bytes) -> tuple[str, ...]:
    try:
        columns = split(header)
    except (UnicodeDecodeError, csv.Error) as problem:
        raise NotAnOrdersFile(f"{path} is not CSV: its first line cannot be read") from problem
    missing = [name for name in COLUMNS if name not in columns]
    if missing:
        raise NotAnOrdersFile(
            f"{path} is not a CSV of orders: its first line must name the columns "
            f"{', '.join(COLUMNS)}; missing: {', '.join(missing)}"
        )
    if len(set(columns)) < len(columns):
        raise NotAnOrdersFile(f"{path} is not a CSV of orders: its first line names a column twice")
    return tuple(columns)


def _present(values: dict[str, str], name: str) -> str:
    if not values[name]:
        raise InvalidOrder(f"{name} is missing")
    return values[name]


def _day(value: str) -> date:
    try:
        return date.fromisoformat(value)
    except ValueError as problem:
        raise InvalidOrder(f"placed_on must be like 2026-11-20, got {value!r}") from problem


def _quantity(value: str) -> int:
    # isdecimal accepts digits of other scripts, and int accepts "1_000" and "+3"
    if not (value.isascii() and value.isdecimal() and 1 <= int(value[:20]) <= MOST):
        raise InvalidOrder(f"quantity must be a whole number from 1 to {MOST}, got {value!r}")
    return int(value)
