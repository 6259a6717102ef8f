"""A short run of the campaign."""

import pytest

from tests.stress.outbox_kills import campaign
from tests.support.process_pool import nursery


def test_messages_of_a_killed_process_are_received_once(tmp_path):
    with nursery() as forked:
        counts = campaign(
            forked, f"sqlite:///{tmp_path}/jobs.db", "batch", 3, items=12, kill_after=("message", 3)
        )
    assert (counts["kills"], counts["received"]) == (1, 24)


@pytest.mark.stress
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_messages_of_processes_killed_at_random_are_received_once(kind, tmp_path, request):
    url = f"sqlite:///{tmp_path}/jobs.db"
    if kind == "postgresql":
        url = request.getfixturevalue("postgres_url")
    with nursery() as forked:
        counts = campaign(forked, url, "outbox_kills", 4, items=12)
    assert counts["received"] == 24
    assert counts["kills"] > 1
