"""The checkpoint as a JSON object."""

import json

import pytest

from retrytemplate.batch.engine.checkpoint import Checkpoint

WHOLE = Checkpoint(
    position=["numbers", 1, 4],
    count=4,
    fingerprint=17,
    pending=((0, 1), (2, 4)),
    isolating=True,
    isolated_item=2,
    crashes={0: (("worker", 17.0), ("worker", 18.0)), 12: ()},
    unattributed_crashes=1,
    payloads=("1", "2", "3", "4"),
    broken={3: "no number"},
)


def restored(data):
    return Checkpoint.from_json(json.loads(json.dumps(data)))


@pytest.mark.parametrize("checkpoint", [WHOLE, Checkpoint()], ids=["whole", "empty"])
def test_checkpoint_is_restored_from_its_json(checkpoint):
    assert restored(checkpoint.to_json()) == checkpoint


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("format", 2, "format 2 is of a newer version of the library"),
        ("pending", [[0, 2], [2, 4]], r"pending\[1\] must be a range of indexes from 3 on"),
        ("pending", [[0, 1], [2, 4], [4, 5]], r"pending\[2\] must be a range of indexes from 5 on"),
        ("pending", [[1, 1]], r"pending\[0\] must be a range of indexes from 0 on"),
        ("crashes", {"x": []}, "crashes must have indexes as names, got 'x'"),
        ("crashes", {"01": []}, "crashes must have indexes as names, got '01'"),
        ("crashes", {"\u0661": []}, "crashes must have indexes as names"),
        ("crashes", {"0": [["worker"]]}, r"crashes\.0\[0\]"),
        ("crashes", {"0": [["worker", 17.0, 1]]}, r"crashes\.0\[0\] must have 2 values, got 3"),
    ],
)
def test_damaged_field_is_rejected_by_name(field, value, message):
    with pytest.raises(ValueError, match=message):
        restored(WHOLE.to_json() | {field: value})
