"""The decorators in a real LangGraph graph: state, execution and control flow."""

import asyncio
from functools import partial
from operator import add
from typing import Annotated, TypedDict

import pytest

from retrytemplate import (
    Deadline,
    DeadlineExceededError,
    FixedBackoff,
    NoBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
)
from retrytemplate.control import (
    Bulkhead,
    CircuitBreaker,
    Consecutive,
    Fallback,
    with_breaker,
    with_bulkhead,
    with_retry,
    with_timeout,
)

pytest.importorskip("langgraph", reason="langgraph is not installed: pip install langgraph")

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp, GraphInterrupt, ParentCommand
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, StreamWriter, interrupt

THREAD: RunnableConfig = {"configurable": {"thread_id": "1"}}


class State(TypedDict, total=False):
    city: str
    answer: str
    path: Annotated[list[str], add]


def graph_of(*nodes, **settings):
    """A graph of the nodes in sequence."""
    graph = StateGraph(State)
    for before, node in zip((None, *nodes), nodes, strict=False):
        graph.add_node(node)
        graph.add_edge(before.__name__ if before else START, node.__name__)
    graph.add_edge(nodes[-1].__name__, END)
    return graph.compile(**settings)


def retry(*retryable, attempts=3, nested=False):
    return with_retry(
        retryable=retryable or OSError, max_attempts=attempts, backoff=NoBackoff(), nested=nested
    )


def plan(state: State) -> State:
    return {"path": ["plan"]}


def not_known(state: State) -> State:
    return {"answer": f"nothing is known of {state['city']}", "path": ["not known"]}


def agent():
    """A graph with everything: who answers fails twice, the rating hangs, the archive is down."""
    failures = [OSError("reset"), OSError("reset")]
    archive_is_down = CircuitBreaker("archive", window=Consecutive(1))
    archive_is_down.force_open(by="kim", reason="the archive moves")

    @with_timeout(60)
    @retry()
    @with_breaker(CircuitBreaker("model"), fallback=not_known)
    @with_bulkhead(Bulkhead("model", limit=1))
    async def ask(state: State) -> State:
        if failures:
            raise failures.pop()
        return {"answer": "31", "path": ["ask"]}

    @with_timeout(0.001, on_timeout={"path": ["not rated"]})
    async def rate(state: State) -> State:
        await asyncio.Event().wait()

    @with_breaker(archive_is_down, fallback=lambda state: {"path": ["not kept"]})
    @retry()
    def keep(state: State) -> State:
        return {"path": ["kept"]}

    return graph_of(plan, ask, rate, keep)


EXPECTED = {"city": "Rome", "answer": "31", "path": ["plan", "ask", "not rated", "not kept"]}


@pytest.mark.statement("S4-92")
def test_graph_of_guarded_nodes_returns_its_answer():
    assert asyncio.run(agent().ainvoke({"city": "Rome"})) == EXPECTED


def test_graph_streams_the_updates_of_guarded_nodes():
    async def steps():
        return [step async for step in agent().astream({"city": "Rome"}, stream_mode="updates")]

    assert asyncio.run(steps()) == [
        {"plan": {"path": ["plan"]}},
        {"ask": {"answer": "31", "path": ["ask"]}},
        {"rate": {"path": ["not rated"]}},
        {"keep": {"path": ["not kept"]}},
    ]


def test_synchronous_graph_runs_guarded_nodes():
    failures, breaker = [OSError(), OSError()], CircuitBreaker("model")

    @with_timeout(60)
    @retry()
    @with_breaker(breaker)
    def ask(state: State) -> State:
        if failures:
            raise failures.pop()
        return {"answer": "31", "path": ["ask"]}

    graph = graph_of(plan, ask)
    assert graph.invoke({"city": "Rome"})["path"] == ["plan", "ask"]
    assert breaker.snapshot().failures == 2
    assert list(graph.stream({"city": "Rome"}, stream_mode="updates")) == [
        {"plan": {"path": ["plan"]}},
        {"ask": {"answer": "31", "path": ["ask"]}},
    ]
    assert asyncio.run(graph.ainvoke({"city": "Rome"}))["path"] == ["plan", "ask"]


def test_final_error_of_a_node_is_raised_by_the_graph():
    @retry(attempts=2)
    async def ask(state: State) -> State:
        runs.append("run")
        raise OSError("reset")

    runs = []
    with pytest.raises(OSError, match="reset"):
        asyncio.run(graph_of(ask).ainvoke({"city": "Rome"}))
    assert runs == ["run", "run"]


def around_all(node):
    """All decorators, the retry innermost: each attempt gets the original arguments."""
    breaker = CircuitBreaker("model")
    for decorate in (
        retry(),
        with_bulkhead(Bulkhead("model", limit=1)),
        with_breaker(breaker, fallback=not_known),
        with_timeout(60, on_timeout=not_known),
    ):
        node = decorate(node)
    return node


def test_config_runtime_store_and_writer_are_handed_in_to_each_attempt():
    failures, seen = [OSError()], []

    @around_all
    async def ask(
        state: State,
        config: RunnableConfig,
        *,
        runtime: Runtime,
        store: BaseStore,
        writer: StreamWriter,
    ) -> State:
        seen.append((config["configurable"]["thread_id"], runtime.store is store is shelf))
        writer("called")
        if failures:
            raise failures.pop()
        return {"answer": "31"}

    async def steps():
        return [step async for step in graph.astream({}, THREAD, stream_mode="custom")]

    shelf = InMemoryStore()
    graph = graph_of(ask, store=shelf)
    assert asyncio.run(steps()) == ["called", "called"]
    assert seen == [("1", True)] * 2


def test_fallback_of_the_state_replaces_a_node_with_more_parameters():
    breaker = CircuitBreaker("model")
    breaker.force_open(by="kim", reason="the model moves")

    @with_breaker(breaker, fallback=not_known)
    async def ask(state: State, config: RunnableConfig, *, runtime: Runtime) -> State:
        raise AssertionError("not called")

    given = asyncio.run(graph_of(ask).ainvoke({"city": "Rome"}))
    assert given["answer"] == "nothing is known of Rome"


class Private(TypedDict):
    city: str


def test_callable_object_keeps_its_class_name_and_state_schema():
    class Ask:
        async def __call__(self, state: Private) -> State:
            return {"answer": ", ".join(state)}

    async def ask(state: Private) -> State:
        return {"path": [", ".join(state)]}

    graph = graph_of(retry()(Ask()), retry()(ask))
    given = asyncio.run(graph.ainvoke({"city": "Rome", "path": []}))
    assert list(graph.nodes) == ["__start__", "Ask", "ask"]
    assert (given["answer"], given["path"]) == ("city", ["city"])


def test_nodes_that_run_side_by_side_share_a_bulkhead():
    model, inside = Bulkhead("model", limit=1), []

    def asking(name):
        @with_bulkhead(model)
        async def ask(state: State) -> State:
            inside.append(model.snapshot().in_use)
            await asyncio.sleep(0)
            return {"path": [name]}

        return ask

    graph = StateGraph(State)
    for name in ("one", "two", "three"):
        graph.add_node(name, asking(name)).add_edge(START, name)
    assert len(asyncio.run(graph.compile().ainvoke({}))["path"]) == 3
    assert inside == [1, 1, 1]


def test_command_returned_by_a_node_is_followed():
    @around_all
    async def choose(state: State) -> Command:
        return Command(update={"path": ["choose"]}, goto="plan")

    graph = StateGraph(State)
    graph.add_node(choose, destinations=("plan",))
    graph.add_node(plan)
    graph.add_edge(START, "choose")
    given = asyncio.run(graph.compile().ainvoke({}))
    assert given["path"] == ["choose", "plan"]


# What steers a graph is raised, and no failure.


class Counted:
    """One guard of each kind that counts any exception as a failure, and their counts."""

    def __init__(self):
        self.breaker = CircuitBreaker("model", window=Consecutive(1))
        self.template = RetryTemplate(SimpleRetryPolicy(3, retry_on=Exception), NoBackoff())
        self.answered = []

    def around(self, node):
        for decorate in (
            with_timeout(60, on_timeout=self.instead),
            with_retry(self.template, nested=True),
            with_breaker(self.breaker, fallback=self.instead, on=Exception),
            partial(self.template.wrap, nested=True),
            Fallback(self.instead).wrap,
            with_bulkhead(Bulkhead("model", limit=1)),
        ):
            node = decorate(node)
        return node

    def instead(self, *args):
        self.answered.append(args)
        return {"answer": "fallback"}

    def have_seen_nothing(self):
        return self.answered == [] and self.breaker.snapshot().failures == 0


@pytest.mark.parametrize("asynchronous", [True, False])
def test_interrupt_is_not_a_failure_and_resumes(asynchronous):
    guards, runs = Counted(), []

    def ask_model(state):
        runs.append("run")
        return {"answer": interrupt("which city?")}

    if asynchronous:

        async def ask(state: State) -> State:
            return ask_model(state)
    else:

        def ask(state: State) -> State:
            return ask_model(state)

    graph = graph_of(guards.around(ask), checkpointer=InMemorySaver())

    def go_on(given):
        if asynchronous:
            return asyncio.run(graph.ainvoke(given, THREAD))
        return graph.invoke(given, THREAD)

    (question,) = go_on({})["__interrupt__"]
    assert (question.value, runs) == ("which city?", ["run"])
    assert go_on(Command(resume="Rome"))["answer"] == "Rome"
    assert runs == ["run"] * 2
    assert guards.have_seen_nothing()


def test_command_to_the_parent_graph_is_not_a_failure():
    guards = Counted()

    @guards.around
    async def leave(state: State) -> State:
        raise ParentCommand(Command(graph=Command.PARENT, goto="plan"))

    graph = StateGraph(State)
    graph.add_node("inside", graph_of(leave))
    graph.add_node(plan)
    graph.add_edge(START, "inside")
    given = asyncio.run(graph.compile().ainvoke({"city": "Rome"}))
    assert given["path"] == ["plan"]
    assert guards.have_seen_nothing()


@pytest.mark.parametrize("kind", [GraphBubbleUp, GraphInterrupt, ParentCommand])
def test_retrying_a_control_flow_exception_of_a_graph_is_rejected(kind):
    with pytest.raises(ValueError, match=f"got {kind.__name__}, which is never retried"):
        with_retry(retryable=(OSError, kind))


def test_entrypoint_and_tasks_are_guarded_like_nodes():
    failures, of_flow = [OSError(), OSError()], [OSError()]

    @task
    @retry()
    def double(number: int) -> int:
        if failures:
            raise failures.pop()
        return 2 * number

    @entrypoint(checkpointer=InMemorySaver())
    @with_timeout(60)
    @retry()
    def flow(number: int, config: RunnableConfig) -> str:
        doubled = double(number).result()
        if of_flow:
            raise of_flow.pop()
        return f"{doubled} {config['configurable']['thread_id']}"

    assert flow.invoke(21, THREAD) == "42 1"


# Limits and cancellation.


@pytest.mark.parametrize("asynchronous", [True, False])
def test_limit_around_the_graph_is_inherited_by_its_nodes(asynchronous):
    @with_retry(retryable=OSError, backoff=FixedBackoff(3600))
    def ask(state: State) -> State:
        raise OSError

    async def main():
        async with Deadline(60):
            await graph_of(ask).ainvoke({})

    with pytest.raises(DeadlineExceededError):  # no such wait fits
        if asynchronous:
            asyncio.run(main())
        else:
            with Deadline(60):
                graph_of(ask).invoke({})


def test_cancelled_graph_runs_no_node_again():
    guards, runs = Counted(), []

    @guards.around
    async def ask(state: State) -> State:
        runs.append("run")
        task.cancel()
        await asyncio.Event().wait()

    async def main():
        nonlocal task
        task = asyncio.ensure_future(graph_of(ask).ainvoke({}))
        await asyncio.wait([task])
        return task.cancelled()

    task = None
    assert asyncio.run(main())
    assert runs == ["run"]
    assert guards.have_seen_nothing()
