"""A program: make the first use of an object, and use it in a handler at each line of an import.

``python half_imported.py SETUP USE``.  A signal can come at each line of each module that the use
imports.  There a fork of the process makes the same use, as a handler would.  Where its error is
another one than that of the use, place and error are printed.
"""

from __future__ import annotations

import os
import sys


def main(setup: str, use: str) -> None:
    """Print the number of places, then each error of a handler."""
    names: dict[str, object] = {}
    exec(setup, names)  # noqa: S102  # code of the test
    code = compile(use, "use", "exec")
    seen: list[tuple[str, str]] = []

    def error_of_use() -> str:
        try:
            exec(code, names)  # noqa: S102  # code of the test
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def interrupt(frame):
        reading, writing = os.pipe()
        if not os.fork():
            sys.settrace(None)
            os.write(writing, error_of_use().encode()[:500])
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as answer:
            seen.append((f"{frame.f_globals['__name__']}:{frame.f_lineno}", answer.read()))
        os.wait()

    def at_line(frame, event, argument):
        if event == "line":
            interrupt(frame)
        return at_line

    def trace(frame, event, argument):
        imports = frame.f_code.co_name == "<module>" and "__spec__" in frame.f_globals
        return at_line if imports else None

    sys.settrace(trace)
    expected = error_of_use()
    sys.settrace(None)
    print(len(seen))
    for place, error in seen:
        if error != expected:
            print(place, error)


if __name__ == "__main__":
    main(*sys.argv[1:])
