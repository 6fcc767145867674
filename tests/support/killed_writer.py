"""A writer of tables that kills itself at one of its steps, once for each of them.

    python killed_writer.py FOLDER

Each is forked from here, as starting Python takes longer than all that they do. The n-th has
``FOLDER/n``, a copy of the tables that were there before. Ends once one has come to its end.
"""

import itertools
import os
import shutil
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.tables import BEGAN, EVENTS, SHORT, STATE, events, origin, state, store

#: The commits that are there before, and all.
BEFORE, LAST = 5, 6


def write(folder: Path, begin: int, end: int) -> None:
    """Make commits that merge, drop what is old, and remove what has left."""
    now = [0.0]
    specs = (STATE, EVENTS, SHORT)
    with store(folder, *specs, fan_in=2, keep_secs=600, clock=lambda: BEGAN + now[0]) as tables:
        for number in range(begin, end + 1):
            now[0] = number * 700.0
            rows = events(number, secs=now[0])
            tables.publish(origin(number), {"state": state(number), "events": rows, "short": rows})
            tables.settle(60)


def settle(folder: Path) -> None:
    """Have all that no manifest names removed."""
    with store(folder, keep_secs=-1, fan_in=1000, clock=lambda: BEGAN + 1e6) as tables:
        tables.publish(origin(0, "the last"), {})


def steps(folder: Path, last: int) -> None:
    """Kill this process at one of its calls of the file system below a folder."""
    calls = itertools.count()

    def step() -> None:
        if next(calls) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.utime"):
            # What is opened to be read is no step of the writer's.
            if event == "open" and not {"w", "x"} & set(str(arguments[1])):
                return
            if str(folder) in str(arguments[0]):
                step()

    def synced(descriptor: int) -> None:
        # Half of a file: what was written is not all there.
        if next(calls) == last:
            size = os.fstat(descriptor).st_size
            if Path(f"/proc/self/fd/{descriptor}").is_file():
                os.truncate(descriptor, size // 2)
            os.kill(os.getpid(), signal.SIGKILL)
        step()

    os.fsync = synced
    sys.addaudithook(hook)


def main(folder: Path) -> None:
    first = os.fork()
    if first == 0:
        write(folder / "before", 1, BEFORE)
        os._exit(0)
    assert os.waitpid(first, 0)[1] == 0
    for last in itertools.count():
        own = folder / str(last)
        shutil.copytree(folder / "before", own)
        child = os.fork()
        if child == 0:
            steps(own, last)
            write(own, BEFORE + 1, LAST)
            os._exit(0)
        if os.waitpid(child, 0)[1] != signal.SIGKILL:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]))
