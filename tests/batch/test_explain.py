"""The explanation of a step's transactions when items fail."""

import pytest

from retrytemplate import FixedBackoff, SimpleRetryPolicy
from retrytemplate.batch import Scenario, SkipPolicy
from tests.batch.test_scenarios import Bad


def test_explain_names_every_transaction(sqlite):
    step = sqlite.step(chunk_size=2, retry=SimpleRetryPolicy(2), skip=SkipPolicy(on=Bad))
    explanation = step.explain(
        Scenario(items=3, process={1: [Bad()]}, write={3: Bad()}, filtered=[2]),
    )
    assert str(explanation).splitlines() == [
        "     process 1 fails (Bad), process 1, process 2 (filtered)",
        "tx1  write [1]; COMMIT",
        "     process 3",
        "tx2  write [3] fails (Bad); ROLLBACK",
        "tx3  write [3] fails (Bad); ROLLBACK",
        "tx4  dead letter 3; COMMIT",
        "completed: read 3, written 1, filtered 1, dead_lettered 1, retries 2, rollbacks 2",
    ]


def test_explain_runs_and_writes_nothing_of_the_step(sqlite):
    step = sqlite.step([1, 2, 3])
    step.explain(Scenario(items=2))
    assert (sqlite.calls, sqlite.rows()) == ([], [])


def test_explain_shows_a_processor_that_fails_in_the_transaction(sqlite):
    step = sqlite.step(pure=False, retry=SimpleRetryPolicy(1), skip=SkipPolicy(on=Bad))
    explanation = step.explain(Scenario(items=2, process={2: Bad()}))
    assert str(explanation).splitlines() == [
        "tx1  write [1,2] fails (Bad); ROLLBACK",
        "tx2  write [1], write [2] fails (Bad), dead letter 2; COMMIT",
        "completed: read 2, written 1, filtered 0, dead_lettered 1, retries 0, rollbacks 2",
    ]


def test_waits_take_no_time(sqlite):
    step = sqlite.step(retry=SimpleRetryPolicy(3), backoff=FixedBackoff(3600.0))
    explanation = step.explain(Scenario(items=1, process={1: [Bad(), Bad()]}))
    assert explanation.report.retries == 2


def test_explain_without_a_processor_has_no_process_lines(sqlite):
    explanation = sqlite.step(processor=None).explain(Scenario(items=1))
    assert [text for _, text in explanation.lines] == ["write [1]; COMMIT"]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"items": 0}, "items must be an int >= 1, got 0"),
        ({"process": [Bad()]}, "process must be a mapping of items to exceptions, got"),
        ({"write": {"2": Bad()}}, "each item of write must be an int >= 1, got '2'"),
        ({"write": {0: Bad()}}, "each item of write must be an int >= 1, got 0"),
        ({"process": {2: Bad}}, "process must have an exception or a list of them for item 2, got"),
        ({"write": {2: [Bad(), "x"]}}, "write must have an exception or a list of them for item 2"),
        ({"filtered": 2}, "filtered must be a list of items, got 2"),
        ({"filtered": "2"}, "filtered must be a list of items, got '2'"),
        ({"filtered": [2.0]}, "each item of filtered must be an int >= 1, got 2.0"),
    ],
)
def test_invalid_scenario_is_rejected_at_construction(settings, problem):
    with pytest.raises((TypeError, ValueError), match=problem):
        Scenario(**settings)


def test_explain_requires_a_scenario(sqlite):
    with pytest.raises(TypeError, match="scenario must be a Scenario, got 5"):
        sqlite.step().explain(5)
