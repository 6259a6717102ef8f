"""The directive ``public-names``: a reference of everything in a module's ``__all__``.

Nothing is listed by hand, so nothing can be forgotten.  The names of ``retrytemplate`` itself get a
section for each room that defines them, in the order of ``ROOMS``, which has to have them all.
Any other module is named as the argument, and its names are not divided.
"""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

ROOMS = {
    "template": "The template",
    "attempts": "The template",
    "context": "Context, state and outcome",
    "state": "Context, state and outcome",
    "outcome": "Context, state and outcome",
    "history": "Context, state and outcome",
    "policies": "Policies",
    "classify": "Classifiers",
    "backoff": "Backoff",
    "listeners": "Listeners",
    "caches": "Context caches",
    "stores": "Context caches",
    "declarative": "Declarative retry",
    "guards": "Guards",
    "deadline": "Limits of time",
    "attempt_timeout": "Limits of time",
    "clock": "Clock",
    "errors": "Errors",
}


# Aliases of types: ``typing`` is their module.
ALIASES = {"StopReason": "Context, state and outcome"}


def heading_of(name: str, value: Any) -> str:
    """The heading under which a public object of the library is documented."""
    if name in ALIASES:
        return ALIASES[name]
    room = value.__module__.split(".")[1]
    if room not in ROOMS:
        raise ExtensionError(f"{name} is of {room!r}, which has no heading in ROOMS")
    return ROOMS[room]


def describe(module: str, name: str, value: Any) -> list[str]:
    """The autodoc directive for one name."""
    options = []
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        if value.__bases__ != (object,):
            options = ["   :show-inheritance:"]
        if value.__module__.startswith("retrytemplate.stores."):  # nearly all is in their base
            options = ["   :inherited-members:"]
    elif callable(value):
        kind = "autofunction"
    else:
        kind = "autodata"
    return [f".. {kind}:: {module}.{name}", *options, ""]


class PublicNames(SphinxDirective):
    """Autodoc directives for all public names of a module."""

    optional_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Parse what a page that listed every name would hold."""
        name = self.arguments[0] if self.arguments else "retrytemplate"
        module = import_module(name)
        public = {each: getattr(module, each) for each in sorted(module.__all__)}
        if self.arguments:
            lines = [line for each in public for line in describe(name, each, public[each])]
            return self.parse_text_to_nodes("\n".join(lines))
        sections: dict[str, list[str]] = {title: [] for title in ROOMS.values()}
        for each, value in public.items():
            sections[heading_of(each, value)] += describe(name, each, value)
        lines = []
        for title, body in sections.items():
            lines += [title, "-" * len(title), "", *body]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def tidy_signature(_app: Any, *about: Any) -> tuple[str | None, str | None]:
    """Write a default that is made anew for each object as ``...``."""
    signature, returns = about[-2:]
    if signature:
        signature = re.sub(r"= ?NOTHING", "= ...", signature).replace("_checks.Seconds", "Seconds")
    return signature, returns


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", tidy_signature)
    return {"parallel_read_safe": True}
