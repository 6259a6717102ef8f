"""Short runs of the campaign, on each database."""

from pathlib import Path

import pytest
from attrs import evolve

from tests.stress.worker_kills import SCENARIOS, campaign
from tests.support import postgres
from tests.support.queue_workers import SQLQueue

NAMED = {scenario.name: scenario for scenario in SCENARIOS}
SHORT = [
    NAMED["prefetch 10"],
    NAMED["prefetch 50"],
    evolve(NAMED["crowd"], messages=90, poisons=2, kills=2),
    evolve(NAMED["sigterm"], messages=150, stops=4),
    NAMED["stall"],
]
KINDS = ("sqlite", "postgresql")


def opened(kind, tmp_path, request):
    """A queue on tables of the test's own."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_url")
    return SQLQueue(url, "worker_kills")


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
def test_restarted_server_loses_and_doubles_no_message(tmp_path, postgres_binaries):
    with postgres.started(postgres_binaries, Path(tmp_path, "server")) as server:
        queue = SQLQueue(server.url, "worker_kills")
        check(queue, evolve(NAMED["restart"], messages=100), 3, server=server)
