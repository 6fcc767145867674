"""The ``storm`` command, also installed as ``stormkeeper``.

Nothing is imported here that takes time: a hangup has to be held back before.
"""

import signal
import sys


def main() -> None:
    """Run the command that the process was started with, and exit."""
    # It would end a daemon that is told to reload while it starts. What this holds back comes when
    # it is let through: by the daemon that heeds it, or as soon as it is another command's.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from stormkeeper.cli.commands import storm

    name = sys.argv[0].rpartition("/")[2]
    storm.main(prog_name=name if name in {"storm", "stormkeeper"} else "storm")
