"""The pages of the documentation against the code: tables of defaults, names, links to files."""

import inspect
import re
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

import retrytemplate
from retrytemplate import batch, control, observe, workers
from retrytemplate.batch.errors import __all__ as errors_of_steps
from retrytemplate.control.timeout.timeout import RERAISE
from retrytemplate.errors import __all__ as errors
from retrytemplate.listeners import HOOKS
from retrytemplate.observe.instruments.table import BUCKETS
from retrytemplate.workers.errors import __all__ as errors_of_workers

pytestmark = pytest.mark.documentation

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)

TABLE = re.compile(r"<!-- defaults: ([\w., ]+) -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)")
ROW = re.compile(r"\| `(\w+)` \| (required|left out|`.*?`) \|")


def shown(value):
    """A default as the tables write it."""
    if isinstance(value, tuple) and value and all(isinstance(each, type) for each in value):
        names = ", ".join(each.__name__ for each in value)
        return f"({names},)" if len(value) == 1 else f"({names})"
    if value is observe.DEFAULT_RULES:
        return "DEFAULT_RULES"
    if value is None or isinstance(value, str | int | float | tuple):
        return repr(value)
    if isinstance(value, type):
        return value.__name__
    if value is control.DEFAULT_TRIGGERS:
        return "DEFAULT_TRIGGERS"
    if value is control.TRANSIENT_ERRORS:
        return "TRANSIENT_ERRORS"
    if isinstance(value, control.Calls):
        return f"Calls({value.number})"
    return f"{type(value).__name__}()"


def defaults(target):
    """The parameters of a class or a function with their defaults, as the tables write them."""
    made = {}
    if attrs.has(target):
        for each in attrs.fields(target):
            if isinstance(each.default, attrs.Factory) and each.init:
                made[each.alias] = each.default.factory()
    found = {}
    for name, parameter in inspect.signature(target).parameters.items():
        value = made.get(name, parameter.default)
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            required = value is parameter.empty
            word = "required" if required else "left out" if value is RERAISE else None
            found[name] = word or f"`{shown(value)}`"
    return found


def tables():
    for page in PAGES:
        for names, rows in TABLE.findall(page.read_text(encoding="utf-8")):
            for name in names.split(", "):
                yield pytest.param(name, rows, id=f"{page.stem}-{name}")


# Not on the page: not for users.
INTERNAL = {"RetryState": {"tracked"}}


PUBLIC = {
    name: getattr(module, name)
    for module in (retrytemplate, batch, control, observe, workers)
    for name in module.__all__
}


@pytest.mark.parametrize("name, rows", list(tables()))
def test_table_of_defaults_equals_the_code(name, rows):
    expected = defaults(attrgetter(name)(SimpleNamespace(**PUBLIC)))
    for each in INTERNAL.get(name, ()):
        del expected[each]
    assert dict(ROW.findall(rows)) == expected
    assert len(rows.splitlines()) == len(expected)


# Made by the library, not by its user; or with few settings, which its section shows.
WITHOUT_A_TABLE = {
    *("BoundTemplate", "PatternClassifier", "PredicateRetryPolicy"),
    # What steps and their journal give, and what one asks them with.
    *("AuditEntry", "DeadLetter", "Discarding", "Event", "Explanation", "Message"),
    *("ReplayReport", "Report", "RepositorySnapshot", "RunStatus", "SendReport"),
    *("UnsentMessage", "UnsentMessages"),
    *("DeadLetters", "LetterFilter", "Records", "Runs", "Scenario"),
    # Results and events of control objects; and windows, which are a number.
    *("BudgetSnapshot", "BulkheadSnapshot", "CircuitSnapshot", "FallbackOutcome", "Permit", "Slot"),
    *("GateEntry", "GateSnapshot"),
    *("CallDelayed", "RateLimitStoreLost", "RateLimitStoreRecovered", "RateLimiterGuard"),
    "RateLimiterSnapshot",
    *("CallRejected", "CircuitChanged", "ControlEvent", "FallbackUsed", "LateResult"),
    "PrimaryAnswered",
    *("CircuitStoreRecovered", "CircuitStoreLost"),
    "TimedOut",
    *("NestedRetry", "Nesting"),
    *("AttemptAbandoned", "AttemptFailed", "HedgeOutcome", "HedgeRefused", "HedgeSnapshot"),
    *("HedgeStarted", "HedgeWon"),
    *("Operation", "OperationReplayed", "OperationResult", "OperationUnknown"),
    "OperationUnrecorded",
    *("Calls", "Consecutive", "Seconds"),
    "FailureKind",
    *("LintWarning",),
    *("AuditRecord", "Decision", "ReportLine", "StoredRecord", "SwitchEntry", "SwitchGuard"),
    *("SwitchChanged", "SwitchReport", "SwitchScope", "SwitchSnapshot"),
    *("SwitchStoreRecovered", "SwitchStoreLost", "UnreadableRecord"),
    "AuthenticationFailed",
    *("TaskCancelled", "TaskCleanupFailed", "TaskEvent", "TaskFailed", "TaskStarted", "TaskStuck"),
    *("Job", "JobReplay", "JobReplayed", "LastFailure"),
    *("MessageCrashAttributed", "MessageEvent", "MessageExclusive", "MessageExclusiveTimedOut"),
    *("MessageSettled", "MessageSuspected", "QueueAckFailed", "QueueEvent", "QueuePaused"),
    *("QueueReceiveFailed", "RuntimeSnapshot", "ShutdownReport", "WorkerStopped", "WorkerStopping"),
    # Outcomes of a handler.
    *("Release", "Retry"),
    *("StopReport", "SupervisorSnapshot", "TaskHandle"),
    *("EventType", "TaskScope"),
    *("Gathered", "StreamReport"),
    # Values of metrics, and the rows of their table.
    *("Distribution", "History", "Instrument", "Registry", "Total"),
    # Results of objectives and rules.
    *("BurnRate", "ObjectiveReport", "SLOReport"),
}


def test_every_component_with_settings_has_its_table():
    listed = {parameter.values[0] for parameter in tables()}
    packages = (
        "policies",
        "backoff",
        "caches",
        "template",
        "classify",
        "batch",
        "control",
        "observe",
        "workers",
    )
    parts = {
        name
        for name, part in PUBLIC.items()
        if isinstance(part, type)
        and not issubclass(part, BaseException)
        and part.__module__.split(".")[1] in packages
        and not inspect.isabstract(part)
        and not getattr(part, "_is_protocol", False)
        and defaults(part)
    }
    assert parts - WITHOUT_A_TABLE <= listed


def test_table_of_metrics_equals_the_code():
    text = (DOCS / "guide" / "metrics.md").read_text(encoding="utf-8")
    (rows,) = re.findall(r"<!-- metrics -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    assert rows.splitlines() == [
        f"| `{each.name}` | `{each.prometheus_name}` | {', '.join(filter(None, kind))} | "
        f"{', '.join(f'`{label}`' for label in each.labels)} | {each.description} |"
        for each in observe.INSTRUMENTS.values()
        for kind in [(each.kind, each.unit)]
    ]
    assert f"in seconds: {', '.join(f'{bound:g}' for bound in BUCKETS)}, and" in text


def test_page_of_errors_has_a_row_for_every_error():
    rows = re.findall(
        r"^\| `(\w+)`", (DOCS / "reference" / "errors.md").read_text(encoding="utf-8"), re.M
    )
    assert {*errors, *errors_of_steps, *errors_of_workers, "EventStoreError"} <= set(rows)
    assert len(rows) == len(set(rows))


def test_page_of_listeners_has_every_hook_in_order():
    text = (DOCS / "guide" / "listeners.md").read_text(encoding="utf-8")
    hooks = re.findall(r"^\| `(\w+)\((?:context|name)", text, re.M)
    assert hooks == [*HOOKS, "on_first_success"]


def test_every_public_name_is_on_a_page_written_by_hand():
    pages = [page for page in PAGES if page.name != "statements.md"]
    words = set(re.findall(r"\w+", "".join(page.read_text(encoding="utf-8") for page in pages)))
    assert PUBLIC.keys() <= words


def test_images_of_the_pages_exist():
    targets = [
        page.parent / target
        for page in [*PAGES, DOCS.parent / "README.md"]
        for target in re.findall(r"!\[.*?\]\((.*?)\)", page.read_text(encoding="utf-8"))
    ]
    assert targets
    assert [each for each in targets if not each.is_file()] == []


def test_links_of_readme_and_contributing_lead_to_files():
    for page in (DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"):
        links = re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text(encoding="utf-8"))
        assert links
        assert [each for each in links if not (page.parent / each).exists()] == []


def test_pages_have_no_prompts():
    for page in [*PAGES, DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"]:
        assert not re.search(r"^(>>>|\.\.\. )", page.read_text(encoding="utf-8"), re.M), page


def test_code_of_the_pages_fits_its_block():
    for page in [*PAGES, DOCS.parent / "README.md"]:
        blocks = re.findall(r"^```(?:python|text)\n(.*?)^```", page.read_text("utf-8"), re.S | re.M)
        long = [line for block in blocks for line in block.splitlines() if len(line) > 88]
        assert long == [], page


def test_readme_is_short_and_begins_with_code():
    lines = (DOCS.parent / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert "```python" in lines[:15]
