"""`make bench-near-duplicates`: what the near-duplicate check costs a push, and what it misses, on a private stack.

* `push_dedup_no_candidate_rows_s`, `push_dedup_sentences_rows_s`: records a second of pushes of 100, four at once,
  checked, of texts that share next to nothing with each other, and of the sentences of `bench.sentences`.
* `push_dedup_vs_embedder`: each record has a candidate of which words alone do not decide, so that the model has to be
  asked about each (two pushes at once, so that one asks while the other is written): its rate over that of the embedder
  alone on the same texts, in turns.
* `push_dedup_200k_vs_1k`: pushes of sentences into a bank of 200,000 over those into one of 1,000, in turns, and
  `push_dedup_no_candidate_200k_vs_1k` the same for texts without a candidate; the banks are filled with words drawn
  as they are distributed in the sentences, and with synthetic vectors; twice the rounds and one, since a push takes a
  third of a second only and single ones differ by half. No push pays for what the follower has to do of
  another.
* `near_duplicates_missed`: of the pairs of `bench.sentences` that a full search by meaning calls duplicates at 0.95, the
  share that a push stores; and the same at 0.90 and 0.85. All first halves are stored before the
  second ones are pushed; the full search is a product of all vectors with all, with the same guard against denials.
* `near_duplicates_kept_apart`: of the pairs whose own two vectors are that near, the share that the guard keeps apart, and
  how many of those say the same by the edit that made them: so many a strict guard stores twice.
* `near_duplicates_let_through`: of those that say something else by their making, how many the guard lets pass.

Texts are made before the clock starts. The follower, which embeds behind every figure, runs as it does in production.
"""

import argparse
import asyncio
import random
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import accumulate

import asyncpg
import numpy as np
from rich.console import Console
from teamlore.sync.v1 import sync_pb2
from teamlore_embedder import Embedder, open_embedder
from teamlore_embedder.polarity import Reading, differs

from bench.filling import fill
from bench.report import Result, command, report, whole
from bench.sentences import OTHER, SAME, Pair, pairs, sentences
from services.index.terms import TermKeys, bound, product
from tests.integration.conftest import RunningStack, running_stack

AT_ONCE, BATCH = 4, 100
KEYS = TermKeys(bytes(32))
THRESHOLDS = (0.95, 0.90, 0.85)
PARTS = ("speed", "missed", "growth", "embedder")


class Drawn:
    """Texts of words drawn as often as the sentences use them, with some that occur nowhere else."""

    def __init__(self, drawn: Sequence[str], seed: int) -> None:
        counted = Counter(word for sentence in drawn for word in sentence.lower().split() if word.isalpha())
        self._words, self._upto = list(counted), list(accumulate(counted.values()))
        self._rng = random.Random(seed)

    def text(self) -> str:
        """Some 14 words."""
        return " ".join(self._rng.choices(self._words, cum_weights=self._upto, k=14))

    def unlike(self) -> str:
        """A text like no other: half of its words are numbers of their own."""
        own = [f"{self._rng.getrandbits(48):012x}" for _ in range(7)]
        return " ".join(self._rng.choices(self._words, cum_weights=self._upto, k=7) + own)


async def push(
    stack: RunningStack,
    bank: str,
    token: str,
    texts: Sequence[str],
    at_once: int = AT_ONCE,
    batch: int = BATCH,
) -> tuple[float, list[str]]:
    """Records a second, and what became of each."""
    batches = [
        [sync_pb2.Record(id=uuid.uuid4().hex[:16], text=text) for text in texts[start : start + batch]]
        for start in range(0, len(texts), batch)
    ]
    answers: dict[int, list[str]] = {}
    left: Iterator[tuple[int, list[sync_pb2.Record]]] = iter(enumerate(batches))
    async with stack.channel("sync") as channel:

        async def worker() -> None:
            for at, records in left:
                answer = await stack.sync(channel).Push(
                    sync_pb2.PushRequest(bank=bank, records=records), metadata=stack.credential(token)
                )
                assert not answer.dedup_skipped, "the index could not be asked"
                answers[at] = [result.status for result in answer.results]

        started = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(at_once)))
        took = time.perf_counter() - started
    return len(texts) / took, [status for at in range(len(batches)) for status in answers[at]]


async def policy(stack: RunningStack, bank: str, threshold: float) -> None:
    """A bank with this threshold."""
    database = await asyncpg.connect(stack.facts.database_url)
    await database.execute("select memory.open_bank($1)", bank)
    await database.execute(
        "update memory.banks set near_duplicate_threshold = $2 where bank = $1", bank, threshold
    )
    await database.close()


async def followed(stack: RunningStack, bank: str) -> None:
    """Waits until the index has done all of a bank."""
    database = await asyncpg.connect(stack.facts.database_url)
    behind = (
        "select count(*) from memory.bank_heads h left join index.cursors c using (bank)"
        " where h.bank = $1 and h.head > coalesce(c.seq, 0)"
    )
    while True:
        if not await database.fetchval(behind, bank):
            break
        await asyncio.sleep(0.5)
    await database.close()


async def alone(embedder: Embedder, texts: Sequence[str]) -> float:
    """Texts a second of the embedder by itself."""
    started = time.perf_counter()
    await asyncio.to_thread(embedder.embed, texts)
    return len(texts) / (time.perf_counter() - started)


def median(values: Sequence[float]) -> float:
    """The middle one."""
    return float(np.median(values))


async def speed(
    stack: RunningStack, token: str, say: Callable[[str], None], size: int, rounds: int
) -> list[Result]:
    """Records a second without candidates, and of real sentences, each round into a bank of its own.

    Services that have just started open their connections and compile their statements in the first pushes; a bank of
    its own takes these.
    """
    drawn = sentences()
    source = Drawn(drawn, 2)
    texts = [source.unlike() for _ in range(size)]
    await push(stack, "project:first-pushes", token, [source.unlike() for _ in range(2 * BATCH)], 1)
    await followed(stack, "project:first-pushes")
    none, real, duplicates = [], [], 0
    for at in range(rounds):
        say(f"round {at + 1} of {rounds}: {size:,} records without a candidate")
        rate, statuses = await push(stack, f"project:no-candidate-{at}", token, texts)
        assert set(statuses) == {"stored"}
        none.append(rate)
        await followed(stack, f"project:no-candidate-{at}")
        say(f"round {at + 1} of {rounds}: {size // 2:,} sentences of documentation")
        rate, statuses = await push(stack, f"project:sentences-{at}", token, drawn[: size // 2])
        real.append(rate)
        duplicates = statuses.count("duplicate")
        await followed(stack, f"project:sentences-{at}")
    return [
        Result("push_dedup_no_candidate_rows_s", median(none), "records/s", f"3,000 wanted; {_range(none)}"),
        Result(
            "push_dedup_sentences_rows_s",
            median(real),
            "records/s",
            f"1,000 wanted; {_range(real)}; {duplicates} duplicates",
        ),
    ]


def _range(rates: Sequence[float]) -> str:
    return f"{min(rates):,.0f} to {max(rates):,.0f}"


async def against_embedder(
    stack: RunningStack, token: str, say: Callable[[str], None], rounds: int, size: int
) -> Result:
    """The rate where the model has to be asked about every record, over the embedder's own."""
    embedder, drawn = open_embedder("", 2), sentences()
    source = Drawn(drawn, 3)
    ratios, bank = [], "project:all-candidates"
    bases = [source.text() for _ in range(rounds * size)]
    await policy(stack, bank, 0.95)
    await push(stack, bank, token, bases)
    say("waiting for the index to embed what the records are near to")
    await followed(stack, bank)
    rng = random.Random(5)
    for at in range(rounds):
        near = [_said_again(text, rng) for text in bases[at * size : (at + 1) * size]]
        say(f"round {at + 1} of {rounds}: each record has a candidate")
        own = await alone(embedder, near)
        rate, _ = await push(stack, bank, token, near, 2)
        ratios.append(rate / own)
    return Result(
        "push_dedup_vs_embedder",
        median(ratios),
        "ratio",
        f"0.9 wanted; {min(ratios):.2f} to {max(ratios):.2f}",
    )


def _said_again(text: str, rng: random.Random) -> str:
    """With two articles more, which say nothing: the words alone tell neither that it repeats the text nor that it does not."""
    while True:
        words = text.split()
        for more in ("the", "the"):
            words.insert(rng.randrange(1, len(words)), more)
        changed = " ".join(words)
        alike = product(KEYS.of("", text), KEYS.of("", changed))
        if alike >= (bound(0.95) or 0) and not differs(Reading(text), Reading(changed)):
            return changed


async def growth(
    stack: RunningStack, token: str, say: Callable[[str], None], large: int, rounds: int
) -> list[Result]:
    """Into a large bank over a small one, in turns."""
    drawn = sentences()
    banks = {"project:small": 1_000, "project:large": large}
    for bank, count in banks.items():
        say(f"filling a bank with {count:,} memories")
        source = Drawn(drawn, 6)
        await fill(stack, bank, [source.text() for _ in range(count)])
    rates: dict[tuple[str, str], list[float]] = {}
    source = Drawn(drawn, 7)
    for at in range(rounds):
        for bank in banks:
            for kind in ("no candidate", "sentences"):
                say(f"round {at + 1} of {rounds}: {kind} into {bank}")
                texts = [source.unlike() for _ in range(1_000)]
                if kind == "sentences":
                    texts = drawn[at * 1000 : (at + 1) * 1000]
                rate, _ = await push(stack, bank, token, texts)
                await followed(stack, bank)
                rates.setdefault((bank, kind), []).append(rate)
    results = []
    for kind, name in (
        ("sentences", "push_dedup_200k_vs_1k"),
        ("no candidate", "push_dedup_no_candidate_200k_vs_1k"),
    ):
        small, big = (median(rates[(bank, kind)]) for bank in banks)
        results.append(
            Result(name, big / small, "ratio", f"0.75 wanted; {rounds} rounds; {big:.0f} over {small:.0f} records/s")
        )
    return results


async def missed(stack: RunningStack, token: str, say: Callable[[str], None], count: int) -> list[Result]:
    """What the terms cost in duplicates that a full search by meaning would have found."""
    drawn = sentences()
    made: list[Pair] = pairs(count, drawn)
    say(f"embedding {2 * count:,} sentences for the full search")
    embedder = open_embedder("", 2)
    ones = await asyncio.to_thread(embedder.embed, [pair.one for pair in made])
    others = await asyncio.to_thread(embedder.embed, [pair.other for pair in made])
    cosines = others @ ones.T
    own = np.sum(ones * others, axis=1)
    results = [result for threshold in THRESHOLDS for result in kept_apart(made, own, threshold)]
    for threshold in THRESHOLDS:
        bank = f"project:missed-{int(threshold * 100)}"
        await policy(stack, bank, 1.0)
        say(f"{count:,} pairs at {threshold}")
        _, statuses = await push(stack, bank, token, [pair.one for pair in made], 1, 20)
        await policy(stack, bank, threshold)
        kept = np.array([status == "stored" for status in statuses])
        full = [
            any(
                not differs(Reading(pair.other), Reading(made[at].one))
                for at in np.flatnonzero((cosines[row] >= threshold) & kept)
            )
            for row, pair in enumerate(made)
        ]
        _, statuses = await push(stack, bank, token, [pair.other for pair in made], 1, 20)
        found = [status == "duplicate" for status in statuses]
        lost = [pair for pair, wanted, got in zip(made, full, found, strict=True) if wanted and not got]
        kinds = Counter(pair.kind for pair in lost)
        results.append(
            Result(
                f"near_duplicates_missed_{int(threshold * 100)}",
                100 * len(lost) / max(1, sum(full)),
                "%",
                f"1 allowed; {len(lost)} of {sum(full)} in {count} pairs {dict(kinds)}",
            )
        )
    return results


def kept_apart(made: Sequence[Pair], cosines: Sequence[float], threshold: float) -> list[Result]:
    """What the guard alone does with the pairs that are near by vector."""
    near = [pair for pair, cosine in zip(made, cosines, strict=True) if cosine >= threshold]
    apart = {pair for pair in near if differs(Reading(pair.one), Reading(pair.other))}
    twice = Counter(pair.kind for pair in near if pair in apart and pair.kind in SAME)
    through = Counter(pair.kind for pair in near if pair not in apart and pair.kind in OTHER)
    same, other = (sum(pair.kind in kinds for pair in near) for kinds in (SAME, OTHER))
    at = int(threshold * 100)
    return [
        Result(
            f"near_duplicates_kept_apart_{at}",
            100 * len(apart) / max(1, len(near)),
            "%",
            f"{len(apart)} of {len(near)}; {twice.total()} of {same} that say the same {dict(twice)}",
        ),
        Result(f"near_duplicates_let_through_{at}", through.total(), "pairs", f"0 allowed; of {other}"),
    ]


async def measure(
    stack: RunningStack,
    say: Callable[[str], None],
    show: Callable[[str, list[Result]], None],
    options: argparse.Namespace,
) -> None:
    """All of it; shows and keeps what each part found as soon as it ends, so that a run that is cut off is not lost."""
    token = await stack.token("user:alice", ("project:*", "read write"))
    parts: dict[str, Callable[[], Awaitable[list[Result]]]] = {
        "speed": lambda: speed(stack, token, say, options.records, options.rounds),
        "missed": lambda: missed(stack, token, say, options.pairs),
        "growth": lambda: growth(stack, token, say, options.large, 2 * options.rounds + 1),
        "embedder": lambda: _listed(against_embedder(stack, token, say, options.rounds, 300)),
    }
    for name, run in parts.items():
        if name in options.parts:
            began = time.monotonic()
            found = await run()
            show(f"{name}: {time.monotonic() - began:.0f} s", found)


async def _listed(result: Awaitable[Result]) -> list[Result]:
    return [await result]


def _parts(raw: str) -> tuple[str, ...]:
    named = tuple(raw.split(","))
    if not set(named) <= set(PARTS):
        raise argparse.ArgumentTypeError(f"some of {','.join(PARTS)}")
    return named


def main() -> None:
    """The command."""
    parser = command(__doc__)
    parser.add_argument("--parts", type=_parts, default=PARTS, metavar=",".join(PARTS), help="these alone")
    parser.add_argument("--records", type=whole, default=10_000)
    parser.add_argument("--pairs", type=whole, default=2_400)
    parser.add_argument("--large", type=whole, default=200_000)
    parser.add_argument("--rounds", type=whole, default=3)
    options = parser.parse_args()
    console = Console()

    def show(part: str, found: list[Result]) -> None:
        console.print(part)
        report(found, console)

    with running_stack() as stack, console.status("measuring") as status:
        asyncio.run(measure(stack, status.update, show, options))


if __name__ == "__main__":
    main()
