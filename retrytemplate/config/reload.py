"""Reload: files that have changed, and the replacement of the configuration in force."""

from __future__ import annotations

import logging
import signal
from contextlib import suppress
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

from retrytemplate._internal.validation import check_span, checked_by, to_seconds
from retrytemplate._storage.fork_safety import register
from retrytemplate.config.building import NOTHING, Build, build_slos
from retrytemplate.config.entries import Reading
from retrytemplate.config.errors import ConfigError, ConfigProblem
from retrytemplate.config.files import read_files, read_sections
from retrytemplate.config.handover import Handover, Stores
from retrytemplate.config.kinds import SECTIONS, SLOS
from retrytemplate.config.nodes import Problems
from retrytemplate.control._poller import BackgroundPoller
from retrytemplate.control.events import ControlEvent, notify_listeners
from retrytemplate.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

    from retrytemplate.clock import Clock
    from retrytemplate.config.building import Built
    from retrytemplate.config.endpoint import Live
    from retrytemplate.control.events import Listeners
    from retrytemplate.observe.alerts.slo import SLO

LOG = logging.getLogger("retrytemplate.config")


@frozen(eq=False)
class Source:
    """The files of a configuration, and everything that they refer to.

    :param functions: the registered functions; None: any name is accepted.
    """

    path: Path
    environ: Mapping[str, str]
    functions: Mapping[str, Any] | None
    clock: Clock | None

    def read(self) -> Mapping[str, bytes]:
        """The content of the files, by name.

        :raises ConfigError: the files cannot be read.
        """
        try:
            return read_files(self.path)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            problem = ConfigProblem("", f"cannot be read: {reason}", str(self.path))
            raise ConfigError([problem]) from None

    def parse(self, files: Mapping[str, bytes], old: Built) -> tuple[Built, Handover]:
        """Build the endpoints of the content of files, and the steps to put them in force.

        :param old: the configuration in force; nothing of it is changed.
        :raises ConfigError: the content is not valid.
        """
        handover = Handover()
        reading = self._reading(files, Stores(old.stores, handover))
        built = Build(reading, self.clock, old, handover).built()
        _check(reading)
        return built, handover

    def load_slos(self) -> tuple[SLO, ...]:
        """Read the files and build the objectives only.

        :raises ConfigError: the files cannot be read, or the section is not valid.
        """
        reading = self._reading(self.read(), Stores(NOTHING.stores, Handover()))
        reading.check_defaults(SLOS)
        built = build_slos(reading)
        _check(reading)
        return built

    def _reading(self, files: Mapping[str, bytes], stores: Stores) -> Reading:
        problems = Problems()
        folder = self.path.is_dir()
        sections = read_sections(files, folder, SECTIONS, self.environ, problems)
        return Reading(sections, problems, self.functions, stores)


def _check(reading: Reading) -> None:
    if len(reading.problems):
        raise ConfigError(reading.problems.sorted())


@frozen(kw_only=True)
class ConfigReloaded(ControlEvent):
    """New content of the files is in force; ``name`` is their path.

    :param changed: endpoints that are new or have other settings.
    :param rebuilt: components that are new objects, such as ``billing.breaker``.
    :param removed: endpoints that the files no longer have; they keep their settings.
    :param restart_required: settings that need a restart, such as ``stores.shared``.
    """

    changed: tuple[str, ...]
    rebuilt: tuple[str, ...]
    removed: tuple[str, ...]
    restart_required: tuple[str, ...]


@frozen(kw_only=True)
class ConfigRejected(ControlEvent):
    """New content of the files is not valid; the present configuration stays in force."""

    error: ConfigError


@define(eq=False)
class Reloader:
    """Replaces the configuration in force; one thread at a time.

    :param seen: the content of the last attempt; a text: the files could not be read.
    :param last_error: the error of the last attempt; None: it succeeded.
    """

    source: Source
    live: Live
    listeners: Listeners
    seen: Mapping[str, bytes] | str
    last_error: ConfigError | None = field(default=None, init=False)
    _lock: Any = field(factory=RLock, init=False)
    _busy: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        register(self)

    def _forked(self) -> None:
        self._lock, self._busy = RLock(), False  # the thread that held it is in the parent

    def reload(self, *, only_changes: bool = False) -> ConfigReloaded | None:
        """Read the files and replace the configuration.

        :param only_changes: whether content that was seen already is ignored; returns None then.
        :raises ConfigError: the files are not valid; the configuration stays.
        """
        with self._lock:
            if self._busy:
                raise MisuseError("reload() was called by code that has interrupted a reload")
            self._busy = True
            try:
                event, error = self._attempt(only_changes)
            finally:
                self._busy = False
        if event is not None:
            self._report(event)
        if error is not None:
            raise error
        return event if isinstance(event, ConfigReloaded) else None

    def _attempt(self, only_changes: bool) -> tuple[ControlEvent | None, ConfigError | None]:
        """The event, if there is one to report, and the error."""
        name = str(self.source.path)
        try:
            files, unread = self.source.read(), None
        except ConfigError as error:
            files, unread = {}, error
        seen = files if unread is None else str(unread)
        is_new, self.seen = seen != self.seen, seen
        if only_changes and not is_new:
            return None, None
        old = self.live.built
        try:
            if unread is not None:
                raise unread
            built, handover = self.source.parse(files, old)
        except ConfigError as error:
            self.last_error = error
            return (ConfigRejected(name=name, error=error) if is_new else None), error
        handover.put_in_force(partial(setattr, self.live, "built", built))
        self.last_error = None
        return reloaded(self.source, old, built, handover), None

    def _report(self, event: ControlEvent) -> None:
        if isinstance(event, ConfigReloaded):
            parts = {
                "changed": event.changed,
                "removed, still in force": event.removed,
                "restart required": event.restart_required,
            }
            shown = [f"{word}: {', '.join(each)}" for word, each in parts.items() if each]
            level = logging.WARNING if event.restart_required else logging.INFO
            LOG.log(level, "%s was reloaded; %s", event.name, "; ".join(shown) or "no change")
        elif isinstance(event, ConfigRejected):
            LOG.error("%s is not valid and was not loaded; %s", event.name, event.error)
        notify_listeners(self.listeners, [event])


def reloaded(source: Source, old: Built, built: Built, handover: Handover) -> ConfigReloaded:
    """The difference of two configurations."""
    rebuilt, changed = list[str](), list[str]()
    resized = set(handover.resized)
    for endpoint, each in built.endpoints.items():
        known = old.endpoints.get(endpoint)
        if known is each:
            continue
        before = {} if known is None else known.components
        new = [
            f"{endpoint}.{section}"
            for section, component in each.components.items()
            if section not in before or before[section].object is not component.object
        ]
        rebuilt += new
        paths = {entry.node.path for entry in each.entries.values()}
        if new or known is None or each.pipeline is not known.pipeline or paths & resized:
            changed.append(endpoint)
    return ConfigReloaded(
        name=str(source.path),
        changed=tuple(changed),
        rebuilt=tuple(rebuilt),
        removed=tuple(each for each in built.removed if each not in old.removed),
        restart_required=tuple(handover.restart_required),
    )


@define(eq=False, repr=False)
class ConfigWatcher:
    """Reloads a configuration when its files change; made by ``Config.watch``.

    A context manager: a daemon thread reads the files inside its block.
    """

    _reloader: Reloader
    _every: float = field(converter=to_seconds, validator=checked_by(check_span))
    _sighup: bool
    _poller: BackgroundPoller | None = field(default=None, init=False)
    _previous: Any = field(default=None, init=False)

    @property
    def last_error(self) -> ConfigError | None:
        """The error of the last reload; None: it succeeded."""
        return self._reloader.last_error

    def reload(self) -> ConfigReloaded:
        """Read the files now, as ``Config.reload``.

        :raises ConfigError: the files are not valid; the present configuration stays in force.
        """
        done = self._reloader.reload()
        assert done is not None
        return done

    def __enter__(self) -> Self:
        if self._poller is not None:
            raise MisuseError("this ConfigWatcher is in use; call watch() again")
        poller = BackgroundPoller(self._poll, self._every, name="retrytemplate-config")
        if self._sighup:
            # The handler waits for no lock: it puts an item into a queue.
            self._previous = signal.signal(signal.SIGHUP, lambda *_: poller.wake())
        self._poller = poller
        register(self)
        poller.ensure_running()
        return self

    def __exit__(self, *_: object) -> None:
        poller, self._poller = self._poller, None
        if self._sighup:
            signal.signal(signal.SIGHUP, self._previous)
        if poller is not None:
            poller.close()

    def _forked(self) -> None:
        if self._poller is not None:
            self._poller.forked()
            self._poller.ensure_running()

    def _poll(self) -> bool:
        with suppress(ConfigError):  # it is reported
            self._reloader.reload(only_changes=True)
        return True
