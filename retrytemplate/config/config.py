"""Loading of a configuration, and the endpoints in it."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from attrs import field, frozen

from retrytemplate._internal.closing import Closing
from retrytemplate.config.building import NOTHING
from retrytemplate.config.delays import Delay, preset_delays
from retrytemplate.config.effective import Setting, effective_settings, observe_settings
from retrytemplate.config.endpoint import Endpoint, Live
from retrytemplate.config.errors import ConfigError, UnknownEndpointError
from retrytemplate.config.handover import Handover
from retrytemplate.config.observing import install_observer
from retrytemplate.config.reload import ConfigRejected, ConfigWatcher, Reloader, Source, reloaded
from retrytemplate.control.events import Observable, notify_listeners, to_listeners
from retrytemplate.observe.installation import installed
from retrytemplate.observe.instruments.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from retrytemplate._internal.validation import Seconds
    from retrytemplate.clock import Clock
    from retrytemplate.config.building import BuiltEndpoint
    from retrytemplate.config.observing import Observing
    from retrytemplate.config.reload import ConfigReloaded
    from retrytemplate.control.events import Listeners
    from retrytemplate.observe.alerts.slo import SLO

F = TypeVar("F")
NO_FUNCTIONS: Mapping[str, Any] = {}


def load(
    path: str | PathLike[str],
    *,
    environ: Mapping[str, str] = os.environ,
    registry: Registry | None = None,
    functions: Mapping[str, Any] = NO_FUNCTIONS,
    install: bool = True,
    clock: Clock | None = None,
) -> Config:
    """Load the endpoints of a file, or of a folder with a file for each section.

    :param path: a file whose name ends with ``.yaml``, ``.yml`` or ``.toml``, or a folder.  YAML
        needs the extra ``config``.
    :param environ: values of ``${NAME}``; default: the environment of the process.
    :param registry: the components whose snapshots give the gauges of section ``observe``; None,
        the default: all live components of the process.
    :param functions: the functions that section ``fallback`` may name.
    :param install: whether the observer of section ``observe`` is installed, if the process has no
        observer; default True.
    :param clock: measures, and sleeps; None, the default: the clock of the system.
    :raises ConfigError: the configuration is not valid; ``problems`` lists everything.
    :raises MissingExtraError: an extra that the files need is not installed.

    The default listeners receive ``ConfigReloaded`` or ``ConfigRejected``.

    No class, module or object named in a file is imported or evaluated.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "resilience.toml")
    ...     _ = file.write_text("[timeout.endpoints.search]\\nseconds = '800ms'")
    ...     config = load(file)
    >>> config.names, config.effective("search")["timeout.seconds"].value
    (('search',), '800ms')
    """
    source = Source(Path(path), environ, dict(functions), clock)
    try:
        config = _loaded(source, Registry() if registry is None else registry)
    except ConfigError as error:
        notify_listeners(to_listeners(()), [ConfigRejected(name=str(path), error=error)])
        raise
    built = config._live.built
    if install and built.observe is not None and installed() is None:
        settings = built.observe.values
        observing = install_observer(settings, built.slos, config.registry, clock)
        config._observing.append(observing)
    notify_listeners(config.listeners, [reloaded(source, NOTHING, built, Handover())])
    return config


def load_for_inspection(path: str, environ: Mapping[str, str]) -> Config:
    """Load the files without the program: every name of a function is accepted."""
    return _loaded(Source(Path(path), environ, None, None), Registry())


def _loaded(source: Source, registry: Registry) -> Config:
    files = source.read()
    live = Live(source.parse(files, NOTHING)[0])
    listeners = to_listeners(())
    reloader = Reloader(source, live, listeners, files)
    return Config(source, live, listeners, reloader, registry)


def load_slos(
    path: str | PathLike[str], *, environ: Mapping[str, str] = os.environ
) -> tuple[SLO, ...]:
    """Load the objectives of section ``slo`` of a file or folder; other sections are not checked.

    :param path: a file whose name ends with ``.yaml``, ``.yml`` or ``.toml``, or a folder.  YAML
        needs the extra ``config``.
    :param environ: values of ``${NAME}``; default: the environment of the process.
    :raises ConfigError: the section is not valid; ``problems`` lists everything.
    :raises MissingExtraError: an extra that the files need is not installed.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "slo.toml")
    ...     _ = file.write_text("[slo.endpoints.billing]\\navailability = '99.9%'")
    ...     load_slos(file)[0].availability
    0.999
    """
    return Source(Path(path), environ, None, None).load_slos()


@frozen(eq=False, repr=False)
class Config(Observable, Closing):
    """The endpoints of a file or folder; made by ``load``.

    Safe for threads and tasks.  Listeners receive ``ConfigReloaded`` and ``ConfigRejected``.  As a
    context manager it is closed at the end of the block.  ``registry`` has the components whose
    snapshots give the gauges.
    """

    _source: Source
    _live: Live
    listeners: Listeners
    _reloader: Reloader
    registry: Registry
    _endpoints: dict[str, Endpoint] = field(factory=dict, init=False)
    _observing: list[Observing] = field(factory=list, init=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the endpoints."""
        return tuple(self._live.built.endpoints)

    @property
    def slos(self) -> tuple[SLO, ...]:
        """The objectives of section ``slo``."""
        return self._live.built.slos

    def endpoint(self, name: str) -> Endpoint:
        """The endpoint of this name, the same object each time.

        :raises UnknownEndpointError: there is no endpoint of this name.
        """
        self._built(name)
        return self._endpoints.setdefault(name, Endpoint(name, self._live))

    def wrap_all(self, functions: Mapping[str, F], *, default: str | None = None) -> dict[str, F]:
        """Wrap each function with the endpoint of its name, such as all tools of an agent.

        :param functions: functions or coroutine functions by the names of their endpoints.
        :param default: the endpoint of functions without one of their own; None: an error.
        :raises UnknownEndpointError: a function has no endpoint.
        """
        known = self._live.built.endpoints
        return {
            name: self.endpoint(name if name in known or default is None else default).wrap(fn)
            for name, fn in functions.items()
        }

    def effective(self, name: str) -> Mapping[str, Setting]:
        """The settings of an endpoint with their sources, by ``section.setting``.

        :raises UnknownEndpointError: there is no endpoint of this name.
        """
        return effective_settings(self._built(name))

    def effective_observe(self) -> Mapping[str, Setting]:
        """The settings of section ``observe`` with their sources; none without the section."""
        return observe_settings(self._live.built.observe)

    def delays(self, name: str) -> tuple[Delay, ...]:
        """The delays before the retries of an endpoint, if every attempt fails; at most 50.

        :raises UnknownEndpointError: there is no endpoint of this name.
        """
        preset = self._built(name).preset
        return () if preset is None else preset_delays(preset)

    def reload(self) -> ConfigReloaded:
        """Read the files again, and put their content in force.

        Calls in progress keep the settings that they began with.  Open circuits stay open, waiting
        calls keep their places, and removed endpoints keep their settings.

        :return: the changes.
        :raises ConfigError: the files are not valid; the present configuration stays in force.

        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder, "resilience.toml")
        ...     _ = file.write_text("[bulkhead.endpoints.search]\\nlimit = 3")
        ...     config = load(file)
        ...     _ = file.write_text("[bulkhead.endpoints.search]\\nlimit = 5")
        ...     print(config.reload().changed, config.effective("search")["bulkhead.limit"].value)
        ('search',) 5
        """
        done = self._reloader.reload()
        assert done is not None
        return done

    def watch(self, *, every: Seconds = 1.0, sighup: bool = False) -> ConfigWatcher:
        """A context manager that reloads the files when their content changes.

        A file that is not valid is logged and reported once, and changes nothing.

        :param every: seconds between two reads of the files, above 0; default 1.
        :param sighup: whether the signal SIGHUP causes a read; only in the main thread; default
            False.
        :raises ValueError: ``every`` is out of its range.
        """
        return ConfigWatcher(self._reloader, every, sighup)

    def close(self) -> None:
        """Release the resources of the process; a second call does nothing.

        Remove the observer that ``load`` has installed, with its alerts, and close the kill switch
        and the stores.  Leave the block of ``watch`` first.
        """
        built = self._live.built
        with ExitStack() as stack:
            for each in (*built.stores.values(), built.switch):
                if each is not None:
                    stack.callback(each.object.close)
            while self._observing:
                stack.callback(self._observing.pop().close)

    def _built(self, name: str) -> BuiltEndpoint:
        known = self._live.built.endpoints
        if name not in known:
            raise UnknownEndpointError(name, known)
        return known[name]

    def __repr__(self) -> str:
        count = len(self.names)
        return f"<Config {str(self._source.path)!r}: {count} endpoint{'' if count == 1 else 's'}>"
