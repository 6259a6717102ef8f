"""An endpoint of a configuration: a strategy whose pipeline a reload replaces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from attrs import define, evolve, frozen

from retrytemplate.config.nodes import mask
from retrytemplate.control._strategy import StrategyBase, may_substitute

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import ParamSpec, TypeVar

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.config.building import Built
    from retrytemplate.control.pipeline.lint import LintWarning
    from retrytemplate.control.pipeline.pipeline import Pipeline
    from retrytemplate.history import Outcome

    P = ParamSpec("P")
    T = TypeVar("T")


@define(eq=False)
class Live:
    """The endpoints in force; one assignment replaces all of them."""

    built: Built


@frozen(eq=False, repr=False)
class Endpoint(StrategyBase):
    """The calls of one dependency, with the settings of a file; made by ``Config.endpoint``.

    A strategy: ``call``, ``call_async`` and ``wrap``, sync, asyncio and trio.  Safe for threads and
    tasks.  A reload replaces the settings of later calls, also those of functions that are wrapped
    already.

    >>> from tempfile import TemporaryDirectory
    >>> from pathlib import Path
    >>> from retrytemplate.config import load
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "resilience.toml")
    ...     _ = file.write_text("[bulkhead.endpoints.search]\\nlimit = 3\\nqueue = 0")
    ...     search = load(file).endpoint("search")
    >>> search.call(int, "17"), search.worst_case(attempt_duration=2.0)
    (17, 2.0)
    """

    name: str
    _live: Live

    @property
    def pipeline(self) -> Pipeline:
        """The present pipeline."""
        return self._live.built.endpoints[self.name].pipeline

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T | Any:
        """Call the function with all layers around it."""
        return self.pipeline.call(fn, *args, **kwargs)

    @may_substitute
    async def call_async(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, asynchronous or not, with all layers around it, and await it."""
        return await self.pipeline.call_async(fn, *args, **kwargs)

    def outcome(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Outcome[T | Any]:
        """Call the function and return the outcome; raises no ``Exception``."""
        return self.pipeline.outcome(fn, *args, **kwargs)

    @overload
    async def outcome_async(
        self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | Any]: ...

    @overload
    async def outcome_async(
        self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> Outcome[T | Any]: ...

    async def outcome_async(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Outcome[Any]:
        """The same for functions that may be asynchronous."""
        return await self.pipeline.outcome_async(fn, *args, **kwargs)

    def explain(self, *, attempt_duration: Seconds | None = None) -> str:
        """Describe the layers, the longest duration and the warnings, as ``Pipeline.explain``.

        :param attempt_duration: the longest duration of one call of the function, in seconds; None,
            the default: unknown.
        """
        text = self.pipeline.explain(attempt_duration=attempt_duration)
        return mask(text, self._live.built.secrets)

    def worst_case(  # type: ignore[override]  # it is no layer of a pipeline
        self, *, attempt_duration: Seconds | None = None, synchronous: bool = False
    ) -> float:
        """The longest duration of a call in seconds, as ``Pipeline.worst_case``."""
        return self.pipeline.worst_case(attempt_duration=attempt_duration, synchronous=synchronous)

    def lint(self, *, attempt_duration: Seconds | None = None) -> tuple[LintWarning, ...]:
        """The warnings about order and settings, as ``Pipeline.lint``."""
        secrets = self._live.built.secrets
        return tuple(
            evolve(each, reason=mask(each.reason, secrets))
            for each in self.pipeline.lint(attempt_duration=attempt_duration)
        )

    def _function(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """One more call per call: the function of the present pipeline is prepared."""
        live, name = self._live, self.name
        prepared = live.built, live.built.endpoints[name].pipeline.wrap(fn)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            nonlocal prepared
            present = prepared
            if present[0] is not live.built:
                built = live.built
                prepared = present = built, built.endpoints[name].pipeline.wrap(fn)
            return present[1](*args, **kwargs)

        return wrapped

    def _coroutine(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        function = self._function(fn)

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapped

    def __repr__(self) -> str:
        return f"<Endpoint {self.name!r}>"
