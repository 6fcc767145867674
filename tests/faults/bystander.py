"""A well-behaved client in a process of its own, which notes how long each answer took.

Run as a script with a Pacemaker's address and, as JSON, the configuration to connect with. It
writes ``ready``, beats to a path of its own and reads it back until its stdin ends, then writes one
JSON object: ``{"requests": [[start, seconds], …], "wrong": […]}`` with starts on the system's
monotonic clock, which other processes share.
"""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

#: Requests a second: enough for a 99th percentile, and no load.
_RATE: Final = 250
_VALUE: Final = b"I beat " * 400
#: Longest that the process may take to end, in seconds.
_END_SECS: Final = 60.0


class Bystander:
    """The process, for tests; use it as a context manager."""

    def __init__(self, address: str, conf: Mapping[str, Any]) -> None:
        self._command = [sys.executable, __file__, address, json.dumps(dict(conf))]

    def __enter__(self) -> Self:
        tests = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tests
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_END_SECS)
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]

    def finish(self) -> tuple[list[tuple[float, float]], list[str]]:
        """End it; return (start, seconds) of every request, and what was wrong with any."""
        output, _ = self._process.communicate(timeout=_END_SECS)
        told = json.loads(output)
        return [(start, seconds) for start, seconds in told["requests"]], told["wrong"]


def _main(address: str, conf: Mapping[str, Any]) -> None:
    from stormkeeper.conf import defaults  # noqa: PLC0415 - not for those who import the class
    from stormkeeper.errors import StormkeeperError  # noqa: PLC0415
    from stormkeeper.pacemaker.client import pool  # noqa: PLC0415

    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    requests: list[tuple[float, float]] = []
    wrong: list[str] = []
    settings = defaults().with_values({**conf, "pacemaker.servers": [address]})
    with pool.connect(settings) as client:
        path, number = "/workerbeats/bystander-1-1/node-6700", 0
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        due = time.monotonic()
        while not over.is_set():
            number += 1
            value = b"%d %s" % (number, _VALUE)
            for verb in ("send", "get"):
                start = time.monotonic()
                try:
                    if verb == "send":
                        client.send_pulse(path, value)
                    elif client.get_pulse(path) != value:
                        wrong.append(f"pulse {number} did not come back as it was sent")
                except StormkeeperError as error:
                    wrong.append(f"{verb} {number}: {error}")
                requests.append((start, time.monotonic() - start))
                due += 1 / _RATE
                time.sleep(max(0.0, due - time.monotonic()))
            due = max(due, time.monotonic() - 1.0)  # no burst after a pause of the machine
    json.dump({"requests": requests, "wrong": wrong[:20]}, sys.stdout)


if __name__ == "__main__":
    _main(sys.argv[1], json.loads(sys.argv[2]))
