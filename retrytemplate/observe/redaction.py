"""Redaction of the texts of errors before they leave the process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from retrytemplate.caches.record import TEXT_LIMIT, shortened

if TYPE_CHECKING:
    from collections.abc import Callable

HIDDEN = "***"
FAILED = "<redaction failed>"
# Characters that are looked at: more than are kept, since a rule needs the end of a secret.
LOOKED_AT = 2 * TEXT_LIMIT

RULES = (
    # The password of a URL, up to the last @ before the path.
    (re.compile(r"(://[^\s/?#:@]*:)[^\s/]*@"), rf"\1{HIDDEN}@"),
    (re.compile(r"(\bbearer\s+)[\w.~+/=-]+", re.IGNORECASE), rf"\1{HIDDEN}"),
    (
        re.compile(
            # Two words, since the first may be a scheme: ``Token s3``.
            r"""(\bauthorization["']? ?[:=] ?["']?(?:basic |bearer )?)"""
            r"""(?:[\w-]+ )?[^\s"'&;,)\]}]+""",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
    # A colon without quotes only where the name says enough: "no such key: order-17" is no secret.
    (
        re.compile(
            r"""((?:(?:key|token|secret|password|passwd|pwd)(?: ?= ?|["']\s*:\s*)"""
            r"""|(?:secret|password|passwd|[-_](?:key|token)) ?: ?))"""
            r"""("[^"]*"|'[^']*'|[^\s&;,)\]}]+)""",
            re.IGNORECASE,
        ),
        rf"\1{HIDDEN}",
    ),
)
# Part of each text that a rule changes; most texts have none.
HINT = re.compile("://|bearer|authorization|key|token|secret|passw|pwd", re.IGNORECASE)


def REDACT(text: str) -> str:
    """Hide secrets in a text, and cut it at 8 KiB: the default redaction of an observer.

    Hidden are passwords in URLs, bearer tokens, the value of ``Authorization``, and the values
    after ``key=``, ``token=``, ``secret=``, ``password=``, ``passwd=`` and ``pwd=``, also as the
    end of a longer name and in JSON.  So are those after ``secret:``, ``password:``, ``-key:`` and
    ``-token:``.

    >>> REDACT("postgresql://ada:pass@db/shop: api_key=17 is wrong")
    'postgresql://ada:***@db/shop: api_key=*** is wrong'
    """
    shown = text[:LOOKED_AT]
    if HINT.search(shown):
        for rule, replacement in RULES:
            shown = rule.sub(replacement, shown)
    # As long as the text, so that the note on the cut has the right number.
    return shortened(shown.ljust(len(shown) + len(text) - LOOKED_AT), TEXT_LIMIT)


def redact_text(text: str, redact: Callable[[str], str] | None) -> str:
    """The text through *redact*; a fixed text if it raises or returns no str."""
    if redact is None:
        return text
    try:
        made: object = redact(text)
    except Exception:
        return FAILED
    return made if isinstance(made, str) else FAILED
