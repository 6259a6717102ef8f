"""Agents whose tools are all guarded by one call."""

from typing import TypedDict

import pytest

from retrytemplate.testing import VirtualClock
from tests.support.configs import load_text

TEXT = """
retry:
  endpoints:
    search: {max_attempts: 3, initial: 1s, jitter: null, attempt_timeout: null}
    answer: {max_attempts: 2, initial: 1s, jitter: null, attempt_timeout: null}
"""


class State(TypedDict, total=False):
    question: str
    found: str
    answer: str


def failing(times, key, value):
    """A node that fails so often before it returns its part of the state."""
    left = [ConnectionError("reset")] * times

    def node(state: State) -> State:
        if left:
            raise left.pop()
        return {key: value}

    return node


@pytest.fixture
def config(tmp_path):
    return load_text(tmp_path, TEXT, clock=VirtualClock())


@pytest.mark.statement("S4-96")
def test_nodes_of_a_graph_are_guarded_by_one_call(config):
    from langgraph.graph import END, START, StateGraph

    nodes = {
        "search": failing(2, "found", "page 17"),
        "answer": failing(1, "answer", "yes"),
    }
    graph = StateGraph(State)
    for name, node in config.wrap_all(nodes).items():
        graph.add_node(f"do {name}", node)
    graph.add_edge(START, "do search")
    graph.add_edge("do search", "do answer")
    graph.add_edge("do answer", END)
    state = graph.compile().invoke({"question": "retry?"})
    assert state == {"question": "retry?", "found": "page 17", "answer": "yes"}


@pytest.mark.statement("S4-96")
def test_tools_of_a_plain_agent_are_guarded_by_one_call(config):
    tools = config.wrap_all(
        {"search": failing(2, "found", "page 17"), "lookup": failing(1, "found", "page 18")},
        default="answer",
    )
    calls = [("search", {}), ("lookup", {})]
    assert [tools[name](arguments) for name, arguments in calls] == [
        {"found": "page 17"},
        {"found": "page 18"},
    ]
