"""Starts programs as systemd does with sockets that it opened: as descriptors from 3 on."""

import sys
from collections.abc import Sequence

#: Takes the descriptors' numbers (joined by commas), what to add to LISTEN_PID, and a command.
_LAUNCHER = """
import os, sys
passed = [int(number) for number in sys.argv[1].split(",")]
aside = [os.dup(number) for number in passed]  # one may stand where another belongs
while min(aside) < 3 + len(passed):
    aside = [os.dup(number) for number in aside]
for place, number in enumerate(aside):
    os.dup2(number, 3 + place, inheritable=True)
os.environ["LISTEN_FDS"] = str(len(passed))
os.environ["LISTEN_PID"] = str(os.getpid() + int(sys.argv[2]))
os.execv(sys.argv[3], sys.argv[3:])
"""


def activated(
    descriptors: Sequence[int], command: Sequence[str], *, pid_offset: int = 0
) -> list[str]:
    """Return the command that starts `command` with the descriptors; to be run with ``pass_fds``.

    A `pid_offset` makes them meant for another process.
    """
    numbers = ",".join(map(str, descriptors))
    return [sys.executable, "-c", _LAUNCHER, numbers, str(pid_offset), *command]
