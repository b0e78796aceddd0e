"""Keep processes alive: start, wait until ready, restart with backoff, stop in reverse order, leave none."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import shutil
import signal
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from stack.child import Child, guarded
from stack.environment import needed
from stack.errors import StackError, disk_errors
from stack.health import grpc_serving
from stack.logtail import last_line, log_size, open_log, text_since

__all__ = ["Child", "Supervisor"]

_QUICK = 2.0
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_READY_POLL = 0.05


class _Kept:
    """One child and what has become of it."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: asyncio.subprocess.Process | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.begin = 0
        self.restarts = 0
        self.stopping = False

    def log_line(self) -> str:
        return last_line(text_since(self.child.log_path, self.begin)) or "nothing in its log"


class Supervisor:
    """Runs children of one event loop, which must be the main thread's.

    Use it as `async with Supervisor() as supervisor`: leaving the block stops every child.
    """

    def __init__(self, say: Callable[[str], None] = print, stop_deadline: float = 10.0) -> None:
        """Tell `say` of each restart in a line; kill a child that ignores its stop for `stop_deadline` s."""
        self._say = say
        self._stop_deadline = stop_deadline
        self._kept: list[_Kept] = []
        self._asked = asyncio.Event()
        self._failure: StackError | None = None
        self._signals: list[signal.Signals] = []

    async def __aenter__(self) -> Self:
        """Return self."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None
    ) -> None:
        """Stop every child."""
        await self.stop()

    async def start(self, *children: Child) -> bool:
        """Start `children` side by side; True once all are ready, False when a stop was asked for first.

        Children of an earlier call are stopped after those of a later one. StackError when a child is not
        ready in time or keeps exiting; the supervisor still has to be stopped then.
        """
        if self._failure is not None:
            raise self._failure
        fresh = [_Kept(child) for child in children]
        self._kept += fresh
        for kept in fresh:
            kept.keeper = asyncio.create_task(self._keep(kept), name=f"keep {kept.child.name}")
        waits = [asyncio.create_task(self._until_ready(kept)) for kept in fresh]
        asked = asyncio.create_task(self._asked.wait())
        everything = asyncio.gather(*waits)
        try:
            await asyncio.wait((everything, asked), return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                raise self._failure
            if self._asked.is_set():
                return False
            await everything
            return True
        finally:
            await _cancel(asked, *waits)
            with contextlib.suppress(BaseException):
                await everything

    async def wait(self) -> None:
        """Return when a stop is asked for; StackError when a child was given up."""
        await self._asked.wait()
        if self._failure is not None:
            raise self._failure

    def request_stop(self) -> None:
        """Make `wait` and a running `start` return."""
        self._asked.set()

    def handle_signals(self) -> None:
        """Let SIGINT and SIGTERM ask for a stop until the supervisor is stopped."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.request_stop)
            self._signals.append(number)

    def names(self) -> list[str]:
        """Return the children's names in the order of their start."""
        return [kept.child.name for kept in self._kept]

    def pid(self, name: str) -> int | None:
        """Return the process id of the child `name`, None while it does not run."""
        process = self._find(name).process
        return process.pid if process is not None and process.returncode is None else None

    def restarts(self, name: str) -> int:
        """Return how often the child `name` was started again."""
        return self._find(name).restarts

    async def stop(self) -> None:
        """Stop the children one by one, the last started first, leaving no process. Can be repeated."""
        self._asked.set()
        for kept in self._kept:
            kept.stopping = True
        try:
            while self._kept:
                await self._end(self._kept[-1])
                self._kept.pop()
        finally:  # cancelled on the way: no more patience
            for kept in self._kept:
                _signal_all(kept, signal.SIGKILL)
            loop = asyncio.get_running_loop()
            while self._signals:
                loop.remove_signal_handler(self._signals.pop())

    def _find(self, name: str) -> _Kept:
        for kept in self._kept:
            if kept.child.name == name:
                return kept
        raise KeyError(name)

    async def _keep(self, kept: _Kept) -> None:
        child = kept.child
        quick = 0
        while not kept.stopping:
            started = time.monotonic()
            try:
                outcome = await self._run(kept)
            except StackError as error:
                outcome = str(error)
            if kept.stopping:
                return
            quick = quick + 1 if time.monotonic() - started < _QUICK else 0
            if quick >= child.quick_exits:
                self._give_up(StackError(f"{child.name} was given up after {quick} quick exits: {outcome}"))
                return
            pause = min(_FIRST_PAUSE * 2 ** max(quick - 1, 0), _LONGEST_PAUSE)
            self._say(f"{child.name}: {outcome}; starting it again in {pause:g} s")
            await asyncio.sleep(pause)
            kept.restarts += 1

    async def _run(self, kept: _Kept) -> str:
        """Start the child, wait for its end, and return how it ended."""
        child = kept.child
        if child.before is not None:
            await asyncio.to_thread(child.before)
        kept.begin = log_size(child.log_path)
        with open_log(child.log_path) as log, disk_errors(child.log_path):
            if kept.stopping:
                return "stopped"
            kept.process = await asyncio.create_subprocess_exec(
                *guarded(child.argv, child.death_signal, child.user),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=needed() | dict(child.env),
                cwd=child.cwd,
                start_new_session=True,
            )
        code = await kept.process.wait()
        _signal_all(kept, signal.SIGKILL)
        how = f"exited with {code}" if code >= 0 else f"was ended by {_signal_name(-code)}"
        if code == -signal.SIGBUS:  # writing to a mapped file that the disk has no room for
            free = shutil.disk_usage(child.log_path.parent).free
            how += f"; the disk may be full: {free} bytes are free below {child.log_path.parent}"
        return f"{how} ({kept.log_line()})"

    async def _until_ready(self, kept: _Kept) -> None:
        child = kept.child
        deadline = time.monotonic() + child.ready_timeout
        while True:
            running = kept.process is not None and kept.process.returncode is None
            if running and await _is_ready(child):
                return
            if time.monotonic() > deadline:
                error = StackError(
                    f"{child.name} was not ready within {child.ready_timeout:g} s: {kept.log_line()} "
                    f"(log: {child.log_path})"
                )
                self._give_up(error)
                raise error
            await asyncio.sleep(_READY_POLL)

    def _give_up(self, error: StackError) -> None:
        self._failure = self._failure or error
        self._asked.set()

    async def _end(self, kept: _Kept) -> None:
        process, keeper = kept.process, kept.keeper
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(kept.child.stop_signal)
            try:
                await asyncio.wait_for(process.wait(), self._stop_deadline)
            except TimeoutError:
                self._say(f"{kept.child.name}: did not stop within {self._stop_deadline:g} s; killing it")
                _signal_all(kept, signal.SIGKILL)
                await process.wait()
        if process is not None:
            _signal_all(kept, signal.SIGKILL)
        if keeper is not None:
            await _cancel(keeper)
        if kept.process is not process:  # it was being started just then
            await self._end(kept)


async def _is_ready(child: Child) -> bool:
    ready = child.ready
    if ready is None:
        return True
    if isinstance(ready, tuple):
        return await grpc_serving(*ready)
    if inspect.iscoroutinefunction(ready):
        answer: bool = await ready()
        return answer
    return bool(await asyncio.to_thread(ready))


async def _cancel(*tasks: asyncio.Task[None] | asyncio.Task[bool]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _signal_all(kept: _Kept, number: signal.Signals) -> None:
    """Signal what is left of the child's own session: the child and whatever it started."""
    if kept.process is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(kept.process.pid, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
