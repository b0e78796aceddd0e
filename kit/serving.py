"""Serving: one interceptor decodes, authenticates, authorises, validates and answers errors; one life cycle drains."""

import asyncio
import contextlib
import logging
import signal
import sys
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

import grpc
import uvloop
from google.protobuf import descriptor_pool, message_factory
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import DecodeError, Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from teamlore.common.v1 import access_pb2

from kit import audit, identity, telemetry, validation
from kit.access import Caller
from kit.errors import Refusal, field_invalid, from_driver, trailers
from kit.sealing import KeyMissing

log = logging.getLogger("teamlore.serving")
DEFAULT_DEADLINE = 30.0
SLOW_SECONDS = 20.0
UNARY_BUDGET, STREAM_BUDGET = 500, 2000
_WORDS = {number: name.removeprefix("PERMISSION_").lower() for name, number in access_pb2.Permission.items()}
BankOf = Callable[[str], Awaitable[str | None]]


def access_of(method: MethodDescriptor) -> access_pb2.Access:
    """The access option of a method."""
    return method.GetOptions().Extensions[access_pb2.access]


class Drain:
    """Tells streams that the process is going away, so that they end themselves with a last bookmark."""

    def __init__(self) -> None:
        self.started = asyncio.Event()


@dataclass
class Built:
    """What a service's `build` gives: who is calling, what to register, full service names, banks of resources."""

    authenticator: identity.Authenticator
    register: Sequence[Callable[[grpc.aio.Server], None]]
    names: Sequence[str]
    resources: Mapping[str, BankOf] = field(default_factory=dict)


class Interceptor(grpc.aio.ServerInterceptor):
    """Runs every call of ours through the same steps, in the same order."""

    def __init__(self, built: Built, drain: Drain) -> None:
        self._built = built
        self._drain = drain
        self._handlers: dict[str, Any] = {}
        self._open = {"unary": 0, "stream": 0}

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

        async def unary(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
            with telemetry.tracer.start_as_current_span(method.full_name):
                try:
                    with self._counted("unary", UNARY_BUDGET):
                        async with asyncio.timeout(min(context.time_remaining() or DEFAULT_DEADLINE, 120.0)):
                            request, call = await self._admit(method, request_type, raw, context)
                            with audit.calling(call):
                                answer = await handler.unary_unary(request, context)
                    telemetry.calls.add(1, {"method": method.full_name, "answer": "OK"})
                    return answer
                except Exception as error:
                    await self._refuse(method, error, context)

        async def stream(raw: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> None:
            try:
                with self._counted("stream", STREAM_BUDGET):
                    request, call = await self._admit(method, request_type, raw, context)
                    with audit.calling(call):
                        async for answer in handler.unary_stream(request, context):
                            await _write(context, answer)
            except Exception as error:
                await self._refuse(method, error, context)

        if method.server_streaming:
            return grpc.unary_stream_rpc_method_handler(stream, None, handler.response_serializer)
        return grpc.unary_unary_rpc_method_handler(unary, None, handler.response_serializer)

    @contextlib.contextmanager
    def _counted(self, kind: str, budget: int) -> Any:
        if self._drain.started.is_set():
            raise Refusal("DRAINING", "this process is going away; call again", retry_after=0.2)
        if self._open[kind] >= budget:
            raise Refusal("RATE_LIMITED", "this process has as many calls as it can serve", retry_after=0.5)
        self._open[kind] += 1
        try:
            yield
        finally:
            self._open[kind] -= 1

    async def _admit(
        self, method: MethodDescriptor, request_type: type[Message], raw: bytes, context: Any
    ) -> tuple[Message, audit.CallContext | None]:
        access = access_of(method)
        try:
            request = request_type.FromString(raw)
        except (DecodeError, ValueError) as error:
            raise field_invalid("", "the bytes are not a message of this method") from error
        caller: Caller | None = None
        if not access.public:
            metadata = {
                str(key): value
                for key, value in context.invocation_metadata() or ()
                if isinstance(value, str)
            }
            caller = await self._built.authenticator.authenticate(metadata)
            await self._authorise(access, request, caller)
        identity.set_caller(caller)
        validation.check(request)
        call = None
        if access.mutates and caller is not None:
            call = audit.CallContext(access.audit, caller.principal, caller.token_id)
        return request, call

    async def _authorise(self, access: access_pb2.Access, request: Message, caller: Caller) -> None:
        rule = access.WhichOneof("rule")
        word = _WORDS[access.permission]
        if (rule == "internal" and caller.internal) or rule == "self":
            return
        if rule == "bank":
            bank = str(getattr(request, access.bank))
            if caller.may(word, bank):
                return
            refused = [v for v in validation.violations_of(request) if v.field == access.bank]
            if refused:
                raise Refusal("FIELD_INVALID", f"{access.bank}: {refused[0].description}", violations=refused)
        elif rule == "resource":
            refused = [v for v in validation.violations_of(request) if v.field == access.resource]
            if refused:
                raise Refusal(
                    "FIELD_INVALID", f"{access.resource}: {refused[0].description}", violations=refused
                )
            found = await self._built.resources[access.resource](str(getattr(request, access.resource)))
            words = (word, *(_WORDS[number] for number in access.also))
            if found is not None and (caller.internal or any(caller.may(each, found) for each in words)):
                return
            raise Refusal("NOT_FOUND", "there is no such object, or you may not see it")
        elif rule == "pattern":
            if all(caller.covers(value) for value in _values(request, access.pattern.split("."))):
                return
            word = "admin"
        elif rule == "deployment" and caller.covers("*"):
            return
        raise Refusal(
            "PERMISSION_DENIED",
            f"you lack the permission {word or rule}",
            metadata={"permission": word or str(rule)},
        )

    async def _refuse(self, method: MethodDescriptor, error: Exception, context: Any) -> None:
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
            log.error("defect %s in %s", log_id, method.full_name, exc_info=error)
            refusal = Refusal(
                "INTERNAL", f"a defect of the server, logged as {log_id}", metadata={"log_id": log_id}
            )
        telemetry.calls.add(1, {"method": method.full_name, "answer": refusal.reason})
        await context.abort(refusal.rule.code, refusal.message, trailing_metadata=trailers(refusal))


async def _write(context: Any, answer: Any) -> None:
    """Hands one message to the stream. A reader that takes none for SLOW_SECONDS is cut, never buffered for."""
    try:
        async with asyncio.timeout(SLOW_SECONDS):
            await context.write(answer)
    except TimeoutError as error:
        raise Refusal("SLOW_CONSUMER", "the stream was not read; resume from the last cursor") from error


def _values(message: Any, path: list[str]) -> list[str]:
    """All values at a dotted path through messages and repeated fields."""
    if not path:
        return [str(message)]
    value = getattr(message, path[0])
    repeated = message.DESCRIPTOR.fields_by_name[path[0]].is_repeated
    return [text for item in (value if repeated else [value]) for text in _values(item, path[1:])]


Build = Callable[[Any, Drain], AbstractAsyncContextManager[Built]]


def run(service: str, listen: str, config: Any, build: Build) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Exit code 1 with one line when it cannot start."""
    telemetry.start(service)
    try:
        uvloop.run(_serve(service, listen, config, build))
    except KeyMissing:
        sys.exit(f"{service} cannot start: the key store is not the one of this database")
    except (OSError, Refusal, RuntimeError, TimeoutError) as error:
        log.debug("start failed", exc_info=error)
        sys.exit(f"{service} cannot start: {str(error) or type(error).__name__}")
    except Exception as error:
        refusal = from_driver(error)
        if refusal is None and type(error).__module__.split(".")[0] != "asyncpg":
            raise
        sys.exit(
            f"{service} cannot start: the database that DATABASE_URL names refuses: {str(error).splitlines()[0]}"
        )


async def _serve(service: str, listen: str, config: Any, build: Build) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    drain = Drain()
    async with build(config, drain) as built:
        server = grpc.aio.server(
            interceptors=[Interceptor(built, drain)],
            options=[
                ("grpc.so_reuseport", 0),
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 30_000),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.max_connection_age_ms", 1_800_000),
                ("grpc.max_connection_age_grace_ms", 60_000),
            ],
        )
        for add in built.register:
            add(server)
        checks = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(checks, server)
        reflection.enable_server_reflection(
            (*built.names, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        try:
            port = server.add_insecure_port(listen)
        except RuntimeError as error:
            raise OSError(f"{listen} is taken or not an address of this machine") from error
        await server.start()
        watch = asyncio.create_task(_watch_health(checks, built))
        log.info("%s listening on %s:%d", service, listen.rpartition(":")[0], port)
        await stop.wait()
        log.info("%s draining", service)
        watch.cancel()
        await checks.enter_graceful_shutdown()
        drain.started.set()
        await server.stop(10)
    log.info("%s stopped", service)


async def _watch_health(checks: Any, built: Built) -> None:
    """Says NOT_SERVING while the access state is stale."""
    while True:
        fresh = built.authenticator.access.fresh
        status = (
            health_pb2.HealthCheckResponse.SERVING if fresh else health_pb2.HealthCheckResponse.NOT_SERVING
        )
        for name in ("", *built.names):
            await checks.set(name, status)
        await asyncio.sleep(0.25)
