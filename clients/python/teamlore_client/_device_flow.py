"""Signing in at an OIDC issuer from a terminal: the device flow of RFC 8628, with the standard library."""

import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from teamlore_client._address import loopback
from teamlore_client._errors import ServerUnreachable, TeamloreError

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_REQUEST_SECONDS = 15.0
_MOST_BYTES = 1 << 20
_MOST_SECONDS = 1_800.0
_SLOWER = 5.0


class SignInFailed(TeamloreError):
    """The issuer did not sign the person in."""


@dataclass(frozen=True)
class Waiting:
    """A sign-in that a person has still to confirm."""

    url: str
    code: str
    complete_url: str
    """The URL with the code in it; empty where the issuer gives none."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    # A redirect of a POST would carry codes to wherever it points, https or not.
    def redirect_request(self, *_: Any) -> None:
        return None


def sign_in(
    issuer: str,
    client_id: str,
    scopes: Iterable[str],
    show: Callable[[Waiting], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> str:
    """Return an ID token. Raises SignInFailed or ServerUnreachable; `show` is called once with URL and code."""
    device, token = _endpoints(issuer)
    scope = " ".join(dict.fromkeys(["openid", *scopes]))
    _, started = _posted(device, {"client_id": client_id, "scope": scope})
    if "device_code" not in started:
        raise SignInFailed(f"the issuer does not start a sign-in: {_said(started)}")
    show(
        Waiting(
            _text(started, "verification_uri"),
            _text(started, "user_code"),
            str(started.get("verification_uri_complete", "")),
        )
    )
    pause = max(_number(started, "interval", 5.0), 0.0)
    end = clock() + min(_number(started, "expires_in", 300.0), _MOST_SECONDS)
    form = {"grant_type": _GRANT, "device_code": _text(started, "device_code"), "client_id": client_id}
    while clock() + pause < end:
        sleep(pause)
        try:
            status, answer = _posted(token, form)
        except ServerUnreachable:
            pause *= 2  # RFC 8628, 3.5: wait longer after a timeout
            continue
        if status == 200:
            return _text(answer, "id_token")
        error = answer.get("error")
        if error == "slow_down":
            pause += _SLOWER
        elif error == "access_denied":
            raise SignInFailed("the sign-in was denied; run `teamlore login` again if that was a mistake")
        elif error == "expired_token":
            break
        elif error != "authorization_pending":
            raise SignInFailed(f"the issuer refused the sign-in: {_said(answer)}")
    raise SignInFailed("nobody confirmed the code in time; run `teamlore login` again")


def _endpoints(issuer: str) -> tuple[str, str]:
    _checked(issuer)
    status, told = _fetched(urllib.request.Request(f"{issuer.rstrip('/')}/.well-known/openid-configuration"))  # noqa: S310  # _checked
    if status != 200:
        raise SignInFailed(f"{issuer} does not describe itself as an OIDC issuer (HTTP {status})")
    if told.get("issuer") != issuer:
        raise SignInFailed(f"{issuer} describes itself as another issuer; ask whoever set the server up")
    if "device_authorization_endpoint" not in told:
        raise SignInFailed(f"{issuer} offers no device flow; ask whoever set the server up")
    device, token = _text(told, "device_authorization_endpoint"), _text(told, "token_endpoint")
    return _checked(device), _checked(token)


def _posted(url: str, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
    data = urllib.parse.urlencode(form).encode()
    return _fetched(urllib.request.Request(url, data, headers))  # noqa: S310  # _checked


def _fetched(request: urllib.request.Request) -> tuple[int, dict[str, Any]]:
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if loopback(urllib.parse.urlsplit(request.full_url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=_REQUEST_SECONDS) as answer:
            status, body = answer.status, answer.read(_MOST_BYTES)
    except urllib.error.HTTPError as error:
        with error:
            status, body = error.code, error.read(_MOST_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachable(f"the issuer does not answer: {reason}") from None
    if status >= 500:
        raise ServerUnreachable(f"the issuer answered HTTP {status}")
    try:
        told = json.loads(body)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise SignInFailed(f"the issuer's answer is not JSON (HTTP {status})")
    return status, told


def _checked(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and loopback(parts.hostname or "")):
        return url
    raise SignInFailed(f"{url} is not https; codes would cross the network in clear")


def _text(answer: dict[str, Any], key: str) -> str:
    value = answer.get(key)
    if not isinstance(value, str) or not value:
        raise SignInFailed(f"the issuer's answer lacks `{key}`")
    return value


def _number(answer: dict[str, Any], key: str, default: float) -> float:
    value = answer.get(key, default)
    return float(value) if isinstance(value, (int, float)) else default


def _said(answer: dict[str, Any]) -> str:
    return str(answer.get("error_description") or answer.get("error") or "no reason given")[:300]
