"""What was just checked and cannot be found in the collections yet: it is met by its terms, and by its vector."""

import hashlib
import math
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from kit.texts import normalised
from services.index.following import ROUNDING, Hit, Seen, Vector
from services.index.terms import Terms, product


@dataclass(frozen=True)
class _Held:
    mark: bytes
    terms: Terms
    seen: Seen | None
    until: float


class InFlight:
    """Texts that were just checked and may not be indexed yet; least lately put ones leave first.

    What is held belongs to (bank, id) *and* text: an id that another push won with other words does not get it.
    What is held of a text is a hash of its normalised form under a key of this process, its keyed terms and, once the
    model was asked, its vector; in memory only.
    """

    def __init__(
        self, capacity: int = 20_000, seconds: float = 600.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._capacity = capacity
        self._seconds = seconds
        self._clock = clock
        self._key = os.urandom(32)
        self._order: OrderedDict[tuple[str, str], None] = OrderedDict()
        self._banks: dict[str, dict[str, _Held]] = {}
        self._postings: dict[str, dict[int, dict[str, float]]] = {}

    def __len__(self) -> int:
        return len(self._order)

    def _mark(self, text: str) -> bytes:
        return hashlib.blake2b(normalised(text).encode(), key=self._key, digest_size=16).digest()

    def put(self, bank: str, memory_id: str, text: str, terms: Terms, seen: Seen | None = None) -> None:
        """Holds a text for a while; without `seen` the vector that is held of this very text stays."""
        mark, before = self._mark(text), self._banks.get(bank, {}).get(memory_id)
        if seen is None and before is not None and before.mark == mark:
            seen = before.seen
        self._forget(bank, memory_id)
        self._banks.setdefault(bank, {})[memory_id] = _Held(mark, terms, seen, self._clock() + self._seconds)
        postings = self._postings.setdefault(bank, {})
        for term, part in terms.items():
            postings.setdefault(term, {})[memory_id] = part
        self._order[(bank, memory_id)] = None
        self._prune()

    def see(self, bank: str, memory_id: str, text: str, seen: Seen) -> None:
        """Notes what the model made of a text; its terms are held, or not, as they were."""
        held = self._banks.get(bank, {}).get(memory_id)
        terms = held.terms if held is not None and held.mark == self._mark(text) else {}
        self.put(bank, memory_id, text, terms, seen)

    def get(self, bank: str, memory_id: str, text: str) -> Seen | None:
        """What was seen of this very text under this id."""
        self._prune()
        held = self._banks.get(bank, {}).get(memory_id)
        return held.seen if held is not None and held.mark == self._mark(text) else None

    def terms(self, bank: str, memory_id: str, text: str) -> Terms | None:
        """The terms of this very text, where they are held under this id."""
        held = self._banks.get(bank, {}).get(memory_id)
        return held.terms if held is not None and held.terms and held.mark == self._mark(text) else None

    def settle(self, bank: str, ids: Iterable[str]) -> None:
        """Lets go of terms that are indexed; a vector is kept until it is indexed too."""
        for memory_id in ids:
            held = self._banks.get(bank, {}).get(memory_id)
            if held is not None and held.seen is not None:
                self._unpost(bank, memory_id, held)
                self._banks[bank][memory_id] = replace(held, terms={})
            else:
                self._forget(bank, memory_id)

    def drop(self, bank: str, ids: Iterable[str]) -> None:
        """Lets go of all of what is indexed, refused or erased."""
        for memory_id in ids:
            self._forget(bank, memory_id)

    def alike(self, bank: str, terms: Terms, least: float) -> list[Hit]:
        """The ids of a bank whose terms and these have at least that product, best first.

        Rare terms are looked at first. As soon as those that are left can no longer make up the product, what shares
        only them is no candidate: they add at most the length of that rest. A few more terms leave next to none whose
        product has to be made in full.
        """
        self._prune()
        postings, held = self._postings.get(bank, {}), self._banks.get(bank, {})
        found: dict[str, float] = {}
        rest, makes_up = 1.0 + ROUNDING, least * least
        for term in sorted(terms, key=lambda one: len(postings.get(one, ()))):
            if rest < makes_up / 2:
                break
            part = terms[term]
            for memory_id, other in postings.get(term, {}).items():
                if memory_id in found:
                    found[memory_id] += part * other
                elif rest >= makes_up:
                    found[memory_id] = part * other
            rest -= part * part
        enough = least - math.sqrt(max(rest, 0.0)) - ROUNDING
        hits = [
            Hit(memory_id, product(terms, held[memory_id].terms))
            for memory_id, so_far in found.items()
            if so_far >= enough
        ]
        return sorted((hit for hit in hits if hit.score >= least), key=lambda hit: -hit.score)

    def of_bank(self, bank: str) -> tuple[list[str], list[Vector]]:
        """Ids and vectors of one bank, as they are now, of texts that were seen whole."""
        self._prune()
        held = {
            own: one.seen for own, one in self._banks.get(bank, {}).items() if one.seen and one.seen.whole
        }
        return list(held), [seen.vector for seen in held.values()]

    def equal(self, bank: str, text: str) -> list[str]:
        """Ids of one bank under which this very text is held."""
        self._prune()
        mark = self._mark(text)
        return [own for own, held in self._banks.get(bank, {}).items() if held.mark == mark]

    def _unpost(self, bank: str, memory_id: str, held: _Held) -> None:
        postings = self._postings[bank]
        for term in held.terms:
            del postings[term][memory_id]
            if not postings[term]:
                del postings[term]

    def _forget(self, bank: str, memory_id: str) -> None:
        if (bank, memory_id) not in self._order:
            return
        del self._order[(bank, memory_id)]
        held = self._banks[bank].pop(memory_id)
        self._unpost(bank, memory_id, held)
        if not self._banks[bank]:
            del self._banks[bank], self._postings[bank]

    def _prune(self) -> None:
        now = self._clock()
        while self._order:
            bank, memory_id = next(iter(self._order))
            if len(self._order) <= self._capacity and self._banks[bank][memory_id].until > now:
                return
            self._forget(bank, memory_id)
