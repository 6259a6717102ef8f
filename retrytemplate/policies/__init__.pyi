# The types of the public names; __init__.py imports them on first use.

from retrytemplate.policies.base import RetryPolicy as RetryPolicy
from retrytemplate.policies.base import StatefulRetryPolicy as StatefulRetryPolicy
from retrytemplate.policies.basic import AlwaysRetryPolicy as AlwaysRetryPolicy
from retrytemplate.policies.basic import MaxAttemptsRetryPolicy as MaxAttemptsRetryPolicy
from retrytemplate.policies.basic import NeverRetryPolicy as NeverRetryPolicy
from retrytemplate.policies.basic import PredicateRetryPolicy as PredicateRetryPolicy
from retrytemplate.policies.basic import TimeoutRetryPolicy as TimeoutRetryPolicy
from retrytemplate.policies.circuit_breaker import (
    CircuitBreakerRetryPolicy as CircuitBreakerRetryPolicy,
)
from retrytemplate.policies.composite import CompositeRetryPolicy as CompositeRetryPolicy
from retrytemplate.policies.exception_classifier import (
    ExceptionClassifierRetryPolicy as ExceptionClassifierRetryPolicy,
)
from retrytemplate.policies.result import ResultRetryPolicy as ResultRetryPolicy
from retrytemplate.policies.simple import SimpleRetryPolicy as SimpleRetryPolicy
