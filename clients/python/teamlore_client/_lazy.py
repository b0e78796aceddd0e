"""A group of commands whose modules are loaded only when one of them is called: help stays fast."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


@dataclass(frozen=True)
class LazyPart:
    """Where one part is and what the help says of it."""

    module: str
    """Of this package."""
    app: str
    """The name of its Typer."""
    help: str


class LazyGroup(TyperGroup):
    """A group made of `parts`; each is imported at its first call."""

    parts: ClassVar[Mapping[str, LazyPart]] = {}
    _listing = False

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, part in self.parts.items():
            self.add_command(TyperCommand(name, help=part.help))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of the help."""
        return list(self.parts)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the part; while the help is written only its name and what it is for."""
        part = self.parts.get(cmd_name)
        if part is None:
            return None
        if self._listing:
            return super().get_command(ctx, cmd_name)
        command = get_command(getattr(import_module(f"teamlore_client.{part.module}"), part.app))
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help without importing what it lists."""
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False
