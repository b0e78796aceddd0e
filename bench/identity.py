"""`make bench-identity`: how fast a revocation bites, what an exchange costs, whether a look-up tells by its time.

Each figure stands beside its limit or a bare gRPC server measured in the same run. REVOKE_ROUNDS, EXCHANGES_AT_ONCE
and ORACLE_CALLS make it shorter.
"""

import asyncio
import contextlib
import multiprocessing
import random
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import uvloop
from rich.console import Console
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc
from teamlore.feed.v1 import feed_pb2, feed_pb2_grpc

from bench.report import Result, amount, command, report
from services.auth.tokens import new_secret
from tests.integration.conftest import RunningStack, running_stack
from tests.integration.replicas import free_port, replica
from tests.integration.test_revocation import SERVICES, one_round

ROUNDS = amount("REVOKE_ROUNDS", 50)
AT_ONCE = amount("EXCHANGES_AT_ONCE", 200)
CALLS = amount("ORACLE_CALLS", 1_000)
TURNS, ROUNDS_A_TURN = 3, 10


def echo(port: int) -> None:
    """A bare server that answers a call with its own bytes: the limit of what gRPC does here."""

    async def serve() -> None:
        async def same(request: bytes, context: Any) -> bytes:
            return request

        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(same)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare.Echo", {"Echo": handler}),))
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await server.wait_for_termination()

    uvloop.run(serve())


async def flood(call: Callable[[], Awaitable[Any]], rounds: int) -> tuple[float, float]:
    """AT_ONCE callers, each `rounds` calls after another; calls a second and the 99th percentile in ms."""
    times: list[float] = []

    async def caller() -> None:
        for _ in range(rounds):
            began = time.perf_counter()
            await call()
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))
    return len(times) / (time.perf_counter() - began), statistics.quantiles(times, n=100)[98] * 1000


async def exchange(stack: RunningStack) -> list[Result]:
    """200 exchanges at once, beside the bare echo in turns."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=echo, args=(port,), daemon=True)
    process.start()
    token = await stack.token("user:bench", ("project:*", "read"))
    request = auth_pb2.ExchangeTokenRequest(token=token)
    try:
        async with stack.channel("auth") as channel, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as bare:
            await bare.channel_ready()
            stub, raw = auth_pb2_grpc.AuthServiceStub(channel), request.SerializeToString()
            ask = bare.unary_unary("/bare.Echo/Echo")
            turns = []
            for call in (lambda: stub.ExchangeToken(request), lambda: ask(raw)):
                await flood(call, 1)
            for _ in range(TURNS):
                turns.append(
                    (
                        await flood(lambda: stub.ExchangeToken(request), ROUNDS_A_TURN),
                        await flood(lambda: ask(raw), ROUNDS_A_TURN),
                    )
                )
    finally:
        process.terminate()
    rates = [ours[0] / theirs[0] for ours, theirs in turns]
    ours, theirs = sorted(turns, key=lambda turn: turn[0][0] / turn[1][0])[len(turns) // 2]
    spread = f"bare echo, {TURNS} turns from {min(rates):.2f} to {max(rates):.2f}"
    return [
        Result("exchange_vs_echo", statistics.median(rates), "ratio", spread),
        Result("exchange_rate", ours[0], "calls/s", f"bare echo {theirs[0]:,.0f}"),
        Result("exchange_p99_ms", ours[1], "ms", f"bare echo {theirs[1]:.0f}, {AT_ONCE} at once"),
    ]


KINDS = ("revoked", "live", "unknown", "other unknown", "malformed")


async def oracle(stack: RunningStack) -> list[Result]:
    """Whether the time of an answer tells if a token is known: by exchange, and by a call to another service.

    What is compared is asked in turns of random order, so that a slow moment of the machine falls on all alike. The
    noise beside each ratio is that of two tokens which nobody can tell apart.
    """
    token, live = [await stack.token("user:oracle", ("project:*", "read")) for _ in range(2)]
    async with stack.channel("auth") as channel, stack.channel("feed") as other:
        auth, feed = auth_pb2_grpc.AuthServiceStub(channel), feed_pb2_grpc.FeedServiceStub(other)
        who = await auth.WhoAmI(auth_pb2.WhoAmIRequest(), metadata=stack.credential(token))
        await access_pb2_grpc.AccessServiceStub(channel).RevokeToken(
            access_pb2.RevokeTokenRequest(token_id=who.token_id), metadata=stack.credential(stack.admin)
        )
        ways: dict[str, Callable[[str], Awaitable[Any]]] = {
            "exchange": lambda sent: auth.ExchangeToken(auth_pb2.ExchangeTokenRequest(token=sent)),
            "call": lambda sent: feed.GetHead(
                feed_pb2.GetHeadRequest(bank="project:nobody-1a2b3c4d"), metadata=stack.credential(sent)
            ),
        }
        results = []
        for way, ask in ways.items():
            middle = await medians(ask, token, live)
            noise = middle["other unknown"] / middle["unknown"]
            # A live token is answered and not refused; its time is shown and proves nothing.
            results += [
                Result(f"{way}_{kind}_vs_unknown", middle[kind] / middle["unknown"], "ratio", f"noise {noise:.3f}")
                for kind in ("revoked", "malformed", "live")
            ]
    return results


async def medians(ask: Callable[[str], Awaitable[Any]], revoked: str, live: str) -> dict[str, float]:
    """The middle time of a call by the kind of token that it carries; the first tenth warms up and does not count."""
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(CALLS + CALLS // 10):
        for kind in random.sample(KINDS, len(KINDS)):
            sent = {"revoked": revoked, "live": live, "malformed": "tlk_x"}.get(kind) or new_secret()
            began = time.perf_counter()
            with contextlib.suppress(grpc.aio.AioRpcError):
                await ask(sent)
            if number >= CALLS // 10:
                times[kind].append(time.perf_counter() - began)
    return {kind: statistics.median(values) for kind, values in times.items()}


async def revocation(stack: RunningStack, say: Callable[[str], None]) -> list[Result]:
    """How long after its answer a revocation is felt by calls in a loop and by open streams, on two replicas each."""
    with contextlib.ExitStack() as open_:
        pairs = {name: (stack.address(name), open_.enter_context(replica(stack, name))) for name in SERVICES}
        rounds = []
        for number in range(ROUNDS):
            say(f"revoking: {number + 1} of {ROUNDS}")
            rounds.append(await one_round(stack, pairs))
    assert {reason for seen in rounds for reason, _ in seen.values()} == {"CREDENTIAL_REVOKED"}
    results = []
    for kind in ("call", "stream"):
        times = [
            seconds for seen in rounds for name, (_, seconds) in seen.items() if name.startswith("stream") == (kind == "stream")
        ]
        results += [
            Result(f"revoke_{kind}_median_s", statistics.median(times), "s", "poll 0.25 s"),
            Result(f"revoke_{kind}_worst_s", max(times), "s", f"1.2 s wanted; {len(times)} seen"),
        ]
    return results


async def measure(stack: RunningStack, say: Callable[[str], None]) -> list[Result]:
    """All of it."""
    say("exchanging tokens")
    results = await exchange(stack)
    say("looking for a time that tells")
    results += await oracle(stack)
    return results + await revocation(stack, say)


def main() -> None:
    """The command."""
    command(__doc__).parse_args()
    console = Console()
    with running_stack() as stack, console.status("measuring") as status:
        results = asyncio.run(measure(stack, status.update))
    report(results, console)


if __name__ == "__main__":
    main()
