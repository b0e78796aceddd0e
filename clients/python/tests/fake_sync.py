"""Short words for the tests of sync: save, run, look, and fail at a chosen call."""

from fake_team import FakeTeam
from laptop import BANK, memory
from teamlore_client._errors import TeamloreError
from teamlore_client._laptop import Laptop
from teamlore_client._membership import Membership
from teamlore_client._memory import Memory
from teamlore_client._pull import Place
from teamlore_client._sync import Synced, preview, sync

MEMBER = Membership(BANK, "https://memory.example.com", "d" * 32)


def save(laptop: Laptop, text: str, number: int = 0, **fields: object) -> Memory:
    made = memory(text, number, **fields)
    laptop.vectors.add(made, laptop.embed([text])[0])
    return made


def run(laptop: Laptop, team: FakeTeam, member: Membership = MEMBER, *, from_start: bool = False) -> Synced:
    return sync(laptop, team, member, from_start=from_start)


def here(laptop: Laptop) -> dict[str, str | None]:
    return {each.text: each.author for each in laptop.store.list(BANK, 1000)}


def place(laptop: Laptop) -> Place:
    return Place.read(laptop.state.status(BANK).cursor)


def fail_at(call: str, error: TeamloreError, after: int = 0) -> "Failing":
    return Failing(call, error, after)


class Failing:
    """Lets some calls of a kind through and fails the next."""

    def __init__(self, call: str, error: TeamloreError, after: int) -> None:
        self.call, self.error, self.left = call, error, after

    def __call__(self, call: str) -> TeamloreError | None:
        if call != self.call:
            return None
        self.left -= 1
        return self.error if self.left == -1 else None


def preview_counts(laptop: Laptop, team: FakeTeam) -> tuple[int, int, int]:
    team.before = lambda call: None
    seen = preview(laptop, team, MEMBER)
    return seen.push, seen.pull, seen.erase
