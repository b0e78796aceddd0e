"""What of a project is shared: the rule, and the queue of what is still to be pushed."""

from collections.abc import Iterator

from teamlore_client._memory import CAPTURED, PRIVATE, Memory, tagged
from teamlore_client._state import SyncState
from teamlore_client._store import Store

PUSH_BATCH = 100
PUSH_BYTES = 3_000_000
"""Of one push, under the 4 MiB that the server takes in one request."""
_PAGE = 1_000
_RECORD_BYTES = 1_000  # more than the fields around the texts ever take


def pages(store: Store, bank: str) -> Iterator[tuple[Memory, ...]]:
    """Give all memories of a bank, oldest first."""
    last: Memory | None = None
    while page := store.list(bank, _PAGE, oldest_first=True, after=last):
        yield page
        last = page[-1]


def is_shared(memory: Memory, *, promoted: bool, withheld: bool, share_captured: bool) -> bool:
    """Return whether a memory goes to the team: a choice for this memory comes before what its tags say."""
    if memory.author is not None or memory.derivation != "fact" or withheld:
        return False
    if promoted:
        return True
    return not tagged(memory.tags, PRIVATE) and (share_captured or not tagged(memory.tags, CAPTURED))


def queue(store: Store, state: SyncState, bank: str, *, share_captured: bool) -> Iterator[Memory]:
    """Give what is to be pushed, oldest first: shared by the rule and not answered by the server yet.

    A memory saved offline is simply a row that the ledger does not name, so nothing else has to survive.
    """
    promoted, withheld = state.promoted(bank), state.withheld(bank)
    for page in pages(store, bank):
        ids = [memory.id for memory in page]
        done = state.ledger(bank, ids).keys() | state.pulled(bank, ids) | state.suppressed(bank, ids)
        for memory in page:
            chosen, kept = memory.id in promoted, memory.id in withheld
            shared = is_shared(memory, promoted=chosen, withheld=kept, share_captured=share_captured)
            if shared and memory.id not in done:
                yield memory


def kept_here(store: Store, state: SyncState, bank: str) -> frozenset[str]:
    """Return own memories that repeat what was forgotten for the team: they are on this laptop alone, and stay so."""
    return store.known(state.forgotten_instead(bank))


def size(memory: Memory) -> int:
    """Return about how many bytes a memory takes on the wire, rather too many than too few."""
    strings = [memory.text, *memory.tags, *memory.metadata, *map(str, memory.metadata.values())]
    strings += [part for each in memory.citations for part in (each.uri, each.excerpt)]
    return _RECORD_BYTES + sum(len(text.encode()) + 16 for text in strings)
