"""The scenarios of the page about choosing strategies, with the files of the page."""

import re
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from retrytemplate import BulkheadFullError, KillSwitchActiveError
from retrytemplate.config import load
from retrytemplate.control import AuthenticationAlert, Bulkhead, KillSwitch, SQLSwitchStore
from retrytemplate.listeners import add_default, remove_default
from retrytemplate.testing import VirtualClock

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "choosing.md"
FILES = dict(re.findall(r"```yaml\n# file: (\S+)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL))
FUNCTIONS = {
    name: (lambda *args, name=name: name)
    for name in (*("smaller_model", "keyword_search", "cached_page", "old_model", "cached_export"),)
}


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
def configured(tmp_path, clock):
    """Load a file of the page."""
    made = []

    def load_file(name):
        text = FILES[name].replace("sqlite:///", f"sqlite:///{tmp_path}/")
        text = text.replace("store: switches\n", "store: switches\n  stale_after: 0\n")
        (tmp_path / name).write_text(text)
        made.append(load(tmp_path / name, functions=FUNCTIONS, clock=clock))
        return made[-1]

    yield load_file
    for each in made:
        each.close()


def responses(*found):
    """A function that gets the responses in turn; the last one again and again."""
    left = list(found)

    def call():
        status, headers = left.pop(0) if len(left) > 1 else left[0]
        request = httpx.Request("GET", "http://localhost")
        return httpx.Response(status, headers=headers, request=request).raise_for_status()

    return call


@pytest.mark.statement("S3-30")
@pytest.mark.parametrize("name", sorted(FILES))
def test_policy_of_each_dependency_is_stated_with_its_source(configured, name):
    config = configured(name)
    for endpoint in config.names:
        settings = config.effective(endpoint)
        assert {each.source.partition(":")[0] for each in settings.values()} - {"default"}
        assert config.endpoint(endpoint).lint() == ()


@pytest.mark.statement("S4-104")
def test_rate_limited_provider_gets_the_wait_that_it_requests(configured, clock):
    llm = configured("llm.yaml").endpoint("llm")
    outcome = llm.outcome(responses((429, {"Retry-After": "7"}), (200, {})))
    assert (outcome.attempts, outcome.value.status_code) == (2, 200)
    assert 7.0 <= clock.monotonic() < 8.0


@pytest.mark.statement("S4-104")
def test_rate_limit_for_a_long_time_leads_to_the_fallback(configured, clock):
    llm = configured("llm.yaml").endpoint("llm")
    assert llm.call(responses((429, {"Retry-After": "3600"}))) == "smaller_model"
    assert clock.monotonic() == 0.0


@pytest.mark.statement("S4-104")
def test_slow_index_is_replaced_by_keyword_search(configured, clock):
    search = configured("search.yaml").endpoint("search")

    def find():
        clock.advance(1.5)
        return "results"

    assert [search.call(find) for _ in range(11)] == ["results"] * 10 + ["keyword_search"]


@pytest.mark.statement("S4-104")
def test_expired_credentials_are_reported_and_not_retried(configured):
    reported = []
    alert = AuthenticationAlert(reported.append)
    add_default(alert)
    try:
        outcome = configured("tools.yaml").endpoint("crm").outcome(responses((401, {})))
    finally:
        remove_default(alert)
    assert (outcome.attempts, [each.name for each in reported]) == (1, ["crm"])


@pytest.mark.statement("S4-104")
def test_stopped_release_of_a_model_leads_to_the_previous_one(configured, operator):
    chat = configured("release.yaml").endpoint("chat")
    assert chat.call(lambda: "new_model") == "new_model"
    operator.stop(feature="new_model", reason="wrong answers, 17", by="kim", expires_in=3600)
    assert chat.call(lambda: "new_model") == "old_model"
    operator.resume(feature="new_model", by="kim", justification="fixed in 1.4.2")
    assert chat.call(lambda: "new_model") == "new_model"


@pytest.mark.statement("S4-104")
def test_stop_after_a_suspected_leak_runs_nothing(configured, operator):
    export = configured("release.yaml").endpoint("export")
    calls = []
    operator.stop(feature="export", reason="suspected leak, 18", by="kim", permanent=True)
    with pytest.raises(KillSwitchActiveError, match="suspected leak"):
        export.call(calls.append, 1)
    assert calls == []


@pytest.mark.statement("S4-104")
def test_user_with_1000_queries_leaves_slots_to_others(clock):
    search = Bulkhead("search", limit=20, per_key=2, queue=0, clock=clock)
    slots = [search.slot(key="kim") for _ in range(2)]
    for slot in slots:
        slot.__enter__()
    for _ in range(998):
        with pytest.raises(BulkheadFullError), search.slot(key="kim"):
            pass
    with search.slot(key="lee"):
        assert search.snapshot().in_use == 3
    for slot in slots:
        slot.__exit__(None, None, None)


@pytest.fixture
def operator(tmp_path):
    """The kill switch of another process."""
    with closing(SQLSwitchStore(f"sqlite:///{tmp_path}/switch.db")) as store:
        yield KillSwitch(store, stale_after=0)
