"""The table of states in the documentation of the circuit breaker, row by row."""

import re
from pathlib import Path

import pytest

from retrytemplate.control import Calls
from retrytemplate.control.breaker import state_machine
from retrytemplate.control.breaker.state_machine import (
    CircuitConfig,
    CircuitStateMachine,
    ManualOverride,
)

PAGE = Path(__file__).resolve().parents[3] / "docs" / "internals" / "circuit_breaker.md"
END = 10.0
PERMIT_TIMEOUT = 5.0
CONFIG = CircuitConfig(
    window=Calls(10),
    minimum_calls=2,
    failure_rate=0.5,
    slow_rate=0.5,
    reset_timeout=END,
    reset_growth=1.0,
    reset_maximum=3600.0,
    half_open_calls=1,
    required_successes=2,
    permit_timeout=PERMIT_TIMEOUT,
)


def rows(text):
    """The rows of the table in a text, without the two lines of its head."""
    lines = re.findall(r"^\| (.+) \|$", text, re.MULTILINE)
    return [tuple(cell.strip() for cell in line.split(" | ")) for line in lines[1:]]


def circuit_in(state):
    """A circuit that entered the state at time 0."""
    circuit = CircuitStateMachine(CONFIG)
    if state in ("open", "half_open"):
        for _ in range(2):
            circuit.report(circuit.generation, 0, "failure", False, 0.0)
    if state == "half_open":
        circuit.expire(END)
    elif state not in ("closed", "open"):
        circuit.force_state(state, ManualOverride("kim", "a test"), END)
    assert circuit.state == state
    return circuit


def call(circuit, now):
    return "rejected" if circuit.admit(now) is None else "admitted"


def result(circuit, verdict, *, slow=False, generation=None):
    """Admit and report a call; the effect of the report."""
    permit = circuit.admit(0.0)
    before = circuit.counter.calls, circuit.successes, circuit.state
    generation = circuit.generation if generation is None else generation
    if not circuit.report(generation, permit, verdict, slow, 0.0):
        return "late"
    after = circuit.counter.calls, circuit.successes, circuit.state
    return "not counted" if before == after else "counted"


def second(circuit, verdict, **options):
    """Report the same call twice; the effect of the second report."""
    result(circuit, verdict, **options)
    return result(circuit, verdict, **options)


def call_after_another(circuit, now):
    assert circuit.admit(END) is not None
    return call(circuit, now)


EVENTS = {
    "a success": lambda circuit: result(circuit, "success"),
    "a failure": lambda circuit: result(circuit, "failure"),
    "a slow success": lambda circuit: result(circuit, "success", slow=True),
    "an ignored call": lambda circuit: result(circuit, "ignored"),
    "a cancelled call": lambda circuit: result(circuit, "cancelled"),
    "a failure below the thresholds": lambda circuit: result(circuit, "failure"),
    "a failure that reaches a threshold": lambda circuit: second(circuit, "failure"),
    "a slow call that reaches a threshold": lambda circuit: second(circuit, "success", slow=True),
    "a result of an earlier generation": lambda circuit: result(circuit, "failure", generation=-1),
    "a call before the end of the state": lambda circuit: call(circuit, END - 0.1),
    "a call after the end of the state": lambda circuit: call(circuit, END),
    "a call with a free permit": lambda circuit: call(circuit, END),
    "a call without a free permit": lambda circuit: call_after_another(circuit, END),
    "a call after a permit expired": lambda circuit: call_after_another(
        circuit, END + PERMIT_TIMEOUT
    ),
    "a success before the last required one": lambda circuit: result(circuit, "success"),
    "the last required success": lambda circuit: second(circuit, "success"),
}
TABLE = rows(state_machine.__doc__)


@pytest.mark.parametrize(("state", "event", "following", "effect"), TABLE)
def test_circuit_follows_row_of_state_table(state, event, following, effect):
    circuit = circuit_in(state)
    assert EVENTS[event](circuit) == effect
    assert circuit.state == following


def test_state_table_names_every_event_of_the_test():
    assert {event for _, event, _, _ in TABLE} == EVENTS.keys()


def test_state_table_has_a_row_for_every_state():
    states = {"closed", "open", "half_open", "forced_open", "disabled", "metrics_only"}
    assert {state for state, *_ in TABLE} == states


def test_state_table_on_the_page_equals_the_docstring():
    assert rows(PAGE.read_text(encoding="utf-8")) == TABLE


@pytest.mark.parametrize("state", sorted({state for state, *_ in TABLE}))
@pytest.mark.parametrize("target", ["forced_open", "disabled", "metrics_only", "closed"])
def test_operator_moves_circuit_from_each_state_to_each_target(state, target):
    circuit = circuit_in(state)
    circuit.force_state(target, ManualOverride("kim", "a test"))
    assert circuit.state == target
