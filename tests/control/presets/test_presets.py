"""Settings by name: their values, changes and registration."""

import re
import ssl
import subprocess
import sys
import urllib.error
from datetime import timedelta
from pathlib import Path
from random import Random
from types import ModuleType

import attrs
import httpx
import pytest

from retrytemplate import (
    AttemptTimeout,
    AttemptTimeoutError,
    DeadlineExceededError,
    ExponentialBackoff,
    Guard,
    IdempotencyRequiredError,
    KillSwitchActiveError,
    MisuseError,
    NoBackoff,
    Rejected,
    RetryBudgetExhaustedError,
    RetryTemplate,
    SimpleRetryPolicy,
    control,
)
from retrytemplate.control import (
    FAST_IO,
    HTTPX,
    OPENAI,
    POSTGRESQL,
    PRESETS,
    SLOW_IO,
    STREAMING,
    Pipeline,
    Preset,
    RetryBudget,
    StreamTimeout,
    Timeout,
    idempotency_key,
    preset,
    register,
)
from retrytemplate.control.presets import catalog
from retrytemplate.control.presets.jitter import AddedJitter
from retrytemplate.control.presets.preset import BY_REQUEST, PresetSettings
from retrytemplate.testing import BackoffConformance, ScriptedRandom, VirtualClock, run

SHIPPED = dict(PRESETS)
every_preset = pytest.mark.parametrize("name", sorted(SHIPPED))


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture(autouse=True)
def only_what_is_shipped():
    """Remove registered presets before and after a test."""
    before = dict(catalog._known)
    catalog._known.clear()
    catalog._known.update(SHIPPED)
    yield
    catalog._known.clear()
    catalog._known.update(before)


def raising(failure):
    raise failure


def rejected(status, **headers):
    error = urllib.error.HTTPError("/", status, "no", headers, None)
    error.close()
    return error


# The numbers of FAST_IO.


@pytest.mark.statement("S0-02")
def test_fast_io_has_the_documented_numbers():
    assert FAST_IO.max_attempts == 3
    assert FAST_IO.attempt_timeout == 2.0
    assert (FAST_IO.initial, FAST_IO.maximum, FAST_IO.multiplier) == (0.2, 2.0, 2.0)
    assert FAST_IO.jitter == 0.1
    assert FAST_IO.retry_on == (TimeoutError, OSError)
    assert Preset("fast-io") == FAST_IO


@pytest.mark.statement("S0-02")
@pytest.mark.parametrize(("drawn", "waits"), [(0.0, [0.2, 0.4]), (0.5, [0.25, 0.45])])
def test_template_without_arguments_uses_fast_io(clock, drawn, waits):
    template = FAST_IO.template(clock=clock, random=ScriptedRandom([drawn] * 2))
    assert template.attempt_timeout.seconds == 2.0
    assert template.outcome(raising, TimeoutError()).attempts == 3
    assert clock.sleeps == pytest.approx(waits)


@pytest.mark.statement("S0-02")
@pytest.mark.parametrize(
    ("failure", "attempts"),
    [(TimeoutError(), 3), (ConnectionResetError(), 3), (OSError(), 3), (ValueError(), 1)],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else str(each),
)
def test_fast_io_retries_timeouts_and_os_errors(clock, failure, attempts):
    assert FAST_IO.template(clock=clock).outcome(raising, failure).attempts == attempts


@pytest.mark.statement("S0-02")
def test_attempt_is_limited_to_two_seconds(clock):
    outcome = run(FAST_IO.template(clock=clock).outcome_async(clock.sleep_async, 2.1), clock=clock)
    assert (outcome.attempts, type(outcome.exception).__name__) == (3, "AttemptTimeoutError")


def test_late_synchronous_charge_is_made_once(clock):
    charges = []

    def charge():
        charges.append("charge")
        clock.advance(2.1)
        return "paid"

    assert FAST_IO.template(clock=clock).call(charge) == "paid"
    assert charges == ["charge"]


@pytest.mark.parametrize(("method", "attempts"), [("GET", 4), ("PUT", 4), ("POST", 1)])
def test_httpx_retries_its_own_limit_where_a_call_may_be_repeated(clock, method, attempts):
    async def silent(request):
        await clock.sleep_async(3600.0)

    async def fetch():
        async with httpx.AsyncClient(transport=httpx.MockTransport(silent)) as client:
            await client.request(method, "http://shop.test/")

    outcome = run(HTTPX.template(clock=clock).outcome_async(fetch), clock=clock)
    assert (outcome.attempts, type(outcome.exception)) == (attempts, AttemptTimeoutError)


# HTTP statuses.


# By class the text of a status is not checked; to models 409 is a lock held by another client.
PASSING = {"fast-io": set(), "slow-io": set(), "openai": {408, 409, 425, 429}}


@pytest.mark.statement("S0-32")
@every_preset
def test_preset_retries_only_temporary_client_errors(clock, name):
    sure = preset(name).with_(idempotent=True, budget=False, strict=False)
    template = sure.template(clock=clock)
    attempts = {
        code: template.outcome(raising, rejected(code)).attempts for code in range(400, 500)
    }
    retried = {code for code, number in attempts.items() if number > 1}
    assert retried == PASSING.get(name, {408, 425, 429})


def test_retry_after_is_waited_for_up_to_a_limit(clock):
    template = FAST_IO.with_(give_up_above=10.0).template(clock=clock, random=ScriptedRandom([0.0]))
    failures = [rejected(503, **{"Retry-After": "7"}), rejected(503, **{"Retry-After": "11"})]
    outcome = template.outcome(lambda: raising(failures.pop(0)))
    assert (outcome.attempts, clock.sleeps) == (2, [7.0])


def test_shorter_backoff_does_not_precede_retry_after(clock):
    template = FAST_IO.with_(give_up_above=10.0).template(clock=clock).with_(backoff=NoBackoff())
    outcome = template.outcome(raising, rejected(503, **{"Retry-After": "7"}))
    assert isinstance(outcome.exception, Rejected)


# Field by field.


@pytest.mark.statement("S0-61")
@pytest.mark.parametrize(
    ("change", "value"),
    [
        ("name", "ledger"),
        ("retry_on", (ConnectionError,)),
        ("max_attempts", 7),
        ("attempt_timeout", 3.0),
        ("initial", 0.3),
        ("multiplier", 3.0),
        ("maximum", 9.0),
        ("jitter", "full"),
        ("give_up_above", None),
        ("idempotent", True),
        ("budget", True),
        ("stream", StreamTimeout(first=5.0)),
    ],
)
def test_with_changes_one_field_and_keeps_the_others(change, value):
    names = [each.name for each in attrs.fields(Preset) if each.init]
    made = FAST_IO.with_(**{change: value})
    changed, usual = ({name: getattr(each, name) for name in names} for each in (made, FAST_IO))
    assert changed.pop(change) == value
    del usual[change]
    assert changed == usual


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        (FAST_IO, "<Preset 'fast-io': 3 attempts of up to 2 s, waits of 0.2 to 2 s>"),
        (HTTPX, "<Preset 'httpx': 4 attempts of up to 10 s, waits of 0.2 to 30 s>"),
        (OPENAI, "<Preset 'openai': 4 attempts, waits of 1 to 30 s>"),
        (
            FAST_IO.with_(name="mine", attempt_timeout=timedelta(seconds=3)),
            "<Preset 'mine': 3 attempts of up to 3 s, waits of 0.2 to 2 s>",
        ),
        (
            FAST_IO.with_(name="mine", attempt_timeout=AttemptTimeout(0.5, in_thread=True)),
            "<Preset 'mine': 3 attempts of up to 0.5 s, waits of 0.2 to 2 s>",
        ),
    ],
)
def test_repr_of_a_preset_shows_its_numbers_in_one_line(made, shown):
    assert repr(made) == shown


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: FAST_IO.with_(max_attemps=5),
            r"setting must be one of name, .*, got 'max_attemps'; did you mean 'max_attempts'\?$",
        ),
        (
            lambda: FAST_IO.template(nmae="orders"),
            r"setting must be one of cache, .*, got 'nmae'; did you mean 'name'\?$",
        ),
        (lambda: FAST_IO.template(zzz=1), "got 'zzz'$"),
    ],
)
def test_unknown_setting_of_a_preset_names_the_similar_one(use, message):
    with pytest.raises(TypeError, match=message):
        use()


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("fastio", "'strict'; did you mean 'fast-io'?"),
        ("HTTP_X", "'strict'; did you mean 'httpx'?"),
        ("zzz", "'strict'"),
    ],
)
def test_unknown_preset_names_the_similar_one(name, end):
    with pytest.raises(LookupError) as caught:
        preset(name)
    assert caught.value.args[0].endswith(end)


def test_settings_of_a_preset_are_its_parameters():
    assert set(PresetSettings.__annotations__) == {
        each.name for each in attrs.fields(Preset) if each.init
    }


def test_preset_is_frozen():
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        FAST_IO.max_attempts = 5


def test_times_may_be_timedeltas():
    made = FAST_IO.with_(
        initial=timedelta(seconds=1), maximum=timedelta(seconds=5), jitter=timedelta(seconds=1)
    )
    assert (made.initial, made.maximum, made.jitter) == (1.0, 5.0, 1.0)


def test_single_class_is_accepted_for_retry_on():
    assert FAST_IO.with_(retry_on=ConnectionError).retry_on == (ConnectionError,)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"name": " "}, TypeError, "name must be a non-blank str"),
        ({"retry_on": ()}, TypeError, "retry_on must be exception classes"),
        ({"retry_on": "OSError"}, TypeError, "retry_on must be exception classes"),
        ({"retry_on": KeyboardInterrupt}, ValueError, "never retried"),
        ({"max_attempts": 0}, ValueError, "max_attempts must be"),
        ({"attempt_timeout": 0}, ValueError, "attempt_timeout must be"),
        ({"initial": -1}, ValueError, "initial must be"),
        ({"multiplier": 0.5}, ValueError, "multiplier must be"),
        ({"maximum": -1}, ValueError, "maximum must be"),
        ({"maximum": -1, "jitter": None}, ValueError, "maximum must be"),
        ({"jitter": "some"}, ValueError, "jitter must be one of None, 'full'"),
        ({"jitter": -0.1}, ValueError, "jitter must be"),
        ({"jitter": True}, TypeError, "jitter must be"),
        ({"give_up_above": -1}, ValueError, "give_up_above must be"),
        (
            {"idempotent": "yes"},
            ValueError,
            "idempotent must be True, False, None, a function or 'by_request', got 'yes'",
        ),
        ({"idempotent": 1}, TypeError, "idempotent must be"),
        ({"budget": 0.2}, TypeError, "budget must be a RetryBudget"),
        ({"stream": 30.0}, TypeError, "stream must be a StreamTimeout"),
        ({"strict": 1}, TypeError, "strict must be"),
        ({"attempts": 5}, TypeError, "attempts"),
    ],
)
def test_wrong_settings_are_rejected_at_construction(change, error, message):
    with pytest.raises(error, match=message):
        FAST_IO.with_(**change)


# Templates.


def test_template_settings_are_passed_on(clock):
    template = SLOW_IO.template(name="reports", clock=clock, recovery=lambda context: "by mail")
    assert template.name == "reports"
    assert template.call(raising, TimeoutError()) == "by mail"


@every_preset
def test_preset_in_a_pipeline_has_a_worst_case_and_no_warnings(name):
    pipeline = Pipeline(Timeout(1000), preset(name).template())
    assert pipeline.worst_case(attempt_duration=30.0) < 1000
    assert pipeline.lint(attempt_duration=30.0) == ()


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("policy", SimpleRetryPolicy(5), "it is made of the preset's retry_on and max_attempts"),
        ("backoff", NoBackoff(), "it is made of the preset's initial, multiplier, maximum, jitter"),
        ("attempt_timeout", 3.0, "it is the preset's, which with_() changes, got 3.0"),
    ],
)
def test_setting_of_the_preset_is_rejected_in_template(setting, value, message):
    with pytest.raises(TypeError, match=re.escape(f"{setting} must be left out: {message}")):
        FAST_IO.template(**{setting: value})


def test_guards_of_the_caller_are_checked_first(clock):
    class Stopped(Guard):
        def admit(self, context):
            raise KillSwitchActiveError("stopped")

    budget = RetryBudget(ratio=1.0, min_per_second=0)
    template = FAST_IO.with_(budget=budget).template(guards=[Stopped()], clock=clock)
    assert isinstance(template.outcome(int, "1").exception, KillSwitchActiveError)
    assert budget.snapshot().available == 0  # the call was none


@pytest.mark.statement("S0-61")
def test_templates_of_one_preset_do_not_share_a_budget_unless_it_is_named(clock):
    own = [HTTPX.template(clock=clock).guards[-1] for _ in range(2)]
    assert own[0] is not own[1]
    shared = RetryBudget()
    named = HTTPX.with_(budget=shared)
    assert [named.template(clock=clock).guards[-1] for _ in range(2)] == [shared, shared]


def test_budget_of_a_preset_uses_the_clock_of_the_template(clock):
    made = HTTPX.with_(idempotent=True, max_attempts=1000, maximum=0.0, initial=0.0)
    template = made.template(clock=clock)
    assert isinstance(template.outcome(raising, OSError(104, "reset")).exception, Rejected)
    clock.advance(10)
    assert template.guards[-1].snapshot().available == 100


def test_empty_budget_allows_no_retry(clock):
    empty = RetryBudget.tokens(capacity=1, cost=1, clock=clock)
    empty.withdraw()
    outcome = FAST_IO.with_(budget=empty).template(clock=clock).outcome(raising, TimeoutError())
    assert isinstance(outcome.exception, RetryBudgetExhaustedError)


@pytest.mark.parametrize(
    ("idempotent", "attempts"),
    [(None, 3), (True, 3), (False, 1), (lambda context: context.name == "pay", 3)],
    ids=["not checked", "yes", "no", "a function"],
)
def test_call_that_is_not_idempotent_is_not_retried(clock, idempotent, attempts):
    template = FAST_IO.with_(idempotent=idempotent).template(name="pay", clock=clock)
    assert template.outcome(raising, TimeoutError()).attempts == attempts


def test_call_with_a_key_is_retried(clock):
    template = FAST_IO.with_(idempotent=False).template(clock=clock)

    def pay():
        idempotency_key()
        raise TimeoutError

    assert template.outcome(pay).attempts == 3
    rejection = template.outcome(raising, TimeoutError()).exception
    assert isinstance(rejection, IdempotencyRequiredError)


def test_waits_stay_below_the_maximum_and_keep_their_jitter():
    backoff = AddedJitter(ExponentialBackoff(0.2, 2.0, 2.0), 0.1, 2.0)
    state, waits = backoff.start(), []
    random = Random(1)
    for _ in range(12):
        wait, state = backoff.next(state, OSError(), random)
        waits.append(wait)
    assert max(waits) <= 2.0
    assert len(set(waits[5:])) == 7
    assert min(waits[5:]) >= 1.9


def test_jitter_longer_than_the_cap_is_the_whole_wait():
    backoff = AddedJitter(ExponentialBackoff(0.2), 5.0, 2.0)
    assert backoff.next(0.2, OSError(), ScriptedRandom([0.0]))[0] == 0.0
    assert backoff.next(0.2, OSError(), ScriptedRandom([0.5]))[0] == 1.0


def test_backoff_with_callable_numbers_is_read_again():
    settings = {"initial": 1.0}
    backoff = AddedJitter(ExponentialBackoff(lambda: settings["initial"]), 0.0, 9.0)
    assert backoff.dynamic
    assert backoff.resolved().start() == 1.0
    settings["initial"] = 2.0
    assert backoff.resolved().start() == 2.0


class TestAddedJitter(BackoffConformance):
    def make(self):
        return AddedJitter(ExponentialBackoff(0.2, 2.0, 2.0), 0.1, 2.0)


# By name.


@pytest.mark.statement("S0-61")
@pytest.mark.parametrize("name", ["fast-io", "FAST_IO", "Fast_IO", " fast-io "])
def test_preset_is_found_by_its_name(name):
    assert preset(name) is FAST_IO


@pytest.mark.statement("S0-61")
@every_preset
def test_each_preset_has_a_constant_of_its_name(name):
    constant = name.upper().replace("-", "_")
    assert PRESETS[name].name == name
    assert preset(constant) is getattr(control, constant) is PRESETS[name]


@pytest.mark.statement("S0-61")
def test_unknown_name_is_rejected_with_the_known_names():
    with pytest.raises(LookupError, match="no preset 'fast'; there are 'aiohttp', 'fast-io', "):
        preset("fast")
    with pytest.raises(TypeError, match="name must be a non-blank str"):
        preset(None)


@pytest.mark.statement("S0-61")
def test_registered_preset_is_found_by_name():
    ledger = register(POSTGRESQL.with_(name="ledger", idempotent=True))
    assert preset("ledger") is PRESETS["ledger"] is ledger


@pytest.mark.statement("S0-61")
def test_registered_name_is_replaced_only_on_request():
    first = register(FAST_IO.with_(name="Ledger_DB"))
    with pytest.raises(ValueError, match="preset 'ledger-db' already exists"):
        register(SLOW_IO.with_(name="ledger-db"))
    assert preset("ledger-db") is first
    assert register(FAST_IO.with_(name="Ledger_DB")) is first  # the same, once more
    second = register(SLOW_IO.with_(name="ledger-db"), replace=True)
    assert preset("ledger-db") is second


@pytest.mark.parametrize("replace", ["yes", 1, None])
def test_replace_that_is_not_a_bool_is_rejected(replace):
    with pytest.raises(TypeError, match=f"replace must be True or False, got {replace!r}"):
        register(SLOW_IO.with_(name="fast-io"), replace=replace)
    assert preset("fast-io") is FAST_IO


def test_presets_with_equal_stream_limits_are_equal():
    talks = [OPENAI.with_(name="talk", stream=StreamTimeout(first=5.0)) for _ in range(2)]
    assert register(talks[0]) is register(talks[1])
    with pytest.raises(ValueError, match="preset 'talk' already exists"):
        register(OPENAI.with_(name="talk", stream=StreamTimeout(first=6.0)))


def test_register_requires_a_preset():
    with pytest.raises(TypeError, match="takes a Preset"):
        register(RetryTemplate())
    with pytest.raises(TypeError):
        PRESETS["mine"] = FAST_IO


@pytest.mark.statement("S4-13")
def test_streaming_preset_gives_the_first_item_more_time():
    limits = STREAMING.stream
    assert limits.first > limits.between
    assert limits.total is None
    assert OPENAI.stream == limits


@pytest.mark.statement("S4-13")
def test_stream_limits_of_a_preset_apply_to_its_stream(clock):
    def tokens():
        yield "Once"
        clock.advance(2.0)
        yield "upon"

    hasty = STREAMING.with_(stream=StreamTimeout(between=1.0, clock=clock))
    items = hasty.over(tokens())
    assert next(items) == "Once"
    with pytest.raises(DeadlineExceededError) as late:
        next(items)
    assert late.value.kind == "next item"


def test_preset_without_stream_limits_rejects_streams():
    with pytest.raises(
        MisuseError, match=r"'fast-io' has no stream timeouts; set them: with_\(stream="
    ):
        FAST_IO.over(["Once", "upon"])


@pytest.mark.parametrize("name", ["streaming", "openai"])
def test_stream_is_restarted_until_its_first_item(clock, name):
    begun = []

    async def answer():
        begun.append(len(begun))
        if len(begun) == 1:
            await clock.sleep_async(31)
        yield "Once"
        await clock.sleep_async(16)
        yield "upon"

    made = preset(name).with_(stream=StreamTimeout(clock=clock))

    @made.template(clock=clock).wrap
    async def tokens():
        async for token in made.over(answer()):
            yield token

    async def main():
        items = []
        with pytest.raises(DeadlineExceededError) as late:
            async for token in tokens():
                items.append(token)
        return items, late.value.kind

    assert run(main(), clock=clock) == (["Once"], "next item")
    assert len(begun) == 2


def test_request_deadline_does_not_restart_the_stream(clock):
    template = preset("streaming").template(clock=clock)
    late = DeadlineExceededError("late", kind="request")
    assert template.outcome(raising, late).attempts == 1
    assert FAST_IO.template(clock=clock).outcome(raising, late).attempts == 1


def test_group_is_retryable_only_if_every_member_is(clock):
    template = OPENAI.template(clock=clock)
    late = DeadlineExceededError("late", kind="first item")
    assert template.outcome(raising, ExceptionGroup("both", [late, TimeoutError()])).attempts == 4
    assert template.outcome(raising, ExceptionGroup("both", [late, ValueError()])).attempts == 1


def test_untrusted_certificate_is_not_retried(clock):
    distrusted = ConnectionError("no connection")
    distrusted.__cause__ = ssl.SSLCertVerificationError(1, "self-signed")
    for made in (OPENAI, HTTPX.with_(idempotent=True)):
        assert made.template(clock=clock).outcome(raising, distrusted).attempts == 1


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("openai", "groq"),
        ("redis", "redis.exceptions"),
        ("httpx", "httpx"),
        ("requests", "urllib3.exceptions"),
    ],
)
def test_module_without_the_expected_names_changes_nothing(clock, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, ModuleType(module))
    template = preset(name).with_(idempotent=True).template(clock=clock)
    assert template.outcome(raising, ConnectionRefusedError()).attempts == 4
    assert preset(name).template(clock=clock).outcome(raising, ValueError()).attempts == 1


@pytest.mark.statement("S4-21")
@pytest.mark.parametrize("package", ["anthropic", "groq"])
def test_sdks_that_are_made_like_openai_s_are_known_by_the_same_name(clock, monkeypatch, package):
    module, failure = ModuleType(package), type("APIConnectionError", (Exception,), {})
    module.APIConnectionError = failure
    monkeypatch.setitem(sys.modules, package, module)
    assert OPENAI.template(clock=clock).outcome(raising, failure("no connection")).attempts == 4


@pytest.mark.statement("S4-21")
def test_preset_does_not_import_its_library():
    libraries = {"httpx", "requests", "aiohttp", "sqlalchemy", "psycopg", "redis", "openai"}
    code = (
        "import sys; from retrytemplate.control import PRESETS\n"
        "[each.template().outcome(lambda: 1 / 0) for each in PRESETS.values()]\n"
        f"print(sorted({libraries!r} & sys.modules.keys()))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip() == "[]"


# The page.


MADE_TWICE = {None: "not checked", True: "yes", False: "only with a key", BY_REQUEST: BY_REQUEST}


def row(made):
    """The row of a preset in the table of the page, without its purpose."""
    jitter = made.jitter if isinstance(made.jitter, str) else f"up to {made.jitter} s"
    cells = (
        f"`{made.name}`",
        made.max_attempts,
        made.attempt_timeout or "none",
        f"{made.initial}, doubled, up to {made.maximum}",
        jitter,
        made.give_up_above,
        MADE_TWICE[made.idempotent],
        "yes" if made.budget else "no",
    )
    return [str(cell) for cell in cells]


def test_table_of_the_page_equals_the_code():
    page = Path(__file__).resolve().parents[3] / "docs" / "control" / "presets.md"
    found = re.search(r"<!-- presets -->\n\|.*\n\|[-|]+\n((?:\|.*\n)+)", page.read_text("utf-8"))
    rows = [line.strip("| ").split(" | ") for line in found[1].splitlines()]
    assert [[name, *cells] for name, _, *cells in rows] == [
        row(PRESETS[name.strip("`")]) for name, *_ in rows
    ]
    assert len(rows) == len(PRESETS)
    assert all(made.multiplier == 2.0 for made in PRESETS.values())
