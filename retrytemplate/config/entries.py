"""Reading of sections into entries: the settings of each endpoint, merged and checked."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from retrytemplate._internal.suggestions import nearest
from retrytemplate.config.kinds import (
    KINDS,
    OBSERVE,
    PRESETS,
    RETRY,
    STORE_CLASSES,
    STORES,
    Kind,
)
from retrytemplate.config.nodes import INVALID, Node, mask, shown
from retrytemplate.config.parameters import read_parameters, read_valid, report_unknown
from retrytemplate.config.readers import TEXT
from retrytemplate.control.presets.catalog import PRESETS as REGISTERED
from retrytemplate.control.presets.catalog import preset as registered_preset
from retrytemplate.errors import RetryError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from retrytemplate.config.handover import Stores
    from retrytemplate.config.nodes import Problems
    from retrytemplate.control.presets.preset import Preset

REJECTIONS = (TypeError, ValueError, RetryError)
"""The exceptions that constructors raise for invalid arguments."""
NO_ARGUMENTS: Mapping[str, Any] = {}


@frozen(eq=False)
class Entry:
    """The settings of a kind for an endpoint.

    :param node: the merged settings, at the place of the endpoint.
    :param values: the valid arguments.
    :param complete: whether no problem was reported.
    :param preset: the registered preset below the settings.
    """

    kind: Kind
    node: Node
    values: Mapping[str, Any]
    complete: bool
    preset: Preset | None = None


@frozen(eq=False)
class Reading:
    """The context in which sections are read.

    :param functions: the registered functions; None: any name is accepted.
    :param stores: opens stores, or returns those that are in use.
    """

    sections: Mapping[str, Node]
    problems: Problems
    functions: Mapping[str, Any] | None
    stores: Stores
    _known_parts: dict[str, tuple[dict[str, Node], dict[str, Node]]] = field(
        factory=dict, init=False
    )

    # The names that values refer to.

    def function(self, node: Node) -> Any:
        """The registered function that a node names, or ``INVALID``."""
        if self.functions is None:
            return _placeholder
        if node.value in self.functions:
            return self.functions[node.value]
        message = f"no function {node.value!r} is registered; pass it to load(functions=)"
        self.problems.report(node, message, nearest(node.value, self.functions))
        return INVALID

    def store(self, node: Node, user: str) -> Any:
        """The store that a node names, for objects of a section, or ``INVALID``."""
        stores = self._children("stores")
        if node.value not in stores:
            self.problems.report(node, f"unknown store {node.value!r}", nearest(node.value, stores))
            return INVALID
        values = self._store_values(stores[node.value])
        if values is None:
            return INVALID
        kind = values["kind"]
        if user not in STORE_CLASSES[kind]:
            able = " or ".join(each for each in STORE_CLASSES if user in STORE_CLASSES[each])
            self.problems.report(node, f"must be a store of kind {able}, got kind {kind}")
            return INVALID
        return self._open(stores[node.value], values, user)

    # Sections.

    def check_sections(self) -> None:
        """Check everything that does not belong to an endpoint."""
        version = self.sections.get("version")
        if version is not None and (version.value != 1 or version.value is True):
            self.problems.report(version, f"must be 1, got {shown(version.value)}")
        for node in self._children("stores").values():
            values = self._store_values(node)
            if values is not None:
                user = next(iter(STORE_CLASSES[values["kind"]]))
                self._open(node, values, user)
        for name, node in self._children("presets").items():
            self._preset_entry(name, node)
        for kind in KINDS.values():
            self.check_defaults(kind)

    def names(self, kinds: Iterable[Kind]) -> dict[str, Node]:
        """The endpoints that the sections of these kinds name."""
        found: dict[str, Node] = {}
        for kind in kinds:
            for name, node in self._parts(kind)[1].items():
                found.setdefault(name, node)
        return found

    def own_settings(self, kind: Kind) -> tuple[Node, Mapping[str, Any] | None]:
        """The settings of a section itself."""
        section = self.sections[kind.section]
        own = {each.name for each in kind.own}
        nodes = {name: node for name, node in section.value.items() if name in own}
        section = self._at(section, nodes)
        return section, self._values(kind.own, section)

    def entry(self, kind: Kind, name: str) -> Entry | None:
        """The settings of an endpoint; None: the section does not name it."""
        defaults, endpoints = self._parts(kind)
        if name not in endpoints:
            return None
        node = endpoints[name]
        own = self._mapping(node)
        if own is None:
            return Entry(kind, self._at(node, {}), {}, False)
        self._check_exclusive(kind, node, own)
        replaced = kind.exclusive if own.keys() & set(kind.exclusive) else ()
        inherited = {key: each for key, each in defaults.items() if key not in replaced}
        merged = {**inherited, **own}
        if kind is RETRY:
            return self._retry_entry(node, merged)
        node = self._at(node, merged)
        return Entry(kind, node, *read_valid(node, kind.parameters, self))

    def pipeline_order(self, name: str) -> tuple[Node, tuple[str, ...]] | None:
        """The order of the layers of an endpoint that the file sets."""
        kind = KINDS["pipeline"]
        defaults, endpoints = self._parts(kind)
        own = self._mapping(endpoints[name]) if name in endpoints else {}
        node = (defaults | (own or {})).get("order")
        if node is None:
            return None
        order = kind.parameters[0].reader.read(node, self)
        return None if order is INVALID else (node, order)

    def observe(self) -> Entry | None:
        """The settings of section ``observe``; None without the section."""
        if OBSERVE.section not in self.sections:
            return None
        node = self._at(self.sections[OBSERVE.section], self._children(OBSERVE.section))
        return Entry(OBSERVE, node, *read_valid(node, OBSERVE.parameters, self))

    # Errors of constructors.

    def try_singles(self, entry: Entry) -> bool:
        """Report every setting that the constructor rejects by itself; return whether any is."""
        found = [
            self._try_single(entry.kind, name, entry.node.value[name], value)
            for name, value in entry.values.items()
        ]
        return any(found)

    def explain(self, entry: Entry, error: Exception) -> None:
        """Report the error of a constructor: every single setting that is wrong, or the entry."""
        if not self.try_singles(entry):
            name = str(error).partition(" ")[0]
            place = entry.node.value.get(name, entry.node)
            self._report(place, str(error), entry.node)

    def _try_single(self, kind: Kind, name: str, node: Node, value: Any) -> bool:
        """Report a value that the constructor rejects by itself; return whether it does."""
        if name in ("preset", "base"):
            return False
        try:
            kind.constructor(**{**kind.samples, **kind.adapt({name: value}), "name": "name"})
        except REJECTIONS as error:
            if str(error).partition(" ")[0] == name:
                self._report(node, str(error), node)
                return True
        return False

    def _report(self, place: Node, message: str, masked: Node) -> None:
        self.problems.report(place, mask(message, masked.all_secrets()))

    # Parts of sections.

    def _children(self, section: str) -> dict[str, Node]:
        node = self.sections.get(section)
        return {} if node is None else self._mapping(node) or {}

    def _mapping(self, node: Node) -> dict[str, Node] | None:
        if isinstance(node.value, dict):
            return node.value
        message = f"must be a mapping, got {shown(node.value)}"
        if node.value is None:
            message += "; write {} for the defaults"
        self.problems.report(node, message)
        return None

    def _parts(self, kind: Kind) -> tuple[dict[str, Node], dict[str, Node]]:
        """The nodes of ``defaults`` and of ``endpoints``."""
        if kind.section in self._known_parts:
            return self._known_parts[kind.section]
        children = self._children(kind.section)
        known = ["defaults", "endpoints", *(each.name for each in kind.own)]
        for name, node in children.items():
            if name not in known:
                report_unknown(name, node, known, self)
        parts = [
            self._mapping(children[name]) or {} if name in children else {}
            for name in ("defaults", "endpoints")
        ]
        self._known_parts[kind.section] = parts[0], parts[1]
        return parts[0], parts[1]

    def check_defaults(self, kind: Kind) -> None:
        """Check the names and the defaults of a section."""
        defaults, endpoints = self._parts(kind)
        for name, node in endpoints.items():
            if not name.strip():
                self.problems.report(node, "the name of an endpoint must not be blank")
        if "defaults" not in self._children(kind.section):
            return
        self._check_exclusive(kind, self.sections[kind.section].value["defaults"], defaults)
        readers = {each.name: each.reader for each in kind.parameters}
        for name, node in defaults.items():
            if name not in readers:
                report_unknown(name, node, readers, self)
                continue
            value = readers[name].read(node, self)
            if value is not INVALID:
                self._try_single(kind, name, node, value)
        if kind is RETRY and "preset" in defaults:
            self._lookup(defaults["preset"], ())

    def _check_exclusive(self, kind: Kind, node: Node, own: Mapping[str, Node]) -> None:
        both = [each for each in kind.exclusive if each in own]
        if len(both) > 1:
            self.problems.report(own[both[-1]], f"{' and '.join(both)} are mutually exclusive")

    def _values(self, known: Any, node: Node) -> Mapping[str, Any] | None:
        values = read_parameters(node, known, self)
        return None if values is INVALID else values

    @staticmethod
    def _at(place: Node, children: dict[str, Node]) -> Node:
        return Node(children, place.path, place.file, place.line, place.column)

    # Stores.

    def _store_values(self, node: Node) -> Mapping[str, Any] | None:
        if self._mapping(node) is None:
            return None
        values = self._values(STORES.parameters, node)
        if values is None:
            return None
        taken = {"kind"}.union(
            *(signature(each).parameters for each in STORE_CLASSES[values["kind"]].values())
        )
        wrong = [name for name in values if name not in taken]
        for name in wrong:
            message = f"a store of kind {values['kind']} has no such setting"
            self.problems.report(node.value[name], message)
        return None if wrong else values

    def _open(self, node: Node, values: Mapping[str, Any], user: str) -> Any:
        constructor = STORE_CLASSES[values["kind"]][user]
        taken = signature(constructor).parameters
        arguments = {name: value for name, value in values.items() if name in taken}
        try:
            return self.stores.open(node.path, user, values["kind"], arguments)
        except REJECTIONS as error:
            name = str(error).partition(" ")[0]
            self._report(node.value.get(name, node), str(error), node)
            return INVALID

    # Presets.

    def _retry_entry(self, node: Node, merged: dict[str, Node]) -> Entry:
        settings, preset = self._with_preset(merged, "preset", ())
        node = self._at(node, settings)
        values, complete = read_valid(node, RETRY.parameters, self)
        if preset is INVALID:
            return Entry(RETRY, node, values, False)
        return Entry(RETRY, node, values, complete, preset)

    def _preset_entry(self, name: str, node: Node) -> None:
        """Check a preset of the file."""
        children = self._mapping(node)
        if children is None:
            return
        settings, preset = self._with_preset(children, "base", (name,))
        read_valid(node, PRESETS.parameters, self)
        node = self._at(node, settings)
        values, complete = read_valid(node, PRESETS.parameters, self)
        if preset is INVALID or not complete:
            self.try_singles(Entry(PRESETS, node, values, False))
            return
        entry = Entry(PRESETS, node, values, True, preset)
        try:
            made_preset(name, entry)
        except REJECTIONS as error:
            self.explain(entry, error)

    def _with_preset(
        self, own: dict[str, Node], key: str, above: tuple[str, ...]
    ) -> tuple[dict[str, Node], Any]:
        """The settings with those of the presets below, and the registered preset or None."""
        if key not in own:
            return own, None
        rest = {name: node for name, node in own.items() if name != key}
        below, preset = self._lookup(own[key], above)
        return {**below, **rest}, preset

    def _lookup(self, node: Node, above: tuple[str, ...]) -> tuple[dict[str, Node], Any]:
        """The settings of the preset that a node names, and the registered preset or None."""
        name, presets = TEXT.read(node, self), self._children("presets")
        if name is INVALID:
            return {}, INVALID
        if name in presets and name not in above:
            if not isinstance(presets[name].value, dict):
                return {}, INVALID
            return self._with_preset(presets[name].value, "base", (*above, name))
        try:
            return {}, registered_preset(name)
        except (LookupError, TypeError):
            if name in above:
                self.problems.report(node, f"preset {name!r} is based on itself")
            else:
                known = [*presets, *REGISTERED]
                self.problems.report(node, f"unknown preset {name!r}", nearest(name, known))
            return {}, INVALID


def wants_budget(entry: Entry) -> bool:
    """Whether an entry asks for a budget of its own."""
    below = entry.preset is not None and entry.preset.budget is True
    return entry.values.get("budget", below) is True


def made_preset(name: str, entry: Entry, other: Mapping[str, Any] = NO_ARGUMENTS) -> Preset:
    """The preset with the settings of an entry, and with other arguments."""
    values = {**entry.values, **other}
    if entry.preset is None:
        made: Preset = RETRY.constructor(name, **values)
        return made
    return entry.preset.with_(name=name, **values)


def _placeholder(*args: Any, **kwargs: Any) -> Any:
    """Stands for a function that the program registers."""
