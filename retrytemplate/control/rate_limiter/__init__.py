"""The rate limiter: a limit of calls per time."""
