"""Which processes make a stack and what each is told: pure functions of the settings."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stack.child import Child
from stack.credentials import token_hash
from stack.environment import chosen
from stack.ports import LOOPBACK

SERVICES = ("auth", "sync", "feed", "compliance", "index")
ENGINE = "engine"
POSTGRES = "postgres"
PORTS = (POSTGRES, ENGINE, *SERVICES)
"""What needs a port of its own."""
TOKEN_HOLDERS = tuple(name for name in SERVICES if name != "auth")
"""The services that prove to auth who they are."""

_TARGETS = {
    "auth": ("sync", "feed", "compliance", "index"),
    "index": ("sync", "compliance"),
    "sync": ("compliance",),
}


@dataclass(frozen=True)
class Settings:
    """What a person chooses."""

    data: Path
    """The data folder; everything the stack writes lies here."""
    root: Path = field(default=Path(__file__).resolve().parents[1])
    """The folder that holds `services/` and `kit/`."""
    python: str = sys.executable
    """The interpreter that runs the services."""
    database_url: str | None = None
    """A Postgres of one's own; None starts the embedded one."""
    qdrant_url: str | None = None
    """A Qdrant of one's own; None starts the vector engine."""
    extra: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """More variables for a service, by its name."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """Where a person may have set what the services can be told; the rest of it is not passed on."""


@dataclass(frozen=True)
class Facts:
    """What was found out or made before the services can be described."""

    database_url: str
    """The database they use."""
    ports: Mapping[str, int]
    """The loopback port of each name in PORTS."""
    tokens: Mapping[str, str]
    """The token of each name in TOKEN_HOLDERS."""


def address(facts: Facts, name: str) -> str:
    """Return host:port of `name`."""
    return f"{LOOPBACK}:{facts.ports[name]}"


def keystore(settings: Settings) -> Path:
    """Return the file of the key store."""
    return settings.data / "keys" / "keystore.db"


def engine(settings: Settings, facts: Facts) -> list[Child]:
    """Return the vector engine; nothing when a Qdrant is given or the tree has none yet."""
    if settings.qdrant_url is not None or not (settings.root / "services/index/engine/main.py").exists():
        return []
    env = {"TEAMLORE_ENGINE_DIR": str(settings.data / "vectors"), "TEAMLORE_LISTEN": address(facts, ENGINE)}
    return [_python(settings, facts, ENGINE, "services.index.engine.main", env)]


def services(settings: Settings, facts: Facts) -> list[Child]:
    """Return the services the tree has, auth first."""
    return [
        _python(settings, facts, name, f"services.{name}.main", service_env(settings, facts, name))
        for name in SERVICES
        if (settings.root / "services" / name / "main.py").exists()
    ]


def service_env(settings: Settings, facts: Facts, name: str) -> dict[str, str]:
    """Return the variables that configure service `name`."""
    env = {
        "DATABASE_URL": facts.database_url,
        "TEAMLORE_LISTEN": address(facts, name),
        "TEAMLORE_KEYSTORE": str(keystore(settings)),
    }
    for target, callers in _TARGETS.items():
        if name in callers:
            env[f"TEAMLORE_{target.upper()}_TARGET"] = address(facts, target)
    if name == "auth":
        hashes = (f"{holder}={token_hash(facts.tokens[holder])}" for holder in TOKEN_HOLDERS)
        env["TEAMLORE_SERVICE_TOKEN_HASHES"] = ",".join(hashes)
    elif name in _TARGETS["index"]:
        env["TEAMLORE_SERVICE_TOKEN"] = facts.tokens[name]
    if name == "index":
        env["QDRANT_URL"] = settings.qdrant_url or f"http://{address(facts, ENGINE)}"
    return chosen(name, settings.environ) | env | dict(settings.extra.get(name, {}))


def migrate_command(settings: Settings) -> tuple[str, ...]:
    """Return the command that brings the database in DATABASE_URL up to date."""
    return (settings.python, "-m", "kit.migrate")


def python_env(settings: Settings) -> dict[str, str]:
    """Return the variables that let an interpreter find the tree and show its output at once."""
    return {"PYTHONPATH": f"{settings.root}:{settings.root / 'gen' / 'python'}", "PYTHONUNBUFFERED": "1"}


def log_path(settings: Settings, name: str) -> Path:
    """Return the log file of `name`."""
    return settings.data / "logs" / f"{name}.log"


def _python(settings: Settings, facts: Facts, name: str, module: str, env: Mapping[str, str]) -> Child:
    return Child(
        name=name,
        argv=(settings.python, "-m", module),
        env=python_env(settings) | dict(env),
        ready=(LOOPBACK, facts.ports[name]),
        log_path=log_path(settings, name),
        cwd=settings.root,
    )
