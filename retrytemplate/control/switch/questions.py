"""What checks ask, and whether it is known that nothing of it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define

if TYPE_CHECKING:
    from collections.abc import Callable

    from retrytemplate.control.switch.copies import Copy, View
    from retrytemplate.control.switch.scopes import SwitchScope

__all__ = ["Question"]


@define(eq=False, init=False)
class Question:
    """Whether all of some scopes may run.

    :param is_clear: whether the view that holds now is one in which none of them is stopped, as
        fast as can be; where it says no, somebody has to look.
    """

    scopes: tuple[SwitchScope, ...]
    is_clear: Callable[[], bool]
    _clear: list[Any]  # the latest such view, and its version

    def __init__(self, copy: Copy, scopes: tuple[SwitchScope, ...]) -> None:
        self.scopes = scopes
        clear: list[Any] = [object(), -1]
        self._clear = clear
        if copy.store.shared:
            now = copy.now
            self.is_clear = lambda: now() < copy.trusted_until and copy.view is clear[0]
        else:
            self.is_clear = lambda: copy.is_version(clear[1]) and copy.view is clear[0]

    def look(self, view: View) -> None:
        """Remember it, if nothing of this is stopped there."""
        if view.entries.keys().isdisjoint(self.scopes):
            self._clear[:] = view, view.version
