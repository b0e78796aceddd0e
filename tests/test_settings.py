"""Every number that a process is told has a range, and a process that is told another one says so and ends."""

import dataclasses
import importlib
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from kit.config import DATABASE_URL, HTTP_URL, LISTEN, TARGET, ConfigError, Form, load
from kit.database import Database
from services.auth.tokens import parse_service_hashes
from stack import environment, topology

ROOT = Path(__file__).resolve().parents[1]
PROCESSES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in ROOT.glob("services/**/main.py")
)


GOOD = {
    LISTEN: "127.0.0.1:0", TARGET: "auth:8080", HTTP_URL: "http://qdrant:6334", DATABASE_URL: "postgresql://db/x",
}  # fmt: skip
# Passwords with a sign that ends a part of the address: each makes a driver quote some of it, or call another host.
TORN = tuple(
    f"postgres://u:{password}@127.0.0.1:5432/x"
    for password in ("SecretPart#w", "12#SecretPart", "SecretPart/w", "12/SecretPart", "SecretPart?w", "12?SecretPart",
                     "w@SecretPart", "[SecretPart]", "]SecretPart[", "SecretPart℀", "Secret Part")
)  # fmt: skip
WRONG = {
    LISTEN: ("127.0.0.1:99999", "127.0.0.1", ":8080", "8080", "http://127.0.0.1:80", "a b:80", "x:-1", "x:", "x:8o", "::1:8080"),
    TARGET: ("nonsense", "http://auth:8080", "x y", "x y:80", "auth:0", "auth:65536", "auth:", ":8080", "auth:80/x", "a:b:1"),
    HTTP_URL: ("ftp://x", "ftp://x:6334", "qdrant:6334", "http://qdrant", "http://:6334", "http://q:99999", "http://q r:1"),
    DATABASE_URL: (
        "postgresql://db:99999/x", "postgresql://u:p@db:0/x", "mysql://db/x", "db", "postgresql:/db",
        "postgresql://a:5432,b:99999/x", "postgresql://[::1]:99999/x", "postgresql:///x?host=h&port=99999",
        "postgresql://db:54 32/x", "postgresql://db:port/x", *TORN,
    ),
}  # fmt: skip
RIGHT = {
    LISTEN: ("0.0.0.0:8080", "[::]:8080", "localhost:0", "my_host:65535"),
    TARGET: ("auth:1", "auth.teamlore.svc.cluster.local:8080", "[fe80::1]:65535"),
    HTTP_URL: ("http://127.0.0.1:6334", "https://q.example.com:6334/", "http://[::1]:6334"),
    DATABASE_URL: (
        "postgresql://postgres@127.0.0.1:5432/teamlore", "postgres://u:a%23b%40c%2Fd%3Fe%5B@db/x", "postgresql://u%40h@/x?host=h",
        "postgres://u:p:q@db/x", "postgresql:///x?host=/run/postgresql",
        "postgresql://a:5432,b:5433/x?target_session_attrs=primary", "postgresql://u@[::1]/x", "postgresql://db",
    ),
}  # fmt: skip
FORMS = [(form, name) for form, name in zip(WRONG, ("listen", "target", "http", "database"), strict=True)]


def texts() -> list[tuple[str, dataclasses.Field[Any]]]:
    """The settings that name an address, of every process."""
    found = []
    for module in PROCESSES:
        for field in dataclasses.fields(importlib.import_module(module).Config):
            if field.metadata["env"].endswith(("_LISTEN", "_TARGET", "_URL")):
                found.append((module, field))
    return found


def numbers() -> list[tuple[str, type, dataclasses.Field[Any]]]:
    found = []
    for module in PROCESSES:
        config = importlib.import_module(module).Config
        kinds = typing.get_type_hints(config)
        for field in dataclasses.fields(config):
            found += [(module, kind, field) for kind in (int, float) if kind is kinds[field.name]]
    return found


def test_all_processes_are_looked_at() -> None:
    assert len(PROCESSES) == 6 and len(numbers()) >= 3


@pytest.mark.parametrize(
    ("module", "kind", "field"), numbers(), ids=lambda value: getattr(value, "name", None)
)
def test_each_number_has_a_range_and_the_process_refuses_what_lies_outside(
    module: str, kind: type, field: dataclasses.Field[Any], tmp_path: Path
) -> None:
    least, most = field.metadata["range"]
    assert least <= field.default <= most
    name = field.metadata["env"]
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'gen/python'}"}
    needed = {
        other.metadata["env"]: GOOD.get(other.metadata["form"], "x")
        for other in dataclasses.fields(importlib.import_module(module).Config)
        if other.default is dataclasses.MISSING
    }
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=bare | needed | {name: str(10**12)}, cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    word = "whole number" if kind is int else "number"
    assert done.stderr.splitlines()[1:] == [f"{name} must be a {word} from {least} to {most}"]


def test_the_engine_says_what_it_lacks() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "services.index.engine.main"],
        env={"PATH": os.environ["PATH"], "TEAMLORE_LISTEN": "127.0.0.1:0"},
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr.splitlines()[1:]) == (2, ["TEAMLORE_ENGINE_DIR is not set"])


def test_each_address_has_a_form() -> None:
    named = {"_LISTEN": LISTEN, "_TARGET": TARGET, "QDRANT_URL": HTTP_URL, "DATABASE_URL": DATABASE_URL}
    for module, field in texts():
        (form,) = [form for end, form in named.items() if field.metadata["env"].endswith(end)]
        assert field.metadata["form"] is form, (module, field.name)
    assert len(texts()) >= 18


@pytest.mark.parametrize("form", [form for form, _ in FORMS], ids=[name for _, name in FORMS])
def test_a_form_refuses_what_is_malformed_and_takes_what_is_not(form: Form) -> None:
    assert [raw for raw in WRONG[form] if form.fits(raw)] == []
    assert [raw for raw in (GOOD[form], *RIGHT[form]) if not form.fits(raw)] == []


@pytest.mark.parametrize("module", PROCESSES)
def test_a_process_names_each_malformed_address_at_once(module: str, tmp_path: Path) -> None:
    fields = dataclasses.fields(importlib.import_module(module).Config)
    forms = {field.metadata["env"]: field.metadata["form"] for field in fields if field.metadata["form"]}
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'gen/python'}"}
    needed = {field.metadata["env"]: "x" for field in fields if field.default is dataclasses.MISSING}
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=bare | needed | {name: WRONG[form][0] for name, form in forms.items()},
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert sorted(done.stderr.splitlines()[1:]) == sorted(
        f"{name} must be {form.words}" for name, form in forms.items()
    )


@pytest.mark.parametrize(
    ("given", "meant"), [("BANK_CREATON", "BANK_CREATION"), ("TEAMLOR_LISTEN", "TEAMLORE_LISTEN")]
)
def test_a_slip_of_the_pen_is_named_unless_the_setting_is_there(given: str, meant: str) -> None:
    config = importlib.import_module("services.sync.main").Config
    good = {"DATABASE_URL": "postgresql://db/x", "TEAMLORE_KEYSTORE": "k", "TEAMLORE_AUTH_TARGET": "auth:1"}
    good |= {"QDRANT_PORT": "1", "AUTH_PORT": "tcp://10.0.0.1:80", "DATABASE_URI": "x", "LISTEN": "x"}
    with pytest.raises(ConfigError, match=f"^{given} is not a setting; did you mean {meant}\\?$"):
        load(config, good | {given: "admin"})
    assert load(config, good | {given: "x", meant: "admin" if "BANK" in meant else "127.0.0.1:1"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"snyc={'a' * 64}", "names snyc, which is no service"),
        (f"sync={'a' * 64},sync={'b' * 64}", "of sync twice"),
        (f"sync={'a' * 64},feed={'a' * 64}", "of feed twice"),
        (f"sync={'a' * 63}", "must be name=<64 hex digits>"),
    ],
)
def test_a_list_of_hashes_names_each_service_once(text: str, words: str) -> None:
    with pytest.raises(RuntimeError, match=words):
        parse_service_hashes(text)


@pytest.mark.parametrize(
    "module", [*(p for p in PROCESSES if "engine" not in p), "services.auth.bootstrap", "services.auth.rotate", "kit.migrate"]
)
def test_a_database_that_is_not_there_is_named_by_its_setting(module: str, tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'gen/python'}"}
    config = getattr(importlib.import_module(module), "Config", None)
    needed = {
        field.metadata["env"]: GOOD.get(field.metadata["form"], "x")
        for field in (dataclasses.fields(config) if config else ())
        if field.default is dataclasses.MISSING
    }
    done = subprocess.run(
        [sys.executable, "-m", module],
        env=bare | needed | {"DATABASE_URL": "postgresql://postgres@127.0.0.1:1/x"},
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "DATABASE_URL" in line and "Errno 111" in line


@pytest.mark.parametrize("service", topology.SERVICES)
def test_the_stack_gives_a_service_each_of_its_settings(service: str) -> None:
    ports, tokens = dict.fromkeys(topology.PORTS, 1), dict.fromkeys(topology.TOKEN_HOLDERS, "t")
    itself = topology.service_env(
        topology.Settings(ROOT), topology.Facts("postgresql://db", ports, tokens), service
    )
    fields = dataclasses.fields(importlib.import_module(f"services.{service}.main").Config)
    assert set(environment.SETTINGS[service]) == {field.metadata["env"] for field in fields} - set(itself)


@pytest.mark.parametrize("address", [*TORN[:2], "postgres://u:SecretPart@no-such-host.invalid/x", "SecretPart"])
def test_no_part_of_a_password_is_repeated(address: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}:{ROOT / 'gen/python'}", "DATABASE_URL": address}
    for words in (["kit.migrate"], ["services.sync.trim", "--older-than", "1"], ["stack", "run", "--data", str(tmp_path)]):
        assert subprocess.run([sys.executable, "-m", *words], env=bare, cwd=ROOT, timeout=60).returncode in (1, 2)
    said = capfd.readouterr()
    assert "DATABASE_URL" in said.err and "Secret" not in said.out + said.err and "Part" not in said.out + said.err


async def test_a_driver_s_words_about_an_address_are_not_repeated() -> None:
    for address in TORN:
        with pytest.raises((OSError, asyncpg.PostgresError)) as caught:
            await Database.connect(address, "sync", ROOT / "services" / "sync" / "queries.sql")
        assert "Secret" not in str(caught.value) and "Part" not in str(caught.value)


def test_the_platform_guide_names_every_setting() -> None:
    guide = (ROOT / "docs" / "guides" / "platform.md").read_text(encoding="utf-8")
    configs = [importlib.import_module(module).Config for module in PROCESSES]
    settings = {field.metadata["env"] for config in configs for field in dataclasses.fields(config)}
    assert {name for name in settings if f"| `{name}` |" not in guide} == set()


def test_the_platform_guide_says_whose_each_setting_is() -> None:
    guide = (ROOT / "docs" / "guides" / "platform.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| ([a-z, ]+) \|", guide, re.MULTILINE))
    services = set(topology.SERVICES)
    configs = {service: importlib.import_module(f"services.{service}.main").Config for service in services}
    takes = {
        service: {field.metadata["env"] for field in dataclasses.fields(configs[service])} for service in services
    }
    for name in {each for each in set().union(*takes.values()) if not each.startswith("TEAMLORE_OIDC_")}:
        all_but = re.fullmatch(r"all(?: but (\w+))?", told[name])
        named = services - {all_but[1]} if all_but else set(told[name].split(", "))
        assert named == {service for service in services if name in takes[service]}, name
