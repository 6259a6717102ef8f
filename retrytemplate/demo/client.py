"""The client of the service: the class of an error names its cause."""

from __future__ import annotations

import json
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from http.client import HTTPMessage

    from retrytemplate.demo.orders import Order


class PricingError(Exception):
    """The service rejected the request; a retry would be rejected too."""


class ServiceUnavailable(PricingError):
    """Status 503.  ``headers`` may have a ``Retry-After``."""

    def __init__(self, message: str, headers: HTTPMessage) -> None:
        super().__init__(message)
        self.headers = headers


class PricingClient:
    """One connection, kept alive between calls and reopened after a failure.

    :param timeout: limit of one response in seconds; a longer one raises ``TimeoutError``.
    """

    def __init__(self, host: str, port: int, timeout: float = 0.5) -> None:
        self._connection = HTTPConnection(host, port, timeout=timeout)

    def price(self, order: Order, key: str) -> int:
        """The order's price in cents.  *key* identifies the item in all its attempts."""
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
            self._connection.close()  # a late response would be read as that of the next request
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
