"""Writers of tables that commit until they are killed, one after another.

python endless_writer.py FOLDER KILLS COMMITS

Kills at least KILLS writers, and goes on until the tables have COMMITS commits.
"""

import itertools
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stormkeeper.history import manifest
from stormkeeper.history.manifest import sole_writer
from support.tables import events, origin, state, store


def write(folder: Path) -> None:
    with sole_writer(folder), store(folder, fan_in=3) as tables:
        before = manifest.load(folder)
        for number in itertools.count(before.origin.batch + 1 if before else 0):
            tables.publish(origin(number), {"state": state(number), "events": events(number)})


def commits(folder: Path) -> int:
    found = manifest.load(folder)
    return 0 if found is None else found.version


def main(folder: Path, kills: int, least: int) -> None:
    chance, killed = random.Random(kills), 0
    while killed < kills or commits(folder) < least:
        writer = os.fork()
        if writer == 0:
            write(folder)
        time.sleep(chance.random() / 2)
        os.kill(writer, signal.SIGKILL)
        assert os.waitpid(writer, 0)[1] == signal.SIGKILL
        killed += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]), *map(int, sys.argv[2:]))
