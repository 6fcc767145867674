"""One slot's life: what is done about each event."""

import itertools
import signal
from dataclasses import replace
from math import inf

import pytest

from stormkeeper.supervisor.process_table import ProcessId
from stormkeeper.supervisor.slot_model import (
    CrashSeries,
    KillWorker,
    MemoryMeasured,
    PreparationFailed,
    Prepare,
    Prepared,
    RemoveWorkerFiles,
    ReportCrash,
    ReportProblem,
    Restart,
    SaveRecord,
    SignOfLife,
    SlotAssignment,
    SlotOutcome,
    SlotRecord,
    SlotTimeouts,
    StartFailed,
    StartWorker,
    TerminateWorker,
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
PROCESS = ProcessId(4711, 99)
MIB = 2**20


class Played:
    """A slot, its clock, and all that it said except what to write down."""

    def __init__(self, record=None):
        ids = (f"w{n}" for n in itertools.count(1))
        self.now = 1_000.0
        self.slot = SlotMachine(lambda: next(ids), TIMES, record=record, now=self.now)
        self.records = []

    def say(self, *events, after=0.0):
        """Say events after as many seconds; return what is to be done."""
        self.now += after
        done = [one for event in events for one in self.slot.handle(event, self.now)]
        self.records += [one.record for one in done if isinstance(one, SaveRecord)]
        return [one for one in done if not isinstance(one, SaveRecord)]

    def tick_at_deadline(self):
        return self.say(Tick(), after=max(0.0, self.slot.deadline - self.now))

    def start(self, assignment=COUNTS):
        """Come to a worker that was just started; return its id."""
        (prepare,) = self.say(Wanted(assignment))
        return self.prepare_and_start(prepare)

    def prepare_and_start(self, prepare):
        (start,) = self.say(Prepared(prepare.request))
        assert isinstance(start, StartWorker)
        assert self.say(WorkerStarted(start.worker_id, PROCESS)) == []
        return start.worker_id

    def run(self, assignment=COUNTS):
        """Come to a worker that runs; return its id."""
        worker_id = self.start(assignment)
        assert self.say(SignOfLife(worker_id)) == []
        return worker_id

    @property
    def state(self):
        return self.slot.status().state


@pytest.fixture
def played():
    return Played()


class TestFromAssignmentToWorker:
    def test_preparation_then_start(self, played):
        assert played.state is SlotState.EMPTY
        assert played.slot.deadline == inf
        assert played.say(Wanted(COUNTS)) == [Prepare(1, COUNTS)]
        assert played.state is SlotState.WAITING_FOR_CODE
        assert played.say(Prepared(1)) == [StartWorker("w1", COUNTS)]
        assert played.state is SlotState.WAITING_FOR_WORKER_START
        assert played.say(WorkerStarted("w1", PROCESS)) == []
        assert played.say(SignOfLife("w1")) == []
        assert played.state is SlotState.RUNNING

    def test_a_start_is_written_down_before_and_its_process_after(self, played):
        played.say(Wanted(COUNTS))
        first, second = played.slot.handle(Prepared(1), played.now)
        assert first == SaveRecord(SlotRecord(COUNTS, WorkerRecord("w1", COUNTS)))
        assert second == StartWorker("w1", COUNTS)
        (third,) = played.slot.handle(WorkerStarted("w1", PROCESS), played.now)
        assert third == SaveRecord(SlotRecord(COUNTS, WorkerRecord("w1", COUNTS, PROCESS)))
        assert played.slot.handle(SignOfLife("w1"), played.now) == []

    def test_saying_the_same_again_changes_nothing(self, played):
        played.run()
        assert played.say(Wanted(replace(COUNTS)), after=1) == []

    def test_failed_preparation_backs_off(self, played):
        (prepare,) = played.say(Wanted(COUNTS))
        waits = []
        for _ in range(7):
            reported = played.say(PreparationFailed(prepare.request, "no space"))
            assert reported == [ReportProblem(COUNTS, "no space")]
            assert played.slot.status().reason == "no space"
            waits.append(played.slot.deadline - played.now)
            assert played.say(Tick(), after=waits[-1] - 0.5) == []
            (prepare,) = played.say(Tick(), after=0.5)
            assert isinstance(prepare, Prepare)
        played.say(Prepared(prepare.request))
        assert played.slot.status().reason == ""
        assert waits == [3, 6, 12, 24, 48, 60, 60]

    def test_a_preparation_that_takes_too_long_is_given_up(self, played):
        (asked,) = played.say(Wanted(COUNTS))
        assert played.slot.deadline == played.now + TIMES.preparation
        (problem,) = played.tick_at_deadline()
        assert "not there in time" in problem.reason
        assert played.say(Prepared(asked.request)) == []  # too late
        (again,) = played.tick_at_deadline()
        assert type(again) is type(asked)

    def test_new_assignment_is_prepared_anew(self, played):
        played.say(Wanted(COUNTS))
        assert played.say(Wanted(OTHER)) == [Prepare(2, OTHER)]
        assert played.say(Prepared(1)) == []
        assert played.say(Wanted(None)) == []
        assert played.say(Prepared(2)) == []
        assert played.state is SlotState.EMPTY
        assert played.records[-1] == SlotRecord()

    def test_a_process_that_cannot_be_started_is_a_crash(self, played):
        played.say(Wanted(COUNTS), Prepared(1))
        done = played.say(StartFailed("w1", "no memory"))
        assert done[:2] == [
            RemoveWorkerFiles("w1"),
            ReportCrash(COUNTS, "w1", "no memory", 1, None),
        ]
        assert played.prepare_and_start(done[2]) == "w2"


class TestEnd:
    def test_asked_then_gone(self, played):
        played.run()
        assert played.say(Wanted(None)) == [TerminateWorker("w1")]
        assert played.state is SlotState.ENDING
        assert played.say(WorkerEnded("w1", 0)) == []
        assert played.state is SlotState.ENDING
        assert played.say(WorkerGone("w1")) == [RemoveWorkerFiles("w1")]
        assert played.state is SlotState.EMPTY
        assert played.records[-1] == SlotRecord()

    def test_force_after_the_grace_and_again_until_it_is_gone(self, played):
        played.run()
        played.say(Wanted(None))
        assert played.say(Tick(), after=TIMES.grace - 0.5) == []
        assert played.say(Tick(), after=0.5) == [KillWorker("w1")]
        for _ in range(5):
            assert played.tick_at_deadline() == [KillWorker("w1")]
        assert played.say(WorkerGone("w1")) == [RemoveWorkerFiles("w1")]

    def test_what_the_worker_leaves_has_a_short_time(self, played):
        played.run()
        played.say(Wanted(None))
        played.say(WorkerEnded("w1", 0), after=1)
        assert played.say(Tick(), after=TIMES.linger - 0.5) == []
        assert played.say(Tick(), after=0.5) == [KillWorker("w1")]

    def test_that_force_does_not_help_is_reported_again_and_again(self, played):
        played.run()
        played.say(Wanted(None))
        problems = []
        while played.now < 1_000 + TIMES.grace + 2.5 * TIMES.stuck:
            problems += [one for one in played.tick_at_deadline() if one != KillWorker("w1")]
        assert [type(one) for one in problems] == [ReportProblem] * 2
        assert "120 s after SIGKILL" in problems[0].reason
        assert played.state is SlotState.ENDING
        assert "SIGKILL" in played.slot.status().reason
        played.say(WorkerGone("w1"))
        assert played.slot.status().reason == ""

    @pytest.mark.parametrize(
        "next_one",
        [
            OTHER,
            replace(COUNTS, claims={"out": "1-7-c"}),
            replace(COUNTS, claims={"out": "1-1-a", "more": "1-1-a"}),
            replace(COUNTS, memory_bytes=2**31),
        ],
    )
    def test_change_prepares_while_the_worker_ends(self, played, next_one):
        played.run()
        assert played.say(Wanted(next_one)) == [TerminateWorker("w1"), Prepare(2, next_one)]
        assert played.say(Prepared(2)) == []
        assert played.say(WorkerEnded("w1", 0)) == []
        assert played.say(WorkerGone("w1")) == [
            RemoveWorkerFiles("w1"),
            StartWorker("w2", next_one),
        ]
        assert played.slot.status().crashes == 0

    def test_there_and_back_again_is_a_new_start_and_no_crash(self, played):
        played.run()
        played.say(Wanted(OTHER))
        assert played.say(Wanted(COUNTS)) == [Prepare(3, COUNTS)]
        played.say(Prepared(3))
        assert played.say(WorkerGone("w1")) == [RemoveWorkerFiles("w1"), StartWorker("w2", COUNTS)]


class TestCrash:
    def test_first_again_at_once_then_later_and_later(self, played):
        waits = []
        worker_id = played.run()
        for crashes in range(1, 10):
            assert played.say(WorkerEnded(worker_id, -signal.SIGKILL)) == []
            done = played.say(WorkerGone(worker_id))
            assert done[:2] == [
                RemoveWorkerFiles(worker_id),
                ReportCrash(COUNTS, worker_id, "it ended by SIGKILL", crashes, PROCESS),
            ]
            assert played.slot.status().crashes == crashes
            started = played.say(Prepared(done[2].request))
            waits.append(0.0)
            if not started:
                assert played.state is SlotState.BACKING_OFF
                waits[-1] = played.slot.deadline - played.now
                assert played.say(Tick(), after=waits[-1] - 0.5) == []
                started = played.say(Tick(), after=0.5)
            worker_id = started[0].worker_id
            played.say(WorkerStarted(worker_id, PROCESS), SignOfLife(worker_id))
        assert waits == [0, 1, 2, 4, 8, 16, 32, 60, 60]

    def test_a_long_run_makes_up_for_earlier_crashes(self, played):
        played.say(WorkerEnded(played.run(), 1))
        *_, prepare = played.say(WorkerGone("w1"))
        worker_id = played.prepare_and_start(prepare)
        played.say(SignOfLife(worker_id))
        beats = int(TIMES.stable / 10) - 1
        for _ in range(beats):
            played.say(SignOfLife(worker_id), after=10)
        assert played.slot.status().crashes == 1
        assert played.slot.deadline == played.now + 10
        played.tick_at_deadline()
        assert played.slot.status().crashes == 0
        assert played.records[-1].crashes == 0

    def test_a_new_claim_is_tried_at_once_and_the_count_goes_on(self, played):
        played.say(WorkerEnded(played.run(), 1))
        *_, prepare = played.say(WorkerGone("w1"))
        played.say(WorkerEnded(played.prepare_and_start(prepare), 1))
        played.say(WorkerGone("w2"))
        again = replace(COUNTS, claims={"out": "1-9-z"})
        (prepare,) = played.say(Wanted(again))
        played.prepare_and_start(prepare)
        played.say(WorkerEnded("w3", 1))
        crash = played.say(WorkerGone("w3"))[1]
        assert crash.crashes == 3

    def test_other_work_begins_without_crashes(self, played):
        played.say(WorkerEnded(played.run(), 1))
        played.say(WorkerGone("w1"))
        played.say(Wanted(OTHER))
        assert played.slot.status().crashes == 0
        assert played.slot.status().reason == ""

    @pytest.mark.parametrize("restart", Restart)
    def test_what_never_ran_is_started_whatever_is_said_of_ends(self, played, restart):
        assignment = replace(COUNTS, restart=restart)
        (prepare,) = played.say(Wanted(assignment))
        (start,) = played.say(Prepared(prepare.request))
        *_, prepare = played.say(StartFailed(start.worker_id, "no space"))
        assert isinstance(prepare, Prepare)

    def test_an_unknown_exit_code_counts_as_a_failure(self, played):
        played.run()
        done = played.say(WorkerGone("w1"))
        assert "exit code is not known" in done[1].reason
        assert isinstance(done[2], Prepare)

    @pytest.mark.parametrize(
        ("restart", "exit_code", "state"),
        [
            (Restart.ON_FAILURE, 0, SlotState.COMPLETED),
            (Restart.ON_FAILURE, 1, SlotState.WAITING_FOR_CODE),
            (Restart.ALWAYS, 0, SlotState.WAITING_FOR_CODE),
            (Restart.ALWAYS, 1, SlotState.WAITING_FOR_CODE),
            (Restart.NEVER, 0, SlotState.COMPLETED),
            (Restart.NEVER, 1, SlotState.FAILED),
            (Restart.NEVER, None, SlotState.FAILED),
        ],
    )
    def test_what_follows_an_end_is_the_topologys_to_say(self, played, restart, exit_code, state):
        assignment = replace(COUNTS, restart=restart)
        played.run(assignment)
        played.say(WorkerEnded("w1", exit_code))
        done = played.say(WorkerGone("w1"))
        assert played.state is state
        is_crash = restart is Restart.ALWAYS or exit_code != 0
        assert any(isinstance(one, ReportCrash) for one in done) is is_crash
        if state in (SlotState.COMPLETED, SlotState.FAILED):
            assert played.slot.deadline == inf
            assert played.say(Wanted(assignment), Tick(), after=1e6) == []
            record = played.slot.record()
            assert record.outcome is SlotOutcome(state.value)
            assert Played(record).say(Wanted(assignment)) == [], "nor after a restart"
            assert played.say(Wanted(OTHER)) == [Prepare(2, OTHER)]

    @pytest.mark.parametrize(
        ("before", "after", "exit_code", "state"),
        [
            (Restart.ON_FAILURE, Restart.NEVER, 1, SlotState.FAILED),
            (Restart.NEVER, Restart.ALWAYS, 0, SlotState.WAITING_FOR_CODE),
        ],
    )
    def test_another_word_on_ends_ends_nothing(self, played, before, after, exit_code, state):
        played.run(replace(COUNTS, restart=before))
        assert played.say(Wanted(replace(COUNTS, restart=after))) == []
        assert played.state is SlotState.RUNNING
        played.say(WorkerEnded("w1", exit_code), WorkerGone("w1"))
        assert played.state is state, "it counts when the worker ends"

    @pytest.mark.parametrize(
        ("exit_code", "after", "is_run_again"),
        [
            (0, Restart.ON_FAILURE, False),
            (0, Restart.ALWAYS, True),
            (1, Restart.ON_FAILURE, True),
            (1, Restart.ALWAYS, True),
        ],
    )
    def test_what_has_ended_is_run_again_only_where_that_is_said_now(
        self, played, exit_code, after, is_run_again
    ):
        played.run(replace(COUNTS, restart=Restart.NEVER))
        played.say(WorkerEnded("w1", exit_code), WorkerGone("w1"))
        done = played.say(Wanted(replace(COUNTS, restart=after)))
        assert bool(done) is is_run_again

    @pytest.mark.parametrize("restart", Restart)
    def test_a_worker_that_asks_for_it_is_started_again_at_once(self, played, restart):
        worker_id = played.run(replace(COUNTS, restart=restart))
        for _ in range(3):
            played.say(WorkerEnded(worker_id, AGAIN))
            clean_up, prepare = played.say(WorkerGone(worker_id))
            assert clean_up == RemoveWorkerFiles(worker_id)
            worker_id = played.prepare_and_start(prepare)
        assert played.slot.status().crashes == 0
        assert played.slot.status().reason == ""

    @pytest.mark.parametrize("exit_code", [0, AGAIN])
    def test_an_exit_code_alone_is_no_end(self, played, exit_code):
        played.run()
        played.say(WorkerEnded("w1", exit_code, is_premature=True))
        crash = played.say(WorkerGone("w1"))[1]
        assert f"exit code {exit_code} before its queries had ended" in crash.reason
        assert played.slot.status().crashes == 1
        assert played.slot.record().outcome is None

    def test_a_crash_is_reported_though_other_work_is_wanted_by_then(self, played):
        played.run()
        played.say(WorkerEnded("w1", 3))
        assert played.say(Wanted(OTHER)) == []
        done = played.say(WorkerGone("w1"))
        assert done[1] == ReportCrash(COUNTS, "w1", "it ended with exit code 3", 1, PROCESS)
        assert isinstance(done[2], Prepare)
        assert played.slot.status().crashes == 0


class TestWatched:
    def test_no_sign_of_life_after_the_start(self, played):
        played.start()
        assert played.slot.deadline == played.now + TIMES.start
        assert played.tick_at_deadline() == [TerminateWorker("w1")]
        played.say(WorkerEnded("w1", 0))
        assert "no sign of life in the 120 s" in played.say(WorkerGone("w1"))[1].reason

    def test_silence(self, played):
        played.run()
        for _ in range(5):
            assert played.say(Tick(), after=TIMES.silence - 1) == []
            assert played.say(SignOfLife("w1")) == []
        assert played.tick_at_deadline() == [TerminateWorker("w1")]
        assert played.say(SignOfLife("w1")) == [], "too late"
        assert played.state is SlotState.ENDING
        assert played.slot.status().reason == "it was silent for 30 s"
        played.say(WorkerEnded("w1", 0))
        crash = played.say(WorkerGone("w1"))[1]
        assert crash.reason == "it was silent for 30 s"

    def test_too_much_memory_twice_in_a_row(self, played):
        played.run()
        for size in (1025, 1024, 1025, 10):
            assert played.say(MemoryMeasured("w1", size * MIB)) == []
        assert played.say(MemoryMeasured("w1", 1500 * MIB)) == []
        assert played.say(MemoryMeasured("w1", 1600 * MIB)) == [TerminateWorker("w1")]
        assert played.say(MemoryMeasured("w1", 1600 * MIB)) == []
        played.say(WorkerEnded("w1", 0))
        assert "took 1600 MiB" in played.say(WorkerGone("w1"))[1].reason

    def test_too_much_memory_for_the_kernel(self, played):
        played.run()
        played.say(WorkerEnded("w1", -signal.SIGKILL, is_too_large=True))
        crash = played.say(WorkerGone("w1"))[1]
        assert "the kernel ended it" in crash.reason
        assert "more than the 1024 MiB" in crash.reason

    def test_killed_child_of_ended_worker_is_no_crash(self, played):
        played.run()
        played.say(WorkerEnded("w1", 0, is_too_large=True))
        assert played.say(WorkerGone("w1")) == [RemoveWorkerFiles("w1")]
        assert played.state is SlotState.COMPLETED

    def test_no_limit_of_memory(self, played):
        played.run(OTHER)
        assert played.say(*[MemoryMeasured("w1", 2**50)] * 5) == []

    @pytest.mark.parametrize(
        "event",
        [
            WorkerStarted("w9", PROCESS),
            StartFailed("w9", "x"),
            WorkerEnded("w9", 0),
            WorkerGone("w9"),
            SignOfLife("w9"),
            MemoryMeasured("w9", 2**50),
            Prepared(0),
            Prepared(2),
            PreparationFailed(9, "x"),
        ],
    )
    def test_what_is_about_another_worker_or_request_changes_nothing(self, played, event):
        played.run()
        assert played.say(event, event) == []
        assert played.state is SlotState.RUNNING
        assert played.slot.record().worker.process == PROCESS


def test_work_that_has_crashed_elsewhere_goes_on_with_that_count():
    moved = replace(COUNTS, crashes=CrashSeries(4, 1_000, "it ended with exit code 1"))
    played = Played()
    (prepare,) = played.say(Wanted(moved))
    status = played.slot.status()
    assert (status.crashes, status.crashing_since) == (4, 1_000)
    assert status.reason == "it ended with exit code 1"
    worker_id = played.prepare_and_start(prepare)  # at once: the leader has decided anew
    done = played.say(WorkerEnded(worker_id, 1), WorkerGone(worker_id))
    assert [each.crashes for each in done if isinstance(each, ReportCrash)] == [5]
    assert played.slot.record().crashing_since == 1_000


class TestAfterARestart:
    RECORD = SlotRecord(COUNTS, WorkerRecord("w7", COUNTS, PROCESS), crashes=2)

    def test_the_worker_that_still_runs_goes_on(self):
        played = Played(self.RECORD)
        assert played.say(Wanted(COUNTS), SignOfLife("w7")) == []
        assert played.state is SlotState.RUNNING
        assert played.slot.status().crashes == 2
        assert played.records == []

    def test_it_goes_on_as_long_as_nobody_says_what_is_wanted(self):
        played = Played(self.RECORD)
        assert played.say(*[SignOfLife("w7")] * 3, after=20) == []

    def test_it_is_ended_if_something_else_is_wanted(self):
        played = Played(self.RECORD)
        assert played.say(Wanted(None)) == [TerminateWorker("w7")]
        assert played.say(WorkerGone("w7")) == [RemoveWorkerFiles("w7")]

    def test_one_that_was_being_ended_is_ended(self):
        played = Played(replace(self.RECORD, wanted=OTHER))
        assert played.say(Tick()) == [TerminateWorker("w7"), Prepare(1, OTHER)]

    def test_one_that_is_gone_is_started_again(self):
        played = Played(self.RECORD)
        done = played.say(WorkerGone("w7"))
        assert [type(one) for one in done] == [RemoveWorkerFiles, ReportCrash, Prepare]
        assert done[1].crashes == 3

    def test_recorded_but_unstarted_worker_is_gone(self):
        played = Played(SlotRecord(COUNTS, WorkerRecord("w7", COUNTS)))
        assert played.say(WorkerGone("w7"))[0] == RemoveWorkerFiles("w7")

    def test_one_that_never_beats_is_not_trusted_for_ever(self):
        played = Played(self.RECORD)
        assert played.tick_at_deadline() == [TerminateWorker("w7")]

    def test_the_wait_after_crashes_is_kept(self):
        played = Played(SlotRecord(COUNTS, None, crashes=5))
        played.say(Tick())
        assert played.say(Prepared(1)) == []
        assert played.slot.deadline == played.now + TIMES.delay(5)
        assert isinstance(played.tick_at_deadline()[0], StartWorker)
