"""Groups of commands: each command's summary whole, and a suggestion for a name that is none."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

#: Longer than any sentence; click cuts a summary where its line would end.
_WHOLE = 1_000


class Group(click.Group):
    """A click group that shows its commands' summaries uncut, over as many lines as they take."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, command.get_short_help_str(_WHOLE)) for name, command in found if command]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


class LazyGroup(Group):
    """A group whose commands stand in modules that are imported on demand.

    Parameters
    ----------
    commands_at
        ``module:attribute`` of each command, by its name.
    """

    def __init__(self, *args: Any, commands_at: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._commands_at = commands_at

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's interface
        """Return the commands' names, sorted."""
        return sorted(self._commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Return the command of that name, or None."""
        where = self._commands_at.get(cmd_name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is asked for; click would suggest only those that are loaded."""
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None
