"""Messages of a queue, the outcomes that a handler returns, and dead letters."""

from __future__ import annotations

from base64 import b64encode
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from attrs import asdict, field, frozen, validators

from retrytemplate._internal.validation import (
    check_limit_or_none,
    check_text,
    checked_by,
    to_seconds,
)
from retrytemplate._internal.values import Value
from retrytemplate.errors import MisuseError, RetryError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.history import AttemptRecord

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

DeadLetterPhase = Literal["handler", "crash", "decode"]


@frozen(eq=False, repr=False)
class Message(Value):
    """One delivery of a message.

    :param id: the publisher's message id, else the broker's; the same at every delivery.
    :param body: the payload.
    :param headers: names and values; default: none.
    :param queue: the name of the queue.
    :param delivery_count: deliveries counted by the broker, this one included; None if it does not
        count.  It counts deliveries, not attempts.
    :param redelivered: whether an earlier delivery was not settled, as far as the broker knows.
    :param enqueued_at: when the message was published, in seconds since the epoch; None: unknown.
    :param receipt: identifies this delivery to the source that returned it.

    >>> Message("order-17", b"{}", queue="orders")
    Message(id='order-17', body=b'{}', queue='orders')
    """

    id: str = field(validator=validators.instance_of(str))
    body: bytes = field(validator=validators.instance_of(bytes))
    headers: Mapping[str, str] = NO_HEADERS
    queue: str = ""
    delivery_count: int | None = None
    redelivered: bool = False
    enqueued_at: float | None = None
    receipt: Any = field(default=None, eq=False, repr=False)

    async def acknowledge_in(self, connection: Any) -> None:
        """Acknowledge the message in the transaction of a connection to the queue's database.

        Work and acknowledgement are committed together.  A source with ``transactional`` returns
        messages of a subclass that has this method.

        :param connection: the connection of the handler's open transaction.
        :raises MisuseError: if the source of the message has no transactions.
        """
        raise MisuseError(
            f"the source of message {self.id!r} has no transactions: return from the handler to "
            "acknowledge the message"
        )


@frozen(eq=False, repr=False, kw_only=True)
class DamagedMessage(Message):
    """A message that its source cannot read; the runtime dead-letters it without an attempt.

    :param damage: why, in one line.
    """

    damage: str


@frozen(eq=False, repr=False)
class Acknowledge(Value):
    """Returned by a handler: the message is done, as after any other value."""


@frozen(eq=False, repr=False)
class Retry(Value):
    """Returned by a handler: the attempt failed; deliver the message again.

    :param delay: seconds (or a ``timedelta``) until then, at least 0; None, the default: the
        runtime's backoff decides.
    :param reason: for the log and the history.

    >>> Retry(2.5, "the partner answers 202")
    Retry(delay=2.5, reason='the partner answers 202')
    """

    delay: float | None = field(
        default=None, converter=to_seconds, validator=checked_by(check_limit_or_none)
    )
    reason: str = field(default="", validator=validators.instance_of(str))


class Reject(RetryError):
    """Returned or raised by a handler: the message can never be processed; dead-letter it.

    A domain error, such as an order that does not exist.  A template around a part of the handler
    does not retry it.

    :param reason: for the log and the dead letter.

    >>> Reject("order 17 does not exist").reason
    'order 17 does not exist'
    """

    def __init__(self, reason: str) -> None:
        check_text("reason", reason)
        super().__init__(reason)
        self.reason = reason


@frozen(eq=False, repr=False)
class Release(Value):
    """Returned by a handler: deliver the message again, and do not count this attempt.

    :param reason: for the log.
    """

    reason: str = field(default="", validator=validators.instance_of(str))


@frozen(eq=False, repr=False)
class DeadLetter(Value):
    """A message that is not delivered any more, and why.

    :param id: identifies the letter: the same if it is written again after a crash.
    :param key: the key of the message's attempts.
    :param reason: the last failure, in one line.
    :param phase: "handler": attempts are exhausted, or the failure is not retried; "crash": the
        message crashed its process too often; "decode": the body cannot be decoded.
    :param attempts: attempts that were counted.
    :param crashes: crashes attributed to the message.
    :param history: the first three and the last thirteen failed attempts.
    :param first_attempt_at: seconds since the epoch; the time of the letter if there was none.
    :param dead_lettered_at: seconds since the epoch.
    :param message: the message as it was delivered last.
    :param code_version: that of the ``WorkerRuntime`` that dead-lettered it; None: not given.
    """

    id: str
    key: str
    reason: str
    phase: DeadLetterPhase
    attempts: int
    crashes: int
    history: tuple[AttemptRecord, ...]
    first_attempt_at: float
    dead_lettered_at: float
    message: Message
    code_version: str | None = None

    def as_json(self) -> dict[str, Any]:
        """As a JSON object, without the receipt of the message.

        The body is a string under ``body`` if it is UTF-8, else under ``body_base64``.
        """
        data = {each: getattr(self, each) for each in PLAIN_FIELDS}
        data["history"] = [asdict(attempt) for attempt in self.history]
        data["message"] = _message_as_json(self.message)
        return data


PLAIN_FIELDS = (
    "id key reason phase attempts crashes first_attempt_at dead_lettered_at code_version"
).split()


def _message_as_json(message: Message) -> dict[str, Any]:
    data: dict[str, Any] = {
        "id": message.id,
        "headers": dict(message.headers),
        "queue": message.queue,
        "delivery_count": message.delivery_count,
        "redelivered": message.redelivered,
        "enqueued_at": message.enqueued_at,
    }
    try:
        data["body"] = message.body.decode()
    except UnicodeDecodeError:
        data["body_base64"] = b64encode(message.body).decode("ascii")
    return data
