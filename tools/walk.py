"""Count the files and packages that a failing call enters: in memory, and with a durable cache.

    python tools/walk.py

A module in the root counts as a package.  A return is an entry to a package that was left before.
"""

from __future__ import annotations

import sys
from itertools import count, groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import retrytemplate
from retrytemplate import (
    ExponentialBackoff,
    RetryState,
    RetryTemplate,
    SimpleRetryPolicy,
    SQLRetryContextCache,
)
from retrytemplate.testing import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIBRARY = Path(retrytemplate.__file__).parent


class Walk(NamedTuple):
    """The numbers of a call."""

    files: int
    packages: int
    returns: int


def numbers(paths: Sequence[str]) -> Walk:
    """The numbers of the files entered, in their order."""
    packages = [package for package, _ in groupby(path.partition("/")[0] for path in paths)]
    different = len(set(packages))
    return Walk(len(set(paths)), different, len(packages) - different)


def entered(call: Callable[[], Any]) -> list[str]:
    """The file of each function of the library that a failing call enters, test helpers left out.

    The call is made twice; the first one loads modules and fills caches.
    """
    paths: list[str] = []

    def profile(frame: Any, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(LIBRARY):
            paths.append(path.relative_to(LIBRARY).as_posix())

    for hook in (None, profile):
        sys.setprofile(hook)
        try:
            call()
        except ConnectionError:
            pass
        finally:
            sys.setprofile(None)
    return [path for path in paths if not path.startswith("testing/")]


def fail(context: Any) -> None:
    """Fail as a service does that is not reachable."""
    raise ConnectionError


def main() -> None:
    """Print the numbers of both calls."""
    settings: dict[str, Any] = {
        "policy": SimpleRetryPolicy(3),
        "backoff": ExponentialBackoff(),
        "clock": VirtualClock(),
    }
    template = RetryTemplate(**settings)
    print(f"{'3 attempts with backoff':<32}{numbers(entered(lambda: template.execute(fail)))}")
    with TemporaryDirectory() as folder, SQLRetryContextCache(f"sqlite:///{folder}/db") as cache:
        durable = RetryTemplate(name="walk", cache=cache, **settings)
        keys = count()
        walk = entered(lambda: durable.execute(fail, state=RetryState(f"{next(keys)}")))
    print(f"{'a failure in a durable cache':<32}{numbers(walk)}")


if __name__ == "__main__":
    main()
