"""The JSON Schema against the loader."""

import json
from copy import deepcopy

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from retrytemplate.config import json_schema
from retrytemplate.config.files import read_sections
from retrytemplate.config.kinds import SECTIONS
from retrytemplate.config.nodes import Problems
from tests.support.configs import ENVIRON, EXAMPLE, problems_of

VALIDATOR = Draft202012Validator(json_schema())
ANY = {
    name: f"${{{name}}}" for name in ("REDIS_URL", "SWITCH_FILE", "BILLING_TIMEOUT", "EVENTS_FILE")
}


def document():
    """The example, with its variables as they are written."""
    content = {"resilience.yaml": EXAMPLE.read_bytes()}
    sections = read_sections(content, False, SECTIONS, ANY, Problems())
    return {name: node.plain() for name, node in sections.items()}


DOCUMENT = document()


def paths(value, path=()):
    yield path
    pairs = enumerate(value) if isinstance(value, list) else ()
    for key, each in value.items() if isinstance(value, dict) else pairs:
        yield from paths(each, (*path, key))


PATHS = [path for path in paths(DOCUMENT) if path]
WORDS = ["full", "2s", "30%", "strict", "shared", "${REDIS_URL}", "calls", "billing", "", "httpx"]
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 100) | st.floats(-1, 100) | st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["calls", "seconds", "status", "limit", "q", "x"]), inner, max_size=2
        )
    ),
    max_leaves=3,
)


def changed(path, action, value):
    """A copy of the example with one change."""
    made = deepcopy(DOCUMENT)
    place = made
    for key in path[:-1]:
        place = place[key]
    if action == "replace":
        place[path[-1]] = value
    elif action == "remove":
        del place[path[-1]]
    elif isinstance(place, dict):
        place["x" + str(path[-1])] = place.pop(path[-1])
    return made


def test_schema_is_a_schema_of_draft_2020_12():
    Draft202012Validator.check_schema(json_schema())
    json.dumps(json_schema())


def test_example_fits_the_schema():
    VALIDATOR.validate(DOCUMENT)


def test_schema_has_every_section_that_is_read():
    assert set(json_schema()["properties"]) == set(SECTIONS)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    path=st.sampled_from(PATHS),
    action=st.sampled_from(["replace", "remove", "rename"]),
    value=VALUES,
)
def test_loader_rejects_everything_that_the_schema_rejects(tmp_path, path, action, value):
    made = changed(path, action, value)
    assume(not VALIDATOR.is_valid(made))
    text = json.dumps(made, ensure_ascii=False)
    assert problems_of(tmp_path, text, environ=ENVIRON)
