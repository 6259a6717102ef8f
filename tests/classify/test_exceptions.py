from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrytemplate import (
    CircuitOpenError,
    ExceptionClassifier,
    Rejected,
    RetryError,
    SimpleRetryPolicy,
)
from retrytemplate.classify.exceptions import iter_causes, iter_leaf_exceptions


class Base(Exception):
    pass


class Middle(Base):
    pass


class Leaf(Middle):
    pass


def chain(*errors):
    for error, cause in pairwise(errors):
        error.__cause__ = cause
    return errors[0]


def test_nearest_class_decides():
    rules = ExceptionClassifier({Base: "base", Leaf: "leaf", Exception: "any"})
    assert rules.classify(Leaf()) == "leaf"
    assert rules.classify(Middle()) == "base"
    assert rules.classify(ValueError()) == "any"


def test_method_resolution_order_decides_among_bases():
    class Both(TimeoutError, ConnectionError):
        pass

    rules = {ConnectionError: "connection", OSError: "system"}
    assert ExceptionClassifier(rules).classify(Both()) == "connection"
    assert ExceptionClassifier(rules | {TimeoutError: "time"}).classify(Both()) == "time"


def test_order_of_rules_has_no_effect():
    rules = {Base: 1, Leaf: 2, Exception: 3}
    backwards = dict(reversed(rules.items()))
    for error in (Leaf(), Middle(), ValueError()):
        answers = {ExceptionClassifier(each).classify(error) for each in (rules, backwards)}
        assert len(answers) == 1


def test_default_applies_without_a_match_and_for_none():
    assert ExceptionClassifier({Base: True}).classify(ValueError()) is False
    assert ExceptionClassifier({Base: 1}, default="other").classify(ValueError()) == "other"
    for traverse in (False, True):
        rules = ExceptionClassifier({Base: 1}, default="other", traverse_causes=traverse)
        assert rules.classify(None) == "other"


def test_keys_may_be_base_exceptions():
    rules = ExceptionClassifier({BaseException: "any", Exception: "ordinary"})
    assert rules.classify(KeyboardInterrupt()) == "any"
    assert rules.classify(ValueError()) == "ordinary"


@pytest.mark.parametrize("value", [0, "text", None, ("a", "tuple"), print])
def test_values_may_be_of_any_type(value):
    assert ExceptionClassifier({Base: value}).classify(Leaf()) is value


def test_virtual_subclass_does_not_match():
    """Only the real base classes count, not a registered one."""
    from abc import ABCMeta

    class Registering(Exception, metaclass=ABCMeta):
        pass

    Registering.register(ValueError)
    assert ExceptionClassifier({Registering: True}).classify(ValueError()) is False


def test_causes_are_read_only_with_traverse_causes():
    wrapped = chain(ValueError(), KeyError(), Leaf())
    assert ExceptionClassifier({Base: True}).classify(wrapped) is False
    assert ExceptionClassifier({Base: True}, traverse_causes=True).classify(wrapped) is True


def test_outermost_match_decides():
    rules = ExceptionClassifier(
        {Base: "base", KeyError: "key", OSError: "default"},
        default="default",
        traverse_causes=True,
    )
    assert rules.classify(chain(ValueError(), KeyError(), Base())) == "key"
    assert rules.classify(chain(OSError(), Base())) == "default"


def test_context_is_not_a_cause():
    error = ValueError()
    error.__context__ = Base()
    assert ExceptionClassifier({Base: True}, traverse_causes=True).classify(error) is False


def test_cycle_of_causes_ends():
    one, two = ValueError(), KeyError()
    chain(one, two, one)
    rules = ExceptionClassifier({Base: True}, traverse_causes=True)
    assert rules.classify(one) is False
    assert [*iter_causes(one)] == [one, two]


def test_explicit_distinguishes_a_match_from_the_default():
    deep = ExceptionClassifier({Base: False}, traverse_causes=True)
    assert deep.explicit(chain(ValueError(), Leaf())) == (True, False)
    for rules in (deep, ExceptionClassifier({Base: False})):
        assert rules.explicit(Leaf()) == (True, False)
        assert rules.explicit(ValueError()) == (False, False)
        assert rules.explicit(None) == (False, False)


def test_group_has_the_common_value_of_its_leaves():
    rules = ExceptionClassifier({Base: "base", KeyError: "key", ValueError: ""}, default="other")
    assert rules.classify(ExceptionGroup("g", [Base(), Leaf()])) == "base"
    assert rules.classify(ExceptionGroup("g", [OSError()])) == "other"


def test_group_with_mixed_leaves_has_first_false_value_or_default():
    rules = ExceptionClassifier({Base: "base", KeyError: "key", ValueError: ""}, default="other")
    assert rules.classify(ExceptionGroup("g", [Base(), KeyError(), ValueError()])) == ""
    assert rules.classify(ExceptionGroup("g", [Base(), KeyError()])) == "other"


def test_group_is_classified_by_leaves_despite_rules_for_its_bases():
    rules = ExceptionClassifier({Exception: True, KeyError: False})
    assert rules.classify(ExceptionGroup("g", [OSError()])) is True
    assert rules.classify(ExceptionGroup("g", [OSError(), KeyError()])) is False


def test_rule_for_a_group_class_decides_for_the_group():
    rules = ExceptionClassifier({ExceptionGroup: "group", KeyError: "key"})
    assert rules.classify(ExceptionGroup("g", [KeyError()])) == "group"
    assert rules.classify(BaseExceptionGroup("g", [KeyboardInterrupt()])) is False


def test_group_as_cause_of_its_leaf_does_not_decide_for_it():
    leaf = ValueError()
    group = chain(ExceptionGroup("g", [leaf]), KeyError())
    chain(leaf, group)
    rules = ExceptionClassifier({KeyError: False}, default=True, traverse_causes=True)
    assert rules.explicit(group) == rules.explicit(leaf) == (True, False)


def test_same_leaf_twice_counts_twice():
    leaf = Leaf()
    rules = ExceptionClassifier({Base: True}, traverse_causes=True)
    assert rules.classify(ExceptionGroup("g", [leaf, leaf])) is True


def test_same_group_twice_has_one_value():
    inner = ExceptionGroup("i", [Leaf()])
    rules = ExceptionClassifier({Base: True}, traverse_causes=True)
    assert rules.classify(ExceptionGroup("g", [inner, chain(ValueError(), inner)])) is True


DEEP = 10_000


def nested(leaf):
    """A group in a group in a group ..., deeper than Python's stack."""
    for _ in range(DEEP):
        leaf = ExceptionGroup("nested", [leaf])
    return leaf


def test_group_may_be_nested_deeper_than_the_stack():
    rules = ExceptionClassifier({OSError: True}, default="other")
    deep, unknown = nested(OSError()), nested(ValueError())

    assert (rules.classify(deep), rules.classify(unknown)) == (True, "other")
    assert [type(part) for part in rules.parts(deep)] == [OSError]
    assert SimpleRetryPolicy(3, OSError).allows(1, deep)
    assert not SimpleRetryPolicy(3, OSError).allows(1, unknown)


def test_groups_and_causes_may_alternate_deeper_than_the_stack():
    failure = OSError()
    for _ in range(DEEP):
        inner = ValueError()
        inner.__cause__ = ExceptionGroup("cause", [failure])
        failure = inner
    rules = ExceptionClassifier({OSError: True}, traverse_causes=True)

    assert rules.classify(failure) is True


def test_chain_of_causes_may_be_longer_than_the_stack():
    failure = chain(*(ValueError() for _ in range(DEEP)), OSError())

    assert ExceptionClassifier({OSError: True}, traverse_causes=True).classify(failure) is True
    assert ExceptionClassifier({KeyError: True}, traverse_causes=True).classify(failure) is False


def test_cycle_of_contexts_is_not_followed():
    first, second = ValueError(), OSError()
    first.__context__, second.__context__ = second, first

    assert ExceptionClassifier({OSError: True}, traverse_causes=True).classify(first) is False


def test_names_is_true_only_for_a_rule_on_library_errors():
    rules = ExceptionClassifier({Rejected: False, Exception: True})
    assert rules.names(CircuitOpenError())
    assert not rules.names(RetryError())
    assert not rules.names(ValueError())
    assert not ExceptionClassifier({Exception: True}).names(CircuitOpenError())


def test_leaves_are_in_order():
    one, two, three = OSError(), KeyError(), ValueError()
    nested = ExceptionGroup("o", [one, ExceptionGroup("i", [two]), three])
    assert [*iter_leaf_exceptions(nested)] == [one, two, three]
    assert [*iter_leaf_exceptions(one)] == [one]


def test_classifier_is_frozen_and_copies_its_rules():
    given_rules = {Base: True}
    rules = ExceptionClassifier(given_rules)
    given_rules[Base] = False
    assert rules.classify(Base()) is True
    with pytest.raises(AttributeError):
        rules.default = True
    assert rules == ExceptionClassifier({Base: True})
    assert len({rules, ExceptionClassifier({Base: True})}) == 1


@pytest.mark.parametrize("key", ["ValueError", int, ValueError(), None])
def test_key_that_is_not_an_exception_class_is_rejected(key):
    with pytest.raises(TypeError, match="rules must map exception classes to values, got the key"):
        ExceptionClassifier({key: True})


@pytest.mark.parametrize("rules", [7, [ValueError], ValueError])
def test_rules_that_are_not_a_mapping_are_rejected(rules):
    with pytest.raises(TypeError, match="rules must map exception classes to values, got"):
        ExceptionClassifier(rules)


def test_traverse_causes_must_be_a_bool():
    with pytest.raises(TypeError, match="traverse_causes must be True or False, got 1"):
        ExceptionClassifier({}, traverse_causes=1)


KINDS = (Base, Middle, Leaf, OSError, ConnectionError, KeyError)
rule_sets = st.dictionaries(st.sampled_from((*KINDS, Exception)), st.booleans())
chains = st.lists(st.sampled_from(KINDS), min_size=1, max_size=4)


@given(rule_sets, st.booleans(), chains)
def test_chains_are_classified_as_by_a_naive_implementation(rules, default, kinds):
    def value(kind):
        while kind is not object:
            if kind in rules:
                return rules[kind]
            kind = kind.__base__
        return None

    error = chain(*[kind() for kind in kinds])
    flat = value(kinds[0])
    assert ExceptionClassifier(rules, default).classify(error) is (
        default if flat is None else flat
    )
    deep = next((value(kind) for kind in kinds if value(kind) is not None), default)
    assert ExceptionClassifier(rules, default, traverse_causes=True).classify(error) is deep


def test_values_lists_all_possible_values():
    assert ExceptionClassifier({OSError: 1, KeyError: 2}, default=3).values() == (1, 2, 3)
    named = {"builtins.OSError": 1, "builtins.KeyError": {"status": {503: 2, "4xx": 3}}}
    assert ExceptionClassifier.from_config(named, default=4).values() == (1, 2, 3, 4)
