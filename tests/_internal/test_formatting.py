"""Text from outside as part of a line."""

import pytest

from retrytemplate._internal.formatting import format_moment, format_span, one_line, printable


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("order 17: zu spät", "order 17: zu spät"),
        ("a\nb", "a\\nb"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202eright to left", "\\u202eright to left"),
        ("\u2028", "\\u2028"),
        ("\ud800", "\\ud800"),
    ],
)
def test_printable_text_escapes_what_does_not_print(text, escaped):
    assert printable(text) == escaped


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        (" \n\t", ""),
        ("404 Not Found\nFor more information: https://...", "404 Not Found"),
        ("\n\nfirst\rsecond", "first"),
        ("red \x1b[31m\nnext", "red \\x1b[31m"),
    ],
)
def test_one_line_keeps_first_line_that_is_not_blank(text, line):
    assert one_line(text) == line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-3, "0 s"), (59.4, "59 s"), (59.5, "1 min"), (3599, "1 h"), (7020, "1 h 57 min")),
        *((36_000, "10 h"), (172_799, "2 d"), (172_800, "2 d"), (180_000, "2 d 2 h")),
    ],
)
def test_span_has_at_most_two_units(seconds, text):
    assert format_span(seconds) == text


def test_moment_beyond_the_calendar_is_a_number():
    assert format_moment(1e30) == "1e+30 s after 1970"
