"""The distribution holds what the tree holds: every module, statement and migration, and no test."""

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kit", "services", "stack")


def test_the_wheel_is_the_tree_without_its_tests(tmp_path: Path) -> None:
    # Built from a copy, because a build leaves folders beside what it reads.
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()  # fmt: skip
    for name in (*listed, "pyproject.toml", "requirements/runtime.in"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "tree" / name)
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps",
         "--no-build-isolation", "-w", str(tmp_path), str(tmp_path / "tree")],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed:
        inside = {name: packed.read(name) for name in packed.namelist() if ".dist-info/" not in name}
        (about,) = (packed.read(name).decode() for name in packed.namelist() if name.endswith("/METADATA"))
    wanted = {name: (ROOT / name).read_bytes() for name in listed if "tests" not in Path(name).parts}
    assert sorted(inside) == sorted(wanted)
    assert inside == wanted
    pinned = (ROOT / "requirements" / "runtime.in").read_text(encoding="utf-8")
    needs = re.findall(r"^Requires-Dist: (.*)", about, re.M)
    assert sorted(needs) == sorted(re.findall(r"^[a-z].*", pinned, re.M))
