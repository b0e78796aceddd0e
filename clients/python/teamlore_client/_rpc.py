"""The team's services over gRPC, as a laptop calls them."""

from collections.abc import Iterator, Sequence

from teamlore.auth.v1 import auth_pb2, auth_pb2_grpc
from teamlore.compliance.v1 import compliance_pb2, compliance_pb2_grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc
from teamlore.sync.v1 import sync_pb2, sync_pb2_grpc

from teamlore_client._address import Address
from teamlore_client._calls import Connection
from teamlore_client._memory import Memory
from teamlore_client._streaming import push_stream
from teamlore_client._wire import (
    Answer,
    Batch,
    Doomed,
    Forgotten,
    Head,
    Identity,
    LivePage,
    ServerDigest,
    change_of,
    record_of,
)

_LEAVING_SECONDS = 3.0
TOGETHER_MOST = 1000
"""How many memories the server names at most when it is asked what a forget would take."""


class TeamClient(Connection):
    """An open connection to a team's server, as one token. Use it from one thread at a time."""

    def __init__(self, address: Address, token: str) -> None:
        super().__init__(address, token)
        self._auth = auth_pb2_grpc.AuthServiceStub(self.channels["auth"])
        self._sync = sync_pb2_grpc.SyncServiceStub(self.channels["sync"])
        self._feed = feed_pb2_grpc.FeedServiceStub(self.channels["feed"])
        self._compliance = compliance_pb2_grpc.ComplianceServiceStub(self.channels["compliance"])

    def who_am_i(self, bank: str) -> Identity:
        """Return whom the token stands for and what it may do on the bank."""
        answer = self.call(self._auth.WhoAmI, auth_pb2.WhoAmIRequest(bank=bank))
        return Identity(
            answer.principal,
            tuple(answer.permissions),
            answer.kind or "agent",
            answer.person_present,
        )

    def push(self, bank: str, memories: Sequence[Memory]) -> tuple[Answer, ...]:
        """Store 1 to 100 memories; one answer each, in order."""
        request = sync_pb2.PushRequest(bank=bank, records=[record_of(memory) for memory in memories])
        answer = self.call(self._sync.Push, request)
        return tuple(Answer(each.id, each.status, each.reason, each.duplicate_of) for each in answer.results)

    def push_stream(
        self, bank: str, batches: Iterator[Sequence[Memory]]
    ) -> Iterator[tuple[Sequence[Memory], tuple[Answer, ...]]]:
        """Store any number of batches of 1 to 100; give each with its answers, in order, as they are committed."""
        return push_stream(self._sync.PushStream, self._metadata, bank, batches)

    def list_changes(self, bank: str, cursor: str, limit: int) -> Batch:
        """Return the page of the feed after a cursor; an empty one is the beginning."""
        request = feed_pb2.ListChangesRequest(bank=bank, cursor=cursor, limit=limit)
        answer = self.call(self._feed.ListChanges, request)
        changes = tuple(change_of(bank, each) for each in answer.changes)
        return Batch(changes, answer.after_seq, answer.through_seq, answer.next_cursor, answer.has_more)

    def get_head(self, bank: str) -> Head:
        """Return where the bank's history stands."""
        answer = self.call(self._feed.GetHead, feed_pb2.GetHeadRequest(bank=bank))
        return Head(answer.head, answer.cursor)

    def get_digest(self, bank: str) -> ServerDigest:
        """Return count and sum over the bank's live memories."""
        answer = self.call(self._feed.GetDigest, feed_pb2.GetDigestRequest(bank=bank))
        return ServerDigest(answer.seq, answer.count, answer.sum)

    def list_live(self, bank: str, token: str) -> LivePage:
        """Return a page of the bank's live memories; an empty token is the beginning."""
        request = feed_pb2.ListLiveRequest(bank=bank, page_token=token)
        answer = self.call(self._feed.ListLive, request)
        return LivePage(tuple(change_of(bank, each) for each in answer.memories), answer.next_page_token)

    def get_memories(self, bank: str, ids: Sequence[str]) -> tuple[Memory, ...]:
        """Return those of 1 to 100 memories that are live, as they stand."""
        found: list[Memory] = []
        left = list(ids)
        while left:
            answer = self.call(self._sync.GetMemories, sync_pb2.GetMemoriesRequest(bank=bank, memory_ids=left))
            # Both messages number their fields alike.
            changes = [feed_pb2.Change.FromString(each.SerializeToString()) for each in answer.memories]
            found += [each.memory for each in (change_of(bank, change) for change in changes) if each.memory]
            left = list(answer.remaining_ids)
        return tuple(found)

    def register_device(self, bank: str, device: str) -> None:
        """Make this laptop known as a mirror, so that erasures wait for its word."""
        self.call(self._feed.RegisterDevice, feed_pb2.RegisterDeviceRequest(bank=bank, device_id=device))

    def retire_device(self, bank: str, device: str) -> None:
        """Say, once and without waiting long, that this laptop is no mirror of the bank any more."""
        request = feed_pb2.RetireDeviceRequest(bank=bank, device_id=device)
        self.call(self._feed.RetireDevice, request, once=True, seconds=_LEAVING_SECONDS)

    def ack_erasures(self, bank: str, device: str, through_seq: int) -> None:
        """Confirm that nothing erased at or below the seq is left in this laptop's files."""
        request = feed_pb2.AckErasuresRequest(bank=bank, device_id=device, through_seq=through_seq)
        self.call(self._feed.AckErasures, request)

    def doomed(self, bank: str, id_: str) -> Doomed | None:
        """Return what a forget of a memory would take; None for one that is not there, or no longer."""
        request = sync_pb2.GetMemoriesRequest(bank=bank, memory_ids=[id_], together=True)
        answer = self.call(self._sync.GetMemories, request)
        named = next((each for each in answer.memories if each.id == id_), None)
        if named is None:
            return None
        texts = tuple(each.text for each in answer.memories if each.id != id_)
        count = len(answer.memories) + len(answer.remaining_ids)
        return Doomed(named.author, count - 1, texts, perhaps_more=count >= TOGETHER_MOST, text=named.text)

    def forget(self, bank: str, ids: Sequence[str]) -> Forgotten:
        """Erase memories for the whole team."""
        request = sync_pb2.ForgetRequest(bank=bank, memory_ids=ids, erase=True)
        answer = self.call(self._sync.Forget, request)
        return Forgotten(answer.deleted_count, answer.erased_count, answer.erasure_id)

    def erasure_state(self, erasure_id: str) -> str:
        """Return `hidden`, `keys_destroyed`, `index_purged` or `server_done`."""
        request = compliance_pb2.GetErasureRequest(erasure_id=erasure_id)
        return str(self.call(self._compliance.GetErasure, request).erasure.state)
