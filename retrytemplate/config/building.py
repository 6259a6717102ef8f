"""Building of pipelines from the entries of the sections."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate._internal.suggestions import nearest
from retrytemplate.config.entries import REJECTIONS, Entry, Reading, made_preset, wants_budget
from retrytemplate.config.handover import Component
from retrytemplate.config.kinds import (
    BUDGET,
    KINDS,
    LAYER_NAMES,
    LAYERS,
    OBSERVE,
    RETRY,
    SLOS,
    SWITCH,
)
from retrytemplate.control.budget.budget import RetryBudget
from retrytemplate.control.pipeline.pipeline import Pipeline
from retrytemplate.control.switch.switch import KillSwitch
from retrytemplate.policies.basic import NeverRetryPolicy
from retrytemplate.template import RetryTemplate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.clock import Clock
    from retrytemplate.config.handover import Handover
    from retrytemplate.config.kinds import Kind
    from retrytemplate.config.nodes import Node
    from retrytemplate.control.presets.preset import Preset
    from retrytemplate.observe.alerts.slo import SLO


@frozen(eq=False)
class BuiltEndpoint:
    """An endpoint with its pipeline.

    :param entries: the entries by section.
    :param preset: the settings of its retries; None: it has no section ``retry``.
    """

    pipeline: Pipeline
    entries: Mapping[str, Entry]
    preset: Preset | None
    components: Mapping[str, Component]


@frozen(eq=False)
class Built:
    """All endpoints of a configuration.

    :param secrets: the texts that no output may contain.
    :param switch: the kill switch; None: there is no section ``switch``.
    :param stores: the stores by path and user.
    :param slos: the objectives of section ``slo``.
    :param removed: the endpoints that the files no longer have.
    :param observe: the settings of section ``observe``; None without the section.
    """

    endpoints: Mapping[str, BuiltEndpoint]
    secrets: tuple[str, ...]
    switch: Component | None
    stores: Mapping[tuple[str, str], Component]
    slos: tuple[SLO, ...] = ()
    removed: tuple[str, ...] = ()
    observe: Entry | None = None


NOTHING = Built({}, (), None, {})


@frozen(eq=False)
class Build:
    """Builds the endpoints of sections; problems are reported to the reading.

    :param old: the configuration in force, whose components are used again.
    :param handover: collects the steps that put the new configuration in force.
    """

    reading: Reading
    clock: Clock | None
    old: Built
    handover: Handover

    def built(self) -> Built:
        """All endpoints; those that the files no longer have stay as they were."""
        reading, old = self.reading, self.old
        reading.check_sections()
        clock = {} if self.clock is None else {"clock": self.clock}
        builder = _Builder(reading, clock, old, self.handover)
        names = reading.names(LAYERS)
        for kind in (BUDGET, KINDS["pipeline"]):
            builder.check_names(kind, names)
        endpoints = {name: builder.endpoint(name, node) for name, node in names.items()}
        secrets = {each for node in reading.sections.values() for each in node.all_secrets()}
        made = {name: each for name, each in endpoints.items() if each is not None}
        removed = {name: each for name, each in old.endpoints.items() if name not in endpoints}
        return Built(
            {**made, **removed},
            tuple(secrets.union(old.secrets)),
            builder.switch,
            {**old.stores, **reading.stores.used},
            slos := build_slos(reading),
            tuple(removed),
            self._observe(slos),
        )

    def _observe(self, slos: tuple[SLO, ...]) -> Entry | None:
        """The settings of section ``observe``; those in force stay until a restart."""
        found, old = self.reading.observe(), self.old.observe
        if self.old is NOTHING:
            return found
        before, after = (None if each is None else each.node.plain() for each in (old, found))
        if before != after:
            self.handover.restart_required.append(OBSERVE.section)
        elif old is not None and slos != self.old.slos:
            self.handover.restart_required.append(SLOS.section)
        return old


def build_slos(reading: Reading) -> tuple[SLO, ...]:
    """Build the objectives of section ``slo``; problems are reported to the reading."""
    made = []
    for name in reading.names([SLOS]):
        entry = reading.entry(SLOS, name)
        if entry is None:
            continue
        if not entry.complete:
            reading.try_singles(entry)
            continue
        try:
            made.append(SLOS.constructor(name=name, **entry.values))
        except REJECTIONS as error:
            reading.explain(entry, error)
    return tuple(made)


class _Builder:
    """Builds the objects of endpoints."""

    def __init__(
        self, reading: Reading, clock: Mapping[str, Any], old: Built, handover: Handover
    ) -> None:
        self._reading, self._clock = reading, clock
        self._old, self._handover = old, handover
        self.switch = self._made_switch()

    def check_names(self, kind: Kind, names: Mapping[str, Node]) -> None:
        """Report the endpoints that only this section names."""
        retried = self._reading.names([RETRY])
        for name, node in self._reading.names([kind]).items():
            if name not in names:
                message = f"no other section has the endpoint {name!r}"
                self._reading.problems.report(node, message, nearest(name, names))
            elif kind is BUDGET and name not in retried:
                message = f"section retry has no endpoint {name!r}, so that nothing is retried"
                self._reading.problems.report(node, message)

    def endpoint(self, name: str, node: Node) -> BuiltEndpoint | None:
        """The endpoint with all its layers; None: problems were reported."""
        reading = self._reading
        entries = {
            kind.section: entry
            for kind in (*LAYERS, BUDGET)
            if (entry := reading.entry(kind, name)) is not None
        }
        order = reading.pipeline_order(name)
        known = self._old.endpoints.get(name)
        components: dict[str, Component] = {}
        preset = None
        for section in (BUDGET.section, *LAYER_NAMES):
            entry = entries.get(section)
            if entry is None or (entry.kind is SWITCH and self.switch is None):
                continue
            if not entry.complete:
                reading.try_singles(entry)
                continue
            try:
                if section == RETRY.section:
                    preset = self._retried(name, entry, known, components)
                else:
                    self._add(name, entry, known, entries, components)
            except REJECTIONS as error:
                reading.explain(entry, error)
        if entries.keys() - components.keys():
            return None
        return self._piped(name, node, entries, components, preset, order)

    def _add(
        self,
        name: str,
        entry: Entry,
        known: BuiltEndpoint | None,
        entries: dict[str, Entry],
        components: dict[str, Component],
    ) -> None:
        """Add the component of an entry: the present one, if its settings are the same."""
        section, kind, settings = entry.kind.section, entry.kind, entry.node.plain()
        old = None if known is None else known.components.get(section)
        if old is not None and old.settings == settings:
            components[section] = old
            return
        if kind is SWITCH and self.switch is not None:
            made = kind.constructor(self.switch.object, **entry.values)
        else:
            made = kind.constructor(name=name, **kind.adapt(entry.values), **self._clock)
        found = self._handover.continued(entry.node.path, section, old, Component(settings, made))
        components[section] = found
        if known is not None and found is old:
            entries[section] = known.entries[section]  # the settings in force

    def _retried(
        self,
        name: str,
        entry: Entry,
        known: BuiltEndpoint | None,
        components: dict[str, Component],
    ) -> Preset:
        """Add the template of an endpoint with its budget, and return its preset."""
        budget = components.get(BUDGET.section)
        if budget is None and wants_budget(entry):
            budget = None if known is None else known.components.get(BUDGET.section)
            if budget is None or budget.settings is not None:
                made = Component(None, RetryBudget(name=name, **self._clock))
                budget = self._handover.continued(name, BUDGET.section, budget, made)
            components[BUDGET.section] = budget
        settings = entry.node.plain(), entry.preset, budget and budget.object
        old = None if known is None else known.components.get(RETRY.section)
        if known is not None and known.preset and old is not None and old.settings == settings:
            components[RETRY.section] = old
            return known.preset
        given = {} if budget is None else {"budget": budget.object}
        preset = made_preset(name, entry, given)
        template = preset.template(name=name, **self._clock)
        components[RETRY.section] = Component(settings, template)
        return preset

    def _piped(
        self,
        name: str,
        node: Node,
        entries: Mapping[str, Entry],
        components: dict[str, Component],
        preset: Preset | None,
        order: tuple[Node, tuple[str, ...]] | None,
    ) -> BuiltEndpoint | None:
        known = self._old.endpoints.get(name)
        if preset is None:
            single = known and known.preset is None and known.components[RETRY.section]
            components[RETRY.section] = single or Component(
                None, RetryTemplate(NeverRetryPolicy(), name=name, **self._clock)
            )
        present = [each for each in LAYER_NAMES if each in components]
        if order is not None:
            place, wanted = order
            missing = [each for each in present if each not in wanted and each in entries]
            if missing or len(set(wanted)) < len(wanted):
                message = (
                    f"endpoint {name!r} has the layers {', '.join(present)}; "
                    "order must have each of them once"
                )
                self._reading.problems.report(place, message)
                return None
            rest = [each for each in present if each not in wanted]
            present = rest + [each for each in wanted if each in components]
        layers = tuple(components[each].object for each in present)
        if known is not None and known.pipeline.layers == layers:
            return BuiltEndpoint(known.pipeline, entries, preset, components)
        try:
            pipeline = Pipeline(*layers, name=name, **self._clock)
        except REJECTIONS as error:
            self._reading.problems.report(node, str(error))
            return None
        return BuiltEndpoint(pipeline, entries, preset, components)

    def _made_switch(self) -> Component | None:
        """The kill switch of section ``switch``."""
        reading = self._reading
        old = self._old.switch
        if SWITCH.section not in reading.sections:
            return old
        if not isinstance(reading.sections[SWITCH.section].value, dict):
            return None
        section, values = reading.own_settings(SWITCH)
        if values is None:
            return None
        try:
            made = Component(section.plain(), KillSwitch(**values, **self._clock))
        except REJECTIONS as error:
            reading.explain(Entry(SWITCH, section, {}, True), error)
            return None
        if old is not None and old.settings != made.settings:
            self._handover.restart_required.append(section.path)
        return old or made
