"""The ``storm`` group.

A command's module is imported when the command is used, and further modules when it runs, so that
``storm --help`` and ``storm heartbeats list`` stay quick. Exit codes of all commands: 0 done, 1 not
found, refused or failed, 2 wrong usage or configuration, 69 a missing extra, 74 unwritable standard
output, 130 Ctrl-C.
"""

import importlib
import signal
from typing import Any

import click

import stormkeeper
from stormkeeper.cli.options import Group, conf_options, examples

#: Names of commands by module.
_MODULES = {
    "blobstore": "blobstore",
    "checkpoint": "checkpoint",
    "config": "completion config localconfvalue remoteconfvalue version",
    "daemons": "dev-zookeeper kill_workers nimbus node-health-check pacemaker pipeline simulate"
    " supervisor",
    "heartbeats": "heartbeats",
    "history": "alerts history",
    "logs": "logs",
    "monitor": "get-errors monitor",
    "state": "state",
    "stats": "stats",
    "submit": "jar local submit upload-credentials",
    "topologies": "activate deactivate kill list rebalance set_log_level status",
}
_COMMANDS = {name: module for module, names in _MODULES.items() for name in names.split()}

#: Functions with another name than the command's.
_FUNCTIONS = {"jar": "submit", "list": "list_all"}

#: Commands that unblock SIGHUP themselves, which `stormkeeper.cli.main` blocks.
_HEEDS_HANGUPS = frozenset({"pacemaker"})


class _Commands(Group):
    """Imports a command on demand; Ctrl-C ends a command with exit code 130, not as click does."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(128 + signal.SIGINT) from None

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 -- click's interface
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in _HEEDS_HANGUPS:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        if cmd_name not in _COMMANDS:
            return None
        module = importlib.import_module(f"stormkeeper.cli.{_COMMANDS[cmd_name]}")
        command = getattr(module, _FUNCTIONS.get(cmd_name, cmd_name.replace("-", "_")))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Suggest from all names, not from imported commands.
        try:
            return super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.exceptions.NoSuchCommand(
                error.command_name, possibilities=self.list_commands(ctx), ctx=ctx
            ) from None


@conf_options
@click.group(
    cls=_Commands,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog=examples(
        "storm local examples/word_count.py --seconds 60",
        "storm submit examples/word_count.py -c 'nimbus.seeds=[host-a, host-b]'",
        "storm status",
        "storm logs word-count -f",
        "storm pacemaker -c pacemaker.port=7000",
    ),
)
@click.version_option(
    stormkeeper.__version__, message="Stormkeeper %(version)s", help="Print the version, and exit."
)
def storm() -> None:
    """Run PySpark topologies on a cluster, and the daemons of that cluster.

    On one machine, begin with `storm local`. In a cluster, `storm submit` and the commands for
    topologies find the leading Nimbus by nimbus.seeds, best set in storm.yaml. Each command's own
    --help has its exit codes and examples.

    The options below may stand before or after a command's name.
    """
