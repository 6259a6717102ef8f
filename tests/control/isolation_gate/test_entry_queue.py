"""The rules of a gate against a model with lists."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from retrytemplate.control.isolation_gate.entry_queue import Entry, EntryQueue


class Waiter:
    """A caller whose loop may be closed."""

    def __init__(self):
        self.woken, self.closed = False, False

    def wake(self):
        self.woken = True
        return not self.closed


class EntryQueues(RuleBasedStateMachine):
    """Each entry is granted in order of arrival, as soon as those inside allow it."""

    entries = Bundle("entries")

    def __init__(self):
        super().__init__()
        self.queue, self.inside, self.waiting = EntryQueue(), [], []

    def fits(self, entry):
        modes = [each.is_exclusive for each in self.inside]
        return not any(modes) and not (entry.is_exclusive and modes)

    @rule(target=entries, is_exclusive=st.booleans())
    def enter(self, is_exclusive):
        entry = Entry(is_exclusive=is_exclusive)
        granted = self.queue.enter(entry, Waiter)
        assert granted == (not self.waiting and self.fits(entry))
        (self.inside if granted else self.waiting).append(entry)
        return entry

    @rule(is_exclusive=st.booleans())
    def enter_without_waiting(self, is_exclusive):
        entry = Entry(is_exclusive=is_exclusive)
        granted = self.queue.enter(entry)
        assert granted == (not self.waiting and self.fits(entry))
        if granted:
            self.inside.append(entry)

    @rule(target=entries, outer=entries)
    def enter_inside_another(self, outer):
        entry = Entry(is_exclusive=False)
        entry.outer = outer
        granted = self.queue.enter(entry)
        assert granted == (outer in self.inside or self.fits(entry))
        if granted:
            self.inside.append(entry)
        return entry

    @rule(entry=entries)
    def close_loop(self, entry):
        if entry in self.waiting:
            entry.waiter.closed = True

    @rule(entry=entries)
    def leave(self, entry):
        self.queue.leave(entry)
        for each in (self.inside, self.waiting):
            if entry in each:
                each.remove(entry)
        while self.waiting and self.fits(self.waiting[0]):
            first = self.waiting.pop(0)
            assert first.waiter.woken
            if not first.waiter.closed:
                self.inside.append(first)

    @invariant()
    def agrees(self):
        queue = self.queue
        assert queue.shared | queue.exclusive == set(self.inside)
        assert list(queue.waiting) == self.waiting
        assert {each for each in queue.shared if each.is_exclusive} == set()
        assert queue.is_open() == (
            not self.waiting and not any(each.is_exclusive for each in self.inside)
        )


TestEntryQueues = EntryQueues.TestCase
TestEntryQueues.settings = settings(max_examples=200, stateful_step_count=40)
