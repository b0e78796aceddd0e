"""A team's server in memory, which a test can make lose, refuse or skip."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from laptop import vector
from teamlore_client._errors import Refused, TeamloreError
from teamlore_client._memory import DIMENSION, Memory
from teamlore_client._state import term
from teamlore_client._sync import FORGOTTEN
from teamlore_client._wire import (
    Answer,
    Batch,
    Change,
    Doomed,
    Forgotten,
    Head,
    Identity,
    LivePage,
    ServerDigest,
)


class FakeEmbedder:
    """Texts to vectors by their checksums: the same text gives the same vector, another one is far away."""

    model, revision, dimension = "fake", "r1", DIMENSION

    def __init__(self) -> None:
        self.near: dict[str, str] = {}
        """Text → the text whose vector it gets."""
        self.embedded: list[str] = []
        self.not_whole: set[str] = set()
        """Texts of which the vector tells only a part."""

    def seen_whole(self, texts: Sequence[str]) -> list[bool]:
        return [text not in self.not_whole for text in texts]

    def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        self.embedded += texts
        return [vector(zlib.crc32(self.near.get(text, text).encode())) for text in texts]


class FakeTeam:
    """One bank of one server."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[int, Memory]] = {}
        self.graves: dict[str, int] = {}
        self.compacted: set[str] = set()
        self.head = 0
        self.horizon = 0
        self.epoch = "a"
        self.page = 500
        self.calls: list[str] = []
        self.pushes: list[list[str]] = []
        self.acked: int | None = None
        self.before: Callable[[str], TeamloreError | None] = lambda call: None
        self.after: Callable[[str], TeamloreError | None] = lambda call: None
        """As `before`, once the call was carried out: its answer is lost."""
        self.answered: Callable[[Batch], Batch] = lambda batch: batch
        self.judged: dict[str, Answer] = {}
        self.one_of_each = False
        """Whether a text that is live already is answered `duplicate`."""

    def write(self, memory: Memory, author: str = "user:alice") -> str:
        self.head += 1
        self.rows[memory.id] = (self.head, replace(memory, author=author))
        return memory.id

    def bury(self, id_: str) -> None:
        self.head += 1
        del self.rows[id_]
        self.graves[id_] = self.head

    def restore(self, *lost: str) -> None:
        """Come back as a database that lost these rows: another history."""
        for id_ in lost:
            del self.rows[id_]
        self.epoch += "'"

    def compact(self) -> None:
        self.horizon = self.head
        self.compacted |= self.graves.keys()
        self.graves = {}

    def who_am_i(self, bank: str) -> Identity:
        self._called("who_am_i")
        return Identity("user:bob", ("read", "write"))

    def push(self, bank: str, memories: Sequence[Memory]) -> tuple[Answer, ...]:
        self._called("push")
        self.pushes.append([memory.id for memory in memories])
        answers = tuple(self._answer(memory) for memory in memories)
        self._lost("push")
        return answers

    def push_stream(
        self, bank: str, batches: Iterator[Sequence[Memory]]
    ) -> Iterator[tuple[Sequence[Memory], tuple[Answer, ...]]]:
        self._called("push_stream")
        for batch in batches:
            yield batch, self.push(bank, batch)

    def list_changes(self, bank: str, cursor: str, limit: int) -> Batch:
        self._called("list_changes")
        epoch, _, at = cursor.partition("/")
        seq = int(at) if cursor else 0
        if cursor and (epoch != self.epoch or seq > self.head):
            raise Refused("CURSOR_DIVERGED", "another history")
        if seq < self.horizon:
            raise Refused("CURSOR_BEFORE_HORIZON", "compacted away")
        steps = [Change(id_, at, memory) for id_, (at, memory) in self.rows.items()]
        steps += [Change(id_, at, None) for id_, at in self.graves.items()]
        through = min(seq + min(limit, self.page), self.head)
        found = sorted((step for step in steps if seq < step.seq <= through), key=lambda step: step.seq)
        cursor = f"{self.epoch}/{through}"
        self._lost("list_changes")
        return self.answered(Batch(tuple(found), seq, through, cursor, through < self.head))

    def get_head(self, bank: str) -> Head:
        self._called("get_head")
        return Head(self.head, f"{self.epoch}/{self.head}")

    def get_digest(self, bank: str) -> ServerDigest:
        self._called("get_digest")
        total = sum(term(id_, seq) for id_, (seq, _) in self.rows.items()) % (1 << 64)
        return ServerDigest(self.head, len(self.rows), total)

    def list_live(self, bank: str, token: str) -> LivePage:
        self._called("list_live")
        ids = sorted(id_ for id_ in self.rows if id_ > token)[: self.page]
        more = bool(ids) and any(id_ > ids[-1] for id_ in self.rows)
        return LivePage(tuple(Change(id_, *self.rows[id_]) for id_ in ids), ids[-1] if more else "")

    def get_memories(self, bank: str, ids: Sequence[str]) -> tuple[Memory, ...]:
        self._called("get_memories")
        return tuple(self.rows[id_][1] for id_ in sorted(ids) if id_ in self.rows)

    def register_device(self, bank: str, device: str) -> None:
        self._called("register_device")

    def ack_erasures(self, bank: str, device: str, through_seq: int) -> None:
        self._called("ack_erasures")
        self.acked = through_seq

    def doomed(self, bank: str, id_: str) -> Doomed | None:
        found = self.rows.get(id_)
        return Doomed(found[1].author or "", 0, ()) if found else None

    def forget(self, bank: str, ids: Sequence[str]) -> Forgotten:
        self._called("forget")
        for id_ in ids:
            self.bury(id_)
        return Forgotten(len(ids), len(ids), "e" * 32)

    def erasure_state(self, erasure_id: str) -> str:
        self._called("erasure_state")
        return "server_done"

    def _answer(self, memory: Memory) -> Answer:
        if memory.id in self.judged:
            return self.judged[memory.id]
        if memory.id in self.graves or memory.id in self.compacted:
            return Answer(memory.id, "rejected", FORGOTTEN)
        if memory.id in self.rows:
            return Answer(memory.id, "unchanged")
        same = [id_ for id_, (_, held) in self.rows.items() if held.text == memory.text]
        if self.one_of_each and same:
            return Answer(memory.id, "duplicate", "", same[0])
        self.write(memory, "user:bob")
        return Answer(memory.id, "stored")

    def _lost(self, call: str) -> None:
        if (error := self.after(call)) is not None:
            raise error

    def _called(self, call: str) -> None:
        self.calls.append(call)
        if (error := self.before(call)) is not None:
            raise error
