import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from retrytemplate import PatternClassifier


def test_the_first_match_in_reverse_lexicographic_order_wins():
    rules = {"order-*": "orders", "order-1*": "ones", "*": "all", "order-?": "single"}
    classifier = PatternClassifier(rules)
    assert classifier.classify("order-7") == "single"
    assert classifier.classify("order-17") == "ones"
    assert classifier.classify("order-27") == "orders"
    assert classifier.classify("report") == "all"
    assert [*classifier.patterns] == sorted(rules, reverse=True)


def test_the_order_in_which_patterns_are_given_has_no_say():
    assert PatternClassifier({"a*": 1, "ab*": 2}).classify("abc") == 2
    assert PatternClassifier({"ab*": 2, "a*": 1}).classify("abc") == 2


def test_nothing_but_star_and_question_mark_has_a_meaning():
    for pattern in ("[ab]", "a.c", "(a|b)", "^a$", "\\*", "{a}"):
        assert PatternClassifier({pattern: 1}).classify(pattern if "*" not in pattern else "\\x")
        for text in ("a", "b", "abc", "*"):
            with pytest.raises(LookupError):
                PatternClassifier({pattern: 1}).classify(text)


def test_case_matters_and_the_whole_text_must_match():
    for text in ("Order", "order ", " order", "ORDER", "orde"):
        with pytest.raises(LookupError):
            PatternClassifier({"order": 1}).classify(text)


def test_a_star_takes_line_ends_too():
    assert PatternClassifier({"a*b": 1}).classify("a\n\nb") == 1
    assert PatternClassifier({"a?b": 1}).classify("a\nb") == 1


def test_without_a_match_the_error_names_the_text_and_what_there_is():
    with pytest.raises(LookupError, match=r"no pattern matches 'x'; there are 'b\?', 'a\*'"):
        PatternClassifier({"a*": 1, "b?": 2}).classify("x")
    with pytest.raises(LookupError, match="no pattern matches 'x'; there are none"):
        PatternClassifier({}).classify("x")


@pytest.mark.parametrize("nothing", [None, 17])
def test_what_is_no_text_matches_no_pattern(nothing):
    with pytest.raises(LookupError, match=f"no pattern matches {nothing}"):
        PatternClassifier({"*": 1}).classify(nothing)


def test_a_value_may_be_anything_none_included():
    assert PatternClassifier({"*": None}).classify("x") is None


def test_what_is_no_mapping_of_texts_is_refused():
    with pytest.raises(TypeError, match="patterns must map strings to values, got the key 7"):
        PatternClassifier({7: 1})
    with pytest.raises(TypeError, match="patterns must map strings to values, got 7"):
        PatternClassifier(7)


def test_it_is_frozen():
    classifier = PatternClassifier({"*": 1})
    with pytest.raises(AttributeError):
        classifier.patterns = {}
    assert len({classifier, PatternClassifier({"*": 1})}) == 1


def test_many_stars_do_not_blow_up():
    pattern, text = "a*" * 60 + "b", "a" * 3000
    with pytest.raises(LookupError):
        PatternClassifier({pattern: 1}).classify(text)
    assert PatternClassifier({pattern: 1}).classify(text + "b") == 1


def test_a_star_may_stand_for_nothing_or_for_any_length():
    for text in ("ab", "axb", "axxb", "axxxb", "abb", "abab"):
        assert PatternClassifier({"a*b": 1}).classify(text) == 1


@settings(max_examples=500)
@given(st.text("ab?*", max_size=6), st.text("ab", max_size=6))
def test_it_matches_what_the_regular_expression_matches(pattern, text):
    signs = {"*": ".*", "?": "."}
    expression = "".join(signs.get(each, re.escape(each)) for each in pattern)
    matches = re.fullmatch(expression, text, re.DOTALL) is not None
    try:
        assert PatternClassifier({pattern: True}).classify(text) is matches
    except LookupError:
        assert not matches
