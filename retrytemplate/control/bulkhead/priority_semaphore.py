"""Rules of a semaphore with priorities and queues per key, and of a limit that grows."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from attrs import define, field, frozen

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["Growth", "Room", "Ticket"]


@define(eq=False)
class Ticket:
    """Somebody at the door.

    :param lane: 0 is the one that goes first.
    :param waiter: what wakes whoever waits; the room knows nothing of it.
    """

    key: Hashable
    lane: int
    waiter: Any = None
    number: int = 0
    state: str = "new"  # then "in", or "waiting", "in"; "gone"
    era: int = 0  # of the room that it came to
    line: Line | None = None  # where it waits


Line = OrderedDict[Ticket, None]


@define
class _Key:
    """Those of one key.

    :param taken: places of its own that are used: those who are in, and who could come in next.
    :param passed: how many of them were given to somebody who waited for one.
    """

    taken: int = 0
    passed: int = 0
    behind: list[Line] = field(factory=list)  # by lane, those for whom none is left


@define(eq=False)
class Room:
    """So many may be in at once, so many of one key, and so many may wait.

    :param fairness: every so many'th place that is given to somebody who waits goes to who has
        waited longest, of whatever lane; 0: never.  So does that of a key, among those who wait
        for one of its places.
    :param growth: what the limit is on its way to; None: it stays.
    """

    limit: int
    queue: int
    lanes: int
    per_key: int | None
    fairness: int
    in_use: int = 0
    waiting: int = 0
    arrived: int = 0
    admitted: int = 0  # so far, as the rejected ones
    rejected: int = 0
    passed: int = 0
    growth: Growth | None = None
    era: int = 0
    keys: dict[Hashable, _Key] = field(init=False)
    _ready: list[Line] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin an era: forget all tickets; those of earlier eras change nothing from now on."""
        self.era += 1
        self.in_use = self.waiting = 0
        self.keys = {}
        self._ready = [Line() for _ in range(self.lanes)]

    def enter(self, ticket: Ticket, *, wait: bool) -> bool:
        """Come in, or wait if there is room for that; False: neither."""
        self.arrived += 1
        ticket.number, ticket.era = self.arrived, self.era
        if self.in_use < self.limit and self._takes_place(ticket):
            self._let_in(ticket)
            self.admitted += 1
            return True
        if not wait or self.waiting >= self.queue:
            return False
        ticket.state = "waiting"
        self.waiting += 1
        self._line_up(ticket)
        return True

    def reject(self) -> None:
        """Count a call that was not admitted."""
        self.rejected += 1

    def count(self, ticket: Ticket) -> bool:
        """Whether the ticket is in at the end of its wait; then it counts as admitted."""
        is_in = ticket.state == "in"
        self.admitted += is_in
        return is_in

    def step_in(self) -> int:
        """Enter without a ticket and a key; the era, or 0 where a ticket is needed."""
        if self.in_use >= self.limit or self.growth is not None:
            return 0
        self.in_use += 1
        self.admitted += 1
        return self.era

    def step_out(self) -> list[Ticket]:
        """End a call of this era that has no ticket; return the tickets that are admitted then."""
        self.in_use -= 1
        return self.admit() if self.waiting else []

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Somebody goes: who was in, or who waited no longer.  Those who are let in for it."""
        was, ticket.state = ticket.state, "gone"
        if ticket.era != self.era:
            return []
        if was == "in":
            self.in_use -= 1
            self._give_place_back(ticket.key)
        elif was == "waiting":
            self.waiting -= 1
            assert ticket.line is not None
            del ticket.line[ticket]
            if ticket.line is self._ready[ticket.lane]:
                self._give_place_back(ticket.key)
        return self.admit() if self.waiting else []

    def admit(self) -> list[Ticket]:
        """Let in whoever can be."""
        admitted = []
        while self.in_use < self.limit and (ticket := self._next()) is not None:
            self.waiting -= 1
            self._let_in(ticket)
            admitted.append(ticket)
        return admitted

    # Another limit.

    def resize(self, limit: int, now: float, over: float) -> list[Ticket]:
        """A lower limit at once, a higher one in the course of some time."""
        admitted = self.look(now)
        if over and limit > self.limit:
            self.growth = Growth(self.limit, limit, now, over)
        else:
            self.limit, self.growth = limit, None
        return admitted + self.admit()

    def look(self, now: float) -> list[Ticket]:
        """Let in those for whom the limit has grown by now."""
        if self.growth is None:
            return []
        self.limit = max(self.limit, self.growth.at(now))  # another thread's clock may be ahead
        if self.limit == self.growth.to:
            self.growth = None
        return self.admit()

    def queued(self) -> list[Ticket]:
        """All who wait."""
        lines = [*self._ready, *(line for each in self.keys.values() for line in each.behind)]
        return [ticket for line in lines for ticket in line]

    # Who is next.

    def _next(self) -> Ticket | None:
        ticket = self._taken_from(self._ready, self.passed + 1)
        if ticket is not None:
            self.passed += 1
        return ticket

    def _taken_from(self, lines: list[Line], turn: int) -> Ticket | None:
        """Whose turn it is, who waits there no longer."""
        first = [next(iter(line)) for line in lines if line]
        if not first:
            return None
        by_age = self.fairness and turn % self.fairness == 0
        ticket = min(first, key=lambda each: each.number) if by_age else first[0]
        del lines[ticket.lane][ticket]
        return ticket

    def _let_in(self, ticket: Ticket) -> None:
        ticket.state = "in"
        self.in_use += 1

    # Places of a key.

    def _takes_place(self, ticket: Ticket) -> bool:
        if self.per_key is None or ticket.key is None:
            return True
        mine = self.keys.setdefault(ticket.key, _Key())
        if mine.taken >= self.per_key:
            return False
        mine.taken += 1
        return True

    def _line_up(self, ticket: Ticket) -> None:
        if self._takes_place(ticket):
            ticket.line = self._ready[ticket.lane]
        else:
            mine = self.keys[ticket.key]
            if not mine.behind:
                mine.behind = [Line() for _ in range(self.lanes)]
            ticket.line = mine.behind[ticket.lane]
        ticket.line[ticket] = None

    def _give_place_back(self, key: Hashable) -> None:
        if self.per_key is None or key is None:
            return
        mine = self.keys[key]
        mine.taken -= 1
        ticket = self._taken_from(mine.behind, mine.passed + 1)
        if ticket is not None:
            mine.passed += 1
            self._line_up(ticket)
        elif not mine.taken:
            del self.keys[key]  # nothing is remembered of a key that nobody uses


# Whoever waits looks at each step: there are only so many, however far it grows.
MOST_STEPS = 100


@frozen
class Growth:
    """From one number to a higher one, evenly, by one at a time or in a hundred steps.

    >>> growth = Growth(2, 5, since=0.0, over=30.0)
    >>> [growth.at(now) for now in (0.0, 9.9, 10.0, 20.0, 30.0, 90.0)]
    [2, 2, 3, 4, 5, 5]
    >>> growth.wait(12.0)
    8.0
    """

    start: int
    to: int
    since: float
    over: float
    _steps: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "_steps", min(self.to - self.start, MOST_STEPS))

    def at(self, now: float) -> int:
        """What it has come to."""
        return self.start + (self.to - self.start) * self._done(now) // self._steps

    def wait(self, now: float) -> float:
        """Seconds until the next step; 0: there is none."""
        done = self._done(now)
        return self._when(done + 1) - now if done < self._steps else 0.0

    def _done(self, now: float) -> int:
        return bisect_right(range(1, self._steps + 1), now, key=self._when)

    def _when(self, step: int) -> float:
        return self.since + self.over * step / self._steps
