# The types of the public names; __init__.py imports them on first use.

from retrytemplate.backoff.base import Backoff as Backoff
from retrytemplate.backoff.base import NoBackoff as NoBackoff
from retrytemplate.backoff.base import RandomSource as RandomSource
from retrytemplate.backoff.exponential import ExponentialBackoff as ExponentialBackoff
from retrytemplate.backoff.fixed import FixedBackoff as FixedBackoff
from retrytemplate.backoff.fixed import UniformRandomBackoff as UniformRandomBackoff
from retrytemplate.backoff.retry_after import RetryAfterBackoff as RetryAfterBackoff
