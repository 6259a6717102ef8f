"""A short run of the campaign."""

from tests.stress.outbox_kills import campaign
from tests.support.process_pool import nursery


def test_messages_of_a_killed_process_are_received_once(tmp_path):
    with nursery() as forked:
        counts = campaign(forked, f"sqlite:///{tmp_path}/jobs.db", "batch", 3, items=12, kill_at=3)
    assert (counts["kills"], counts["received"]) == (1, 24)
