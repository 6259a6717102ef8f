"""Which claims are in hand, and when each lease is to be renewed.  No clock of its own."""

from __future__ import annotations

import math
import os
from typing import Any
from weakref import ref

from attrs import define

from retrytemplate.caches.base import Claim

__all__ = ["LeasedClaim", "Leases"]

# Parts of a lease: a renewal at a third leaves time for another; after one that failed the next
# comes sooner.
USUALLY, AFTER_FAILURE = 1 / 3, 1 / 10


class LeasedClaim(Claim):
    """A claim that has an end; ``lease`` says for how many seconds it was taken.

    ``process`` is the one that took it: a child has it too, and must not end it.
    """

    __slots__ = ("__weakref__", "lease", "process")

    lease: float

    def __init__(self, *fields: Any) -> None:
        super().__init__(*fields)
        self.process = os.getpid()


@define
class Lease:
    """A claim in hand: when it is to be renewed, and when it is too late for that.

    The claim belongs to the execution that took it.  One that was dropped without an end is not
    renewed.
    """

    claim: ref[LeasedClaim]
    due: float
    end: float


class Leases:
    """The claims in hand, by key.

    A finalizer or a signal handler may end a claim between any two instructions here: each step
    changes the table by one operation, which succeeds if the entry is gone.
    """

    def __init__(self) -> None:
        self._leases: dict[str, Lease] = {}
        self._came = False  # a claim, since it was last asked when to look
        self._shortest = math.inf

    def took(self, claim: LeasedClaim, now: float) -> float:
        """A claim was taken, or renewed; when it is due."""
        rest = claim.lease * USUALLY
        self._came = True
        self._shortest = min(self._shortest, rest)
        self._leases[claim.key] = Lease(ref(claim), now + rest, now + claim.lease)
        return now + rest

    def failed(self, claim: LeasedClaim, now: float) -> None:
        """A renewal failed: it is tried again until the lease is over."""
        lease = self._leases.get(claim.key)
        if lease is None or lease.claim() is not claim:
            return
        lease.due = now + claim.lease * AFTER_FAILURE
        if lease.due >= lease.end:
            self._leases.pop(claim.key, None)

    def drop(self, claim: Claim) -> None:
        """The claim has ended, or is lost."""
        if self.has(claim):
            self._leases.pop(claim.key, None)

    def has(self, claim: Claim) -> bool:
        """Whether the claim is in hand; a later one of the same key is another."""
        lease = self._leases.get(claim.key)
        return lease is not None and lease.claim() is claim

    def due(self, now: float) -> list[LeasedClaim]:
        """The claims whose renewal is due."""
        claims = []
        # A copy: the collector may close an execution meanwhile, which drops its claim.
        for key, lease in list(self._leases.items()):
            claim = lease.claim()
            if claim is None:
                self._leases.pop(key, None)
            elif lease.due <= now:
                claims.append(claim)
        return claims

    def next(self) -> float | None:
        """When the next renewal is due; None: none is."""
        return min((lease.due for lease in list(self._leases.values())), default=None)

    def look(self, now: float) -> float | None:
        """When to look again by oneself; None: when a claim is taken.

        While claims come and go it is the earliest time when one could be due: nearly all end
        before, and whoever takes the next one need not wake anybody.
        """
        at = self.next()
        if at is None and self._came:
            at = now + self._shortest
        self._came = False
        return at
