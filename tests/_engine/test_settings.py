"""The settings of a template by name."""

import inspect

import pytest

from retrytemplate import RetryTemplate
from retrytemplate._engine.settings import TemplateSettings


def test_settings_are_the_parameters_of_a_template():
    parameters = inspect.signature(RetryTemplate).parameters
    assert set(TemplateSettings.__annotations__) == set(parameters)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [("polcy", "; did you mean 'policy'?"), ("Listener", "; did you mean 'listeners'?"), ("x", "")],
)
def test_unknown_setting_is_rejected_with_a_similar_name(setting, hint):
    with pytest.raises(TypeError) as caught:
        RetryTemplate().with_(**{setting: None})
    assert str(caught.value).startswith("setting must be one of policy, backoff, ")
    assert str(caught.value).endswith(f", got {setting!r}{hint}")
