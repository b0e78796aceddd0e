"""What ties memory.db to sync.db, so that neither is lost, replaced or put back from a copy unnoticed.

memory.db says of each bank which page of the feed it took last, and for which sync.db. The mark is written after the
rows of the page and before the cursor of sync.db: a crash before it, or before the cursor, leaves a place that the
mark names, and repeats the page.
"""

from teamlore_client._laptop import Laptop
from teamlore_client._store import Mark

KEPT = "teammates' memories were kept"
UNMARKED = "this laptop's memories do not say how far they were synced"
OTHERS = "this laptop's memories are not those it knew"


def note(laptop: Laptop, bank: str, before: str, through: str) -> None:
    """Note in memory.db that it holds all up to `through`, coming from `before`: both as sync.db keeps its place."""
    laptop.store.mark(bank, Mark(laptop.state.device_id(), before, through))


def cut(laptop: Laptop, bank: str) -> None:
    """Take the mark away, so that a comparison that dies begins again."""
    laptop.store.mark(bank, None)


def why_compare(laptop: Laptop, bank: str, place: str) -> str:
    """Say why the feed alone cannot make memory.db right from this place on; empty where it can."""
    if not place:
        # Kept when this laptop left: no feed tells which of them went before it begins, nor what another server has.
        return KEPT if laptop.store.mirrored(bank) else ""
    mark = laptop.store.marked(bank)
    if mark is None:
        return UNMARKED
    known = mark.state == laptop.state.device_id() and place in (mark.before, mark.through)
    return "" if known else OTHERS


def keep_gone(laptop: Laptop, bank: str) -> int:
    """Erase what was erased or hidden before and is here all the same, and say how many that were.

    An older copy of memory.db brings it back, and so does a crash between the wish and the deed.
    """
    back = laptop.store.known(laptop.state.gone(bank))
    return len(laptop.store.erase(sorted(back), bank=bank).erased) if back else 0
