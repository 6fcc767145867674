"""What flows through ZooKeeper, step by step: the master's, the supervisor's, the worker's part.

The steps are those that the design of the cluster state names for each of them. Masters and
supervisors are the real ones, inside the test's process.
"""

import json
import os
import signal
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from stormkeeper import paths
from stormkeeper.conf import defaults
from stormkeeper.errors import StateUnavailableError
from stormkeeper.state.storm import cluster as storm_cluster
from stormkeeper.supervisor import slot_model as times
from stormkeeper.supervisor.assignments import Assignments
from stormkeeper.thrift.records import (
    Assignment,
    Credentials,
    LogConfig,
    RebalanceOptions,
    StormBase,
    SupervisorInfo,
    TopologyStatus,
)
from stormkeeper.thrift.serialization import Codec
from stormkeeper.topology.package.archive import unpack
from stormkeeper.topology.package.code import collect
from stormkeeper.topology.plan import Claim
from stormkeeper.worker.shutdown import INACTIVE
from support.heartbeats import heartbeat, path
from support.inner_cluster import DEAD_SECS, GRAPH, QUERY, InnerCluster
from support.leaders import lead
from support.packages import contents, packed, tree
from support.supervisors import is_alive
from support.waiting import until
from support.worker import WorkerProcess

PORT, OTHER_PORT = 6700, 6701
WAIT_SECS = 30
#: A topology whose checkpoints every machine can reach.
SHARED = {"topology_checkpoint_shared": True}


@pytest.fixture
def cluster(tmp_path):
    with closing(InnerCluster(tmp_path)) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Supervisors wait shortly for workers that do not end."""
    monkeypatch.setattr(times, "WORKER_END_SECS", 0.5)


@pytest.fixture
def master(cluster):
    return cluster.master()


@pytest.fixture
def submit(cluster, master):
    """Submits a topology of one query, and returns its id."""
    return lambda name="wc", **conf: master.submit(name, GRAPH, cluster.conf(**conf))


@pytest.fixture
def register(cluster):
    """Registers a node that does nothing."""

    def register(node, *ports, used=()):
        cluster.storm.supervisor_heartbeat(
            node,
            SupervisorInfo(
                1, f"{node}.example", node, list(used), list(ports), stormkeeper="0.1.0"
            ),
        )

    return register


class TestTheMasterWhenAJobIsSubmitted:
    def test_1_it_reads_which_nodes_are_available(self, master, submit, register):
        """A node whose slots are all in use is none of them, and one that comes is."""
        register("full", PORT, used=[PORT])
        storm_id = submit()
        until(lambda: "Not enough slots" in master.scheduler.sched_status().get(storm_id, ""))
        assert master.assignment(storm_id) is None
        register("free", PORT)
        assert master.assigned(storm_id).node == "free"

    def test_2_it_sets_up_what_stays_as_it_is_before_anybody_knows(
        self, cluster, master, submit, monkeypatch
    ):
        """Code, and places for heartbeats and errors: when the job is there, so are they."""
        write, there = master.leader.activate_storm, []

        def activate(storm_id, *rest):
            storm = cluster.storm
            there.append(storm.active_storms())
            there.append([storm.heartbeat_storms(), storm.error_topologies()])
            there.append([master.code.store.get(key) is not None for key in storm.blobs()])
            write(storm_id, *rest)

        monkeypatch.setattr(master.leader, "activate_storm", activate)
        storm_id = submit()
        assert there == [[], [[storm_id], [storm_id]], [True] * 3]
        assert cluster.storm.active_storms() == [storm_id]

    def test_3_it_sets_the_assignment(self, master, submit, register):
        """From the node to the worker, to its tasks, with the time at which it was started."""
        register("node", PORT)
        storm_id = submit()
        launch = master.assigned(storm_id)
        assert (launch.node, launch.port, launch.queries) == ("node", PORT, [QUERY])
        assignment = master.assignment(storm_id)
        assert assignment.node_host == {"node": "node.example"}
        places = assignment.executor_node_port
        assert {(place.node, *place.port) for place in places.values()} == {("node", PORT)}
        assert assignment.executor_start_time_secs.keys() == places.keys()

    def test_4_next_leader_can_take_down_the_started_storm(self, cluster, master, submit, register):
        """Storm's later releases, and so this one, write it before the assignment."""
        register("node", PORT)
        storm_id = submit()
        assert cluster.storm.storm_base(storm_id).status is TopologyStatus.ACTIVE
        master.assigned(storm_id)
        master.kill("wc", WAIT_SECS)
        heir = cluster.master()
        cluster.hand_over(master, heir)
        assert cluster.storm.active_storms() == [storm_id]
        heir.wait(WAIT_SECS)
        until(lambda: cluster.storm.active_storms() == [])
        assert cluster.storm.assignments() == []


class TestTheMasterMonitoring:
    def test_1_it_reads_the_assignment(self, cluster, master, submit, register):
        """So a new master leaves alone what runs well."""
        register("node", PORT)
        storm_id = submit()
        before = master.assigned(storm_id)
        heir = cluster.master()
        cluster.hand_over(master, heir)
        until(lambda: heir.scheduler.sched_status() == {storm_id: "Fully Scheduled"})
        assert [each.claim for each in heir.assignment(storm_id).launches] == [before.claim]

    def test_2_it_sees_which_nodes_and_workers_are_up(self, cluster, master, submit, register):
        """Each by its own sign of life: a registration, and heartbeats."""
        register("node", PORT)
        storm_id = submit()
        master.assigned(storm_id)
        cluster.storm.heartbeats.beat(path(storm_id), heartbeat(storm_id))
        master.wait(1)
        until(lambda: (master.status.supervisors, dict(master.status.workers)) == (1, {"alive": 1}))
        cluster.storm.state.delete_node(paths.supervisor("node"))
        until(lambda: (master.status.supervisors, dict(master.status.workers)) == (0, {"alive": 1}))
        master.wait(DEAD_SECS)
        until(lambda: dict(master.status.workers) == {"dead": 1})

    def test_3_it_makes_a_new_assignment_where_there_is_a_problem(
        self, cluster, master, submit, register
    ):
        """A lost machine's query gets another worker; one that runs well keeps its own."""
        register("lost", PORT)
        lost = submit("lost", **SHARED)
        master.assigned(lost, "lost")
        register("well", PORT, OTHER_PORT)
        well = submit("well", **SHARED)
        before = master.assigned(well, "well")
        cluster.storm.state.delete_node(paths.supervisor("lost"))
        master.wait(DEAD_SECS - 1)
        cluster.storm.heartbeats.beat(path(well, "well", before.port), heartbeat(well))
        master.wait(2)
        after = master.assigned(lost, "well")
        assert after.port != before.port
        assert [each.claim for each in master.assignment(well).launches] == [before.claim]

    def test_4_assignment_goes_last_when_a_storm_goes_down(self, cluster, master, submit, register):
        """Base and assignment go in one step: nobody finds one without the other."""
        _, removed = everything_of(cluster, master, submit, register)
        master.kill("wc")
        until(lambda: len(removed) == 4)
        assert removed == ["log levels", "credentials", "base", "assignment"]

    def test_4_it_finishes_a_take_down_that_another_one_has_begun(
        self, cluster, master, submit, register, monkeypatch
    ):
        """What says that there is something to take down is there to the end."""
        storm_id, removed = everything_of(cluster, master, submit, register)
        delete = master.leader._writer.delete_node

        def fail(path):
            if path == paths.credentials(storm_id):
                raise StateUnavailableError("this master is cut off")
            delete(path)

        heir = cluster.master()
        monkeypatch.setattr(master.leader._writer, "delete_node", fail)
        master.kill("wc")
        until(lambda: removed)
        assert removed == ["log levels"]
        cluster.hand_over(master, heir)
        until(lambda: len(removed) == 4)
        assert removed[-1] == "assignment"


def everything_of(cluster, master, submit, register):
    """A topology that runs, of which all is there that can be, and what is removed of it."""
    register("node", PORT)
    storm_id = submit()
    master.assigned(storm_id)
    master.leader.set_credentials(storm_id, Credentials({"token": "secret"}))
    master.leader.set_topology_log_config(storm_id, LogConfig({}))
    removed = []
    for what, read in {
        "assignment": cluster.storm.assignment_info,
        "base": cluster.storm.storm_base,
        "credentials": cluster.storm.credentials,
        "log levels": cluster.storm.topology_log_config,
    }.items():
        follow(what, partial(read, storm_id), removed)
    return storm_id, removed


def follow(what, read, removed):
    """Have it noted when something is there no more."""

    def changed():
        if read(changed) is None:
            removed.append(what)

    assert read(changed) is not None


def said(told):
    return {storm_id: each.master_code_dir for storm_id, each in told[-1].items()}


class TestTheStateInMemory:
    """What a client has subscribed to is kept in memory, and nothing else."""

    @pytest.fixture
    def leader(self, cluster):
        return lead(cluster.storm)

    @pytest.fixture
    def follow(self, cluster):
        """Follows all assignments; what was told is a list of what is in memory each time."""
        told = []
        session = cluster.store.open()
        storm = storm_cluster.StormClusterState(session, Codec())
        following = Assignments(storm, told.append)
        following.start()
        until(lambda: told)
        yield session, told
        following.close()
        storm.disconnect()

    def test_it_is_in_sync_and_its_client_is_told_of_each_change(self, leader, follow):
        _, told = follow
        for text in ("one", "two"):
            leader.set_assignment("wc-1-1", Assignment(text))
            until(lambda text=text: said(told) == {"wc-1-1": text})
        leader.remove_storm("wc-1-1")
        until(lambda: said(told) == {})

    def test_it_is_in_sync_again_after_a_lost_session(self, cluster, leader, follow):
        session, told = follow
        leader.set_assignment("wc-1-1", Assignment("one"))
        until(lambda: said(told) == {"wc-1-1": "one"})
        cluster.store.expire(session)
        leader.set_assignment("wc-1-1", Assignment("two"))
        until(lambda: said(told) == {"wc-1-1": "two"})

    def test_nobody_is_told_of_what_he_has_not_subscribed_to(self, cluster, leader):
        told = []
        for storm_id in ("one-1-1", "two-2-1"):
            leader.set_assignment(storm_id, Assignment("before"))
            cluster.storm.assignment_info(storm_id, partial(told.append, storm_id))
        leader.set_assignment("new-3-1", Assignment("new"))
        leader.set_assignment("two-2-1", Assignment("after"))
        until(lambda: told)
        assert told == ["two-2-1"]
        leader.set_assignment("one-1-1", Assignment("after"))
        until(lambda: told == ["two-2-1", "one-1-1"])


class TestTheSupervisor:
    @pytest.fixture
    def machine(self, cluster):
        return cluster.machine(PORT)

    def test_1_it_monitors_storms_and_assignments(self, cluster, machine, submit):
        """A worker starts when it is assigned, and nobody asks the supervisor to look."""
        storm_id = submit()
        pid = machine.started(storm_id, PORT)
        assert is_alive(pid)
        until(lambda: cluster.storm.supervisor_info(machine.id).used_ports == [PORT])

    def test_2_supervisor_knows_its_workers_from_local_state(self, machine, submit):
        """After a restart it looks after them again, and starts no other ones."""
        storm_id = submit()
        pid = machine.started(storm_id, PORT)
        before = until(lambda: machine.noted(PORT).process and machine.noted(PORT))
        machine.stop()
        assert is_alive(pid)
        machine.start()
        until(lambda: machine.record.used_ports == [PORT])
        assert is_alive(pid)
        assert machine.noted(PORT) == before
        assert machine.log(storm_id, PORT).count("STARTED") == 1

    def test_3_it_starts_again_what_is_assigned_and_does_not_run(self, machine, submit):
        """Whether a process is alive is seen when it ends, and looked at now and then."""
        storm_id = submit()
        first = machine.started(storm_id, PORT)
        os.kill(first, signal.SIGKILL)
        assert is_alive(machine.started(storm_id, PORT, 2))

    def test_3_it_ends_what_runs_and_is_not_assigned(self, master, machine, submit):
        """Here another worker is assigned in place of the one that runs."""
        storm_id = submit()
        first = machine.started(storm_id, PORT)
        master.handler.rebalance("wc", RebalanceOptions(wait_secs=0))
        second = machine.started(storm_id, PORT, 2)
        assert not is_alive(first)
        assert is_alive(second)

    def test_4_worker_of_an_inactive_storm_is_killed_and_cleaned_up(self, master, machine, submit):
        """The worker is asked to end; one that does not is killed when its time is over."""
        storm_id = submit(stand_in_stubborn=True)
        pid = machine.started(storm_id, PORT)
        master.kill("wc")
        until(lambda: "STAYS" in machine.log(storm_id, PORT))
        until(lambda: not machine.workers())
        assert not is_alive(pid)
        until(lambda: not machine.record.used_ports)

    def test_pids_are_noted_locally_until_their_workers_are_gone(self, master, machine, submit):
        """By the worker's id, for the supervisor and for whoever looks at the machine."""
        storm_id = submit()
        pid = machine.started(storm_id, PORT)
        worker = until(lambda: machine.noted(PORT).process and machine.noted(PORT))
        assert worker.process.pid == pid
        [folder] = machine.workers()
        assert folder.name == worker.worker_id
        assert [file.name for file in (folder / "pids").iterdir()] == [str(pid)]
        master.kill("wc")
        until(lambda: machine.noted(PORT) is None)
        until(lambda: not machine.workers())


@pytest.mark.zookeeper
class TestTheWorker:
    """The real one, as a process, with a script that starts no Spark."""

    SCRIPT = """
import time
from pathlib import Path

print("the storm is on", flush=True)
while not Path("over").exists():
    time.sleep(0.05)
"""

    @pytest.fixture
    def storm(self, zookeeper_settings):
        storm = storm_cluster.connect(defaults().with_values(zookeeper_settings()))
        yield storm
        storm.disconnect()

    def test_worker_follows_the_status_of_its_storm(self, storm, zookeeper_settings, tmp_path):
        """Until then it is there, and waits. Its supervisor starts it again, to wait once more."""
        tree(tmp_path / "mine", {"daily.py": self.SCRIPT})
        package, _ = packed(contents(collect(tmp_path / "mine" / "daily.py", tmp_path)))
        unpack(package, tmp_path / "package")
        (tmp_path / "saved").write_text("{}")
        leader = lead(storm)

        def turn(status):
            leader.activate_storm("job-1-1", StormBase("job", status, 1))

        options = ["--root", str(tmp_path / "package"), "--overrides", str(tmp_path / "saved")]
        options += ["--claim", "daily=7-1-0"]
        settings = zookeeper_settings(**{"task.heartbeat.frequency.secs": 0.2})
        turn(TopologyStatus.INACTIVE)
        with WorkerProcess(
            Path("code/daily.py"), settings, tmp_path, options=options, storm_id="job-1-1"
        ) as worker:
            beat = partial(storm.worker_heartbeat, "job-1-1", "node", PORT)
            until(lambda: beat() is not None and beat().inactive)
            assert "the storm is on" not in worker.lines
            turn(TopologyStatus.ACTIVE)
            worker.wait_for("the storm is on")
            turn(TopologyStatus.INACTIVE)
            until(lambda: "stopping" in worker.text)
            (tmp_path / "over").touch()
            assert worker.ended() == INACTIVE, worker.text


class TestATask:
    """Rows are routed by Spark, within a query. So what finds another place here is a query.

    A worker without news leaves it to the later claim (`worker.checkpoint_claims`).
    """

    def test_1_a_query_moves_when_its_assignment_changes(self, cluster, master, submit):
        """And the machine that had it, and was lost, ends its former worker when it is back."""
        former = cluster.machine(PORT)
        storm_id = submit(**SHARED)
        before, pid = master.assigned(storm_id), former.started(storm_id, PORT)
        former.stop()
        other = cluster.machine(PORT)
        assert is_alive(pid)
        master.wait(DEAD_SECS + 1)
        after = master.assigned(storm_id, other.id)
        assert is_alive(other.started(storm_id, PORT))
        assert claim_of(after) > claim_of(before)
        former.start()
        until(lambda: not is_alive(pid))

    def test_2_it_is_taken_down_before_it_runs_elsewhere(self, cluster, master, submit):
        """The master turns it off first, and its supervisor says when it has ended."""
        machine = cluster.machine(PORT, OTHER_PORT)
        storm_id = submit(stand_in_stubborn=True)
        before = master.assigned(storm_id)
        pid = machine.started(storm_id, before.port)
        master.handler.rebalance("wc", RebalanceOptions(wait_secs=0))
        until(lambda: claim_of(master.assigned(storm_id)) > claim_of(before))
        assert "STAYS" in machine.log(storm_id, before.port)
        assert not is_alive(pid)


def claim_of(launch):
    return Claim(launch.claim.epoch, launch.claim.counter)


def test_a_rebalance_whose_conf_was_not_saved_is_finished(master, submit, monkeypatch):
    storm_id, change, failures = submit(), master.code.change, [StateUnavailableError("it is lost")]

    def change_later(*arguments, **options):
        if failures:
            raise failures.pop()
        change(*arguments, **options)

    monkeypatch.setattr(master.code, "change", change_later)
    options = RebalanceOptions(wait_secs=0, num_workers=2, topology_conf_overrides='{"own": 1}')
    with pytest.raises(StateUnavailableError):
        master.handler.rebalance("wc", options)
    until(lambda: master.storm.storm_base(storm_id).status is TopologyStatus.ACTIVE)
    assert master.storm.storm_base(storm_id).num_workers == 2
    assert json.loads(master.handler.getTopologyConf(storm_id))["own"] == 1
