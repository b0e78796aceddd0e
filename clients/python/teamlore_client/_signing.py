"""Person sessions at a server, and the personal keys that agents get from them."""

import socket
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from teamlore_client._address import Address, parse_address
from teamlore_client._admin_rpc import AdminClient, access_pb2, auth_pb2
from teamlore_client._errors import TeamloreError
from teamlore_client._memory import FieldInvalid
from teamlore_client._server import asked_secret, place_of
from teamlore_client._session import Session
from teamlore_client._show import Output

_BEST_EFFORT_SECONDS = 3.0
_NOTE = 200


@dataclass(frozen=True)
class PersonalKey:
    """An agent's credential, which never does more than the person may."""

    token: str
    token_id: str
    expires_at: datetime | None


def start_session(out: Output, address: Address, person_token: str | None = None) -> Session:
    """Sign a person in at the server and return the session, which only this process has so far."""
    with AdminClient(address, None) as client:
        request = auth_pb2.StartSessionRequest()
        if person_token is None:
            asked = client.ask("GetSignIn", auth_pb2.GetSignInRequest())
            if asked["issuer"]:
                request.id_token = _in_the_browser(out, asked)
            else:
                request.person_token = asked_secret("Person token: ")
        else:
            request.person_token = person_token
        answer = client.once("StartSession", request)
    ends = datetime.fromisoformat(answer["expires_at"]) if answer.get("expires_at") else datetime.now(UTC)
    token_id, secret = answer["token_id"], answer["session_token"]
    return Session(place_of(address), answer["principal"], token_id, ends, secret)


def _in_the_browser(out: Output, asked: dict[str, Any]) -> str:
    from teamlore_client._device_flow import Waiting, sign_in

    def show(waiting: Waiting) -> None:
        out.note(f"open {waiting.url} and enter the code {waiting.code}")
        if waiting.complete_url:
            out.note(f"or open {waiting.complete_url}")

    with out.busy("waiting for you to confirm in the browser"):
        return sign_in(asked["issuer"], asked["client_id"], asked["scopes"], show)


def mint_key(address: Address, session: str, bank: str) -> PersonalKey:
    """Mint a personal key for the agents of this laptop; its note names the machine and the project."""
    request = access_pb2.CreatePersonalKeyRequest(note=f"{socket.gethostname()} {bank}"[:_NOTE])
    with AdminClient(address, session) as client:
        made = client.once("CreatePersonalKey", request)
    return PersonalKey(made["token"], made["token_id"], _when(made.get("expires_at")))


def revoke(address: Address, credential: str, token_id: str) -> bool:
    """Revoke a credential of the caller's own where the server answers at once; False where it does not."""
    try:
        with AdminClient(address, credential) as client:
            request = access_pb2.RevokeTokenRequest(token_id=token_id)
            return bool(client.once("RevokeToken", request, seconds=_BEST_EFFORT_SECONDS)["revoked"])
    except (TeamloreError, FieldInvalid):
        return False


def revoke_session(session: Session) -> bool:
    """Revoke a session at its server, best effort; it ends by itself anyway."""
    return revoke(parse_address(session.server), session.secret, session.token_id)


def _when(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
