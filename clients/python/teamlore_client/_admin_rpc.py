"""The calls of admins and of people about themselves; answers are plain values, as `--json` prints them."""

from collections.abc import Iterator
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from teamlore.auth.v1 import access_pb2, access_pb2_grpc, auth_pb2, auth_pb2_grpc

from teamlore_client._address import Address
from teamlore_client._calls import DEADLINE_SECONDS, Connection
from teamlore_client._errors import AnswerWrong, ServerUnreachable

PAGE = 500

__all__ = ["PAGE", "AdminClient", "access_pb2", "auth_pb2"]


class AdminClient(Connection):
    """An open connection to auth, as one credential or as nobody."""

    def __init__(self, address: Address, token: str | None) -> None:
        super().__init__(address, token)
        self._stubs = (
            access_pb2_grpc.AccessServiceStub(self.channels["auth"]),
            auth_pb2_grpc.AuthServiceStub(self.channels["auth"]),
        )

    def ask(self, call: str, request: Message, *, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Make a call that may be repeated, and return its answer."""
        return _value(self.call(self._method(call), request, seconds=seconds))

    def once(self, call: str, request: Message, *, seconds: float = DEADLINE_SECONDS) -> dict[str, Any]:
        """Make a call that mints something, once: a repeated one would leave a second behind."""
        try:
            return _value(self.call(self._method(call), request, once=True, seconds=seconds))
        except ServerUnreachable as error:
            said = f"{error}; it may have been made all the same: look before you try again"
            raise ServerUnreachable(said) from None

    def pages(self, call: str, request: Any, items: str) -> Iterator[dict[str, Any]]:
        """Give the items of all pages. Raises AnswerWrong where a page leads back to itself."""
        request.page_size = PAGE
        while True:
            answer = self.ask(call, request)
            yield from answer[items]
            following = answer["next_page_token"]
            if not following:
                return
            if following == request.page_token:
                raise AnswerWrong("the server's next page is the page before; the list is not complete")
            request.page_token = following

    def _method(self, call: str) -> Any:
        return next(getattr(stub, call) for stub in self._stubs if hasattr(stub, call))


def _value(message: Any) -> dict[str, Any]:
    value: dict[str, Any] = MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return value
