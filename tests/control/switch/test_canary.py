"""Keys admitted by a canary: the requested share, stable, growing with each step."""

import subprocess
import sys

import pytest

from retrytemplate.control import KillSwitch
from retrytemplate.control.switch.canary import rollout_position
from retrytemplate.control.switch.model import SwitchScope

SCOPE = SwitchScope("segment", "billing")
SHARES = (5, 25, 100)
# As they were with the first release: who is in must not change with another one.
GOLDEN = {
    "user-17": 61.96798792782167,
    17: 55.485108347614286,
    ("eu", 17): 27.844297737323632,
    b"\x00\xff": 37.36105558963758,
    "": 14.918585169970012,
}


@pytest.fixture(scope="module")
def places():
    return [rollout_position(SCOPE, key) for key in range(100_000)]


@pytest.mark.statement("S4-69")
@pytest.mark.parametrize("share", SHARES)
def test_share_of_many_keys_is_inside(places, share):
    inside = sum(place < share for place in places) / 1000
    assert inside == pytest.approx(share, abs=0.5)


@pytest.mark.statement("S4-69")
def test_resumed_key_stays_resumed_at_each_step():
    switch, keys = KillSwitch(), range(2000)
    switch.stop(segment="billing", reason="charged twice, incident 9", by="kim", permanent=True)
    switch.resume(segment="billing", canary=SHARES, by="lee", justification="found and mended")

    def back():
        return {key for key in keys if switch.check(segment="billing", key=key)}

    few = back()
    assert len(few) / 20 == pytest.approx(5, abs=2)
    switch.advance(segment="billing", by="lee", justification="no errors for an hour")
    some = back()
    assert len(some) / 20 == pytest.approx(25, abs=3)
    assert few < some
    switch.advance(segment="billing", by="lee", justification="no errors for a day")
    assert back() == set(keys)


def test_all_positions_are_below_100(places):
    assert min(places) >= 0
    assert max(places) < 100


@pytest.mark.statement("S4-69")
def test_positions_are_the_same_in_another_process(places):
    program = (
        "from retrytemplate.control.switch.canary import rollout_position\n"
        "from retrytemplate.control.switch.model import SwitchScope\n"
        "scope = SwitchScope('segment', 'billing')\n"
        "print(sum(hash((key, rollout_position(scope, key))) for key in range(2000)))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(answer.stdout) == sum(hash((key, places[key])) for key in range(2000))


@pytest.mark.parametrize("key", GOLDEN, ids=repr)
def test_position_of_a_key_never_changes(key):
    assert rollout_position(SCOPE, key) == GOLDEN[key]


def test_positions_of_another_scope_are_independent(places):
    other = [rollout_position(SwitchScope("segment", "search"), key) for key in range(20_000)]
    both = sum(one < 25 and two < 25 for one, two in zip(places, other, strict=False))
    assert both / 20_000 == pytest.approx(0.0625, abs=0.01)


def test_names_cannot_be_mistaken_for_keys():
    assert rollout_position(SwitchScope("segment", "a/s:b"), "c") != rollout_position(
        SwitchScope("segment", "a"), "b/s:c"
    )
