"""The page of configuration files against the code."""

import re

import pytest

from retrytemplate.config.kinds import KINDS
from tools import config_keys

pytestmark = pytest.mark.documentation


def test_tables_of_keys_are_those_of_the_code(capsys):
    assert config_keys.main(["--check"]) == 0, capsys.readouterr().err


def test_keys_beside_those_of_other_tools_exist():
    text = config_keys.PAGE.read_text(encoding="utf-8")
    rows = text.partition("<!-- other tools -->")[2].partition("\n\n")[0]
    named = set(re.findall(r"^\| `(\w+\.\w+)` \|", rows, re.MULTILINE))
    known = {f"{kind.section}.{each.name}" for kind in KINDS.values() for each in kind.parameters}
    assert {each.partition(".")[0] for each in named} >= {"retry", "breaker", "bulkhead"}
    assert named <= known
