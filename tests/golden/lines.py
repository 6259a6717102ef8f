"""Reading the files: one JSON object a line, each with an id of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.golden.model import JSON

HERE = Path(__file__).parent
SCENARIOS = HERE / "scenarios.jsonl"
DEVIATIONS = HERE / "deviations.jsonl"


def path_option(config: pytest.Config, option: str, default: Path) -> Path:
    """The file given by an option, or the copy in this folder."""
    named = config.getoption(option, default=None)
    return Path(named) if named else default


def lines_of(path: Path) -> list[JSON]:
    """The lines of a file; an error if there are none, or two with the same id."""
    with path.open(encoding="utf-8") as file:
        lines = [json.loads(line) for line in file if line.strip()]
    ids = [line["id"] for line in lines]
    if not ids or len(set(ids)) < len(ids):
        raise pytest.UsageError(f"{path}: no lines, or several with the same id")
    return lines
