"""The combined failure of several calls: the first one, with the others in its notes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from retrytemplate._engine.final_error import set_note
from retrytemplate._internal.failure_text import summary

if TYPE_CHECKING:
    from collections.abc import Iterable


def combine_failures(
    first: BaseException, others: Iterable[tuple[str, BaseException]], who: str
) -> BaseException:
    """The first failure, which says what became of the others: in notes, and as its cause.

    :param others: each with whose it is.
    :param who: what the others are, all of them.
    """
    causes = [first.__cause__]
    for name, other in others:
        set_note(first, f"{name} failed, too: {summary(other)}")
        causes.append(other)
    listed = [each for each in causes if each is not None and each is not first]
    if listed:
        with suppress(Exception):  # an exception that takes no attributes goes without
            first.__cause__ = BaseExceptionGroup(f"{who} failed, too", listed)
    return first
