"""Items are encoded as JSON, or rejected."""

from collections import OrderedDict
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate.batch import JsonCodec

SCALARS = st.none() | st.booleans() | st.integers() | st.text(st.characters()) | st.floats()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
)


class Colour(IntEnum):
    RED = 1


def kept(value):
    return JsonCodec().decode(JsonCodec().encode(value))


def shape(value):
    """The value with the type of each of its parts."""
    if isinstance(value, dict):
        return dict, [(shape(key), shape(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [shape(each) for each in value]
    return type(value), repr(value)


@given(VALUES)
def test_encoded_value_is_decoded_with_every_type(value):
    try:
        again = kept(value)
    except TypeError as exc:
        assert "JSON cannot keep" in str(exc)
    else:
        assert shape(again) == shape(value)


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.booleans())))
def test_file_record_is_always_encodable(record):
    assert kept(record) == record


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ((1, 2), "the tuple at item:"),
        ({"tags": ["a", ("b",)]}, r"the tuple at item\['tags'\]\[1\]:"),
        ({"a": {1: 2}}, r"the key 1 at item\['a'\]:"),
        ({True: 2}, "the key True at item:"),
        ({"at": datetime(2026, 11, 21, tzinfo=UTC)}, r"the datetime at item\['at'\]:"),
        ([Decimal("1.10")], r"the Decimal at item\[0\]:"),
        (b"raw", "the bytes at item:"),
        ({1, 2}, "the set at item:"),
        (Colour.RED, "the Colour at item:"),
        (OrderedDict(a=1), "the OrderedDict at item:"),
        (float("nan"), "nan at item:"),
        ([float("-inf")], r"-inf at item\[0\]:"),
    ],
    ids=repr,
)
def test_value_that_json_would_change_is_rejected_with_its_place(value, message):
    with pytest.raises(TypeError, match=f"^JSON cannot keep {message} give the step a codec"):
        JsonCodec().encode(value)


def test_value_that_contains_itself_is_rejected():
    value = []
    value.append(value)
    with pytest.raises(TypeError, match="nested too deep"):
        JsonCodec().encode(value)


def test_int_too_long_for_python_is_rejected():
    with pytest.raises(TypeError, match="JSON cannot keep the item: Exceeds the limit"):
        JsonCodec().encode(10**5000)


def test_separate_surrogates_are_not_joined():
    with pytest.raises(TypeError, match="two of its surrogates"):
        JsonCodec().encode(["\ud83d\ude00"])
    assert kept(["\U0001f600", "\ud83d"]) == ["\U0001f600", "\ud83d"]


def test_encoded_text_is_ascii():
    text = JsonCodec().encode({"name": "Müller\0\ud800"})
    assert text.isascii()
    assert "\0" not in text


def test_text_that_is_not_json_is_a_value_error():
    with pytest.raises(ValueError, match="Expecting value"):
        JsonCodec().decode("no JSON")


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a": -Infinity}', "1e999"])
def test_json_codec_decoding_nan_or_infinity_is_a_value_error(text):
    with pytest.raises(ValueError, match="is not a finite number"):
        JsonCodec().decode(text)
