"""Write the orders file that `retrytemplate demo` reads, with the faults that real files have.

Deterministic: the same script writes the same bytes.  Run from the top of the checkout::

    python tools/make_orders.py retrytemplate/demo/orders.csv
"""

from __future__ import annotations

import csv
import io
import sys
from datetime import date, timedelta
from pathlib import Path
from random import Random

LINES = 3000
COLUMNS = ("order_id", "placed_on", "customer", "sku", "quantity")
FIRST_DAY = date(2026, 9, 1)
BOM = b"\xef\xbb\xbf"

SURNAMES = (
    "Adeyemi Andersson Bauer Castillo Chen Dubois Fernández Haddad Hansen Horváth Ivanova Jansen "
    "Kaya Kowalski Lindqvist Moreau Müller Nakamura Novák O'Brien Okafor Papadopoulos Pereira "
    "Rossi Sato Schröder Singh Sørensen Tanaka Visser"
).split()
FIRST_NAMES = "Ada Bo Cem Dora Eli Finn Gita Hana Ines Jonas Kim Lea Mats Nora Omar Pia".split()
FORMS = ("{s} Ltd", "{s}, {t} & Co.", "{f} {s}", '{f} "{g}" {s}', "{s} GmbH", "{s}-{t} S.A.")
BAD_QUANTITIES = ("two", "3,5", "1O", "-2", "0", "NaN", "1e3", "12 pcs", "99999999")
BAD_DAYS = ("2026-02-30", "31/10/2026", "yesterday", "2026-13-01")


def customer(random: Random) -> str:
    return random.choice(FORMS).format(
        s=random.choice(SURNAMES),
        t=random.choice(SURNAMES),
        f=random.choice(FIRST_NAMES),
        g=random.choice(FIRST_NAMES),
    )


def good_orders(random: Random) -> list[list[str]]:
    """Rows without fault, but some orders come twice: amended, or simply sent again."""
    rows: list[list[str]] = []
    for number in range(LINES):
        if rows and random.random() < 0.025:
            again = list(rows[-random.randrange(1, min(40, len(rows)) + 1)])
            if random.random() < 0.7:
                again[4] = str(random.randrange(1, 30))
            rows.append(again)
            continue
        day = FIRST_DAY + timedelta(days=number * 80 // LINES)
        sku = f"SKU-{random.randrange(1, 401):04}"
        quantity = random.choice((1, 1, 1, 2, 2, 3, 4, 6, 10, 12, 25))
        order = f"O-{100_000 + number}"
        rows.append([order, day.isoformat(), customer(random), sku, str(quantity)])
    return rows


def line(row: list[str]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(row)
    return text.getvalue().encode()


def spoil(kind: str, row: list[str], random: Random) -> bytes:
    """One line with one fault of this kind."""
    row = list(row)
    if kind == "missing field":
        row[random.choice((0, 2, 3, 4))] = ""
    elif kind == "bad number":
        row[4] = random.choice(BAD_QUANTITIES)
    elif kind == "bad day":
        row[1] = random.choice(BAD_DAYS)
    elif kind == "unknown product":
        row[3] = random.choice(("SKU-0000", "SKU-O042", "SKU-9999", "TEST"))
    elif kind == "short line":
        row = row[: random.randrange(1, 5)]
    elif kind == "comma without quotes":
        return ",".join([row[0], row[1], "Okafor, Sons and Daughters", row[3], row[4]]).encode()
    elif kind == "open quote":
        return f'{row[0]},{row[1]},"Visser,{row[3]},{row[4]}'.encode()
    elif kind == "other encoding":
        return ",".join([row[0], row[1], "Müller und Söhne", row[3], row[4]]).encode("latin-1")
    elif kind == "blank line":
        return b""
    else:  # harmless: spaces around the values
        return ",".join(f" {value} " for value in (row[0], row[1], "Kaya", *row[3:])).encode()
    return line(row)


FAULTS = {
    "missing field": 14,
    "bad number": 16,
    "bad day": 5,
    "unknown product": 8,
    "short line": 5,
    "comma without quotes": 4,
    "open quote": 3,
    "other encoding": 3,
    "blank line": 3,
    "spaces around": 25,
}


def orders_file() -> bytes:
    random = Random("orders of autumn 2026")
    rows = good_orders(random)
    lines = [line(row) for row in rows]
    places = iter(random.sample(range(LINES - 1), sum(FAULTS.values())))
    for kind, many in FAULTS.items():
        for _ in range(many):
            place = next(places)
            lines[place] = spoil(kind, rows[place], random)
    for place in random.sample(range(LINES), 200):  # an editor that writes CRLF
        lines[place] += b"\r"
    return BOM + ",".join(COLUMNS).encode() + b"\n" + b"\n".join(lines) + b"\n"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.write_bytes(orders_file())
    print(f"{target}: {LINES} lines after the header, {target.stat().st_size} bytes")
