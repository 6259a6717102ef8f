"""The main job of ``retrytemplate demo``: a real file, a real HTTP service, a real database."""

from __future__ import annotations

from retrytemplate.demo.client import PricingClient, PricingError, ServiceUnavailable
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
from retrytemplate.demo.service import PricingService

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
