"""A process that leads, has more to write than it comes to, and does not look whether it leads.

Run as a script with a job as JSON (see `Zombie`). It makes a lock, waits until that is the first,
says so, and at a line on its stdin works off its queue: first a deletion if there is one, then
writes, each of which adds a persistent sequential node below `HISTORY` in the transaction that is
fenced. Whatever an answer is it goes on with the next. On stdout are JSON objects, one a line:
``{"leads": EPOCH}``, then ``{"outcome": "done" or the error's class}`` for each, and
``{"over": true}``; it ends with its stdin.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

from stormkeeper.conf import Address
from stormkeeper.daemon.children import dying_with_us
from support.waiting import DEADLINE_SECS, until

HISTORY: Final = "/history"

#: Between two writes, and before every transaction of a deletion, in seconds: so that it is stopped
#: in the middle.
_PAUSE_SECS: Final = 0.005

#: Of a deletion.
_BATCH: Final = 20


class Zombie:
    """The process, for tests; use it as a context manager.

    Parameters
    ----------
    address
        A ZooKeeper server.
    root
        For ``storm.zookeeper.root``.
    writes
        How many writes are in its queue.
    delete
        A node that it deletes, with all below it, before it writes.
    session_secs, call_secs
        How long its session lasts without it, and a call.
    """

    def __init__(
        self,
        address: Address,
        root: str,
        *,
        writes: int,
        delete: str | None = None,
        session_secs: float = 1.0,
        call_secs: float = 30.0,
    ) -> None:
        job = {
            "host": address.host,
            "port": address.port,
            "root": root,
            "writes": writes,
            "delete": delete,
            "session_secs": session_secs,
            "call_secs": call_secs,
        }
        self._command = dying_with_us([sys.executable, __file__, json.dumps(job)])
        self._told: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        tests = Path(__file__).parents[1]
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tests)},
        )
        self._reader = threading.Thread(target=self._read, name="zombie", daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # also where it is stopped
        self._process.wait(DEADLINE_SECS)
        self._reader.join(DEADLINE_SECS)
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.stdout.close()  # type: ignore[union-attr]

    @property
    def epoch(self) -> int:
        """Of its lock, once it leads."""
        return int(until(lambda: self._told and self._told[0], 60)["leads"])

    @property
    def outcomes(self) -> list[str]:
        """What it was told of what is in its queue, as far as it has come."""
        return [each["outcome"] for each in self._told if "outcome" in each]

    @property
    def is_over(self) -> bool:
        """Whether its queue is empty."""
        assert self._process.poll() is None, "it ended on its own"
        return bool(self._told) and "over" in self._told[-1]

    def work(self) -> None:
        """Have it work off its queue as soon as it leads."""
        self._process.stdin.write("\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]

    def stop(self) -> None:
        """Stop the process wherever it is, and return when it stands."""
        self._process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self._process.pid}/task")
        until(lambda: all("\nState:\tT" in (t / "status").read_text() for t in tasks.iterdir()))

    def go_on(self) -> None:
        """Have it go on where it was."""
        self._process.send_signal(signal.SIGCONT)

    def _read(self) -> None:
        for line in self._process.stdout:  # type: ignore[union-attr]
            self._told.append(json.loads(line))


def _main(job: dict[str, Any]) -> None:
    from stormkeeper.state import leader_lock  # noqa: PLC0415 - for the script alone
    from stormkeeper.state.fenced_writer import FencedWriter  # noqa: PLC0415
    from stormkeeper.state.zookeeper.ensemble_settings import EnsembleSettings  # noqa: PLC0415
    from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState  # noqa: PLC0415
    from support.interposed import Interposed  # noqa: PLC0415
    from support.transactions import Transaction  # noqa: PLC0415

    state = ZooKeeperState(
        EnsembleSettings(
            (Address(job["host"], job["port"]),),
            job["root"],
            session_timeout_secs=job["session_secs"],
            call_timeout_secs=job["call_secs"],
            retry_interval_secs=0.05,
        )
    )

    def commit(operations: Any) -> Any:
        time.sleep(_PAUSE_SECS)
        return state.commit(operations)

    state.mkdirs(HISTORY)
    lock = leader_lock.take(state)
    until(lambda: leader_lock.before(state, lock) is None, 60)
    fence = lock.fence
    leader = FencedWriter(Interposed(state, commit=commit), fence, batch=_BATCH)  # type: ignore[arg-type]
    _tell(leads=fence.epoch)
    sys.stdin.readline()
    if job["delete"]:
        _attempt(lambda: leader.delete_node(job["delete"]))
    for number in range(job["writes"]):
        written = json.dumps({"epoch": fence.epoch, "number": number}).encode()
        _attempt(
            lambda data=written: (
                Transaction(leader.commit).create(f"{HISTORY}/w-", data, sequential=True).commit()
            )
        )
    _tell(over=True)
    sys.stdin.read()
    state.close()


def _attempt(write: Callable[[], object]) -> None:
    from stormkeeper.errors import (  # noqa: PLC0415
        NotLeaderError,
        OutcomeUnknownError,
        StateUnavailableError,
    )

    try:
        write()
    except (NotLeaderError, StateUnavailableError) as error:
        kinds = (NotLeaderError, OutcomeUnknownError, StateUnavailableError)
        _tell(outcome=next(kind.__name__ for kind in kinds if isinstance(error, kind)))
    else:
        _tell(outcome="done")


def _tell(**told: object) -> None:
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))
