"""A second process of a service beside the running stack's own."""

import contextlib
import dataclasses
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stack import topology
from stack.topology import Settings
from tests.integration.conftest import ROOT, RunningStack


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def replica(
    stack: RunningStack, name: str, extra: Mapping[str, str] | None = None, port: int | None = None
) -> Iterator[str]:
    """Starts service `name` once more, with `extra` settings; gives its host:port once it serves."""
    settings = Settings(stack.data, root=ROOT)
    facts = dataclasses.replace(stack.facts, ports={**stack.facts.ports, name: port or free_port()})
    env = topology.python_env(settings) | topology.service_env(settings, facts, name) | dict(extra or {})
    log = stack.data / "logs" / f"{name}-{facts.ports[name]}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", f"services.{name}.main"],
            cwd=ROOT, env=env | {"PATH": os.environ["PATH"]}, stdout=output, stderr=output,
        )  # fmt: skip
    try:
        _wait(topology.address(facts, name), process, log.read_text)
        yield topology.address(facts, name)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serving(address: str) -> bool:
    """Whether the health service of a process says SERVING."""
    with grpc.insecure_channel(address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _wait(address: str, process: "subprocess.Popen[bytes]", said: object) -> None:
    deadline = time.monotonic() + 60
    while not serving(address):
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{address} does not serve: {said()}")  # type: ignore[operator]
        time.sleep(0.05)
