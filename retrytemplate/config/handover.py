"""What a reload keeps: stores in use, and the state of the components that it changes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate.config.kinds import BREAKER, BUDGET, BULKHEAD, RATE_LIMITER, STORE_CLASSES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@frozen(eq=False)
class Component:
    """An object of an endpoint, and the settings it was made with."""

    settings: Any
    object: Any


@frozen(eq=False)
class Handover:
    """The steps that put a checked configuration in force, and the unchanged settings.

    :param steps: called before the new configuration is in force; they change components.
    :param breakers: the old and the new breakers.
    :param resized: paths of the components that stay and get other settings.
    :param restart_required: paths of the settings that need another process.
    """

    steps: list[Callable[[], None]] = field(factory=list, init=False)
    breakers: list[tuple[Any, Any]] = field(factory=list, init=False)
    resized: list[str] = field(factory=list, init=False)
    restart_required: list[str] = field(factory=list, init=False)

    def continued(
        self, path: str, section: str, old: Component | None, new: Component
    ) -> Component:
        """The component for new settings: the old object if it can change, or the new one."""
        if old is None:
            return new
        before, after = old.object, new.object
        if section in SHARED and SHARED[section](before) != SHARED[section](after):
            self.restart_required.append(path)
            return old
        if section == BREAKER.section and after.store is not None:
            # Breakers with other settings would not share its circuit.
            self.restart_required.append(path)
            return old
        if section in RESIZE:
            self.steps.append(partial(RESIZE[section], before, after))
            self.resized.append(path)
            return Component(new.settings, before)
        if section == BREAKER.section:
            self.breakers.append((before, after))
        if section == BUDGET.section:
            self.steps.append(partial(after.restore_state_from, before))
        return new

    def put_in_force(self, assign: Callable[[], None]) -> None:
        """Change the components, and assign the new configuration."""
        for step in self.steps:
            step()
        generations = [old.snapshot().generation for old, _ in self.breakers]
        for old, new in self.breakers:
            new.restore_state_from(old)
        assign()
        for generation, (old, new) in zip(generations, self.breakers, strict=True):
            if old.snapshot().generation != generation:  # a call has opened it meanwhile
                new.restore_state_from(old)


def _resize_bulkhead(present: Any, wanted: Any) -> None:
    present.resize(wanted.limit, queue=wanted.queue, max_wait=wanted.max_wait)


def _resize_limiter(present: Any, wanted: Any) -> None:
    burst = wanted.permits if wanted.burst is None else wanted.burst
    present.resize(permits=wanted.permits, per=wanted.per, burst=burst, max_wait=wanted.max_wait)


RESIZE: Mapping[str, Callable[[Any, Any], None]] = {
    BULKHEAD.section: _resize_bulkhead,
    RATE_LIMITER.section: _resize_limiter,
}
SHARED: Mapping[str, Callable[[Any], Any]] = {
    BREAKER.section: lambda each: each.store,
    RATE_LIMITER.section: lambda each: (each.store, each.on_store_error),
}
"""The settings of a component about the state that processes share."""


@frozen(eq=False)
class Stores:
    """Opens the stores of a configuration.

    :param old: those in use, by path and user; they stay, whatever their new settings.
    """

    old: Mapping[tuple[str, str], Component]
    handover: Handover
    used: dict[tuple[str, str], Component] = field(factory=dict, init=False)

    def open(self, path: str, user: str, kind: str, arguments: Mapping[str, Any]) -> Any:
        """The store of that name for that user; it is made at the first use."""
        key = path, user
        if key not in self.used:
            self.used[key] = self._opened(key, kind, arguments)
        return self.used[key].object

    def _opened(self, key: tuple[str, str], kind: str, arguments: Mapping[str, Any]) -> Component:
        settings, old = (kind, dict(arguments)), self.old.get(key)
        if old is not None and old.settings == settings:
            return old
        made = Component(settings, STORE_CLASSES[kind][key[1]](**arguments))
        if old is None:
            return made
        if key[0] not in self.handover.restart_required:
            self.handover.restart_required.append(key[0])
        return old
