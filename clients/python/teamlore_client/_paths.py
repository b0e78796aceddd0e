"""Where a laptop keeps its things: three private folders under the home of whoever runs the command."""

import os
from pathlib import Path

_PRIVATE = 0o700


def config_dir() -> Path:
    """Return the folder of settings and memberships (`~/.config/teamlore`), created for its owner alone."""
    return _private_folder("XDG_CONFIG_HOME", ".config")


def data_dir() -> Path:
    """Return the folder of the memory store (`~/.local/share/teamlore`), created for its owner alone."""
    return _private_folder("XDG_DATA_HOME", ".local/share")


def state_dir() -> Path:
    """Return the folder of sync state and locks (`~/.local/state/teamlore`), created for its owner alone."""
    return _private_folder("XDG_STATE_HOME", ".local/state")


def _private_folder(variable: str, default: str) -> Path:
    # Two homes on one machine are two laptops. An XDG variable that points outside the home (a CI runner
    # exports them for its own user) would silently join the two, so it only counts inside the home.
    home = Path.home()
    chosen = Path(os.environ.get(variable, ""))
    root = chosen if chosen.is_absolute() and chosen.is_relative_to(home) else home / default
    folder = root / "teamlore"
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    if folder.stat().st_mode & 0o077:
        folder.chmod(_PRIVATE)
    return folder
