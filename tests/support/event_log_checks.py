"""Checks of a store by the rows of an event log: holders of keys, counts, accepted results.

A *call* is one of a key's callback or recovery; every one says when it begins which failures its
context knows: its *past*.  Calls are in the order of their fences.

- During one call no other begins, unless the first one is *gone*, and was delivered longer ago
  than its lease; then it is not accepted either.
- The past of a call is that of the call before, and then that one itself: as failed, if it failed;
  as lost, if it is gone, and its process has ended or it was delivered longer ago than its lease.
  After that may stand only workers that are gone too: they were lost between taking the key and
  the call.  Nothing is in a past twice.
- A past is empty again only after a call that was accepted, or may have been: it had returned a
  value, and is gone.
- The recovery comes after *attempts* failures, no callback does; after a recovery that is gone
  comes a recovery with the same past.
- The last call of a key was accepted.  A key whose success is remembered has no call after an
  accepted callback; after an accepted recovery it starts again.

*Gone* is a process that was killed, or that received an error: its key is lost, or the store is
unavailable.
"""

from collections import Counter, defaultdict

from attrs import define, fields

__all__ = ["EventLogChecks"]


@define
class Call:
    """One call by its own entries: ``past`` are the failures that its context contained."""

    key: str
    kind: str
    pid: int
    worker: str
    fence: int
    attempt: int
    past: list
    at: float
    delivered: float
    begin: int  # a row's number, as the end is
    end: int
    how: str | None = None
    accepted: bool = False

    def __str__(self):
        end = f"{self.how}{' (accepted)' if self.accepted else ''}, rows {self.begin}-{self.end}"
        return (
            f"{self.kind} of {self.key!r} by {self.worker}, {self.fence} after {self.past}: {end}"
        )


OWN = [each.name for each in fields(Call) if each.name not in ("begin", "end", "how", "accepted")]


class EventLogChecks:
    """The calls of every key, and who of them is excused.

    :param lease: seconds, before which no key can have been taken from a process that runs.
    :param attempts: after which the recovery comes.
    """

    def __init__(self, rows, lease, attempts):
        self.lease = lease
        self.attempts = attempts
        self.rows = rows
        self.calls = defaultdict(list)
        self.killed = {}
        self.ended = {}
        self.excused = set()  # process and key
        self.completed = set()
        known = {}
        for number, row in enumerate(rows):
            key, what, pid = row["key"], row["what"], row["pid"]
            if what == "enter":
                call = Call(begin=number, end=len(rows), **{name: row[name] for name in OWN})
                known[key, row["fence"], row["kind"]] = call
                self.calls[key].append(call)
            elif what == "leave":
                call = known[key, row["fence"], row["kind"]]
                call.end, call.how = number, row["how"]
            elif what == "killed":
                self.killed[row["killed"]] = self.ended[row["killed"]] = number
            elif what == "ended":
                self.ended[pid] = number
            elif what in ("late", "unavailable"):
                self.excused.add((pid, key))
            elif what == "completed":
                self.completed.add(key)
            elif what in ("accepted", "recovered"):
                kind = "callback" if what == "accepted" else "recovery"
                known[key, row["fence"], kind].accepted = True
        unsure = {row.get("worker") for row in self.of("unavailable")}
        for call in self.all_calls():
            call.accepted = call.accepted and call.worker not in unsure
            call.end = min(call.end, self.killed.get(call.pid, call.end))
        for calls in self.calls.values():
            calls.sort(key=lambda call: (call.fence, call.kind))

    def all_calls(self):
        return [call for calls in self.calls.values() for call in calls]

    def faults(self):
        """The violations, as texts."""
        yield from (f"an unexpected error: {row}" for row in self.of("trouble"))
        for key, calls in self.calls.items():
            yield from self._overlaps(calls)
            yield from self._miscounts(calls)
            yield from self._results(key, calls)

    def of(self, what):
        return [row for row in self.rows if row["what"] == what]

    def _gone(self, pid, key):
        """Whether the result of the key in this process is unknown."""
        return pid in self.killed or (pid, key) in self.excused

    def _overlaps(self, calls):
        """A key has one call at a time, unless its lease expired and its process is gone."""
        going_on = []
        for call in sorted(calls, key=lambda call: call.begin):
            going_on = [other for other in going_on if other.end > call.begin]
            for other in going_on:
                first, second = sorted((call, other), key=lambda each: each.fence)
                gone = self._gone(first.pid, first.key)
                if not gone or first.accepted or self._too_early(first, second):
                    yield f"at the same time: {first}; {second}"
            going_on.append(call)

    def _too_early(self, first, second):
        """Whether the second call started while the first could still hold its key.

        A process that has ended on this host holds no key; one that runs holds it for its lease.
        """
        has_ended = self.ended.get(first.pid, second.begin) < second.begin
        return not has_ended and second.at - first.delivered < self.lease

    def _miscounts(self, calls):
        """Every call is in the past of the next one, once, until one was accepted."""
        for call in calls:
            if call.attempt != len(call.past) + (call.kind == "callback"):
                yield f"the attempt has number {call.attempt}: {call}"
            if (call.kind == "callback") != (len(call.past) < self.attempts):
                yield f"not after {self.attempts} attempts: {call}"
            if max(Counter(call.past).values(), default=0) > 1:
                yield f"counted twice: {call}"
        for before, call in zip([None, *calls], calls, strict=False):
            if not any(self._follows(call, start) for start in self._pasts_after(before, call)):
                yield f"{call}; the call before it is {before}"

    def _pasts_after(self, before, call):
        """The possible starts of the past of a call."""
        if before is None or before.accepted:
            return [[]]
        gone = self._gone(before.pid, before.key)
        possible = []
        if before.kind == "recovery":
            possible += [before.past] if gone else []
        else:
            if before.how == "error":
                possible.append([*before.past, f"failed {before.fence}"])
            if gone and not self._too_early(before, call):
                possible.append([*before.past, f"lost {before.worker}"])
        if gone and before.how == "value":
            possible.append([])  # possibly accepted, but not recorded
        return possible

    def _follows(self, call, start):
        """Whether only attempts that were lost before a call follow that start."""
        if call.past[: len(start)] != start:
            return False
        for each in call.past[len(start) :]:
            kind, worker = each.split()
            pid = int(worker.partition(":")[0])
            if kind != "lost" or not self._gone(pid, call.key):
                return False
        return True

    def _results(self, key, calls):
        """The last call was accepted; no callback precedes it if its success is remembered."""
        if not calls[-1].accepted and key not in self.completed:
            yield f"neither succeeded nor recovered: {calls[-1]}"
        if "." in key:
            for call in calls[:-1]:
                if call.accepted and call.kind == "callback":
                    yield f"called again after it had succeeded: {call}; {calls[-1]}"
        lost = {each.split()[1] for call in calls for each in call.past if each.startswith("lost")}
        for call in calls:
            if call.accepted and call.worker in lost:
                yield f"both accepted and lost: {call}"
