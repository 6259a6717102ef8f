"""The combined failure of several calls: the first one, with the others as its cause."""

from attrs import frozen

from retrytemplate.control._failures import combine_failures


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


@frozen(eq=False)
class Frozen(Exception):
    pass


def test_failure_without_a_text_is_reported():
    first, mute = KeyError(), Mute()
    assert combine_failures(first, [("the cache", mute)], "the others") is first
    assert first.__notes__[0].startswith("the cache failed, too: Mute: ")
    assert first.__cause__.exceptions == (mute,)


def test_failure_that_accepts_no_attributes_is_raised_unchanged():
    first = Frozen()
    assert combine_failures(first, [("the cache", KeyError())], "the others") is first


def test_alone_it_has_no_others_on_it():
    first = KeyError()
    combine_failures(first, [], "the others")
    assert (first.__cause__, hasattr(first, "__notes__")) == (None, False)
