"""Count the banned words in docstrings, comments, strings, docs and names of tests.

    python tools/words.py             # print the counts
    python tools/words.py --list      # and the places
    python tools/words.py --check     # fail if a count is higher than in words.toml
    python tools/words.py --update    # write the counts that fell to words.toml

Code spans and the value "refuse" are left out.  The clauses with "what" need not reach zero.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROOT = Path(__file__).resolve().parent.parent
GROUPS = {
    "library": ("retrytemplate/**/*.py", "retrytemplate/**/*.pyi"),
    "tests": ("tests/**/*.py", "conftest.py"),
    "docs": ("docs/**/*.md", "docs/**/*.rst", "docs/**/*.toml", "docs/**/*.py", "*.md"),
    "tools": ("tools/**/*.py", "benchmarks/**/*.py", "examples/**/*.py"),
}
# Files that hold banned words on purpose, and those that are built.
SKIPPED = ("docs/_build/", "tools/words.py", "tests/test_words.py")
BANNED = {
    "nobody, whoever, he": r"\b(no|some)body(\b|'s)|\bwhoever\b|\b(he|his|him)\b",
    "tell": r"\b(tell|tells|told|telling)\b",
    "so many": r"\bso (many|long)\b|\bevery so\b",
    "is none": r"\b(that|what|which) (is|are) ((?-i:none)|no)\b|\bis (?-i:none)\b",
    "what clause": r"\bwhat (it|is|was|has|had|they|comes?|came)\b",
    "anew": r"\banew\b|\bin the place of\b|\bfor good\b|\bthe very\b",
    "lent": r"\b(lent|giv(e|es|en) back)\b|\bput back\b",
    "comes again": r"\bcomes? (again|to)\b|\bgo(es)? (on|well)\b",
    "dies": r"\b(dies|died|deaths?|killers?|bur(y|ied)|condemn\w*)\b",
    "chance": r"\bchance\b|\bpatience\b",
    "under way": r"\bmakes? no sense\b|\bunder way\b|\bin hand\b|\bat rest\b",
    "refuse": r"\brefus(e|es|ed|al|als)\b",
    "room": r"\brooms?\b|\bhouse\b|\bways? in\b|\baround the call\b",
}
# A phrase may be wrapped: each space stands for any white space.
PATTERNS = {
    name: re.compile(regex.replace(" ", r"\s+"), re.IGNORECASE) for name, regex in BANNED.items()
}
# What is left out: fences of blocks keep their lines, spans of code keep their line breaks.
FENCE = re.compile(r"^[ \t]*`{3,}.*$", re.MULTILINE)
SPAN = re.compile(r"(`+)(?:[^`\n]|\n(?!\s*\n))+\1|([\"'])refuse\2")


class Text(NamedTuple):
    """A piece of prose and the number of its first line."""

    line: int
    words: str


class Hit(NamedTuple):
    """A banned word."""

    group: str
    pattern: str
    place: str
    found: str


def comments(source: str) -> Iterator[Text]:
    """The comments of a source; those on consecutive lines are one text."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = [token for token in tokens if token.type == tokenize.COMMENT]
    for _, block in groupby(enumerate(found), lambda pair: pair[1].start[0] - pair[0]):
        lines = [token for _, token in block]
        yield Text(lines[0].start[0], "\n".join(token.string.lstrip("# ") for token in lines))


def python_texts(source: str) -> Iterator[Text]:
    """The comments, strings and names of tests of a source."""
    yield from comments(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and node.value != "refuse":
                yield Text(node.lineno, node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            yield Text(node.lineno, node.name.replace("_", " "))


def prose(words: str) -> str:
    """A text without its spans of code."""
    return SPAN.sub(lambda span: "\n" * span[0].count("\n"), FENCE.sub("", words))


def hits(root: Path) -> Iterator[Hit]:
    """The banned words of a project."""
    for group, globs in GROUPS.items():
        for path in sorted({path for each in globs for path in root.glob(each)}):
            name = path.relative_to(root).as_posix()
            if name.startswith(SKIPPED):
                continue
            source = path.read_text(encoding="utf-8")
            is_code = path.suffix in {".py", ".pyi"}
            for text in python_texts(source) if is_code else [Text(1, source)]:
                words = prose(text.words)
                for pattern, regex in PATTERNS.items():
                    for match in regex.finditer(words):
                        line = text.line + words.count("\n", 0, match.start())
                        found = " ".join(match[0].split())
                        yield Hit(group, pattern, f"{name}:{line}", found)


def written(counts: dict[str, dict[str, int]]) -> str:
    """The counts as TOML."""
    tables = (
        f"[{group}]\n" + "".join(f'"{name}" = {count}\n' for name, count in row.items())
        for group, row in counts.items()
    )
    return "\n".join(tables)


def main(arguments: Sequence[str] | None = None, *, root: Path = ROOT) -> int:
    """Print, check or write the counts; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="print the places")
    parser.add_argument("--check", action="store_true", help="fail if a count is higher")
    parser.add_argument("--update", action="store_true", help="write the counts that fell")
    options = parser.parse_args(arguments)
    counts = {group: dict.fromkeys(BANNED, 0) for group in GROUPS}
    for hit in hits(root):
        counts[hit.group][hit.pattern] += 1
        if options.list:
            print(f"{hit.place}: {hit.found} ({hit.pattern})")
    print(f"{'':<22}", *(f"{group:>8}" for group in GROUPS))
    for name in BANNED:
        print(f"{name:<22}", *(f"{counts[group][name]:>8,}" for group in GROUPS))
    committed = root / "tools/words.toml"
    allowed = (
        tomllib.loads(committed.read_text(encoding="utf-8")) if committed.is_file() else counts
    )
    if options.update:
        allowed = {
            group: {
                name: min(count, allowed[group].get(name, count)) for name, count in row.items()
            }
            for group, row in counts.items()
        }
        committed.write_text(written(allowed), encoding="utf-8")
    if not options.check:
        return 0
    worse = [
        f"{group}: {name}: {count}, at most {allowed[group].get(name, 0)} allowed"
        for group, row in counts.items()
        for name, count in row.items()
        if count > allowed[group].get(name, 0)
    ]
    print(*(f"{line}\n" for line in worse), sep="", end="", file=sys.stderr)
    if counts != allowed and not worse:
        print("fewer than in tools/words.toml: run python tools/words.py --update")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
