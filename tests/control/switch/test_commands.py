"""The commands of a kill switch, and its rejections."""

from datetime import timedelta

import pytest

from retrytemplate import (
    InconsistentKeyError,
    MisuseError,
    SwitchRefusedError,
    TriggerRefusedError,
    UnknownScopeError,
)
from retrytemplate.control import HUMAN, Automatic, KillSwitch, MemorySwitchStore
from retrytemplate.testing import VirtualClock
from retrytemplate.testing.clock import NEW_YEAR
from tests.control.switch.shared import REASON, stopped

WELL = {"by": "lee", "justification": "found and mended, see incident 9"}
SCOPES = [
    {"everything": True},
    {"segment": "billing"},
    {"feature": "export"},
    {"experiment": "blue"},
]
every_scope = pytest.mark.parametrize("scope", SCOPES, ids=[next(iter(each)) for each in SCOPES])


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def switch(clock):
    return KillSwitch(clock=clock)


# -- check ---------------------------------------------------------------------------------------

NAMES = {"segment": "billing", "feature": "export", "experiment": "blue"}


@every_scope
@pytest.mark.statement("S4-60")
def test_stopped_scope_is_not_allowed_and_has_a_reason(switch, scope):
    assert switch.check(**NAMES)
    stopped(switch, **scope)
    allowed, reason = switch.check(**NAMES)
    assert not allowed
    assert REASON in reason


@pytest.mark.statement("S4-60")
def test_scopes_are_checked_from_everything_to_experiment(switch):
    kinds = []
    for scope in reversed(SCOPES):
        stopped(switch, **scope)
    for scope in SCOPES:
        decision = switch.check(**NAMES)
        kinds.append((decision.scope, decision.name))
        switch.resume(**scope, **WELL, override=True)
    assert kinds == [
        ("global", None),
        ("segment", "billing"),
        ("feature", "export"),
        ("experiment", "blue"),
    ]
    assert switch.check(**NAMES)


def test_other_scopes_are_allowed(switch):
    stopped(switch, segment="billing")
    assert switch.check(segment="search", feature="billing")


def test_decision_is_a_boolean_and_a_pair(switch):
    stopped(switch)
    decision = switch.check(segment="billing")
    assert not decision
    assert tuple(decision) == (False, decision.reason)
    assert decision.entry.by == "kim"


@pytest.mark.parametrize("name", [17, "", " billing", "billing ", ["billing"], b"billing"])
@pytest.mark.parametrize("kind", ["segment", "feature", "experiment"])
def test_wrong_name_is_rejected_everywhere(switch, kind, name):
    for ask in (switch.check, switch.guard, lambda **scope: stopped(switch, **scope)):
        with pytest.raises(TypeError, match=f"{kind} must be a name"):
            ask(**{kind: name})
    assert switch.audit() == ()


NO_KEY = "^the key of a check must be a str, int, bytes, or a tuple of those, got "


@pytest.mark.parametrize("key", [1.5, ["user"], ("user", 1.5)], ids=["float", "list", "in a tuple"])
def test_wrong_key_is_rejected_although_nothing_is_stopped(switch, key):
    for ask in switch.check, switch.guard:
        with pytest.raises(InconsistentKeyError, match=NO_KEY):
            ask(key=key)


def test_key_that_is_too_large_is_rejected(switch):
    with pytest.raises(InconsistentKeyError, match="the key of a check is too large an int"):
        switch.check(key=10**5000)


def test_function_that_returns_a_wrong_key_is_rejected(canary):
    with pytest.raises(InconsistentKeyError, match=NO_KEY):
        canary.guard(segment="billing", key=lambda context: 1.5).call(int, "17")


def test_undeclared_name_is_rejected():
    switch = KillSwitch(scopes={"segment": ["billing", "search"], "feature": {"export"}})
    assert switch.check(segment="billing", feature="export")
    for ask in (switch.check, switch.guard, lambda **scope: stopped(switch, **scope)):
        with pytest.raises(UnknownScopeError, match="the segments declared are: 'billing', 'se"):
            ask(segment="biling")
        with pytest.raises(UnknownScopeError, match="the experiments declared are: none"):
            ask(experiment="blue")
    stopped(switch, everything=True)
    assert [str(each.scope) for each in switch.audit()] == ["everything"]


# -- stop ----------------------------------------------------------------------------------------


@pytest.mark.statement("S4-61")
def test_each_entry_has_its_reason_actor_and_time(switch, clock):
    switch.stop(segment="billing", reason="charged twice", by="kim", expires_in=60)
    clock.advance(10)
    switch.stop(feature="export", reason="wrong totals", by="lee", permanent=True)
    found = [(each.reason, each.by, each.since, each.until) for each in switch.snapshot().entries]
    assert found == [
        ("charged twice", "kim", NEW_YEAR, NEW_YEAR + 60),
        ("wrong totals", "lee", NEW_YEAR + 10, None),
    ]


@pytest.mark.parametrize("scope", [{}, {"everything": True, "segment": "a"}, {**NAMES}])
def test_stop_requires_exactly_one_scope(switch, scope):
    with pytest.raises(SwitchRefusedError, match="pass exactly one of"):
        switch.stop(reason=REASON, by="kim", permanent=True, **scope)


@pytest.mark.statement("S4-64")
def test_stop_without_an_end_is_rejected(switch):
    with pytest.raises(SwitchRefusedError, match=r"a stop needs an end: .*, got neither"):
        switch.stop(segment="billing", reason=REASON, by="kim")
    with pytest.raises(SwitchRefusedError, match="got both"):
        switch.stop(segment="billing", reason=REASON, by="kim", expires_in=60, permanent=True)
    assert switch.check(segment="billing")
    assert switch.audit() == ()


def test_permanent_stop_cannot_resume_by_itself(switch):
    with pytest.raises(SwitchRefusedError, match="a permanent stop never expires"):
        switch.stop(
            segment="billing", reason=REASON, by="kim", permanent=True, when_expired="resume"
        )
    assert switch.audit() == ()


@pytest.mark.parametrize("given", [{}, {"when_expired": None}, {"when_expired": "keep"}], ids=str)
def test_permanent_stop_accepts_keep(switch, given):
    switch.stop(segment="billing", reason=REASON, by="kim", permanent=True, **given)
    assert not switch.check(segment="billing")


@pytest.mark.parametrize(
    ("expires_in", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (float("inf"), ValueError),
        (float("nan"), ValueError),
        (1e12, ValueError),
        (10**400, ValueError),
        ("60", TypeError),
        (True, TypeError),
    ],
    ids=["none", "negative", "endless", "nan", "ages", "too large", "text", "bool"],
)
def test_wrong_end_is_rejected(switch, expires_in, error):
    with pytest.raises(error, match="expires_in must be"):
        switch.stop(segment="billing", reason=REASON, by="kim", expires_in=expires_in)


def test_expiry_can_be_a_timedelta(switch):
    record = switch.stop(segment="a", reason=REASON, by="kim", expires_in=timedelta(weeks=1))
    assert record.until - record.at == 604800


@pytest.mark.statement("S4-71")
@pytest.mark.parametrize(
    "reason",
    ["broken", "x" * 11, "broken        ", "", " " * 20],
)
def test_reason_below_minimum_length_is_rejected(switch, reason):
    with pytest.raises(SwitchRefusedError, match="reason must have at least 12 characters, got"):
        switch.stop(segment="billing", reason=reason, by="kim", expires_in=60)
    assert switch.audit() == ()


@pytest.mark.statement("S4-71")
def test_reason_without_the_required_incident_is_rejected():
    switch = KillSwitch(incident=r"INC-\d+")
    with pytest.raises(SwitchRefusedError, match=r"reason must contain 'INC-"):
        switch.stop(segment="billing", reason="charged twice, it seems", by="kim", permanent=True)
    switch.stop(segment="billing", reason="charged twice, INC-9", by="kim", permanent=True)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("reason", None), ("reason", 17), ("by", None), ("by", 17), ("by", ""), ("by", "   ")],
)
def test_wrong_type_of_text_is_rejected(switch, field, wrong):
    given = {"reason": REASON, "by": "kim"} | {field: wrong}
    with pytest.raises(TypeError, match=f"{field} must be a (non-blank )?str"):
        switch.stop(segment="billing", permanent=True, **given)


@pytest.mark.parametrize(
    ("setting", "value"), [("permanent", 1), ("when_expired", "vanish"), ("everything", "yes")]
)
def test_stop_with_wrong_settings_is_rejected(switch, setting, value):
    given = {"segment": "a", "expires_in": 60} | {setting: value}
    with pytest.raises((TypeError, ValueError), match=f"{setting} must be"):
        switch.stop(reason=REASON, by="kim", **given)


def test_repeated_stop_extends_and_never_shortens(switch):
    stopped(switch)
    longer = switch.stop(segment="billing", reason=REASON, by="lee", expires_in=7200)
    shorter = switch.stop(segment="billing", reason=REASON, by="max", expires_in=60)
    assert shorter.until == longer.until
    switch.stop(segment="billing", reason=REASON, by="lee", permanent=True)
    assert switch.stop(segment="billing", reason=REASON, by="max", expires_in=60).until is None


def test_kept_stop_does_not_expire_after_another_stop(switch, clock):
    keep = {"segment": "billing", "reason": REASON, "by": "kim", "expires_in": 60}
    switch.stop(**keep, when_expired="keep")
    switch.stop(**keep)
    clock.advance(61)
    assert not switch.check(segment="billing")


# -- resume --------------------------------------------------------------------------------------


@pytest.mark.statement("S4-68")
@pytest.mark.parametrize("missing", ["by", "justification"])
def test_resume_requires_an_actor_and_a_justification(switch, missing):
    stopped(switch)
    with pytest.raises(TypeError, match=missing):
        switch.resume(segment="billing", **{**WELL, missing: None})
    with pytest.raises(SwitchRefusedError, match="justification must have"):
        switch.resume(segment="billing", by="lee", justification="ok")
    assert not switch.check(segment="billing")


@pytest.mark.statement("S4-68")
def test_resume_is_in_the_audit(switch):
    stopped(switch)
    record = switch.resume(segment="billing", **WELL)
    assert switch.audit()[0] == record
    assert (record.action, record.by, record.reason) == ("resumed", *WELL.values())
    assert switch.check(segment="billing")


@pytest.mark.statement("S4-70")
@pytest.mark.parametrize("canary", [None, (100,)], ids=["none", "all"])
def test_resume_of_everything_at_once_requires_an_override(switch, canary):
    stopped(switch, everything=True)
    with pytest.raises(SwitchRefusedError, match="override=True"):
        switch.resume(everything=True, canary=canary, **WELL)
    assert not switch.check(key="user")
    record = switch.resume(everything=True, canary=canary, override=True, **WELL)
    assert record.override
    assert switch.audit()[0].override
    assert switch.check()


def test_resume_of_a_scope_that_is_not_stopped_is_rejected(switch):
    stopped(switch, segment="search")
    with pytest.raises(SwitchRefusedError, match="not stopped; stopped scopes: segment 'search'"):
        switch.resume(segment="billing", **WELL)


@pytest.mark.parametrize(
    "canary", [(), (25, 5, 100), (5, 5, 100), (0, 100), (5, 25), (5, 101), (-1, 100)], ids=str
)
def test_canary_that_does_not_grow_to_all_is_rejected(switch, canary):
    stopped(switch)
    with pytest.raises((SwitchRefusedError, TypeError, ValueError), match="canary"):
        switch.resume(segment="billing", canary=canary, **WELL)
    assert not switch.check(segment="billing", key="user")


@pytest.mark.parametrize(
    "canary", ["5,25,100", 5, {5: 1}, ("5", 100), (float("nan"), 100)], ids=str
)
def test_canary_without_numbers_is_rejected(switch, canary):
    stopped(switch)
    with pytest.raises((TypeError, ValueError), match="canary"):
        switch.resume(segment="billing", canary=canary, **WELL)


# -- canary --------------------------------------------------------------------------------------


@pytest.fixture
def canary(switch):
    stopped(switch)
    switch.resume(segment="billing", canary=(5, 25, 100), **WELL)
    return switch


def share(switch, keys=2000):
    return sum(bool(switch.check(segment="billing", key=key)) for key in range(keys)) / keys


@pytest.mark.statement("S4-69")
def test_canary_advances_step_by_step_to_the_full_share(canary):
    shares = [share(canary)]
    for _ in range(2):
        canary.advance(segment="billing", healthy=lambda: True, **WELL)
        shares.append(share(canary))
    assert shares == [pytest.approx(0.05, abs=0.02), pytest.approx(0.25, abs=0.03), 1.0]
    assert canary.check(segment="billing")
    assert canary.snapshot().entries == ()


@pytest.mark.statement("S4-69")
@pytest.mark.parametrize(
    "healthy",
    [False, lambda: False, lambda: 1 / 0, lambda: None],
    ids=["no", "false", "error", "none"],
)
def test_unhealthy_step_is_rolled_back_to_zero(canary, healthy):
    record = canary.advance(segment="billing", healthy=healthy, **WELL)
    assert (record.action, record.share) == ("rolled_back", 0.0)
    assert "not healthy" in record.reason
    assert share(canary) == 0.0
    with pytest.raises(SwitchRefusedError, match="start a canary with resume"):
        canary.advance(segment="billing", **WELL)


def test_error_of_a_health_check_is_logged_and_in_the_audit(canary, caplog):
    canary.advance(segment="billing", healthy=lambda: 1 / 0, **WELL)
    assert "ZeroDivisionError: division by zero" in canary.audit()[0].reason
    assert caplog.messages[0].endswith("raised an exception: unhealthy")
    assert "ZeroDivisionError" in caplog.text


def test_interrupt_in_a_health_check_changes_nothing(canary):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        canary.advance(segment="billing", healthy=interrupted, **WELL)
    assert canary.audit()[0].action == "resumed"


def test_step_taken_by_another_operator_is_not_taken_twice(canary):
    def slow():
        canary.advance(segment="billing", **WELL)
        return True

    with pytest.raises(
        SwitchRefusedError, match="changed by another command; it now runs for 25 %"
    ):
        canary.advance(segment="billing", healthy=slow, **WELL)
    assert canary.snapshot().entries[0].share == 25.0


@pytest.mark.parametrize("healthy", ["yes", 1, int])
def test_wrong_type_of_health_check_is_rejected(canary, healthy):
    with pytest.raises(TypeError, match="healthy must be"):
        canary.advance(segment="billing", healthy=healthy, **WELL)


def test_asynchronous_health_check_is_rejected(canary):
    async def healthy():
        return True

    with pytest.raises(TypeError, match="healthy must be a plain function"):
        canary.advance(segment="billing", healthy=healthy, **WELL)


def test_awaitable_health_check_is_misuse(canary):
    async def healthy():
        return False

    with pytest.raises(MisuseError, match="returned an awaitable"):
        canary.advance(segment="billing", healthy=lambda: healthy(), **WELL)
    assert canary.audit()[0].action == "resumed"


def test_advance_of_a_full_stop_is_rejected(switch):
    stopped(switch)
    with pytest.raises(SwitchRefusedError, match="start a canary with resume"):
        switch.advance(segment="billing", **WELL)


def test_canary_without_a_key_allows_nothing(canary):
    allowed, reason = canary.check(segment="billing")
    assert not allowed
    assert "no key was given" in reason


def test_canary_can_be_stopped_again_at_once(canary):
    stopped(canary)
    assert share(canary) == 0.0


def test_canary_does_not_finish_by_time(canary, clock):
    clock.advance(3601)
    canary.refresh()
    assert share(canary) == pytest.approx(0.05, abs=0.02)
    assert canary.audit()[0].action == "overdue"


def test_canary_can_be_finished_early_by_resume(canary):
    canary.resume(segment="billing", **WELL)
    assert canary.check(segment="billing")


# -- triggers ------------------------------------------------------------------------------------

TRIGGERED = [
    ("ratio mismatch", {"experiment": "blue"}),
    ("guardrail", {"experiment": "blue"}),
    ("guardrail", {"feature": "export"}),
    ("provider outage", {"segment": "billing"}),
]


@pytest.mark.statement("S4-67")
@pytest.mark.parametrize(("cause", "scope"), TRIGGERED)
def test_trigger_stops_the_scopes_of_its_cause_for_a_time(switch, clock, cause, scope):
    record = switch.trigger(cause, reason="52.9 % in one arm", **scope)
    assert (record.by, record.until) == (f"automatic: {cause}", NEW_YEAR + 86400)
    assert not switch.check(**scope)
    clock.advance(86400)
    assert switch.check(**scope)


@pytest.mark.statement("S4-67")
@pytest.mark.parametrize("cause", ["leak", "policy report", "security incident"])
def test_trigger_that_needs_a_human_is_rejected(switch, cause):
    for scope in SCOPES[1:]:
        with pytest.raises(TriggerRefusedError, match=f"'{cause}' needs a human.*'guardrail'"):
            switch.trigger(cause, reason="found by a script", **scope)
    assert switch.audit() == ()


@pytest.mark.statement("S4-67")
def test_trigger_stops_no_other_scope_and_never_everything(switch):
    with pytest.raises(TriggerRefusedError, match="'ratio mismatch' does not stop a segment"):
        switch.trigger("ratio mismatch", segment="billing", reason="52.9 % in one arm")
    with pytest.raises(TypeError, match="everything"):
        switch.trigger("guardrail", everything=True, reason="errors above the limit")
    with pytest.raises(ValueError, match="everything at once is never stopped automatically"):
        Automatic(scopes=("global",))


def test_unknown_cause_is_rejected(switch):
    with pytest.raises(TriggerRefusedError, match="no cause is called 'bad feeling'"):
        switch.trigger("bad feeling", segment="billing", reason="something is off here")


def test_trigger_accepts_a_short_reason(switch):
    assert switch.trigger("guardrail", feature="export", reason="p99")


def test_trigger_can_stop_for_a_shorter_time_only(switch):
    record = switch.trigger("guardrail", feature="export", reason="p99", expires_in=60)
    assert record.until - record.at == 60
    with pytest.raises(TriggerRefusedError, match="'guardrail' stops for 86400 s at most, got 1e"):
        switch.trigger("guardrail", feature="search", reason="p99", expires_in=100_000_000)
    assert len(switch.audit()) == 1


def test_trigger_table_can_be_replaced():
    switch = KillSwitch(triggers={"slow": Automatic(["feature"], 60), "leak": HUMAN})
    record = switch.trigger("slow", feature="export", reason="p99 above 30 seconds")
    assert record.until - record.at == 60
    with pytest.raises(TriggerRefusedError):
        switch.trigger("guardrail", feature="export", reason="errors above the limit")


def test_trigger_leaves_a_stopped_scope_unchanged(switch):
    stopped(switch)
    assert switch.trigger("provider outage", segment="billing", reason="it is down") is None
    assert len(switch.audit()) == 1
    assert switch.snapshot().entries[0].by == "kim"


def test_trigger_rolls_a_canary_back_to_zero(canary):
    record = canary.trigger("provider outage", segment="billing", reason="it is down again")
    assert record.action == "rolled_back"
    assert share(canary) == 0.0


@pytest.mark.parametrize(
    "table", [None, ["leak"], {"": HUMAN}, {"leak": "no one"}, {17: HUMAN}, {"leak": Automatic}]
)
def test_wrong_table_of_triggers_is_rejected(table):
    with pytest.raises(TypeError, match="triggers"):
        KillSwitch(triggers=table)


@pytest.mark.parametrize(
    "settings",
    [
        {"scopes": ()},
        {"scopes": "segment"},
        {"expires_in": 0},
        {"expires_in": float("inf")},
        {"when_expired": "never"},
    ],
    ids=str,
)
def test_wrong_rule_is_rejected(settings):
    with pytest.raises((TypeError, ValueError)):
        Automatic(**{"scopes": ("segment",)} | settings)


# -- construction --------------------------------------------------------------------------------

WRONG = [
    ("store", "redis://localhost"),
    ("store", MemorySwitchStore),
    ("stale_after", -1),
    ("stale_after", float("inf")),
    ("stale_after", "5"),
    ("name", ""),
    ("scopes", ["billing"]),
    ("scopes", {"team": ["billing"]}),
    ("scopes", {"segment": "billing"}),
    ("scopes", {"segment": [17]}),
    ("unknown", "hope"),
    ("reason_length", 0),
    ("reason_length", 1.5),
    ("incident", "("),
    ("incident", 17),
    ("incident", b"INC"),
    ("reminder_interval", 0),
    ("max_notification_age", 0),
    ("max_notification_age", "a week"),
    ("notifiers", print),
    ("notifiers", ["post"]),
    ("notifiers", [KillSwitch]),
    ("listeners", [print]),
    ("clock", 17),
]


@pytest.mark.parametrize(
    ("field", "value"), WRONG, ids=[f"{field}-{place}" for place, (field, _) in enumerate(WRONG)]
)
def test_wrong_setting_is_rejected_by_name(field, value):
    with pytest.raises((TypeError, ValueError), match=field):
        KillSwitch(**{field: value})


def test_asynchronous_notifier_is_rejected():
    async def post(record):
        """Send it."""

    with pytest.raises(TypeError, match="notifiers"):
        KillSwitch(notifiers=[post])
