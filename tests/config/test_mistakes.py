"""Mistakes in the example: each is reported with file, path, line, column and suggestion."""

from pathlib import Path
from typing import NamedTuple

import pytest

from retrytemplate.config.kinds import KINDS, OBSERVE, PRESETS, SECTIONS, STORES
from retrytemplate.config.readers import ListOf
from tests.support.configs import EXAMPLE, FUNCTIONS, load_text, problems_of

TEXT = EXAMPLE.read_text(encoding="utf-8")


class Mistake(NamedTuple):
    """A change of the example, and the problem that it causes.

    :param key: the text, in *new*, at which the problem is.
    """

    old: str
    new: str
    key: str
    path: str
    message: str
    suggestion: str | None = None


DURATION = "a duration such as 500ms or 2s, or a number of seconds"
RETRY, BREAKER = "retry.endpoints.billing", "breaker.endpoints.billing"
LIMITER, SEARCH = "rate_limiter.endpoints.billing", "search: {sizing: {calls_per_second: 40, "
MISTAKES = [
    Mistake("version: 1", "version: 2", "version", "version", "must be 1, got 2"),
    Mistake("version: 1", "versoin: 1", "versoin", "versoin", "unknown section", "version"),
    Mistake("bulkhead:\n", "bulkheads:\n", "bulkheads", "bulkheads", "unknown section", "bulkhead"),
    Mistake(
        "version: 1",
        "version: 1\nversion: 1",
        "version: 1\n\n",
        "version",
        "duplicate key; the first is in line 1",
    ),
    Mistake(
        "mode: cached",
        "mode: cache",
        "mode",
        "stores.shared.mode",
        "must be strict or cached, got 'cache'",
        "cached",
    ),
    Mistake(
        "kind: redis",
        "kind: redi",
        "kind: redi",
        "stores.shared.kind",
        "must be redis or sql, got 'redi'",
        "redis",
    ),
    Mistake(
        "    kind: redis\n", "", "shared:", "stores.shared", "required setting kind is missing"
    ),
    Mistake(
        "    timeout: 500ms",
        "    timeout: 0",
        "timeout: 0",
        "stores.shared.timeout",
        "timeout must be a number of seconds",
    ),
    Mistake(
        "url: ${REDIS_URL}",
        "url: ${REDIS_URI}",
        "url",
        "stores.shared.url",
        "environment variable REDIS_URI is not set and has no default",
    ),
    Mistake(
        "url: ${REDIS_URL}",
        "url: ${REDIS-URL}",
        "url",
        "stores.shared.url",
        "a variable must be ${NAME} or ${NAME:-default}",
    ),
    Mistake(
        "{kind: sql,",
        "{kind: sql, mode: strict,",
        "mode: strict",
        "stores.switches.mode",
        "a store of kind sql has no such setting",
    ),
    Mistake(
        "{base: httpx,",
        "{base: htpx,",
        "base: htpx",
        "presets.partner.base",
        "unknown preset 'htpx'",
        "httpx",
    ),
    Mistake(
        "base: partner",
        "base: careful",
        "base: careful",
        "presets.careful.base",
        "preset 'careful' is based on itself",
    ),
    Mistake(
        "{preset: httpx}",
        "{preset: htppx}",
        "preset: htppx",
        "retry.defaults.preset",
        "unknown preset 'htppx'",
        "httpx",
    ),
    Mistake(
        "max_attempts: 4",
        "max_atempts: 4",
        "max_atempts",
        f"{RETRY}.max_atempts",
        "unknown setting",
        "max_attempts",
    ),
    Mistake(
        "max_attempts: 4",
        "max_attempts: 0",
        "max_attempts: 0",
        f"{RETRY}.max_attempts",
        "max_attempts must be an int >= 1, got 0",
    ),
    Mistake(
        "max_attempts: 4",
        "max_attempts: 4.5",
        "max_attempts: 4.5",
        f"{RETRY}.max_attempts",
        "must be a whole number >= 1, got 4.5",
    ),
    Mistake(
        "max_attempts: 4",
        "max_attempts: true",
        "max_attempts: true",
        f"{RETRY}.max_attempts",
        "must be a whole number >= 1, got true",
    ),
    Mistake(
        "max_attempts: 4",
        "max_attempts: 010",
        "max_attempts: 010",
        f"{RETRY}.max_attempts",
        "must be a whole number >= 1, got '010'",
    ),
    Mistake(
        "      initial: 200ms",
        "      initial: 200 ms",
        "initial: 200",
        f"{RETRY}.initial",
        f"must be {DURATION}, got '200 ms'",
    ),
    Mistake("maximum: 5s", "maximum: -1", "maximum: -1", f"{RETRY}.maximum", "maximum must be"),
    Mistake(
        "multiplier: 1.5",
        "multiplier: 0.5",
        "multiplier",
        f"{RETRY}.multiplier",
        "multiplier must be",
    ),
    Mistake(
        "jitter: full",
        "jitter: fully",
        "jitter: fully",
        f"{RETRY}.jitter",
        "must be null or full or equal",
    ),
    Mistake(
        "budget: true",
        "budget: on",
        "budget: on",
        f"{RETRY}.budget",
        "must be true or false, got 'on'",
    ),
    Mistake(
        "strict: false",
        "strict: no",
        "strict: no",
        f"{RETRY}.strict",
        "must be true or false, got 'no'",
    ),
    Mistake(
        "idempotent: by_request",
        "idempotent: by_key",
        "idempotent: by_key",
        f"{RETRY}.idempotent",
        "must be null or true or false or by_request",
    ),
    Mistake(
        "builtins.TimeoutError: true",
        "TimeoutError: true",
        "retry_on",
        "retry.endpoints.ledger.retry_on",
        "must name exception classes with their module",
    ),
    Mistake(
        "builtins.TimeoutError: true",
        "builtins.TimeoutError: 1",
        "builtins.TimeoutError: 1",
        "retry.endpoints.ledger.retry_on.builtins.TimeoutError",
        "must be true, false or {status",
    ),
    Mistake(
        "{seconds: 2s, in_thread",
        "{second: 2s, in_thread",
        "second: 2s",
        "retry.endpoints.ledger.attempt_timeout.second",
        "unknown setting",
        "seconds",
    ),
    Mistake(
        "{seconds: 800ms, floor",
        "{seconds: 0, floor",
        "seconds: 0",
        "timeout.endpoints.search.seconds",
        "seconds must be",
    ),
    Mistake(
        "{seconds: 800ms, floor",
        "{floor",
        "search: {floor",
        "timeout.endpoints.search",
        "required setting seconds is missing",
    ),
    Mistake(
        "defaults: {window: {calls: 50}",
        "defaults: {window: {call: 50}",
        "call: 50",
        "breaker.defaults.window.call",
        "unknown setting",
        "calls",
    ),
    Mistake(
        "defaults: {window: {calls: 50}",
        "defaults: {window: {calls: 0}",
        "calls: 0",
        "breaker.defaults.window.calls",
        "must be",
    ),
    Mistake(
        "minimum_calls: 20",
        "minimum_calls: 70",
        "minimum_calls: 70",
        f"{BREAKER}.minimum_calls",
        "must be at most the 50 calls of the window",
    ),
    Mistake(
        "failure_rate: 20%",
        "failure_rate: 120%",
        "failure_rate: 120%",
        f"{BREAKER}.failure_rate",
        "must be a share above 0 and up to 1",
    ),
    Mistake(
        "failure_rate: 20%",
        "failure_rate: twenty",
        "failure_rate: twenty",
        f"{BREAKER}.failure_rate",
        "must be a share such as 30%, or a number, got 'twenty'",
    ),
    Mistake(
        "store: shared}",
        "store: share}",
        "store: share}",
        "breaker.endpoints.ledger.store",
        "unknown store 'share'",
        "shared",
    ),
    Mistake(
        "store: shared}",
        "store: switches}",
        "store: switches}",
        "breaker.endpoints.ledger.store",
        "must be a store of kind redis, got kind sql",
    ),
    Mistake("permits: 50", "permits: 0", "permits: 0", f"{LIMITER}.permits", "permits must be"),
    Mistake(
        "on_store_error: raise\n\nb",
        "on_store_error: rise\n\nb",
        "on_store_error: rise",
        f"{LIMITER}.on_store_error",
        "must be local or raise, got 'rise'",
        "raise",
    ),
    Mistake(
        "queue: 100", "queue: -1", "queue: -1", "bulkhead.endpoints.billing.queue", "queue must be"
    ),
    Mistake(
        SEARCH,
        f"{SEARCH[:9]}limit: 3, {SEARCH[9:]}",
        "sizing",
        "bulkhead.endpoints.search.sizing",
        "limit and sizing are mutually exclusive",
    ),
    Mistake(
        "calls_per_second: 40",
        "calls_per_second: 0",
        "calls_per_second",
        "bulkhead.endpoints.search.sizing.calls_per_second",
        "calls_per_second must be a number > 0",
    ),
    Mistake(
        "    billing: {ratio",
        "    bilings: {ratio",
        "bilings",
        "budget.endpoints.bilings",
        "no other section has the endpoint 'bilings'",
        "billing",
    ),
    Mistake(
        "ratio: 20%", "ratio: -20%", "ratio", "budget.endpoints.billing.ratio", "must be a share"
    ),
    Mistake(
        "idempotent: true, on:",
        "idempotent: false, on:",
        "idempotent: false",
        "hedge.endpoints.ledger.idempotent",
        "idempotent must be True",
    ),
    Mistake(
        "links: [cached_search,",
        "links: [cashed_search,",
        "cashed_search",
        "fallback.endpoints.search.links[0]",
        "no function 'cashed_search' is registered",
        "cached_search",
    ),
    Mistake("  store: switches\n", "", "switch:\n", "switch", "required setting store is missing"),
    Mistake(
        "unknown: run",
        "unknown: running",
        "unknown",
        "switch.unknown",
        "must be stop or run, got 'running'",
        "run",
    ),
    Mistake(
        "{segment: [finance, trade], f",
        "{segment: finance, f",
        "segment: finance, f",
        "switch.scopes.segment",
        "must be a list: text, got 'finance'",
    ),
    Mistake(
        "{segment: finance}",
        "{segment: finanze}",
        "billing: {segment",
        "switch.endpoints.billing",
        "there is no segment 'finanze'",
    ),
    Mistake(
        "breaker, bulkhead, hedge]",
        "breaker, bulkhead]",
        "order: [fallback",
        "pipeline.endpoints.search.order",
        "order must have each of them once",
    ),
    Mistake(
        "breaker, bulkhead, hedge]",
        "braker, bulkhead, hedge]",
        "braker",
        "pipeline.endpoints.search.order[3]",
        "must be switch or",
        "breaker",
    ),
    Mistake(
        "availability: 99.9%",
        "availability: 100%",
        "availability: 100%",
        "slo.endpoints.billing.availability",
        "availability must be a number > 0 and < 1",
    ),
    Mistake(
        "{p95: 3s, p99: 8s}",
        "{p90: 3s, p99: 8s}",
        "p90",
        "slo.endpoints.billing.latency.p90",
        "unknown setting",
        "p99",
    ),
    Mistake(
        "call.failed: ERROR",
        "call.failed: EROR",
        "call.failed: EROR",
        "observe.logs.levels.call.failed",
        "must be null or DEBUG or INFO or WARNING or ERROR or CRITICAL, got 'EROR'",
    ),
    Mistake(
        "prometheus: true",
        "prometheus: yes",
        "prometheus: yes",
        "observe.prometheus",
        "must be true or false, got 'yes'",
    ),
    Mistake("otel: false", "otle: false", "otle", "observe.otle", "unknown setting", "otel"),
    Mistake("keep: 30d", "keep: 0", "keep: 0", "observe.events.keep", "keep must be"),
    Mistake(
        '{url: "sqlite:///${EVENTS',
        '{uri: "sqlite:///${EVENTS',
        "events: {uri",
        "observe.events",
        "required setting url is missing",
    ),
    Mistake("{every: 30s}", "{every: 0}", "every: 0", "observe.alerts.every", "every must be"),
    Mistake(
        "    search: {window",
        "    search: &name {window",
        "{window: {consecutive",
        "breaker.endpoints.search",
        "a YAML anchor is not allowed",
    ),
    Mistake(
        "    ledger: {window",
        "    ledger: !!map {window",
        "!!map",
        "breaker.endpoints.ledger",
        "a YAML tag is not allowed",
    ),
    Mistake(
        "    ledger: {delay",
        "    ledger:\n    other: {delay",
        "ledger:\n    other",
        "hedge.endpoints.ledger",
        "must be a mapping, got null; write {} for the defaults",
    ),
]


def position(text, found):
    """Line and column of a text that occurs once."""
    index = text.index(found)
    assert text.count(found) == 1, found
    return text.count("\n", 0, index) + 1, index - text.rfind("\n", 0, index)


def readers(known, path=()):
    """The settings with their readers, by path."""
    for each in known:
        yield from inner_readers(each.reader, (*path, each.name))


def inner_readers(reader, path):
    yield path, type(reader).__name__
    for each in getattr(reader, "readers", ()):
        yield from inner_readers(each, path)
    yield from readers(getattr(reader, "parameters", ()), path)
    if isinstance(reader, ListOf):
        yield from inner_readers(reader.of, (*path, "[]"))


def test_every_section_and_kind_of_setting_has_a_mistake():
    kinds = [STORES, PRESETS, OBSERVE, *KINDS.values()]
    known = {
        (kind.section, *path): name
        for kind in kinds
        for path, name in readers((*kind.own, *kind.parameters))
    }
    used = set()
    for mistake in MISTAKES:
        section, *path = mistake.path.replace("[", ".[").split(".")
        below = {"defaults": 1, "endpoints": 2}.get((path or [""])[0], 0)
        below = 1 if section in ("stores", "presets") else below
        names = [("[]" if each[0] == "[" else each) for each in path[below:]]
        used |= {(section, *names[:end]) for end in range(len(names) + 1)}
    assert {path[0] for path in used} >= set(SECTIONS)
    assert {known[path] for path in used if path in known} == set(known.values())


@pytest.mark.statement("S4-90")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.new.strip()[:40])
def test_mistake_is_reported_with_place_and_suggestion(tmp_path, mistake):
    assert TEXT.count(mistake.old) == 1
    text = TEXT.replace(mistake.old, mistake.new)
    found = problems_of(tmp_path, text)
    (problem,) = [each for each in found if each.path == mistake.path]
    key = (
        mistake.key
        if text.count(mistake.key) == 1
        else mistake.new[mistake.new.index(mistake.key) :]
    )
    line, column = position(text, key)
    if "YAML" in mistake.message:
        column = problem.column
    assert (problem.line, problem.column, problem.suggestion) == (line, column, mistake.suggestion)
    assert mistake.message in problem.message
    assert Path(problem.file) == tmp_path / "resilience.yaml"


def test_problem_reads_as_file_line_column_path_message(tmp_path):
    text = TEXT.replace("max_attempts: 4", "max_atempts: 4")
    (problem,) = problems_of(tmp_path, text)
    assert str(problem) == (
        f"{tmp_path / 'resilience.yaml'}:25:7: retry.endpoints.billing.max_atempts: "
        "unknown setting; did you mean max_attempts?"
    )


def test_all_problems_are_reported_in_one_run_in_order(tmp_path):
    text = TEXT.replace("max_attempts: 4", "max_attempts: 0").replace(
        "multiplier: 1.5", "multiplier: 0"
    )
    text = text.replace("queue: 100", "queues: 100").replace("${REDIS_URL}", "${UNSET}")
    found = problems_of(tmp_path, text)
    assert [each.path for each in found] == [
        "stores.shared.url",
        "retry.endpoints.billing.max_attempts",
        "retry.endpoints.billing.multiplier",
        "bulkhead.endpoints.billing.queues",
    ]


def test_wrong_default_is_reported_once_at_its_place(tmp_path):
    (problem,) = problems_of(tmp_path, TEXT.replace("{limit: 30}", "{limit: 0}"))
    assert problem.path == "bulkhead.defaults.limit"


def test_toml_problem_has_file_path_and_suggestion(tmp_path):
    text = "[retry.endpoints.billing]\nmax_atempts = 4\n"
    (problem,) = problems_of(tmp_path, text, "resilience.toml")
    assert str(problem) == (
        f"{tmp_path / 'resilience.toml'}: retry.endpoints.billing.max_atempts: "
        "unknown setting; did you mean max_attempts?"
    )


def test_toml_syntax_error_has_line_and_column(tmp_path):
    (problem,) = problems_of(tmp_path, "[retry]\nx = \n", "resilience.toml")
    assert (problem.line, problem.column, "invalid TOML" in problem.message) == (2, 5, True)


def test_function_names_are_checked_against_the_registered_ones(tmp_path):
    functions = {name: FUNCTIONS[name] for name in ("cached_search", "is_answer")}
    (problem,) = problems_of(tmp_path, TEXT, functions=functions)
    assert problem.path == "fallback.endpoints.search.links[1]"


def test_unchanged_example_has_no_problem(tmp_path):
    assert len(load_text(tmp_path, TEXT).names) == 3
