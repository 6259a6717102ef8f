"""The main job of ``retrytemplate demo``: a real file, a real HTTP service, a real database."""

from __future__ import annotations

from retrytemplate.demo.client import PricingClient, PricingError, ServiceUnavailable
from retrytemplate.demo.job import Job, Report, StopWatch, Tally
from retrytemplate.demo.orders import (
    InvalidOrder,
    Line,
    NotAnOrdersFile,
    Order,
    OrdersFile,
    shipped,
)
from retrytemplate.demo.service import PricingService
from retrytemplate.demo.tables import DatabaseRefused, Tables

__all__ = [
    "DatabaseRefused",
    "InvalidOrder",
    "Job",
    "Line",
    "NotAnOrdersFile",
    "Order",
    "OrdersFile",
    "PricingClient",
    "PricingError",
    "PricingService",
    "Report",
    "ServiceUnavailable",
    "StopWatch",
    "Tables",
    "Tally",
    "shipped",
]
