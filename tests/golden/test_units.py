"""Unit vectors of the original: classifiers, patterns, backoffs, percentiles, rolling numbers.

Each line of the file is one test.  A kind, a field or a word that is not known here fails it.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from retrytemplate import ExceptionClassifier, PatternClassifier
from retrytemplate.listeners.statistics import RollingStatistics
from retrytemplate.simulation import Simulation
from retrytemplate.testing import VirtualClock
from tests.golden.build import built_backoff, built_classifier
from tests.golden.compare import is_number, same
from tests.golden.lines import HERE, lines_of, path_option
from tests.golden.model import JSON, UnknownFieldError, check_known, named, raised

UNITS = HERE / "units.jsonl"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "unit" in metafunc.fixturenames:
        lines = lines_of(path_option(metafunc.config, "--units", UNITS))
        metafunc.parametrize("unit", [pytest.param(line, id=line["id"]) for line in lines])


def test_unit_result_equals_that_of_the_original(unit):
    assert same(expected(unit), outcome(unit))


def outcome(unit: JSON) -> JSON:
    """The result of this library for the unit."""
    kind = unit.get("kind")
    if kind not in KINDS:
        raise UnknownFieldError(f"unknown kind {kind!r}")
    run, fields, optional = KINDS[kind]
    check_known(kind, unit, "id", "kind", "out", *fields, *optional)
    missing = {"out", *fields} - unit.keys()
    if missing:
        raise UnknownFieldError(f"{kind}: no {', '.join(sorted(missing))}")
    return run(unit)


def expected(unit: JSON) -> JSON:
    """The result in the file, in the terms of this library."""
    if unit.get("kind") != "binary_classifier":
        return unit.get("out")
    # None with traversal is a crash of the original; ours gives the default.
    crash = {"raise": "NullPointerException"}
    answers = zip(unit.get("inputs", ()), unit.get("out", ()), strict=True)
    return [
        unit.get("default") if given is None and answer == crash else answer
        for given, answer in answers
    ]


def exception(chain: JSON) -> BaseException | None:
    return None if chain is None else raised(chain, "unit")


def binary_classifier(unit: JSON) -> JSON:
    classifier = built_classifier(unit)
    return [classifier.classify(exception(chain)) for chain in unit["inputs"]]


def subclass_classifier(unit: JSON) -> JSON:
    rules = {named(name): value for name, value in unit["map"].items()}
    classifier = ExceptionClassifier(rules, default=unit["default"])
    return [classifier.classify(exception(chain)) for chain in unit["inputs"]]


def pattern(unit: JSON) -> JSON:
    classifier = PatternClassifier(unit["map"])
    return [value_for(classifier, text) for text in unit["inputs"]]


def value_for(classifier: PatternClassifier, text: str) -> JSON:
    try:
        return classifier.classify(text)
    except LookupError:
        return {"raise": "IllegalStateException"}


def glob(unit: JSON) -> JSON:
    return value_for(PatternClassifier({unit["pattern"]: True}), unit["text"]) is True


def backoff(unit: JSON) -> JSON:
    made = built_backoff(unit["backoff"])
    state, delays, failure = made.start(), [], ValueError("any")
    for _ in range(unit["n"]):
        delay, state = made.next(state, failure, Random(0))
        delays.append(delay)
    return delays


def percentile(unit: JSON) -> JSON:
    simulation = Simulation(unit["sequences"])
    return {
        "percentiles": list(simulation.percentiles),
        "p": [simulation.percentile(share) for share in unit["p"]],
        "longest_total": simulation.longest_total,
        "longest_single_of_longest": max(simulation.longest_sequence),
    }


def rolling_stats(unit: JSON) -> JSON:
    clock = VirtualClock()
    numbers = RollingStatistics(clock, unit.get("window", 15_000))
    statistics = []
    for step in unit["steps"]:
        check_known("step", step, "advance", "inc")
        clock.advance(step["advance"])
        numbers.increment(step["inc"])
        kinds = ("started", "complete", "error", "abort", "recovery")
        rolled = {kind: numbers.rolled(kind) for kind in kinds}
        statistics.append(rolled | {"error_rate": numbers.error_rate})
    return statistics


KINDS: dict[str, Any] = {
    "binary_classifier": (binary_classifier, ("map", "default", "traverse", "inputs"), ()),
    "subclass_classifier": (subclass_classifier, ("map", "default", "inputs"), ()),
    "pattern": (pattern, ("map", "inputs"), ()),
    "glob": (glob, ("pattern", "text"), ()),
    "backoff": (backoff, ("backoff", "n"), ()),
    "percentile": (percentile, ("sequences", "p"), ()),
    "rolling_stats": (rolling_stats, ("steps",), ("window",)),
}


def one_of_each_kind() -> list[JSON]:
    return list({line["kind"]: line for line in lines_of(UNITS)}.values())


def altered(value: JSON) -> JSON:
    """A copy with a changed last value, at any depth."""
    if isinstance(value, list):
        return [*value[:-1], altered(value[-1])]
    if isinstance(value, dict):
        key = sorted(value)[-1]
        return value | {key: altered(value[key])}
    return value + 1 if is_number(value) else not value


@pytest.mark.parametrize("line", one_of_each_kind(), ids=lambda line: line["kind"])
def test_unit_with_an_altered_value_fails(line):
    wrong = line | {"out": altered(line["out"])}
    assert not same(expected(wrong), outcome(wrong))


@pytest.mark.parametrize("line", one_of_each_kind(), ids=lambda line: line["kind"])
def test_unknown_or_missing_field_fails(line):
    with pytest.raises(UnknownFieldError, match="unknown surprise"):
        outcome(line | {"surprise": 1})
    lacking = {field: value for field, value in line.items() if field != "out"}
    with pytest.raises(UnknownFieldError, match="no out"):
        outcome(lacking)


def test_unknown_kind_fails():
    with pytest.raises(UnknownFieldError, match="unknown kind 'weather'"):
        outcome({"id": "u", "kind": "weather", "out": True})


def test_every_kind_of_the_file_is_altered_in_a_test():
    assert {line["kind"] for line in one_of_each_kind()} == set(KINDS)
