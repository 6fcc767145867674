"""The ``storm`` command, also installed as ``stormkeeper``.

Each command's module is loaded when the command is asked for, and what a command needs is imported
when it runs: ``storm --help`` and ``storm heartbeats list`` stay quick. Exit codes: 0 done, 1 not
found, refused or failed, 2 wrong usage or configuration; what else there is says the command.
"""

import sys
from pathlib import Path

import click

import stormkeeper
from stormkeeper.cli.lazy import LazyGroup
from stormkeeper.cli.options import conf_options, examples

__all__ = ["main", "storm"]

_COMMANDS = {
    "dev-zookeeper": "stormkeeper.cli.daemons:dev_zookeeper",
    "heartbeats": "stormkeeper.cli.heartbeats:heartbeats",
    "local": "stormkeeper.cli.local:local",
    "localconfvalue": "stormkeeper.cli.inspect:localconfvalue",
    "pacemaker": "stormkeeper.cli.daemons:pacemaker",
    "pipeline": "stormkeeper.cli.daemons:pipeline",
    "state": "stormkeeper.cli.state:state",
    "version": "stormkeeper.cli.inspect:version",
}


@click.group(
    cls=LazyGroup,
    commands_at=_COMMANDS,
    context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]},
    epilog=examples(
        "storm pacemaker -c pacemaker.port=7000",
        "storm heartbeats list /workerbeats -c pacemaker.servers=localhost:7000",
        "storm local examples/word_count.py --seconds 60",
    ),
)
@click.version_option(
    stormkeeper.__version__, message="Stormkeeper %(version)s", help="Print the version, and exit."
)
@conf_options
def storm() -> None:
    """Run and inspect a Storm cluster's coordination plane.

    The options below may stand before or after a command's name.
    """


def main() -> None:
    """Run the command that the process was started with, and exit."""
    name = Path(sys.argv[0]).name
    storm.main(prog_name=name if name in {"storm", "stormkeeper"} else "storm")
