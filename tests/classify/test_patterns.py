import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrytemplate import PatternClassifier


def test_first_match_in_reverse_lexicographic_order_wins():
    rules = {"order-*": "orders", "order-1*": "ones", "*": "all", "order-?": "single"}
    classifier = PatternClassifier(rules)
    assert classifier.classify("order-7") == "single"
    assert classifier.classify("order-17") == "ones"
    assert classifier.classify("order-27") == "orders"
    assert classifier.classify("report") == "all"
    assert [*classifier.patterns] == sorted(rules, reverse=True)


def test_order_of_given_patterns_has_no_effect():
    assert PatternClassifier({"a*": 1, "ab*": 2}).classify("abc") == 2
    assert PatternClassifier({"ab*": 2, "a*": 1}).classify("abc") == 2


def test_only_star_and_question_mark_are_special():
    for pattern in ("[ab]", "a.c", "(a|b)", "^a$", "\\*", "{a}"):
        assert PatternClassifier({pattern: 1}).classify(pattern if "*" not in pattern else "\\x")
        for text in ("a", "b", "abc", "*"):
            with pytest.raises(LookupError):
                PatternClassifier({pattern: 1}).classify(text)


def test_case_matters_and_the_whole_string_must_match():
    for text in ("Order", "order ", " order", "ORDER", "orde"):
        with pytest.raises(LookupError):
            PatternClassifier({"order": 1}).classify(text)


def test_star_matches_line_ends():
    assert PatternClassifier({"a*b": 1}).classify("a\n\nb") == 1
    assert PatternClassifier({"a?b": 1}).classify("a\nb") == 1


def test_error_without_a_match_names_string_and_patterns():
    with pytest.raises(LookupError, match=r"no pattern matches 'x'; there are 'b\?', 'a\*'"):
        PatternClassifier({"a*": 1, "b?": 2}).classify("x")
    with pytest.raises(LookupError, match="no pattern matches 'x'; there are none"):
        PatternClassifier({}).classify("x")


@pytest.mark.parametrize("nothing", [None, 17])
def test_value_that_is_not_a_string_matches_no_pattern(nothing):
    with pytest.raises(LookupError, match=f"no pattern matches {nothing}"):
        PatternClassifier({"*": 1}).classify(nothing)


def test_value_may_be_of_any_type_including_none():
    assert PatternClassifier({"*": None}).classify("x") is None


def test_patterns_that_are_not_a_mapping_of_strings_are_rejected():
    with pytest.raises(TypeError, match="patterns must map strings to values, got the key 7"):
        PatternClassifier({7: 1})
    with pytest.raises(TypeError, match="patterns must map strings to values, got 7"):
        PatternClassifier(7)


def test_classifier_is_frozen():
    classifier = PatternClassifier({"*": 1})
    with pytest.raises(AttributeError):
        classifier.patterns = {}
    assert len({classifier, PatternClassifier({"*": 1})}) == 1


def test_many_stars_take_no_exponential_time():
    pattern, text = "a*" * 60 + "b", "a" * 3000
    with pytest.raises(LookupError):
        PatternClassifier({pattern: 1}).classify(text)
    assert PatternClassifier({pattern: 1}).classify(text + "b") == 1


def test_star_matches_any_length_including_zero():
    for text in ("ab", "axb", "axxb", "axxxb", "abb", "abab"):
        assert PatternClassifier({"a*b": 1}).classify(text) == 1


@settings(max_examples=500)
@given(st.text("ab?*", max_size=6), st.text("ab", max_size=6))
def test_patterns_match_like_regular_expressions(pattern, text):
    signs = {"*": ".*", "?": "."}
    expression = "".join(signs.get(each, re.escape(each)) for each in pattern)
    matches = re.fullmatch(expression, text, re.DOTALL) is not None
    try:
        assert PatternClassifier({pattern: True}).classify(text) is matches
    except LookupError:
        assert not matches
