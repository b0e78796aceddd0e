"""The interceptor: decodes, authenticates, authorises, counts, validates and audits each call, and answers errors."""

import asyncio
import contextlib
import hashlib
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from opentelemetry import trace

from kit import audit, identity, telemetry, validation
from kit.access import Caller
from kit.authorising import BankOf, Call, access_of, authorise, require_same
from kit.decisions import DENIALS, Decisions
from kit.errors import TABLE, Refusal, field_invalid, from_driver, trailers
from kit.foundation import Drain
from kit.limits import Limits, address_of

log = logging.getLogger("teamlore.serving")
DEFAULT_DEADLINE = 30.0
SLOW_SECONDS = 20.0
IDLE_SECONDS = 60.0
PUBLIC_SECONDS = 10.0
UNARY_BUDGET, STREAM_BUDGET = 500, 2000


@dataclass
class Built:
    """What a service's `build` gives."""

    authenticator: identity.Authenticator
    services: Mapping[str, tuple[Callable[[Any, grpc.aio.Server], None], object]]
    """By full name: what registers it, and its handlers."""
    resources: Mapping[str, BankOf] = field(default_factory=dict)
    """By request field: the bank that the object belongs to."""
    calls_per_minute: Mapping[str, int] = field(default_factory=dict)
    """By full method name: a principal's budget where it is not the common one."""
    counted_as: Mapping[str, str] = field(default_factory=dict)
    """By full method name: the method whose budget each of its requests takes from."""
    largest_message: int = validation.LARGEST
    """Bytes of a request beyond which gRPC cuts it without a word of ours."""
    judges_credentials: frozenset[str] = frozenset()
    """Full names of public methods that answer by a credential in the request: an address is charged for bad ones alone."""


class Interceptor(grpc.aio.ServerInterceptor):
    """Runs every call of ours through the same steps, in the same order."""

    def __init__(self, built: Built, drain: Drain, limits: Limits, decisions: Decisions) -> None:
        self._built = built
        self._drain = drain
        self._limits = limits
        self._decisions = decisions
        self._handlers: dict[str, Any] = {}
        self._open = {"unary": 0, "opening": 0, "stream": 0}

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps a handler of ours; health and reflection pass as they are."""
        name = handler_call_details.method
        if name not in self._handlers:
            handler = await continuation(handler_call_details)
            if handler is None or not name.startswith("/teamlore."):
                return handler
            service, _, method = name[1:].rpartition("/")
            descriptor = descriptor_pool.Default().FindServiceByName(service).methods_by_name[method]
            self._handlers[name] = self._wrap(descriptor, handler)
        return self._handlers[name]

    def _wrap(self, method: MethodDescriptor, handler: Any) -> Any:
        request_type = message_factory.GetMessageClass(method.input_type)

        async def unary(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            seen = Call(method.full_name)
            with _span(seen.method, context):
                try:
                    await self._begin(method, seen, context)
                    raw = await self._message(seen.caller, context)
                    with self._counted("unary", UNARY_BUDGET):
                        async with asyncio.timeout(min(context.time_remaining() or DEFAULT_DEADLINE, 120.0)):
                            request, call = await self._admit(method, request_type, raw, context, seen)
                            with audit.calling(call):
                                answer = await handler.unary_unary(request, context)
                    _answered(seen.method, "OK")
                    return answer
                except Exception as error:
                    await self._refuse(seen, error, context)

        async def stream(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            seen = Call(method.full_name)
            with _span(seen.method, context):
                try:
                    await self._begin(method, seen, context)
                    with self._held(seen.caller), self._counted("stream", STREAM_BUDGET):
                        raw = await self._message(seen.caller, context)
                        request, call = await self._admit(method, request_type, raw, context, seen)
                        with audit.calling(call):
                            async for answer in handler.unary_stream(request, context):
                                await _write(context, answer)
                    _answered(seen.method, "OK")
                except Exception as error:
                    await self._refuse(seen, error, context)

        async def streams(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            seen = Call(method.full_name)
            with _span(seen.method, context):
                try:
                    await self._begin(method, seen, context)
                    with self._held(seen.caller, sends=True), self._counted("stream", STREAM_BUDGET):
                        raw = _required(await self._arrives(context, IDLE_SECONDS))
                        first, call = await self._admit(method, request_type, raw, context, seen)
                        arriving = self._arriving(method, request_type, first, call, context, seen)
                        answer = None
                        async with contextlib.aclosing(arriving) as requests:
                            if method.server_streaming:
                                async for each in handler.stream_stream(requests, context):
                                    await _write(context, each)
                            else:
                                answer = await handler.stream_unary(requests, context)
                    _answered(seen.method, "OK")
                    return answer
                except Exception as error:
                    await self._refuse(seen, error, context)

        # On the wire it is the same. A handler of one request is called when that was read, one of a stream before.
        if method.client_streaming and method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(streams, None, _as_bytes)
        if method.client_streaming:
            return grpc.stream_unary_rpc_method_handler(streams, None, _as_bytes)
        if method.server_streaming:
            return grpc.stream_stream_rpc_method_handler(stream, None, _as_bytes)
        return grpc.stream_unary_rpc_method_handler(unary, None, _as_bytes)

    async def _begin(self, method: MethodDescriptor, seen: Call, context: Any) -> None:
        """Authenticates before a message is read or a stream takes a place that others wait for.

        The first message may be long in coming, and what nobody is known to have sent is not held in memory.
        """
        if access_of(method).public:
            return
        seen.deciding = True
        with self._counted("opening", UNARY_BUDGET):
            seen.caller = await self._built.authenticator.authenticate(_metadata(context))

    def _held(
        self, caller: Caller | None, *, sends: bool = False
    ) -> contextlib.AbstractContextManager[None]:
        """Counts an open stream of the caller; another service of ours may hold any number."""
        if caller is None or caller.internal:
            return contextlib.nullcontext()
        return self._limits.stream(caller.principal, sends)

    @contextlib.contextmanager
    def _counted(self, kind: str, budget: int) -> Any:
        if self._drain.started.is_set():
            raise Refusal("DRAINING", "this process is going away; call again")
        if self._open[kind] >= budget:
            raise Refusal("RATE_LIMITED", "this process has as many calls as it can serve", retry_after=0.5)
        self._open[kind] += 1
        try:
            yield
        finally:
            self._open[kind] -= 1

    async def _arriving(
        self,
        method: MethodDescriptor,
        request_type: type[Message],
        first: Message,
        call: audit.CallContext | None,
        context: Any,
        seen: Call,
    ) -> AsyncGenerator[Message]:
        """The requests of a stream, each admitted when it is asked for, so that who reads slowly is sent little.

        Each is a call of its own to the audit, and is authorised anew by what the first one named.
        """
        request: Message | None = first
        while request is not None:
            with audit.calling(call):
                yield request
            raw = await self._arrives(context, IDLE_SECONDS)
            request = None
            if raw is not None:
                request, call = await self._admit(method, request_type, raw, context, seen, first)

    async def _message(self, caller: Caller | None, context: Any) -> bytes:
        """The message of a call of one request. Raises Refusal where none comes.

        A caller's calls take turns to be read, so that what it sends by halves does not fill the process: a principal's
        here, an address's in a public method.
        """
        if caller is None:
            whose, patience = address_of(context.peer()), PUBLIC_SECONDS
        elif caller.internal:
            return _required(await self._arrives(context, IDLE_SECONDS))
        else:
            whose, patience = caller.principal, IDLE_SECONDS
        async with self._limits.turn(whose):
            return _required(await self._arrives(context, patience))

    async def _arrives(self, context: Any, patience: float) -> bytes | None:
        """The next message of a stream; None at its end. Raises Refusal where none comes, or the process goes away."""
        reading = asyncio.ensure_future(context.read())
        draining = asyncio.ensure_future(self._drain.started.wait())
        try:
            await asyncio.wait((reading, draining), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if self._drain.started.is_set():
                raise Refusal("DRAINING", "this process is going away; call again", retry_after=0.2)
            if not reading.done():
                raise Refusal("DEADLINE_EXCEEDED", f"no message came for {patience:.0f} s")
            raw = reading.result()
            return None if raw is grpc.aio.EOF else raw
        finally:
            reading.cancel()
            draining.cancel()

    async def _admit(
        self,
        method: MethodDescriptor,
        request_type: type[Message],
        raw: bytes,
        context: Any,
        seen: Call,
        first: Message | None = None,
    ) -> tuple[Message, audit.CallContext | None]:
        """Decodes, authenticates, authorises, counts and validates; `first` began the stream that this one goes on."""
        access = access_of(method)
        try:
            request = request_type.FromString(raw)
        except (DecodeError, ValueError) as error:
            raise field_invalid("", "the bytes are not a message of this method") from error
        caller: Caller | None = None
        if access.public and seen.method in self._built.judges_credentials:
            # One credential has a budget of its own: what others send from the same address does not use it up.
            self._limits.take(seen.method, _credential(request))
        elif access.public:
            self._limits.take_public(seen.method, context.peer())
        else:
            seen.deciding = True
            if seen.caller is None:
                caller = await self._built.authenticator.authenticate(_metadata(context))
            else:
                caller = await self._built.authenticator.renew(seen.caller)
            if first is not None:
                require_same(access, request, first)
            seen.caller = caller
            if not caller.internal:
                # Before access is decided: who is refused again and again has no more calls than others.
                counted = self._built.counted_as.get(seen.method, seen.method)
                self._limits.take(counted, caller.principal)
            await authorise(
                access,
                first or request,
                caller,
                seen,
                self._built.authenticator.access,
                self._built.resources,
            )
            seen.deciding = False
            self._decisions.granted(seen.method, caller)
        identity.set_caller(caller)
        validation.check_size(request, len(raw))
        validation.check(request)
        call = None
        if access.mutates and caller is not None:
            call = audit.CallContext(access.audit, caller.principal, caller.token_id)
        return request, call

    async def _refuse(self, seen: Call, error: Exception, context: Any) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if isinstance(error, TimeoutError) and (context.time_remaining() or 1) < 0.05:
            refusal: Refusal | None = Refusal(
                "DEADLINE_EXCEEDED", "the call's time ran out before it was done"
            )
        else:
            refusal = from_driver(error)
        if refusal is None:
            log_id = uuid.uuid4().hex[:12]
            log.error("defect %s in %s", log_id, seen.method, exc_info=error)
            refusal = Refusal(
                "INTERNAL", f"a defect of the server, logged as {log_id}", metadata={"log_id": log_id}
            )
        if refusal.reason in DENIALS or (seen.deciding and refusal.reason == "NOT_FOUND"):
            refusal = await self._deny(seen, refusal, context.peer())
        _answered(seen.method, refusal.reason)
        await context.abort(refusal.rule.code, refusal.message, trailing_metadata=trailers(refusal))

    async def _deny(self, seen: Call, refusal: Refusal, peer: str) -> Refusal:
        """Counts a denial, and against the caller's address where nobody is known; gives what to answer."""
        try:
            if seen.caller is None:
                self._limits.take_public(seen.method, peer)
        except Refusal as limited:
            # Counted all the same, but who sends that much garbage makes nobody wait for the database.
            self._decisions.note_denied(seen.method, None, refusal.reason, seen.bank)
            return limited
        await self._decisions.denied(seen.method, seen.caller, refusal.reason, seen.bank)
        return refusal


def _credential(request: Message) -> str:
    """What tells the credential in a message of one that judges it: the same however the bytes are written or padded."""
    known = type(request)()
    known.CopyFrom(request)
    known.DiscardUnknownFields()
    return hashlib.sha256(known.SerializeToString(deterministic=True)).hexdigest()


def _required(raw: bytes | None) -> bytes:
    """The first message of a call. Raises Refusal FIELD_INVALID where it ended without one."""
    if raw is None:
        raise field_invalid("", "the call held no message")
    return raw


def _metadata(context: Any) -> list[tuple[str, str]]:
    """What a call says of itself in text."""
    return [(str(key), value) for key, value in context.invocation_metadata() or () if isinstance(value, str)]


def _as_bytes(answer: Message | bytes) -> bytes:
    """An answer for the wire; a handler may have written it itself."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


@contextlib.contextmanager
def _span(method: str, context: Any) -> Iterator[None]:
    """A span below the caller's, with the method and the answer; an exception's words stay out. A caller may go away."""
    with telemetry.tracer.start_as_current_span(
        method,
        telemetry.parent_of(context.invocation_metadata()),
        kind=trace.SpanKind.SERVER,
        record_exception=False,
        set_status_on_exception=False,
    ):
        try:
            yield
        except asyncio.CancelledError:
            _answered(method, "CANCELLED")
            raise


def _answered(method: str, answer: str) -> None:
    span = trace.get_current_span()
    span.set_attribute("answer", answer)
    if answer in TABLE and TABLE[answer].http >= 500:
        span.set_status(trace.StatusCode.ERROR, answer)
    telemetry.calls.add(1, {"method": method, "answer": answer})


async def _write(context: Any, answer: Any) -> None:
    """Hands one message to the stream. A reader that takes none for SLOW_SECONDS is cut, never buffered for."""
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            await context.write(answer)
    except TimeoutError as error:
        raise Refusal("SLOW_CONSUMER", "the stream was not read; resume from the last cursor") from error
