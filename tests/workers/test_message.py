"""Messages, outcomes and dead letters."""

import json
from copy import copy
from datetime import timedelta

import pytest

from retrytemplate import MisuseError, RetryTemplate
from retrytemplate.history import AttemptRecord
from retrytemplate.workers.message import DeadLetter, Message, Reject, Retry


def letter(message):
    failed = AttemptRecord(1, 10.0, 11.0, "ValueError", "bad row")
    return DeadLetter("l-1", "s:m-1", "bad row", "handler", 1, 0, (failed,), 10.0, 12.0, message)


def test_message_without_transaction_rejects_acknowledge_in():
    message = Message("m-1", b"")
    with pytest.raises(MisuseError, match="the source of message 'm-1' has no transactions"):
        message.acknowledge_in(None).send(None)


@pytest.mark.parametrize(("name", "value"), [("id", 1), ("body", "text")])
def test_message_of_a_wrong_type_names_the_field(name, value):
    with pytest.raises(TypeError, match=name):
        Message(**{"id": "m-1", "body": b"", name: value})


def test_messages_are_equal_without_regard_to_the_receipt():
    assert Message("m", b"", receipt=1) == Message("m", b"", receipt=2)


def test_retry_delay_may_be_a_timedelta():
    assert Retry(timedelta(minutes=1)).delay == 60.0


def test_retry_rejects_a_negative_delay():
    with pytest.raises(ValueError, match="delay must be"):
        Retry(-1.0)


@pytest.mark.parametrize("reason", [None, " ", 17])
def test_reject_needs_a_reason(reason):
    with pytest.raises(TypeError, match="reason must be a non-blank str"):
        Reject(reason)


def test_template_inside_a_handler_does_not_retry_a_reject():
    calls = []

    def handle():
        calls.append(1)
        raise Reject("no such order")

    with pytest.raises(Reject, match="no such order"):
        RetryTemplate().call(handle)
    assert calls == [1]


def test_reject_is_copied_with_its_reason():
    assert copy(Reject("gone")).reason == "gone"


def test_dead_letter_is_json_with_the_body_as_text():
    data = letter(Message("m-1", b'{"n": 1}', {"a": "b"}, receipt=object())).as_json()
    assert json.loads(json.dumps(data)) == data
    assert data["message"]["body"] == '{"n": 1}'
    assert data["history"][0]["type_name"] == "ValueError"


def test_dead_letter_with_binary_body_is_json_in_base64():
    data = letter(Message("m-1", b"\xff\x00")).as_json()
    assert data["message"]["body_base64"] == "/wA="
