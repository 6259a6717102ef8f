"""Policies and backoffs as text."""

from __future__ import annotations

import pytest

from retrytemplate import (
    AlwaysRetryPolicy,
    ExponentialBackoff,
    FixedBackoff,
    MaxAttemptsRetryPolicy,
    NeverRetryPolicy,
    NoBackoff,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    UniformRandomBackoff,
)
from retrytemplate.cli import specs
from retrytemplate.cli.errors import UsageError


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("simple", SimpleRetryPolicy()),
        ("simple:max_attempts=5", SimpleRetryPolicy(5)),
        ("simple:5", SimpleRetryPolicy(5)),
        ("max_attempts:7", MaxAttemptsRetryPolicy(7)),
        ("timeout:1.5", TimeoutRetryPolicy(1.5)),
        ("always", AlwaysRetryPolicy()),
        ("never", NeverRetryPolicy()),
        ("simple:5 & timeout:30", SimpleRetryPolicy(5) & TimeoutRetryPolicy(30.0)),
        (
            "never | always&timeout:1",
            NeverRetryPolicy() | (AlwaysRetryPolicy() & TimeoutRetryPolicy(1.0)),
        ),
    ],
)
def test_policy_is_made_from_its_text(text, made):
    assert specs.parse_policy(text) == made


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("none", NoBackoff()),
        ("fixed:0.5", FixedBackoff(0.5)),
        ("fixed: delay = 0.5", FixedBackoff(0.5)),
        ("uniform:minimum=1,maximum=2", UniformRandomBackoff(1.0, 2.0)),
        ("uniform:1,2", UniformRandomBackoff(1.0, 2.0)),
        ("exponential", ExponentialBackoff()),
        ("exponential:0.2,3,jitter=full", ExponentialBackoff(0.2, 3.0, jitter="full")),
        ("exponential:maximum=inf,jitter=none", ExponentialBackoff(maximum=float("inf"))),
    ],
)
def test_backoff_is_made_from_its_text(text, made):
    assert specs.parse_backoff(text) == made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is no policy ''; allowed: simple, max_attempts, timeout, always, never"),
        ("smiple:5", "there is no policy 'smiple'; allowed: simple, "),
        ("simple &", "there is no policy ''; allowed: "),
        ("simple:tries=5", "policy 'simple' cannot take 'tries=5'; allowed: max_attempts=N"),
        ("simple:5,6", "policy 'simple' cannot take '6'; allowed: max_attempts=N"),
        ("simple:max_attempts=1,max_attempts=2", "cannot take 'max_attempts=2'"),
        ("simple:,", "policy 'simple': max_attempts must be an integer of at least 1, got ''"),
        (
            "simple:five",
            "policy 'simple': max_attempts must be an integer of at least 1, got 'five'",
        ),
        ("simple:0", "policy 'simple': max_attempts must be an int >= 1, got 0"),
        ("never:1", "policy 'never' cannot take '1'; allowed: no settings"),
        ("timeout", "policy 'timeout' needs timeout; allowed: timeout=SECONDS"),
        ("timeout:-1", "policy 'timeout': timeout must be .* >= 0, got -1.0"),
        ("__import__:os", "there is no policy '__import__'"),
    ],
)
def test_invalid_policy_names_the_allowed_values(text, says):
    with pytest.raises(UsageError, match=says):
        specs.parse_policy(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("simple", "there is no backoff 'simple'; allowed: none, fixed, uniform, exponential"),
        ("fixed", "backoff 'fixed' needs delay; allowed: delay=SECONDS"),
        ("fixed:nan", "backoff 'fixed': delay must be .* got nan"),
        ("uniform:3,1", "backoff 'uniform': minimum must be .* got 3.0"),
        ("exponential:jitter=half", "backoff 'exponential': jitter must be one of .* got 'half'"),
    ],
)
def test_invalid_backoff_names_the_allowed_values(text, says):
    with pytest.raises(UsageError, match=says):
        specs.parse_backoff(text)


@pytest.mark.parametrize(
    ("kinds", "read"), [(specs.POLICIES, specs.parse_policy), (specs.BACKOFFS, specs.parse_backoff)]
)
def test_overview_names_every_kind_and_setting(kinds, read):
    lines = list(specs.describe_kinds(kinds))

    assert len(lines) == len(kinds)
    for line, (name, kind) in zip(lines, kinds.items(), strict=True):
        assert line.startswith(name)
        assert all(setting in line for setting in kind.settings)
