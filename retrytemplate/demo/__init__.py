"""The main job of ``retrytemplate demo``: a real file, a real HTTP service, a real database."""

from __future__ import annotations

from retrytemplate.demo.client import PricingClient, PricingError, ServiceUnavailable
from retrytemplate.demo.flaky_service import PricingService
from retrytemplate.demo.job import DatabaseRefused, Job, Report, StopWatch, Tally
from retrytemplate.demo.orders import (
    InvalidOrder,
    Line,
    LineCodec,
    NotAnOrdersFile,
    Order,
    OrdersFile,
    shipped,
)

__all__ = [
    "DatabaseRefused",
    "InvalidOrder",
    "Job",
    "Line",
    "LineCodec",
    "NotAnOrdersFile",
    "Order",
    "OrdersFile",
    "PricingClient",
    "PricingError",
    "PricingService",
    "Report",
    "ServiceUnavailable",
    "StopWatch",
    "Tally",
    "shipped",
]
