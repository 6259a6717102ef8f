"""Events: fields, ids, the format of CloudEvents."""

import json
import os
import re

import pytest
from attrs import fields
from attrs.exceptions import FrozenInstanceError

from retrytemplate.observe import Event
from tests.observe.events import event


def test_event_has_the_documented_fields_and_is_frozen():
    assert [each.name for each in fields(Event)] == [
        *("type", "subject", "severity", "data", "time", "id", "execution_id", "root_id"),
        *("traceparent", "correlation"),
    ]
    with pytest.raises(FrozenInstanceError):
        event().type = "other"


def test_ids_share_the_random_digits_and_count():
    first, second = event().id, event().id
    assert re.fullmatch("[0-9a-f]{32}", first)
    assert first[:16] == second[:16]
    assert int(second[16:], 16) == int(first[16:], 16) + 1


def test_random_digits_of_ids_are_drawn_again_after_a_fork():
    receiver, sender = os.pipe()
    child = os.fork()
    if not child:
        os.write(sender, event().id.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(sender)
    drawn = os.read(receiver, 32).decode()
    os.close(receiver)
    assert len(drawn) == 32
    assert drawn[:16] != event().id[:16]


def test_cloudevent_has_the_attributes_of_the_specification():
    made = event(
        data={"attempts": 3},
        id="17",
        execution_id="e",
        root_id="r",
        traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        correlation={"user": "ada"},
    ).to_cloudevent("/shop")
    assert made == {
        "specversion": "1.0",
        "id": "17",
        "source": "/shop",
        "type": "retrytemplate.call.failed",
        "subject": "charge",
        "time": "2027-01-15T08:00:00.000000Z",
        "datacontenttype": "application/json",
        "severitynumber": 13,
        "severitytext": "WARNING",
        "executionid": "e",
        "rootid": "r",
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "data": {"attempts": 3, "correlation": {"user": "ada"}},
    }
    assert json.loads(json.dumps(made)) == made


def test_names_of_cloudevent_attributes_are_lower_case_letters_and_digits():
    made = event(execution_id="e", root_id="r", traceparent="t").to_cloudevent("/")
    assert all(re.fullmatch("[a-z0-9]{1,20}", name) for name in made)


def test_cloudevent_leaves_out_attributes_without_a_value():
    made = event(time=1e300).to_cloudevent("/")
    assert {"executionid", "rootid", "traceparent", "time"}.isdisjoint(made)


@pytest.mark.parametrize(
    ("severity", "number"), [(10, 5), (20, 9), (30, 13), (40, 17), (50, 21), (0, 1), (99, 24)]
)
def test_severity_number_of_a_cloudevent_is_that_of_opentelemetry(severity, number):
    assert event(severity=severity).to_cloudevent("/")["severitynumber"] == number
