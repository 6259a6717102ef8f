"""The stores of a kill switch follow the protocol in memory, on SQL and on Valkey."""

import threading

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from retrytemplate.control.switch.store.base import StoredRecord, SwitchStore
from tests.control.switch.conftest import opened
from tests.control.switch.places import KINDS

LEASE = 60.0
STOPPED = '{"stopped": true}'


@pytest.fixture
def store(place):
    return place.open()


def texts(records):
    return [each.text for each in records]


def pending(*numbered):
    return [StoredRecord(number, text, notified=False) for number, text in numbered]


# -- the document ------------------------------------------------------------------------------


def test_store_implements_the_protocol(store, place):
    assert isinstance(store, SwitchStore)
    assert store.shared == (place.kind != "memory")


def test_empty_store_has_version_zero_and_an_empty_document(store):
    assert store.load(None) == (0, "")
    assert store.load(0) is None
    assert store.records() == []
    assert store.claim_pending_notifications("one", LEASE, 10) == []


def test_commit_is_found_by_another_store_of_the_place(place):
    assert place.open().commit(0, STOPPED, ["who stopped it"]) is True
    assert place.open().load(None) == (1, STOPPED)
    assert place.open().load(0) == (1, STOPPED)
    assert place.open().records() == pending((1, "who stopped it"))


def test_known_version_is_not_sent_again(store):
    store.commit(0, STOPPED, ["who stopped it"])
    assert store.load(1) is None


def test_commit_with_an_old_version_writes_nothing(store):
    store.commit(0, STOPPED, ["who stopped it"])
    assert store.commit(0, "late", ["who came late"]) is False
    assert store.commit(2, "early", ["who came early"]) is False
    assert store.load(None) == (1, STOPPED)
    assert texts(store.records()) == ["who stopped it"]


def test_one_of_several_concurrent_commits_wins_each_version(place):
    stores, changes, won = [place.open() for _ in range(4)], 5, []

    def change(store, name):
        for round_ in range(changes):
            while (version := store.load(None)[0]) == round_:
                if store.commit(version, name, [f"{name}: {version + 1}"]):
                    won.append(version)

    threads = [
        threading.Thread(target=change, args=(store, f"thread {number}"))
        for number, store in enumerate(stores)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(won) == list(range(changes))
    versions = [text.partition(": ")[2] for text in texts(stores[0].records())]
    assert versions == ["5", "4", "3", "2", "1"]


@pytest.mark.parametrize("text", ["grün\n\r\n 零 \U0001f6d1", "x" * 300_000, "' \\ % : {} $x"])
def test_any_text_is_stored_unchanged(store, text):
    store.commit(0, text, [text, ""])
    assert store.load(None) == (1, text)
    assert texts(store.records()) == ["", text]


# -- the records -------------------------------------------------------------------------------


def test_records_are_read_in_pages_the_newest_first(store):
    for version in range(3):
        store.commit(version, "", [f"{version}a", f"{version}b"])
    newest = store.records(limit=4)
    assert newest == pending((6, "2b"), (5, "2a"), (4, "1b"), (3, "1a"))
    assert store.records(before=3, limit=4) == pending((2, "0b"), (1, "0a"))
    assert store.records(before=1) == store.records(limit=0) == []
    assert len(store.records(before=99)) == 6


def test_record_is_claimed_by_one_worker_until_its_lease_ends(place):
    one, two = place.open(), place.open()
    one.commit(0, "", ["a", "b", "c"])
    assert one.claim_pending_notifications("one", LEASE, 2) == pending((1, "a"), (2, "b"))
    assert two.claim_pending_notifications("two", LEASE, 10) == pending((3, "c"))
    assert two.claim_pending_notifications("two", LEASE, 10) == pending((3, "c"))
    place.age(LEASE + 1)
    assert texts(two.claim_pending_notifications("two", LEASE, 10)) == ["a", "b", "c"]
    assert one.claim_pending_notifications("one", LEASE, 10) == []


def test_notified_record_is_not_claimed_again(place):
    store = place.open()
    store.commit(0, "", ["a", "b"])
    store.claim_pending_notifications("one", LEASE, 10)
    store.mark_notified([1], "one")
    assert [each.notified for each in store.records()] == [False, True]
    assert store.claim_pending_notifications("one", LEASE, 10) == pending((2, "b"))
    place.age(LEASE + 1)
    assert store.claim_pending_notifications("two", LEASE, 10) == pending((2, "b"))


def test_record_claimed_by_another_worker_stays_claimed(place):
    store = place.open()
    store.commit(0, "", ["a"])
    store.claim_pending_notifications("one", LEASE, 10)
    place.age(LEASE + 1)
    store.claim_pending_notifications("two", LEASE, 10)
    store.mark_notified([1], "one")
    assert store.claim_pending_notifications("two", LEASE, 10) == pending((1, "a"))


def test_unclaimed_record_cannot_be_marked(store):
    store.commit(0, "", ["a"])
    store.mark_notified([1, 2], "one")
    store.mark_notified([], "one")
    assert store.records() == pending((1, "a"))


def test_concurrent_claims_give_each_record_to_one_worker(place):
    stores = [place.open() for _ in range(4)]
    stores[0].commit(0, "", [str(number) for number in range(40)])
    claimed = []

    def claim(store, worker):
        while mine := store.claim_pending_notifications(worker, LEASE, 3):
            claimed.extend(texts(mine))
            store.mark_notified([each.number for each in mine], worker)

    threads = [
        threading.Thread(target=claim, args=(store, f"worker {number}"))
        for number, store in enumerate(stores)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    # One that finds nothing free may have ended while others still had theirs.
    assert sorted(claimed, key=int) == [str(number) for number in range(40)]
    assert all(each.notified for each in stores[0].records())


def test_closed_store_can_be_used_again(store, place):
    store.commit(0, STOPPED, ["who stopped it"])
    store.close()
    store.close()
    assert store.load(None) == (1, STOPPED)


# -- any order of them -------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5)
WORKERS = st.sampled_from(["one", "two words"])


class Orders(RuleBasedStateMachine):
    """Runs every step on one of two stores, and on a model."""

    def __init__(self, place, stores):
        super().__init__()
        self.place = place
        self.stores = stores
        self.version, self.document = 0, ""
        self.records = []  # text, notified, worker, seconds of the lease that are left

    @rule(
        at=st.integers(0, 1),
        ahead=st.sampled_from([0, 0, 0, -1, 1]),
        document=TEXT,
        records=st.lists(TEXT, max_size=3),
    )
    def commit(self, at, ahead, document, records):
        expected = max(0, self.version + ahead)
        won = expected == self.version
        assert self.stores[at].commit(expected, document, records) is won
        if won:
            self.version, self.document = self.version + 1, document
            self.records += [[text, False, None, 0.0] for text in records]

    @rule(at=st.integers(0, 1), behind=st.integers(0, 2))
    def load(self, at, behind):
        assert self.stores[at].load(None) == (self.version, self.document)
        expected = None if behind == 0 else (self.version, self.document)
        if behind <= self.version:
            assert self.stores[at].load(self.version - behind) == expected

    @rule(at=st.integers(0, 1), before=st.none() | st.integers(1, 9), limit=st.integers(0, 5))
    def read(self, at, before, limit):
        numbered = enumerate(self.records, 1)
        expected = [
            StoredRecord(number, text, notified) for number, (text, notified, *_) in numbered
        ]
        expected = expected if before is None else expected[: before - 1]
        assert self.stores[at].records(before=before, limit=limit) == expected[::-1][:limit]

    @rule(at=st.integers(0, 1), worker=WORKERS, limit=st.integers(1, 3))
    def claim(self, at, worker, limit):
        free = [
            number
            for number, (_, notified, holder, rest) in enumerate(self.records, 1)
            if not notified and (holder in (None, worker) or rest <= 0)
        ][:limit]
        for number in free:
            self.records[number - 1][2:] = worker, LEASE
        expected = pending(*((number, self.records[number - 1][0]) for number in free))
        assert self.stores[at].claim_pending_notifications(worker, LEASE, limit) == expected

    @rule(at=st.integers(0, 1), worker=WORKERS, numbers=st.lists(st.integers(1, 6), max_size=3))
    def tell(self, at, worker, numbers):
        self.stores[at].mark_notified(numbers, worker)
        for number in numbers:
            if number <= len(self.records) and self.records[number - 1][2] == worker:
                self.records[number - 1][1] = True

    @rule(seconds=st.sampled_from([0.4 * LEASE, 2 * LEASE]))
    def age(self, seconds):
        self.place.age(seconds)
        for record in self.records:
            record[3] -= seconds

    def teardown(self):
        self.read(0, None, 100)
        self.load(1, 0)
        self.place.clear()
        if self.place.kind == "memory":
            self.stores[:] = [self.place.open()] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_store_matches_the_model_in_any_history(kind, request):
    place = opened(kind, request)
    stores = [place.open(), place.open()]
    stores[0].load(None)  # the tables are there
    run_state_machine_as_test(
        lambda: Orders(place, stores), settings=settings(max_examples=25, stateful_step_count=20)
    )
