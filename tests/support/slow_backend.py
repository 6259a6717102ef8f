"""A backend with configured response times, and a listener of its hedges."""

from retrytemplate.control import ControlListener, Hedge
from retrytemplate.testing import run, run_trio

__all__ = ["Backend", "Down", "EventRecorder", "hedge", "in_asyncio", "in_trio"]


class Down(Exception):
    """The error of a failing call."""


class EventRecorder(ControlListener):
    def __init__(self):
        self.events = []

    def on_event(self, event):
        self.events.append(event)

    @property
    def kinds(self):
        return [type(each) for each in self.events]


class Backend:
    """Calls with the given virtual durations; with an exception they fail at the end."""

    def __init__(self, clock, *takes):
        self.clock = clock
        self.takes = [each if isinstance(each, tuple) else (each, None) for each in takes]
        self.began = []
        self.cancelled = []
        self.running = 0

    async def ask(self):
        seconds, error = self.takes[len(self.began)]
        error = error() if isinstance(error, type) else error
        self.began.append(self.clock.monotonic())
        number = len(self.began)
        self.running += 1
        try:
            await self.clock.sleep_async(seconds)
            if error is not None:
                raise error
            return f"answer {number}"
        except BaseException as exc:
            if exc is not error:
                self.cancelled.append(number)
            raise
        finally:
            self.running -= 1
            del error  # whose traceback holds this frame


def hedge(delay=1.0, **settings):
    return Hedge(delay, **{"idempotent": True} | settings)


def in_asyncio(main, clock):
    return run(main(), clock=clock)


def in_trio(main, clock):
    return run_trio(main, clock=clock)
