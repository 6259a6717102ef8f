"""The explanation of a pipeline: text, warnings and worst case."""

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    AlwaysRetryPolicy,
    AttemptTimeout,
    CircuitOpenError,
    ExponentialBackoff,
    FixedBackoff,
    NoBackoff,
    PredicateRetryPolicy,
    Rejected,
    ResultRetryPolicy,
    RetryAfterBackoff,
    RetryTemplate,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
)
from retrytemplate.control import (
    Bulkhead,
    Calls,
    CircuitBreaker,
    Consecutive,
    Fallback,
    Hedge,
    KillSwitch,
    LintWarning,
    NestedRetries,
    Operations,
    Pipeline,
    Quantile,
    RetryBudget,
    Seconds,
    ServiceErrors,
    Timeout,
)
from retrytemplate.simulation import worst_case
from retrytemplate.testing import VirtualClock, run

JITTER = ExponentialBackoff(0.2, jitter="full")


class Down(Exception):
    """The error of the other side."""


def cached():
    """Replaces a failed result."""


def default():
    """Returns a value when all other functions fail."""


def template(attempts=3, backoff=JITTER, **settings):
    return RetryTemplate(SimpleRetryPolicy(attempts, retry_on=Down), backoff, **settings)


def breaker(**settings):
    return CircuitBreaker("service", **settings)


def bulkhead(**settings):
    return Bulkhead("service", **settings)


def hedge(delay=0.05, **settings):
    return Hedge(delay, idempotent=True, **settings)


class Own:
    """A user's own strategy."""

    def call(self, fn, /, *args, **kwargs):
        return fn(*args, **kwargs)

    async def call_async(self, fn, /, *args, **kwargs):
        return await fn(*args, **kwargs)

    def wrap(self, fn):
        return fn

    def __repr__(self):
        return "Own(strategy=1)"


def rules(*layers, **known):
    return [each.rule for each in Pipeline(*layers).lint(**known)]


def output(*layers, **known):
    """The explanation of the layers."""
    lines = Pipeline(*layers).explain(**known).splitlines()
    return [line.partition(": ")[2] for line in lines if line.startswith("  ") and line[2] != "-"]


# -- in words --------------------------------------------------------------------------------------


def test_good_pipeline_is_explained_in_order_without_warnings():
    pipeline = Pipeline(Timeout(2.0), template(4), breaker(), bulkhead(), name="charge")
    assert pipeline.explain() == (
        "Pipeline 'charge', the outermost first:\n"
        "  1. Timeout 'request': asynchronous calls are cancelled after 2 s; synchronous calls run "
        "to their end\n"
        "  2. RetryTemplate: up to 4 attempts, after Down; waiting up to 0.2, 0.4, 0.8 s\n"
        "  3. CircuitBreaker 'service': after 30% failures in the last 50 calls, among 10 calls at "
        "least, calls are rejected for 30 s or slightly longer; then 3 trial calls at once: 3 that "
        "succeed close it\n"
        "  4. Bulkhead 'service': 50 calls at once, 100 more wait up to 1 s\n"
        "At most 4 calls of the function: 2 s in all if it is asynchronous, unbounded if it is "
        "synchronous.\n"
        "No warnings."
    )
    assert pipeline.lint() == ()


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (
            Timeout(0.5, on_timeout=None, on_late_result="discard"),
            "asynchronous calls are cancelled after 0.5 s, and on_timeout gives the value; "
            "synchronous calls run to their end, and a late value is discarded",
        ),
        (template(1), "one attempt"),
        (
            template(1, attempt_timeout=AttemptTimeout(0.8, on_late_result="discard")),
            "one attempt; asynchronous attempts are cancelled after 0.8 s, late values discarded",
        ),
        (
            template(1, attempt_timeout=AttemptTimeout(0.8, in_thread=True)),
            "one attempt; each attempt is cancelled or abandoned after 0.8 s",
        ),
        (
            RetryTemplate(SimpleRetryPolicy(9, retry_on=(OSError, KeyError), not_on=EOFError)),
            "up to 9 attempts, after OSError or KeyError, not after EOFError; without a wait",
        ),
        (RetryTemplate(), "up to 3 attempts, after every Exception; without a wait"),
        (
            template(9, FixedBackoff(2), attempt_timeout=0.8, guards=[RetryBudget(name="all")]),
            "up to 9 attempts, after Down; waiting 2, 2, 2 s ...; asynchronous attempts are "
            "cancelled after 0.8 s; guarded by RetryBudget 'all'",
        ),
        (
            RetryTemplate(TimeoutRetryPolicy(9), FixedBackoff(2)).bind(recovery=lambda context: 1),
            "attempts without a limit, by TimeoutRetryPolicy(timeout=9); waiting 2, 2, 2 s ...; "
            "then the recovery",
        ),
        (
            template(3, RetryAfterBackoff(FixedBackoff(2), give_up_above=60)),
            "up to 3 attempts, after Down; waiting as long as the other side asks up to 60 s, else "
            "2, 2 s",
        ),
        (
            breaker(window=Consecutive(5), slow_call=2.0, half_open_calls=1, required_successes=1),
            "after 5 consecutive failures or calls slower than 2 s calls are rejected for 30 s or "
            "slightly longer; then 1 trial call at once: 1 that succeed close it",
        ),
        (
            breaker(window=Seconds(60), slow_call=2.0, slow_rate=0.5),
            "after 30% failures in the last 60 s, among 10 calls at least, or 50% of calls slower "
            "than 2 s calls are rejected for 30 s or slightly longer; then 3 trial calls at once: "
            "3 that succeed close it",
        ),
        (bulkhead(limit=1, queue=0, per_key=1), "1 call at once, 1 of each key, none waits"),
        (Fallback(cached), "where the call fails, cached answers"),
        (Fallback(cached, default), "where the call fails, cached, default answer in turn"),
        (
            hedge(max_hedges=2),
            "a call that takes longer than 0.05 s is made again, at most 2 times; "
            "the first result counts",
        ),
        (
            hedge(Quantile(0.95)),
            "a call that takes longer than 95% of the calls is made again, at most 1 time; "
            "the first result counts",
        ),
        (
            Operations().idempotent(key=lambda order: order),
            "each operation happens once; from then on its result is given",
        ),
        (ServiceErrors({}), "timeouts become errors of the service"),
        (Own(), "Own(strategy=1)"),
    ],
)
def test_layer_is_described_with_its_numbers(layer, words):
    assert output(Timeout(60.0), layer)[1] == words


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (SimpleRetryPolicy(lambda: 7, retry_on=Down), "up to 7 attempts, after Down"),
        (AlwaysRetryPolicy(), "attempts without a limit"),
        (
            ResultRetryPolicy(bool, SimpleRetryPolicy(2)),
            "up to 2 attempts, by ResultRetryPolicy(retry_if=<class 'bool'>, policy=",
        ),
    ],
)
def test_policy_is_described_with_its_present_numbers(policy, words):
    assert output(Timeout(60.0), RetryTemplate(policy))[1].startswith(words)


def test_backoff_that_raises_is_described_by_its_repr():
    def by_status(failures, error):
        return error.status

    (words,) = output(template(3, FixedBackoff(by_status)))
    assert "waiting as FixedBackoff(delay=<function" in words
    assert "no-jitter" not in rules(Timeout(2.0), template(3, FixedBackoff(by_status)))


def test_warnings_are_listed_with_reason_and_remedy():
    pipeline = Pipeline(Timeout(9.0), breaker(), template())
    assert pipeline.explain().endswith(
        "\nWarnings:\n"
        "  - breaker-outside-retry: to CircuitBreaker 'service' all attempts of RetryTemplate are "
        "one call: it counts failures late, and when it opens, running attempts continue. Put the "
        "breaker inside of the template."
    )
    (remark,) = pipeline.lint()
    assert isinstance(remark, LintWarning)
    assert remark.remedy == "Put the breaker inside of the template"


# -- warnings --------------------------------------------------------------------------------------

LIMIT = Timeout(60.0)


@pytest.mark.parametrize(
    ("rule", "wrong", "right"),
    [
        ("unbounded-retry", [template()], [LIMIT, template()]),
        ("unbounded-retry", [template()], [template(attempt_timeout=1.0)]),
        ("unbounded-retry", [template()], [template(1)]),
        (
            "unbounded-retry",
            [RetryTemplate(TimeoutRetryPolicy(9), JITTER)],
            [RetryTemplate(TimeoutRetryPolicy(9), JITTER, attempt_timeout=1.0)],
        ),
        ("timeout-inside-only", [template(), LIMIT], [Timeout(99.0), template(), Timeout(1.0)]),
        ("limit-never-reached", [LIMIT, template(), Timeout(60.0)], [LIMIT, Timeout(59.0)]),
        (
            "limit-never-reached",
            [LIMIT, template(attempt_timeout=70.0)],
            [LIMIT, template(attempt_timeout=7.0)],
        ),
        (
            "worst-case-exceeds-timeout",
            [LIMIT, template(3, attempt_timeout=20.0)],
            [LIMIT, template(2, attempt_timeout=20.0)],
        ),
        (
            "worst-case-exceeds-timeout",
            [Timeout(2.0), template(3, FixedBackoff(1.5))],
            [Timeout(2.0), template(3, FixedBackoff(1.0)), bulkhead()],
        ),
        ("breaker-outside-retry", [LIMIT, breaker(), template()], [LIMIT, template(), breaker()]),
        ("breaker-outside-retry", [LIMIT, breaker(), template()], [LIMIT, breaker(), template(1)]),
        (
            "bulkhead-outside-retry",
            [LIMIT, bulkhead(), template()],
            [LIMIT, template(), bulkhead()],
        ),
        (
            "bulkhead-outside-retry",
            [LIMIT, bulkhead(), template()],
            [LIMIT, bulkhead(), template(3, NoBackoff())],
        ),
        ("hedge-outside-retry", [LIMIT, hedge(), template()], [LIMIT, template(), hedge()]),
        ("hedge-outside-retry", [LIMIT, hedge(), template()], [LIMIT, hedge(), template(1)]),
        ("nested-retries", [LIMIT, template(), template()], [LIMIT, template(), template(1)]),
        (
            "nested-retries",
            [LIMIT, template(), template(guards=[NestedRetries("report")])],
            [LIMIT, template(), template(guards=[NestedRetries()])],
        ),
        (
            "fallback-inside-retry",
            [LIMIT, template(), Fallback(cached)],
            [LIMIT, Fallback(cached), template()],
        ),
        ("no-jitter", [LIMIT, template(3, FixedBackoff(1))], [LIMIT, template()]),
        ("no-jitter", [LIMIT, template(3, NoBackoff())], [LIMIT, template(1, NoBackoff())]),
        (
            "retries-all-exceptions",
            [LIMIT, RetryTemplate(SimpleRetryPolicy(3), JITTER)],
            [LIMIT, template()],
        ),
        (
            "retries-all-exceptions",
            [LIMIT, RetryTemplate(AlwaysRetryPolicy(), JITTER)],
            [LIMIT, RetryTemplate(PredicateRetryPolicy(lambda error: error.status == 503), JITTER)],
        ),
    ],
)
def test_rule_warns_of_wrong_pipelines_only(rule, wrong, right):
    assert rule in rules(*wrong)
    assert rule not in rules(*right)


def reason(rule, *layers, **known):
    (remark,) = [each for each in Pipeline(*layers).lint(**known) if each.rule == rule]
    return remark.reason


def test_nested_retries_are_warned_of_with_their_product():
    assert reason("nested-retries", LIMIT, template(3), template(4)).endswith(
        "3 x 4, that is 12 calls for one"
    )
    endless = RetryTemplate(TimeoutRetryPolicy(9), JITTER)
    assert "any number x 3, that is any number of calls" in reason(
        "nested-retries", LIMIT, endless, template(3)
    )


def test_hedge_of_retries_is_warned_of_with_its_number_of_calls():
    assert "6 calls for one" in reason("hedge-outside-retry", LIMIT, hedge(), template(3))


def test_inner_timeout_only_is_warned_of_with_the_total():
    several = template(3, FixedBackoff(1.5)).with_(name="several")
    assert "to 2 s, but all attempts of RetryTemplate 'several' together may take 9 s" in reason(
        "timeout-inside-only", several, Timeout(2.0)
    )


def test_inner_timeout_of_nested_retries_is_that_of_the_inner_one():
    inner, outer = (template(3, FixedBackoff(1.5)).with_(name=name) for name in ("inner", "outer"))
    assert reason("timeout-inside-only", outer, inner, Timeout(2.0)) == (
        "Timeout 'request' limits each attempt of RetryTemplate 'inner' to 2 s, but all attempts "
        "of RetryTemplate 'outer' together may take 30 s"
    )


def test_attempt_duration_is_part_of_the_warnings():
    assert rules(template(), attempt_duration=1.0) == []
    assert "may take 66.6 s" in reason(
        "worst-case-exceeds-timeout", LIMIT, template(3), attempt_duration=22.0
    )


@pytest.mark.statement("S3-21")
@pytest.mark.parametrize("backoff", [FixedBackoff(1.0), ExponentialBackoff(0.1), NoBackoff()])
def test_retry_without_jitter_is_warned_of(backoff):
    assert "callers that fail at the same time retry at the same time" in reason(
        "no-jitter", LIMIT, template(3, backoff)
    )


@pytest.mark.statement("S3-20")
def test_retry_on_every_error_is_warned_of():
    everything = [SimpleRetryPolicy(3), SimpleRetryPolicy(3, not_on=KeyError)]
    for policy in everything:
        assert "whatever is raised" in reason(
            "retries-all-exceptions", LIMIT, RetryTemplate(policy, JITTER)
        )


@pytest.mark.statement("S4-35")
@pytest.mark.parametrize(
    ("settings", "fails"),
    [
        ({"window": Consecutive(2)}, "2 failures open it"),
        ({"window": Calls(2), "minimum_calls": 2, "failure_rate": 0.5}, "1 failure open it"),
        ({"minimum_calls": 4, "failure_rate": 0.5}, "2 failures open it"),
        ({"window": Consecutive(3)}, "3 consecutive failures, open it"),
        ({"window": Consecutive(4)}, None),
        ({}, None),
    ],
)
def test_breaker_opened_by_ordinary_noise_is_too_sensitive(settings, fails):
    layers = LIMIT, template(3), breaker(**settings)
    if fails is None:
        assert rules(*layers) == []
    else:
        words = reason("breaker-too-sensitive", *layers)
        assert "is too sensitive" in words
        assert fails in words


@pytest.mark.statement("S4-94")
def test_retry_of_rejections_is_warned_of_unless_it_waits_for_retry_after():
    blind = RetryTemplate(SimpleRetryPolicy(3, retry_on=(Down, CircuitOpenError)), JITTER)
    patient = blind.with_(backoff=RetryAfterBackoff(JITTER))
    by_predicate = blind.with_(policy=PredicateRetryPolicy(lambda error: True))
    assert "CircuitBreaker 'service' rejects a call" in reason(
        "rejections-retried", LIMIT, blind, breaker()
    )
    assert "rejections-retried" not in rules(LIMIT, patient, breaker())
    assert "rejections-retried" not in rules(LIMIT, by_predicate, breaker())
    any_refusal = RetryTemplate(SimpleRetryPolicy(3, retry_on=Rejected), JITTER)
    assert rules(LIMIT, any_refusal, bulkhead()) == ["rejections-retried"]


# -- worst case ------------------------------------------------------------------------------------


@pytest.mark.statement("S1-38")
def test_worst_case_is_computed_from_settings_and_compared():
    policy, backoff = SimpleRetryPolicy(3, retry_on=Down), ExponentialBackoff(0.5, jitter="full")
    assert worst_case(policy, backoff, attempt_duration=1.0).duration == pytest.approx(4.5)
    limited = RetryTemplate(policy, backoff, attempt_timeout=1.0)
    assert Pipeline(limited).worst_case() == pytest.approx(4.5)
    assert rules(Timeout(4.0), limited) == ["worst-case-exceeds-timeout"]
    assert rules(Timeout(5.0), limited) == []


@pytest.mark.statement("S4-11")
def test_limits_of_the_parts_add_up_and_one_for_the_whole_cuts_the_sum():
    clock = VirtualClock()
    policy = SimpleRetryPolicy(2, retry_on=TimeoutError)
    retry = RetryTemplate(policy, FixedBackoff(5.0), attempt_timeout=30.0, clock=clock)
    parts = (bulkhead(limit=1, max_wait=5.0), retry)
    whole = (Timeout(60.0, clock=clock), *parts)
    assert Pipeline(*parts).worst_case() == 5 + 30 + 5 + 30
    assert Pipeline(*whole).worst_case() == 60

    async def seconds(pipeline):
        began = clock.monotonic()
        await pipeline.outcome_async(clock.sleep_async, 10**6)
        return clock.monotonic() - began

    assert run(seconds(Pipeline(*parts)), clock=clock) == 30 + 5 + 30  # a slot was free
    assert run(seconds(Pipeline(*whole)), clock=clock) == 60


@pytest.mark.parametrize(
    ("layers", "known", "seconds"),
    [
        ([breaker()], None, inf),
        ([breaker()], 2.0, 2.0),
        ([Timeout(3.0), breaker()], None, 3.0),
        ([Timeout(3.0)], 2.0, 2.0),
        ([bulkhead(max_wait=1.5)], 2.0, 3.5),
        ([bulkhead(max_wait=1.5, queue=0)], 2.0, 2.0),
        ([template(3, FixedBackoff(1.0))], None, inf),
        ([template(3, FixedBackoff(1.0)), Timeout(2.0)], None, 8.0),
        ([template(3, FixedBackoff(1.0), attempt_timeout=2.0), Timeout(5.0)], None, 8.0),
        ([template(3, FixedBackoff(1.0)).bind()], 2.0, 8.0),
        ([template(2, FixedBackoff(1.0)), bulkhead(max_wait=1.5)], 2.0, 8.0),
        ([RetryTemplate(TimeoutRetryPolicy(9))], 2.0, 11.0),
        ([Fallback(cached, default)], 2.0, 6.0),
        ([Fallback(cached), Timeout(1.0)], None, inf),
        ([template(3, FixedBackoff(lambda failures, error: error.status))], 2.0, inf),
        ([hedge(0.5, max_hedges=2)], 2.0, 3.0),
        ([hedge(5.0, max_hedges=2)], 2.0, 6.0),
        ([hedge(Quantile(0.95))], 2.0, 4.0),
        ([hedge(0.5), Timeout(3.0)], None, 3.5),
        ([Operations().idempotent(key=lambda order: order), ServiceErrors({})], 2.0, 2.0),
        ([Own()], 2.0, inf),
        ([Timeout(3.0), Own()], 2.0, 3.0),
    ],
)
def test_worst_case_is_the_sum_of_the_layers(layers, known, seconds):
    assert Pipeline(*layers).worst_case(attempt_duration=known) == seconds


@pytest.mark.parametrize("known", [-1, "2", inf])
def test_wrong_duration_is_rejected(known):
    with pytest.raises((TypeError, ValueError), match="attempt_duration must be"):
        Pipeline(Timeout(2.0)).worst_case(attempt_duration=known)


def test_calls_are_counted_through_the_layers():
    lines = Pipeline(LIMIT, template(3), template(4), breaker()).explain()
    assert "At most 12 calls of the function: 60 s in all if it is asynchronous, " in lines
    assert "At most 6 calls" in Pipeline(LIMIT, template(3), hedge()).explain()
    once = template(4, guards=[NestedRetries(retries_by_depth=(None, 1))])
    assert "At most 8 calls" in Pipeline(LIMIT, once, once).explain()
    assert "At most any number of calls of the function: unbounded." in Pipeline(Own()).explain()


def test_explain_has_one_duration_when_both_kinds_take_it():
    words = Pipeline(Timeout(2.0), breaker()).explain(attempt_duration=0.2)
    assert "At most 1 call of the function: 0.2 s in all." in words


def test_timeout_shorter_than_its_only_call_is_warned_of_by_kind():
    (remark,) = Pipeline(Timeout(0.3)).lint(attempt_duration=1.5)
    assert remark.rule == "worst-case-exceeds-timeout"
    assert remark.reason.endswith(
        ": an asynchronous call is cancelled then, a synchronous one exceeds it"
    )


def test_infinite_limits_are_no_limits():
    endless = template(3, attempt_timeout=inf)
    words = Pipeline(Timeout(inf), endless).explain()
    assert "1. Timeout 'request': no limit\n" in words
    assert "cancelled" not in words
    assert "unbounded.\nWarnings:\n  - unbounded-retry: " in words
    with pytest.raises(ValueError, match="has no limit"):
        Pipeline(Timeout(inf), RetryTemplate(AlwaysRetryPolicy(), FixedBackoff(1.0)))


IN_THREAD = AttemptTimeout(1.0, in_thread=True)


@pytest.mark.parametrize(
    ("layers", "known", "seconds"),
    [
        ([Timeout(2.0)], None, inf),
        ([Timeout(2.0)], 0.25, 0.25),
        ([Timeout(2.0)], 3.0, 3.0),
        ([Timeout(2.0), template(9, FixedBackoff(0.5))], 1.5, 3.5),
        ([Timeout(2.0), template(2, FixedBackoff(0.5))], 0.5, 1.5),
        ([template(2, FixedBackoff(0.5), attempt_timeout=1.0)], 1.5, 3.5),
        ([template(2, FixedBackoff(0.5), attempt_timeout=1.0)], None, inf),
        ([template(2, FixedBackoff(0.5), attempt_timeout=IN_THREAD)], None, 2.5),
        ([Timeout(2.0), template(9, FixedBackoff(0.5), attempt_timeout=IN_THREAD)], None, 3.0),
        ([template(2, FixedBackoff(0.5), attempt_timeout=1.0), template(9)], 0.75, 4.0),
        ([Timeout(2.0), Fallback(cached), template(9, FixedBackoff(0.5))], 1.5, 5.0),
        ([Timeout(2.0), Own()], 1.5, inf),
    ],
)
def test_worst_case_of_synchronous_functions_exceeds_a_limit(layers, known, seconds):
    pipeline = Pipeline(*layers)
    assert pipeline.worst_case(attempt_duration=known, synchronous=True) == seconds


@pytest.mark.parametrize("synchronous", [None, 1, "yes"])
def test_worst_case_rejects_a_non_bool(synchronous):
    with pytest.raises(TypeError, match="synchronous must be True or False, got"):
        Pipeline(Timeout(2.0)).worst_case(synchronous=synchronous)


@given(
    seconds=st.sampled_from([0.5, 1.0, 1.5, 4.0]),
    limit=st.sampled_from([1.0, 2.25, 5.0]),
    attempt=st.sampled_from([None, 0.75, 2.0]),
    inner=st.booleans(),
)
def test_synchronous_call_takes_no_longer_than_its_worst_case(seconds, limit, attempt, inner):
    clock = VirtualClock()

    def fails():
        clock.advance(seconds)
        raise Down

    layers = [Timeout(limit, clock=clock)]
    layers += [template(3, FixedBackoff(0.5), attempt_timeout=attempt, clock=clock)]
    layers += [template(4, FixedBackoff(0.25), clock=clock)] * inner
    pipeline = Pipeline(*layers)
    pipeline.outcome(fails)
    worst = pipeline.worst_case(attempt_duration=seconds, synchronous=True)
    assert clock.monotonic() <= worst + 1e-9


# -- kill switches -------------------------------------------------------------------------------

SWITCH = KillSwitch().guard(segment="billing")


def test_switch_is_described_in_words():
    explained = Pipeline(Timeout(2.0), SWITCH).explain()
    assert (
        "2. SwitchGuard 'switch': no call, attempt, hedge or other answer while everything or "
        "segment 'billing' is stopped"
    ) in explained


def test_switch_takes_no_time_and_makes_no_calls():
    assert Pipeline(SWITCH).worst_case(attempt_duration=2.0) == 2.0
    assert "At most 1 call of the function" in Pipeline(SWITCH).explain()


def test_guard_of_a_switch_may_occur_twice():
    assert Pipeline(SWITCH, Bulkhead("llm", limit=3), SWITCH).call(int, "17") == 17


class Described(Own):
    """A strategy that describes itself: it calls the function twice and waits 0.5 s."""

    def describe(self):
        return "two calls, 0.5 s apart"

    def max_calls(self):
        return 2

    def worst_case(self, inside, call, late):
        return 2 * inside + 0.5


def test_explain_with_a_described_strategy_includes_its_numbers():
    pipeline = Pipeline(Described(), Bulkhead("b", queue=0))
    text = pipeline.explain(attempt_duration=1.0)
    assert "1. Described: two calls, 0.5 s apart" in text
    assert "At most 2 calls of the function: 2.5 s in all." in text


def test_worst_case_with_a_described_strategy_is_bounded():
    assert Pipeline(Described()).worst_case(attempt_duration=1.0) == 2.5
