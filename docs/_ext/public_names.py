"""The directive ``public-names``: a reference of everything in a module's ``__all__``.

The names of ``retrytemplate`` itself get a section for each heading of ``HEADINGS``, which has to
list them all.  Any other module is named as the argument, and its names are not divided.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

from sphinx.errors import ExtensionError
from sphinx.util.docutils import SphinxDirective

from retrytemplate import errors

if TYPE_CHECKING:
    from collections.abc import Collection

    from docutils import nodes
    from sphinx.application import Sphinx

HEADINGS = {
    "The template": ("Attempts", "BoundTemplate", "RetryTemplate"),
    "Context, state and outcome": (
        "AttemptRecord",
        "CancelReason",
        "Outcome",
        "RetryContext",
        "RetryState",
        "StopReason",
        "current_context",
    ),
    "Policies": (
        "AlwaysRetryPolicy",
        "CircuitBreakerRetryPolicy",
        "CompositeRetryPolicy",
        "ExceptionClassifierRetryPolicy",
        "MaxAttemptsRetryPolicy",
        "NeverRetryPolicy",
        "PredicateRetryPolicy",
        "ResultRetryPolicy",
        "RetryPolicy",
        "SimpleRetryPolicy",
        "StatefulRetryPolicy",
        "TimeoutRetryPolicy",
    ),
    "Classifiers": ("ExceptionClassifier", "PatternClassifier"),
    "Backoff": (
        "Backoff",
        "ExponentialBackoff",
        "FixedBackoff",
        "NoBackoff",
        "RetryAfterBackoff",
        "UniformRandomBackoff",
    ),
    "Listeners": ("LoggingListener", "RetryListener", "StatisticsListener"),
    "Context caches": (
        "AsyncRedisRetryContextCache",
        "AsyncSQLRetryContextCache",
        "MemoryRetryContextCache",
        "RedisRetryContextCache",
        "RetryContextCache",
        "SQLRetryContextCache",
    ),
    "Declarative retry": ("intercept", "recover", "retryable"),
    "Guards": ("Guard",),
    "Tests": ("is_active", "set_active"),
    "Limits of time": ("AttemptTimeout", "Deadline"),
    "Clock": ("Clock", "SystemClock"),
    "Errors": tuple(sorted(errors.__all__)),
}
# Classes whose methods are nearly all in a base class that is not public.
INHERITING = (
    "AsyncRedisRetryContextCache",
    "AsyncSQLRetryContextCache",
    "RedisRetryContextCache",
    "SQLRetryContextCache",
)


# Described under another module, too, which is in the index.
NOT_INDEXED = ("retrytemplate.workers.CrashLoopError",)


def check_headings(public: Collection[str]) -> None:
    """Raise for a public name without a heading, and for a name that is not public."""
    listed = Counter(name for names in HEADINGS.values() for name in names)
    wrong = sorted(name for name in {*public, *listed} if listed[name] != (name in public))
    if wrong:
        raise ExtensionError(
            f"HEADINGS must list each public name once and no other, got {', '.join(wrong)}"
        )


def describe(module: str, name: str, value: Any) -> list[str]:
    """The autodoc directive for one name."""
    options = []
    if inspect.isclass(value):
        kind = "autoexception" if issubclass(value, BaseException) else "autoclass"
        if value.__bases__ != (object,):
            options = ["   :show-inheritance:"]
        if name in INHERITING:
            options = ["   :inherited-members:"]
    elif callable(value):
        kind = "autofunction"
    else:
        kind = "autodata"
    if f"{module}.{name}" in NOT_INDEXED:
        options += ["   :no-index:"]
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
        check_headings(public)
        lines = []
        for title, names in HEADINGS.items():
            lines += [title, "-" * len(title), ""]
            lines += [line for each in names for line in describe(name, each, public[each])]
        return self.parse_text_to_nodes("\n".join(lines), allow_section_headings=True)


def tidy_signature(_app: Any, *about: Any) -> tuple[str | None, str | None]:
    """Write a default that is created for each object as ``...``."""
    signature, returns = about[-2:]
    if signature:
        signature = re.sub(r"= ?NOTHING", "= ...", signature)
        signature = re.sub(r"\b\w+\.Seconds\b", "Seconds", signature)
    return signature, returns


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("public-names", PublicNames)
    app.connect("autodoc-process-signature", tidy_signature)
    return {"parallel_read_safe": True}
