"""Short runs of the campaign, on each queue."""

from pathlib import Path

import pytest
from attrs import evolve

from tests.stress.worker_kills import SCENARIOS, campaign, simulated
from tests.support import postgres, valkey
from tests.support.queue_workers import queue_at

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
SHORT = [
    NAMED["prefetch 10"],
    NAMED["prefetch 50"],
    evolve(NAMED["poisons"], messages=90, poisons=2),
    evolve(NAMED["crowd"], messages=90, poisons=2, kills=2),
    evolve(NAMED["sigterm"], messages=150, stops=4),
    evolve(NAMED["second sigterm"], messages=100, stops=2),
]
KINDS = ("sqlite", "postgresql", "valkey")


def opened(kind, tmp_path, request):
    """A queue of the test's own."""
    fixtures = {"postgresql": "postgres_url", "valkey": "valkey_url"}
    if kind in fixtures:
        return queue_at(request.getfixturevalue(fixtures[kind]))
    return queue_at(f"sqlite:///{tmp_path}/jobs.db")


def check(queue, scenario, seed, **settings):
    """Run a scenario; the seed is in the message of a failure."""
    outcome = campaign(queue, scenario, seed, **settings)
    assert not outcome.faults(scenario), f"seed {seed}: {outcome}"
    return outcome


@pytest.mark.statement("S1-75")
def test_poison_message_alone_is_dead_lettered(tmp_path, request):
    scenario = evolve(NAMED["prefetch 10"], messages=12)
    outcome = check(opened("sqlite", tmp_path, request), scenario, 1)
    assert outcome.codes[0] == 1


@pytest.mark.statement("S1-109")
def test_sigterm_at_full_load_settles_what_runs(tmp_path, request):
    queue = opened("sqlite", tmp_path, request)
    outcome = check(queue, evolve(NAMED["sigterm"], messages=80, stops=2), 1)
    assert outcome.codes == {0: 3}


@pytest.mark.stress
@pytest.mark.statement("S1-75")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scenario", SHORT, ids=lambda scenario: scenario.name)
def test_disturbed_workers_lose_and_double_no_message(kind, scenario, tmp_path, request):
    check(opened(kind, tmp_path, request), scenario, 2)


@pytest.mark.stress
@pytest.mark.statement("S1-75")
@pytest.mark.parametrize("kind", KINDS)
def test_worker_stopped_past_its_lease_loses_and_doubles_no_message(kind, tmp_path, request):
    check(opened(kind, tmp_path, request), NAMED["stall"], 2)


@pytest.mark.stress
@pytest.mark.statement("S1-72")
@pytest.mark.parametrize("kind", ["postgresql", "valkey"])
def test_connections_cut_at_settlements_lose_no_message(kind, tmp_path, request):
    check(opened(kind, tmp_path, request), NAMED["cuts"], 4)


@pytest.fixture(params=[(postgres, "postgres_binaries"), (valkey, "valkey_binary")])
def server(request, tmp_path):
    """A server that a test may kill."""
    kind, installed = request.param
    with kind.started(request.getfixturevalue(installed), Path(tmp_path, "server")) as made:
        yield made


@pytest.mark.stress
def test_restarted_server_loses_and_doubles_no_message(server):
    check(queue_at(server.url), evolve(NAMED["restart"], messages=150), 3, server=server)


@pytest.mark.statement("S1-75")
def test_simulated_cluster_gives_the_same_counts():
    outcome = simulated(evolve(NAMED["poisons"], messages=60, poisons=2), 1, True)
    assert not outcome.faults(NAMED["poisons"])
    assert len(outcome.crashes) == 2
    assert set(outcome.crashes) <= {2, 3}
