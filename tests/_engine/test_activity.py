"""Switch the retries of the process off and on."""

import threading

import pytest

from retrytemplate import (
    CircuitBreakerRetryPolicy,
    ExhaustedRetryError,
    ResultRetryPolicy,
    RetryState,
    SimpleRetryPolicy,
    TimeoutRetryPolicy,
    is_active,
    set_active,
)
from tests.support.runners import Script, every_driver, made


@pytest.fixture
def inactive(retries_off):
    """Retries are off during the test, as the fixture of the library does it."""


@pytest.fixture
def restored():
    yield
    set_active(True)


POLICIES = [
    SimpleRetryPolicy(3),
    TimeoutRetryPolicy(60.0),
    CircuitBreakerRetryPolicy(SimpleRetryPolicy(3)),
    ResultRetryPolicy(lambda result: result is None, SimpleRetryPolicy(3)),
    SimpleRetryPolicy(lambda: 3),
]


@every_driver
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
@pytest.mark.usefixtures("inactive")
def test_template_makes_one_attempt_while_retries_are_off(driver, policy):
    callback = Script(OSError("down"), "value")
    with pytest.raises(OSError, match="down"):
        driver(made(policy=policy), callback)
    assert callback.calls == 1


def test_switch_reaches_templates_and_functions_created_before(restored):
    template = made()
    wrapped, bound = template.wrap(lambda text: int(text)), template.bind(label="bound")
    set_active(False)
    outcomes = [template.outcome(int, "x"), bound.outcome(int, "x")]
    with pytest.raises(ValueError, match="invalid literal") as caught:
        wrapped("x")
    assert [(each.attempts, each.stop_reason) for each in outcomes] == [(1, "inactive")] * 2
    assert not hasattr(caught.value, "__notes__")
    set_active(True)
    assert template.outcome(int, "x").attempts == 3


@pytest.mark.usefixtures("inactive")
def test_recovery_is_called_while_retries_are_off():
    assert made(recovery=lambda context: context.stop_reason).call(int, "x") == "inactive"


@pytest.mark.usefixtures("inactive")
def test_second_delivery_is_exhausted_while_retries_are_off():
    template, state = made(), RetryState("key")
    with pytest.raises(OSError):
        template.execute(Script(OSError()), state=state)
    with pytest.raises(ExhaustedRetryError):
        template.execute(Script("not called"), state=state)


def test_running_execution_keeps_its_policy(restored):
    def fails():
        set_active(False)
        raise OSError

    assert made().outcome(fails).attempts == 3
    assert not is_active()


def test_switch_reaches_calls_in_other_threads(restored):
    template, seen = made(), []

    def work():
        seen.append(template.outcome(int, "x").attempts)

    set_active(False)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 8


def test_success_uses_the_inline_path_while_retries_are_off(restored):
    template = made()
    set_active(False)
    assert template._inline_plan is template._plan


@pytest.mark.parametrize("value", [None, 0, 1, "no"])
def test_value_that_is_not_a_bool_is_rejected(value):
    with pytest.raises(TypeError, match="active must be True or False"):
        set_active(value)
    assert is_active()
