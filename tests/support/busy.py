"""Runs a command on a machine that has other things to do, too.

::

    python tests/support/busy.py --times 3 make test

Beside it run two programs that only compute, and one that opens and closes a thousand connections
a second on the loopback address. They end with this one, however it ends; SIGTERM goes on to the
command. Nothing else is ended. The exit code is that of the first run that failed, or 0.
"""

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

COMPUTING: Final = 2
CONNECTIONS_A_SECOND: Final = 1_000

#: Connections come in groups, so many seconds apart; those of more than `LATE_SECS`, when the
#: machine was too busy for them, are not made up for.
TICK_SECS: Final = 0.01
LATE_SECS: Final = 0.2


def compute() -> None:
    """Keep a processor busy for ever."""
    while True:
        pass


def connect() -> None:
    """Open and close connections for ever, and say every second how many there were."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        made, due = 0, 0.0
        before = said = time.monotonic()
        while True:
            now = time.monotonic()
            due += min(now - before, LATE_SECS) * CONNECTIONS_A_SECOND
            before = now
            while due >= 1.0:
                due -= 1.0
                # For a moment there may be no port.
                with contextlib.suppress(OSError), socket.create_connection(address):
                    listener.accept()[0].close()
                    made += 1
            if now - said >= 1.0:
                print(made, flush=True)
                made, said = 0, now
            time.sleep(TICK_SECS)


LOADS: Final = {load.__name__: load for load in (compute, connect)}


def end_with_parent() -> None:
    """End this process when nobody holds the other end of its stdin any more."""

    def wait() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def load(name: str) -> Iterator[subprocess.Popen[str]]:
    """A process that does one of `LOADS` until the context is left or this process ends."""
    with subprocess.Popen(
        [sys.executable, __file__, "--be", name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextlib.contextmanager
def busy() -> Iterator[list[int]]:
    """A busy machine; what is yielded grows by the connections of each second.

    Raises
    ------
    RuntimeError
        At the end: what loads the machine had ended before.
    """
    with contextlib.ExitStack() as stack:
        loads = [
            stack.enter_context(load(name))
            for name in [compute.__name__] * COMPUTING + [connect.__name__]
        ]
        connecting = loads[-1]
        made: list[int] = []

        def follow() -> None:
            assert connecting.stdout is not None
            for line in connecting.stdout:
                made.append(int(line))

        # It ends with what it follows, also where a signal comes before the next line.
        following = threading.Thread(target=follow, daemon=True)
        following.start()
        try:
            yield made
            if any(process.poll() is not None for process in loads):
                raise RuntimeError("the machine was not busy to the end: a load had ended before")
        finally:
            connecting.kill()
            following.join()


def run(command: Sequence[str], times: int) -> int:
    """Run a command some times, until one fails; return its exit code."""
    for number in range(1, times + 1):
        began = time.monotonic()
        with busy() as made, subprocess.Popen(command) as process:
            try:
                code = process.wait()
            finally:
                process.terminate()
        secs = time.monotonic() - began
        print(
            f"busy: run {number} of {times} ended with {code} after {secs:.0f} s, beside"
            f" {COMPUTING} busy loops and {sum(made) / secs:.0f} connections a second",
            file=sys.stderr,
            flush=True,
        )
        if code:
            return code
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--be", choices=LOADS, help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, default=1, help="how often the command is run")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="what is run beside the load")
    given = parser.parse_args()
    if given.be:
        end_with_parent()
        LOADS[given.be]()
    elif given.command:
        # So that what it started is ended by the way.
        signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
        sys.exit(run(given.command, given.times))
    else:
        parser.error("name a command, such as: make test")


if __name__ == "__main__":
    main()
