"""The settings in force of an endpoint, with their sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import frozen

from retrytemplate.config.kinds import LAYER_NAMES, RETRY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from retrytemplate.config.building import BuiltEndpoint
    from retrytemplate.config.entries import Entry
    from retrytemplate.config.parameters import Parameter


@frozen
class Setting:
    """A setting in force.

    :param value: in the notation of the file; a value from the environment is ``***``.
    :param source: ``file:line``, ``"default"``, or ``"preset NAME"``.
    """

    value: Any
    source: str


def effective_settings(endpoint: BuiltEndpoint) -> Mapping[str, Setting]:
    """The settings of all layers, the outermost first."""
    sections = [*LAYER_NAMES, *(each for each in endpoint.entries if each not in LAYER_NAMES)]
    return {
        f"{section}.{each.name}": _setting(endpoint.entries[section], each)
        for section in sections
        if section in endpoint.entries
        for each in endpoint.entries[section].kind.parameters
        if _is_shown(endpoint.entries[section], each)
    }


def observe_settings(entry: Entry | None) -> Mapping[str, Setting]:
    """The settings of section ``observe``; none without the section."""
    known = () if entry is None else entry.kind.parameters
    return {each.name: _setting(entry, each) for each in known if entry is not None}


def _is_shown(entry: Entry, parameter: Parameter) -> bool:
    """Whether it is a setting of the layer, and not merely a way to write others."""
    if entry.kind is RETRY and parameter.name == "preset":
        return False
    return parameter.name in entry.node.value or parameter.name != "sizing"


def _setting(entry: Entry, parameter: Parameter) -> Setting:
    name, reader = parameter.name, parameter.reader
    nodes = [entry.node.value.get(each) for each in (name, *entry.kind.exclusive)]
    if nodes[0] is not None:
        return Setting(nodes[0].masked(), nodes[0].place)
    computed = entry.kind.adapt(entry.values).get(name)
    if computed is not None:
        place = next(each.place for each in nodes if each is not None)
        return Setting(computed, place)
    if entry.preset is None:
        return Setting(parameter.written_default(), "default")
    value = getattr(entry.preset, name)
    written = reader.write(value) if reader.writes(value) else "rules of the preset"
    return Setting(written, f"preset {entry.preset.name}")
