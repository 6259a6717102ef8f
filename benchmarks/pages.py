"""Results on a page of the documentation, between two marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["update"]


def update(page: Path, name: str, text: str) -> None:
    """Write the results between the two marks of this name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, found, rest = page.read_text(encoding="utf-8").partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{page} has no {begin} with {end} after it")
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")
