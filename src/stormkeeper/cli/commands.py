"""The ``storm`` group.

A command's module is imported when the command is used, and what the command needs when it runs, so
that ``storm --help`` and ``storm heartbeats list`` stay quick. Exit codes of all commands: 0 done,
1 not found, refused or failed, 2 wrong usage or configuration, 69 a missing extra of this package,
74 unwritable standard output, 130 Ctrl-C.
"""

import signal
from typing import Any

import click

import stormkeeper
from stormkeeper.cli.options import LazyGroup, conf_options, examples

_COMMANDS = {
    "activate": "stormkeeper.cli.topologies:activate",
    "alerts": "stormkeeper.cli.history:alerts",
    "blobstore": "stormkeeper.cli.blobstore:blobstore",
    "checkpoint": "stormkeeper.cli.checkpoint:checkpoint",
    "completion": "stormkeeper.cli.config:completion",
    "config": "stormkeeper.cli.config:config",
    "deactivate": "stormkeeper.cli.topologies:deactivate",
    "dev-zookeeper": "stormkeeper.cli.daemons:dev_zookeeper",
    "get-errors": "stormkeeper.cli.monitor:get_errors",
    "heartbeats": "stormkeeper.cli.heartbeats:heartbeats",
    "history": "stormkeeper.cli.history:history",
    "jar": "stormkeeper.cli.submit:submit",
    "kill": "stormkeeper.cli.topologies:kill",
    "kill_workers": "stormkeeper.cli.daemons:kill_workers",
    "list": "stormkeeper.cli.topologies:list_all",
    "local": "stormkeeper.cli.local:local",
    "localconfvalue": "stormkeeper.cli.config:localconfvalue",
    "logs": "stormkeeper.cli.logs:logs",
    "monitor": "stormkeeper.cli.monitor:monitor",
    "nimbus": "stormkeeper.cli.daemons:nimbus",
    "node-health-check": "stormkeeper.cli.daemons:node_health_check",
    "pacemaker": "stormkeeper.cli.daemons:pacemaker",
    "pipeline": "stormkeeper.cli.daemons:pipeline",
    "rebalance": "stormkeeper.cli.topologies:rebalance",
    "remoteconfvalue": "stormkeeper.cli.config:remoteconfvalue",
    "set_log_level": "stormkeeper.cli.topology_settings:set_log_level",
    "simulate": "stormkeeper.cli.simulate:simulate",
    "state": "stormkeeper.cli.state:state",
    "stats": "stormkeeper.cli.stats:stats",
    "status": "stormkeeper.cli.topologies:status",
    "submit": "stormkeeper.cli.submit:submit",
    "supervisor": "stormkeeper.cli.daemons:supervisor",
    "upload-credentials": "stormkeeper.cli.topology_settings:upload_credentials",
    "version": "stormkeeper.cli.config:version",
}

#: Commands that handle SIGHUP, and unblock the signal themselves.
_HEEDS_HANGUPS = frozenset({"pacemaker"})


class _Commands(LazyGroup):
    """Unblocks SIGHUP, which `stormkeeper.cli.main` blocks, for all other commands.

    Ctrl-C ends a command like any program, with exit code 130: click would print "Aborted!" and use
    the code of a failure.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(128 + signal.SIGINT) from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _HEEDS_HANGUPS:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        return super().get_command(ctx, cmd_name)


@click.group(
    cls=_Commands,
    commands_at=_COMMANDS,
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
@conf_options
def storm() -> None:
    """Run PySpark topologies on a cluster, and the daemons of that cluster.

    On one machine, begin with `storm local`. In a cluster, `storm submit` and the commands for
    topologies find the leading Nimbus by nimbus.seeds, best set in storm.yaml. Each command's own
    --help has its exit codes and examples.

    The options below may stand before or after a command's name.
    """
