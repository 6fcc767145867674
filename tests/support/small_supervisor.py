"""A supervisor of one slot, as small as can be: ``small_supervisor.py FOLDER PROGRAM``.

It keeps PROGRAM running in slot 6700, until SIGTERM, and says in lines what it does. Killed and
started again, it adopts the worker. Code and environment are always there.
"""

import shutil
import sys
import time
import uuid
from pathlib import Path

from stormkeeper.daemon.lifecycle import StopSignals, announce
from stormkeeper.supervisor import slot_model
from stormkeeper.supervisor.disk import Directories, LocalState
from stormkeeper.supervisor.slot_model import SlotAssignment, SlotTimeouts
from stormkeeper.supervisor.slots import SlotMachine, SlotState
from stormkeeper.supervisor.worker_processes import WorkerCommand, WorkerProcesses

PORT = 6700
WORK = SlotAssignment("counts-1-1", {"out": "1-1-a"})

#: A stubborn worker is soon ended by force.
TIMES = SlotTimeouts(grace=0.5, linger=0.5, kill_again=0.2)

STRAYS_SECS = 60.0
LOOK_SECS = 0.05


class SmallSupervisor:
    def __init__(self, folder: Path, state: LocalState, program: str) -> None:
        self.program = program
        self.state = state
        self.directories = Directories(folder, folder / "logs")
        self.directories.make()
        self.processes = WorkerProcesses(str(folder))
        record = state.load().get(PORT)
        if record is not None and record.worker is not None:
            self.processes.adopt(record.worker.worker_id, record.worker.process)
            announce(f"adopted {record.worker.worker_id}")
        if strays := self.processes.end_strays(STRAYS_SECS):
            announce(f"ended {strays} strays")
        self.slot = SlotMachine(
            lambda: uuid.uuid4().hex, TIMES, record=record, now=time.monotonic()
        )

    def run(self, stop: StopSignals) -> None:
        wanted = WORK
        while True:
            if stop.wait(LOOK_SECS):
                wanted = None
            self.say(slot_model.Wanted(wanted))
            for worker_id, look in self.processes.look().items():
                if look.is_alive:
                    self.say(slot_model.SignOfLife(worker_id))
                for event in look.events(worker_id):
                    self.say(event)
            self.say(slot_model.Tick())
            if wanted is None and self.slot.status().state is SlotState.EMPTY:
                return

    def say(self, event: slot_model.Event) -> None:
        for one in self.slot.handle(event, time.monotonic()):
            self.carry_out(one)

    def carry_out(self, one: slot_model.Instruction) -> None:
        match one:
            case slot_model.SaveRecord(record):
                self.state.save({PORT: record})
            case slot_model.Prepare(request):
                self.say(slot_model.Prepared(request))
            case slot_model.StartWorker(worker_id, assignment):
                command = WorkerCommand(
                    argv=[sys.executable, "-c", self.program],
                    folder=self.directories.make_worker(worker_id, assignment.storm_id, PORT),
                    log=self.directories.log(assignment.storm_id, PORT),
                )
                process = self.processes.start(worker_id, command)
                announce(f"started {worker_id} as {process.pid}")
                self.say(slot_model.WorkerStarted(worker_id, process))
            case slot_model.TerminateWorker(worker_id):
                self.processes.terminate(worker_id)
            case slot_model.KillWorker(worker_id):
                self.processes.kill(worker_id)
            case slot_model.ReportCrash(worker_id=worker_id, crashes=crashes, reason=reason):
                announce(f"crash {crashes} of {worker_id}: {reason}")
            case slot_model.RemoveWorkerFiles(worker_id):
                self.processes.forget(worker_id)
                shutil.rmtree(self.directories.worker(worker_id))
                announce(f"gone {worker_id}")


def main(folder: Path, program: str) -> None:
    with StopSignals() as stop, LocalState(Directories(folder, folder).local_state) as state:
        SmallSupervisor(folder, state, program).run(stop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
