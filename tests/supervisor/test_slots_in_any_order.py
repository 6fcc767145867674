"""One slot's life: what holds in any order of events."""

import itertools
from dataclasses import replace
from math import inf

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stormkeeper.supervisor.process_table import ProcessId
from stormkeeper.supervisor.slot_model import (
    KillWorker,
    MemoryMeasured,
    PreparationFailed,
    Prepare,
    Prepared,
    RemoveWorkerFiles,
    ReportCrash,
    Restart,
    SaveRecord,
    SignOfLife,
    SlotAssignment,
    SlotRecord,
    SlotTimeouts,
    StartFailed,
    StartWorker,
    Tick,
    Wanted,
    WorkerEnded,
    WorkerGone,
    WorkerRecord,
    WorkerStarted,
)
from stormkeeper.supervisor.slots import AGAIN, SlotMachine, SlotState

TIMES = SlotTimeouts()
COUNTS = SlotAssignment("counts-1-1700000000", {"out": "1-1-a"}, memory_bytes=2**30)
OTHER = SlotAssignment("other-2-1700000000", {"out": "1-2-b"})

#: What may be wanted.
WORKS = [
    None,
    COUNTS,
    OTHER,
    replace(COUNTS, claims={"out": "1-3-c"}),
    replace(OTHER, restart=Restart.ALWAYS),
    replace(OTHER, restart=Restart.NEVER),
]


class AnyOrder(RuleBasedStateMachine):
    """A slot in a world where anything may happen, told truly but late, and of old things too.

    A worker is a main process and a JVM. Either may end at any time. `WorkerGone` is said only
    where both have ended; so the slot must never start one while another is alive.
    """

    @initialize()
    def begin(self):
        self.ids = (f"w{n}" for n in itertools.count(1))
        self.now = 0.0
        self.slot = SlotMachine(lambda: next(self.ids), TIMES)
        self.alive = {}  # the processes of each worker that has some
        self.starting = None  # a worker whose start has no answer yet
        self.next_start = "works"
        self.exit_codes = {}
        self.requests = [0]
        self.workers = ["w0"]
        self.written = SlotRecord()
        self.unkillable = False

    def say(self, event):
        self.crashes = self.slot.record().crashes
        done = self.slot.handle(event, self.now)
        assert not any(isinstance(one, SaveRecord) for one in done[1:]), "written first"
        for one in done:
            self.carry_out(one)
        if self.starting is not None:
            self.answer_the_start()

    def carry_out(self, one):
        match one:
            case SaveRecord(record):
                self.written = record
            case Prepare(request):
                self.requests.append(request)
            case StartWorker(worker_id, assignment):
                assert not any(self.alive.values()), "two workers in one slot"
                assert worker_id not in self.workers
                assert assignment == self.slot.status().assignment
                assert self.written.worker == WorkerRecord(worker_id, assignment)
                self.workers.append(worker_id)
                self.starting = worker_id
            case KillWorker(worker_id):
                if not self.unkillable:
                    self.alive.pop(worker_id, None)
            case RemoveWorkerFiles(worker_id):
                assert not self.alive.get(worker_id)
            case ReportCrash(crashes=crashes, assignment=assignment):
                if assignment.is_same_start(self.slot.status().assignment):
                    assert crashes == self.crashes + 1
                else:
                    assert crashes == 1

    @rule(assignment=st.sampled_from(WORKS))
    def want(self, assignment):
        self.say(Wanted(assignment))

    @rule(data=st.data())
    def prepared(self, data):
        self.say(Prepared(data.draw(st.sampled_from(self.requests[-3:]))))

    @rule()
    def newest_is_prepared(self):
        self.say(Prepared(self.requests[-1]))

    @rule()
    def all_goes_well(self):
        """Come to a worker that runs, so that there is one most of the time."""
        self.next_start = "works"
        self.newest_is_prepared()
        for worker_id in list(self.alive):
            self.say(SignOfLife(worker_id))

    @rule(data=st.data())
    def not_prepared(self, data):
        self.say(PreparationFailed(data.draw(st.sampled_from(self.requests[-3:])), "no"))

    @rule(how=st.sampled_from(["works", "fails", "supervisor ends", "supervisor ends before"]))
    def next_start_goes(self, how):
        self.next_start = how

    def answer_the_start(self):
        worker_id, self.starting = self.starting, None
        if self.next_start == "fails":
            self.say(StartFailed(worker_id, "no"))
            return
        if self.next_start != "supervisor ends before":
            self.alive[worker_id] = {"main", "jvm"}
        if self.next_start == "works":
            self.say(WorkerStarted(worker_id, ProcessId(len(self.workers), 1)))
        else:
            self.the_supervisor_is_restarted()

    @rule(data=st.data(), seconds=st.sampled_from([0.1, 3, 40, 400]))
    def time_passes(self, data, seconds):
        self.now += seconds
        if data.draw(st.booleans()):
            for worker_id, processes in list(self.alive.items()):
                if "main" in processes:
                    self.say(SignOfLife(worker_id))
        self.say(Tick())

    @rule(which=st.sampled_from(["main", "jvm"]), code=st.sampled_from([0, 1, AGAIN, -9, None]))
    def one_ends(self, which, code):
        for worker_id, processes in self.alive.items():
            if which == "main" and "main" in processes:
                self.exit_codes[worker_id] = code
            processes.discard(which)

    @rule()
    def look(self):
        """Say of the newest worker what is true."""
        worker_id = self.workers[-1]
        processes = self.alive.get(worker_id, ())
        if "main" not in processes:
            self.say(WorkerEnded(worker_id, self.exit_codes.get(worker_id)))
        if not processes:
            self.say(WorkerGone(worker_id))

    @rule(data=st.data(), size=st.sampled_from([0, 2**40]))
    def measured(self, data, size):
        self.say(MemoryMeasured(data.draw(st.sampled_from(self.workers)), size))

    @rule(data=st.data())
    def said_of_an_old_worker(self, data):
        worker_id = data.draw(st.sampled_from(self.workers[:-1] or ["w0"]))
        for event in (WorkerGone(worker_id), WorkerEnded(worker_id, 0), SignOfLife(worker_id)):
            self.say(event)

    @rule(so=st.booleans())
    def force_helps_or_not(self, so):
        self.unkillable = so

    @rule()
    def the_supervisor_is_restarted(self):
        """What was written down is all that is left of it."""
        # Numbers of requests begin anew, and nobody answers the old ones.
        self.requests = [0]
        self.slot = SlotMachine(lambda: next(self.ids), TIMES, record=self.written, now=self.now)
        self.say(Tick())

    @invariant()
    def what_is_alive_is_written_down(self):
        alive = [worker_id for worker_id, processes in self.alive.items() if processes]
        assert len(alive) <= 1
        if alive:
            assert self.written.worker is not None
            assert self.written.worker.worker_id == alive[0]
        assert self.written == self.slot.record()

    @invariant()
    def whatever_waits_has_a_limit(self):
        resting = (SlotState.EMPTY, SlotState.COMPLETED, SlotState.FAILED)
        assert (self.slot.deadline == inf) == (self.slot.status().state in resting)

    def teardown(self):
        """A stop always ends, once force helps and who asks gets answers."""
        if not hasattr(self, "slot"):
            return
        self.unkillable = False
        self.say(Wanted(None))
        for _ in range(4):
            if self.slot.status().state is SlotState.EMPTY:
                break
            self.now = max(self.now, self.slot.deadline)
            self.say(Tick())
            self.look()
        assert self.slot.status().state is SlotState.EMPTY
        assert self.written == SlotRecord()
        assert not any(self.alive.values())


TestInAnyOrder = AnyOrder.TestCase
TestInAnyOrder.settings = settings(max_examples=60)
