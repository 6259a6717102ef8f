"""Keys as a column can hold them, and prefixes of the names in a store."""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen

# Bytes of UTF-8; an index of PostgreSQL takes at most 2,700.
LONGEST = 1000
PLAIN = re.compile(r"[^\\\0\ud800-\udfff]*")
UNFIT = re.compile(r"[\\\0\ud800-\udfff]")
CUT = re.compile(r"\\[^\\]{0,4}\Z")
ESCAPED = re.compile(r"\\u([0-9a-f]{4})")


def to_column_key(key: str) -> str:
    r"""The key with characters that no column takes escaped; of a long key the start and a digest.

    >>> to_column_key("charge/s:order-17"), to_column_key("nul\0")
    ('charge/s:order-17', 'nul\\u0000')
    """
    if PLAIN.fullmatch(key) is None:
        key = UNFIT.sub(lambda found: f"\\u{ord(found[0]):04x}", key)
    if len(key) * 4 <= LONGEST or len(whole := key.encode()) <= LONGEST:
        return key
    from hashlib import sha256

    beginning = CUT.sub("", whole[: LONGEST // 2].decode(errors="ignore"))
    return f"{beginning} ... sha256:{sha256(whole).hexdigest()}"


def from_column_key(text: str) -> str:
    r"""The key of a column; of a long key the stored text.

    >>> from_column_key("nul\\u0000") == "nul\0"
    True
    """
    return ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


@frozen
class Prefixes:
    """Valid prefixes of the names in a store."""

    pattern: re.Pattern[str]
    allowed: str

    def checked(self, prefix: Any) -> str:
        if not isinstance(prefix, str) or self.pattern.fullmatch(prefix) is None:
            raise ValueError(f"prefix must be {self.allowed}, got {prefix!r}")
        return prefix


TABLE_PREFIXES = Prefixes(
    re.compile(r"[a-z_][a-z0-9_]{0,39}"),
    "1 to 40 of a-z, 0-9 and _, with no digit at the beginning",
)
KEY_PREFIXES = Prefixes(
    re.compile(r"[A-Za-z0-9_.:-]{1,100}"), "1 to 100 of letters, digits and _ . : -"
)
