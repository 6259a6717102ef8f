"""Records as versions of the library wrote them: each of them is read."""

import json
import re
from pathlib import Path

from retrytemplate import AttemptRecord
from retrytemplate.caches.record import FORMAT, from_json, to_json

SAMPLES = {
    int(re.fullmatch(r"format-(\d+)", path.stem)[1]): json.loads(path.read_text(encoding="utf-8"))
    for path in Path(__file__).parent.joinpath("records").iterdir()
}


def test_samples_cover_every_stored_format():
    assert sorted(SAMPLES) == list(range(1, FORMAT + 1))


def test_records_of_format_1_are_read():
    record = from_json(SAMPLES[1])

    assert (record.phase, record.worker, record.name) == ("recovering", "host-4:4712:3", "charge")
    assert (record.failures, record.attempts, record.max_attempts) == (2, 2, 3)
    assert (record.retry_allowed, record.no_recovery, record.gave_up) == (False, False, True)
    assert (record.version, record.fence) == (5, 1795273757000001)
    assert (record.policy_state, record.backoff_state) == ({"started": 12.5}, 0.4)
    assert (record.backoff_started, record.not_before) == (True, 1795273760.75)
    assert record.fingerprint == "SimpleRetryPolicy"
    assert record.attributes == {"page": 7, "seen": [1, 2.5, None, True, {"x": "y"}]}
    assert (record.last.type_name, record.last.message) == ("billing.Rejected", "zu spät ⏰")
    assert (record.last.cause.type_name, record.last.cause.message) == ("KeyError", "'card'")


def test_attempts_of_format_1_are_read():
    lost, rejected = from_json(SAMPLES[1]).history

    assert (lost.number, lost.started, lost.process, lost.duration) == (1, None, None, None)
    assert lost.type_name == "retrytemplate.errors.AttemptLostError"
    assert rejected == AttemptRecord(
        2,
        1795273757.0,
        1795273757.5,
        "billing.Rejected",
        "zu spät ⏰",
        "Traceback (most recent call last):\n  ...\nbilling.Rejected: zu spät ⏰\n",
        "host-4",
        4712,
    )
    assert rejected.duration == 0.5


def test_sample_of_current_format_has_every_field():
    assert to_json(from_json(SAMPLES[FORMAT])) == SAMPLES[FORMAT]
