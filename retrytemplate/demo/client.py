"""The service's client: it says what went wrong by the class of its errors."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from http.client import HTTPMessage

    from retrytemplate.demo.orders import Order

__all__ = ["PricingClient", "PricingError", "ServiceUnavailable"]


class PricingError(Exception):
    """The service refuses; it would say the same again."""


class ServiceUnavailable(PricingError):
    """A 503: not now.  ``headers`` may say when (``Retry-After``)."""

    def __init__(self, message: str, headers: HTTPMessage) -> None:
        super().__init__(message)
        self.headers = headers


class PricingClient:
    """One connection, kept alive from call to call and opened anew after a failure.

    :param timeout: how long to wait for an answer (seconds); then a ``TimeoutError``.
    """

    def __init__(self, host: str, port: int, timeout: float = 0.5) -> None:
        self._connection = HTTPConnection(host, port, timeout=timeout)

    def price(self, order: Order, key: str) -> int:
        """The order's price in cents.  *key* says which item asks, the same at every attempt."""
        question = json.dumps({"sku": order.sku, "quantity": order.quantity})
        status, headers, answer = self._exchange(question, {"Idempotency-Key": key})
        if status == 503:
            raise ServiceUnavailable(f"503: {answer['error']}", headers)
        if status != 200:
            raise PricingError(f"{status}: {answer['error']}")
        cents: int = answer["cents"]
        return cents

    def _exchange(self, body: str, headers: dict[str, str]) -> tuple[int, HTTPMessage, Any]:
        try:
            self._connection.request("POST", "/prices", body, headers)
            response = self._connection.getresponse()
            return response.status, response.headers, json.loads(response.read())
        except (OSError, HTTPException, ValueError):
            self._connection.close()  # what comes later on it would answer the wrong question
            raise

    def close(self) -> None:
        """Hang up."""
        self._connection.close()
