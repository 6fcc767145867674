"""Workers with the mark of a supervisor that does not run."""

import sys

from stormkeeper.supervisor.disk import Directories
from stormkeeper.supervisor.worker_processes import WorkerCommand, WorkerProcesses, end_workers
from support.waiting import DEADLINE_SECS, until

#: Ends with what it has started, when it is asked to.
HEEDING = """
import signal, subprocess, sys, time
child = subprocess.Popen(["setsid", "sleep", "600"])
def stop(*_):
    child.kill()
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(600)
"""


class OwnWorkers:
    """A supervisor's place on this machine, and workers that carry its mark."""

    def __init__(self, folder):
        self.directories = Directories(folder, folder / "logs")
        self.directories.make()
        self.log = folder / "worker.log"
        self.started = WorkerProcesses(str(self.directories.supervisor))

    def start(self, worker_id, program):
        self.log.write_bytes(b"")
        command = WorkerCommand(
            argv=[sys.executable, "-c", program], folder=self.log.parent, log=self.log
        )
        process = self.started.start(worker_id, command)
        until(lambda: self.log.read_text().endswith("\n"))
        return process

    def end(self, grace_secs=DEADLINE_SECS):
        return end_workers(self.directories, grace_secs)
