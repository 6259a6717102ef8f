"""A configuration with every setting, and helpers to load changed copies of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrytemplate.config import Config, ConfigError, load

if TYPE_CHECKING:
    from retrytemplate.config import ConfigProblem

__all__ = ["ENVIRON", "EXAMPLE", "FUNCTIONS", "load_text", "problems_of"]

EXAMPLE = Path(__file__).parent.parent / "config" / "files" / "resilience.yaml"
ENVIRON = {"REDIS_URL": "redis://localhost/0"}


def _returns(value: Any) -> Any:
    return lambda *args: value


FUNCTIONS = {
    "cached_search": _returns("cached"),
    "no_results": _returns("none"),
    "is_answer": _returns(True),
}


def load_text(folder: Path, text: str, name: str = "resilience.yaml", **settings: Any) -> Config:
    """Write a file and load it; no observer is installed."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return load(file, **{"environ": ENVIRON, "functions": FUNCTIONS, "install": False, **settings})


def problems_of(
    folder: Path, text: str, name: str = "resilience.yaml", **settings: Any
) -> tuple[ConfigProblem, ...]:
    """The problems of a file; none if it is valid."""
    try:
        load_text(folder, text, name, **settings)
    except ConfigError as error:
        return error.problems
    return ()
