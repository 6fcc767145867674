"""Many workers that beat to several Pacemakers, in processes of their own.

Run as a script with the servers' addresses, a number of machines, the workers of each, and a
heartbeat period. A machine is one client pool, as a worker has it, that beats for all its workers
one after the other over the period. It beats until its stdin ends.
"""

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

_PROCESSES: Final = 2
#: Longest that a process may take to end, in seconds.
_END_SECS: Final = 60.0


class Fleet:
    """The processes, for tests; use it as a context manager."""

    def __init__(
        self, servers: Sequence[str], *, machines: int, workers: int, period_secs: float
    ) -> None:
        self.paths = {path for machine in range(machines) for path in _paths(machine, workers)}
        share = [range(start, machines, _PROCESSES) for start in range(_PROCESSES)]
        self._commands = [
            [
                sys.executable,
                __file__,
                json.dumps([*servers]),
                json.dumps([*numbers]),
                str(workers),
                str(period_secs),
            ]
            for numbers in share
        ]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for command in self._commands:
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[1])
            )
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(_END_SECS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(_END_SECS)


def _paths(machine: int, workers: int) -> list[str]:
    return [
        f"/workerbeats/fleet-{number % 10}-1/machine-{machine}-{6700 + number}"
        for number in range(workers)
    ]


def _beat(
    machine: int, servers: list[str], workers: int, period: float, over: threading.Event
) -> None:
    from stormkeeper.conf import defaults  # noqa: PLC0415 - not for those who import the class
    from stormkeeper.errors import StormkeeperError  # noqa: PLC0415
    from stormkeeper.pacemaker.client import pool  # noqa: PLC0415

    conf = defaults().with_values({"pacemaker.servers": servers})
    value = random.Random(machine).randbytes(1_000)
    with pool.connect(conf) as client:
        due = time.monotonic() + random.Random(machine).random() * period / workers
        while not over.is_set():
            for path in _paths(machine, workers):
                over.wait(max(0.0, due - time.monotonic()))
                if over.is_set():
                    return
                try:
                    client.send_pulse(path, value)
                except StormkeeperError as error:
                    sys.stderr.write(f"machine {machine}: {error}\n")
                due += period / workers
            # After a long wait it goes on in step, not in a hurry.
            due = max(due, time.monotonic() - period)


def _main(servers: list[str], machines: list[int], workers: int, period: float) -> None:
    over = threading.Event()
    threads = [
        threading.Thread(target=_beat, args=(machine, servers, workers, period, over), daemon=True)
        for machine in machines
    ]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join(15)


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))
