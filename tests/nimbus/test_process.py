"""``storm nimbus`` as a process, called by a client that is not ours."""

import contextlib
import gc
import resource
import shutil
import socket
import threading
import time
import urllib.request
import weakref

import pytest
from thrift.Thrift import TApplicationException
from thrift.transport.TTransport import TTransportException

from stormkeeper.blobs import keys
from stormkeeper.daemon.sockets import listen
from stormkeeper.nimbus import process
from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.state import leader_lock
from stormkeeper.state.storm.cluster import StormClusterState
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from stormkeeper.thrift.records import SupervisorInfo
from stormkeeper.thrift.serialization import Codec
from support.apache_thrift import ApacheClient, DeclaredError
from support.daemon import DaemonProcess
from support.disks import mounted, read_only
from support.heartbeats import heartbeat, path
from support.nimbus_service import describe, package, plain_topology
from support.nimbuses import submit_by_java
from support.pacemaker import PacemakerProcess
from support.stores import settings_for
from support.waiting import until

pytestmark = pytest.mark.zookeeper

#: How long the server keeps the session of a Nimbus that was killed.
SESSION_MS = 4000

READY = "nimbus listening on 127.0.0.1:"


@pytest.fixture
def storm(zookeeper_server, zookeeper_root):
    """A session beside those of the Nimbuses."""
    storm = StormClusterState(
        ZooKeeperState(settings_for(zookeeper_server, zookeeper_root)), Codec()
    )
    yield storm
    storm.disconnect()


@pytest.fixture
def start(zookeeper_settings, tmp_path):
    """Starts Nimbuses; returns each with its port."""
    opened = []

    def start(*options, **changes):
        conf = zookeeper_settings(
            **{
                "nimbus.bind.host": "127.0.0.1",
                "nimbus.thrift.port": 0,
                "storm.local.hostname": "127.0.0.1",
                "storm.local.dir": str(tmp_path / f"nimbus-{len(opened)}"),
                "storm.zookeeper.session.timeout": SESSION_MS,
                **changes,
            }
        )
        nimbus = DaemonProcess("nimbus", READY, conf, options)
        opened.append(nimbus)
        return nimbus, int(nimbus.start())

    yield start
    for each in opened:
        with each:
            pass


@pytest.fixture
def pacemaker():
    with PacemakerProcess() as process:
        yield process


def asked(port, name, arguments=None):
    with ApacheClient(port) as client:
        return client.call(name, arguments or {})


def leader_of(port):
    """Who leads by the word of a Nimbus, None where it knows of none."""
    try:
        return asked(port, "getLeader")["port"]
    except TApplicationException:
        return None


@contextlib.contextmanager
def idle_connections(port, count):
    """Open so many connections that send nothing, from five addresses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        yield [
            opened.enter_context(
                socket.create_connection(("127.0.0.1", port), 60, (f"127.0.0.{2 + n % 5}", 0))
            )
            for n in range(count)
        ]


def ended(connection):
    """Whether the other side has closed a connection that it sent nothing on."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False


def submit(port, folder, name, conf="{}"):
    """Submit a topology of two queries, and return its id."""
    described = describe(name)
    with ApacheClient(port) as client:
        location = client.call("beginFileUpload", {})
        chunk = package(folder, described)
        client.call("uploadChunk", {"location": location, "chunk": chunk})
        client.call("finishFileUpload", {"location": location})
        client.call(
            "submitTopology",
            {
                "name": name,
                "uploadedJarLocation": location,
                "jsonConf": conf,
                "topology": plain_topology(described),
            },
        )
        return client.call("getTopologySummaryByName", {"name": name})["id"]


def test_it_serves_leads_and_stops(start, storm):
    nimbus, port = start(**{"nimbus.metrics.port": 0, "nimbus.metrics.bind.host": "127.0.0.1"})
    until(lambda: leader_of(port) == port)
    [registered] = storm.nimbuses()
    assert (registered.host, registered.port) == ("127.0.0.1", port)
    [line] = [line for line in nimbus.log.splitlines() if "metrics on " in line]
    page = line.rpartition("metrics on ")[2]
    until(lambda: "stormkeeper_nimbus_leads 1.0" in urllib.request.urlopen(page).read().decode())
    ready = urllib.request.urlopen(page.replace("/metrics", "/readyz")).read()
    assert ready == b"leads\n"
    with idle_connections(port, 2_050) as idle:
        assert leader_of(port) == port
        until(lambda: ended(idle[0]))
    assert nimbus.stop() == 0
    assert leader_lock.queue(storm.state) == []
    assert storm.nimbuses() == []
    assert nimbus.log.splitlines()[-1].endswith("stopped")
    assert "authentication is off" not in nimbus.log


def test_a_topology_is_assigned_when_it_was_submitted(start, storm, tmp_path):
    _, port = start(**{"nimbus.monitor.freq.secs": 3600, "topology.workers": 2})
    info = SupervisorInfo(1, "host", "sup", [], [6700, 6701], stormkeeper="0.1.0")
    storm.supervisor_heartbeat("sup", info)
    until(lambda: leader_of(port) == port)
    storm_id = submit(port, tmp_path, "words")
    launches = until(lambda: storm.assignment_info(storm_id)).launches
    assert sorted(query for each in launches for query in each.queries) == ["count", "raw"]
    assert {each.port for each in launches} == {6700, 6701}
    assert asked(port, "getTopologySummary", {"id": storm_id})["num_workers"] == 2

    def sched_status():  # is set when all writes of the round are done
        return asked(port, "getTopologySummaryByName", {"name": "words"}).get("sched_status")

    assert until(sched_status) == "Fully Scheduled"


@pytest.mark.slow
def test_no_worker_moves_without_a_pacemaker_that_vouches(start, storm, tmp_path, pacemaker):
    """The worst that there is: the worker's machine is gone as well, and another one is free."""
    timeout_secs = 3
    nimbus, port = start(
        **{
            "storm.cluster.state.store": "org.apache.storm.pacemaker.pacemaker_state_factory",
            "pacemaker.servers": [pacemaker.address],
            "nimbus.task.timeout.secs": timeout_secs,
            "nimbus.monitor.freq.secs": 0.2,
            "nimbus.metrics.port": 0,
        }
    )
    until(lambda: leader_of(port) == port)
    lost = StormClusterState(ZooKeeperState(storm.state._connection._settings), Codec())
    lost.supervisor_heartbeat(
        "lost", SupervisorInfo(1, "lost", "lost", [], [6700], stormkeeper="0.1.0")
    )
    storm_id = submit(port, tmp_path, "words", '{"topology.checkpoint.shared": true}')
    [before] = until(lambda: storm.assignment_info(storm_id)).launches
    [line] = [line for line in nimbus.log.splitlines() if "metrics on " in line]
    page = line.rpartition("metrics on ")[2]

    def metrics():
        text = urllib.request.urlopen(page).read().decode()
        return dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")

    def workers(status):
        return metrics()[f'stormkeeper_nimbus_workers{{status="{status}"}}'] == "1.0"

    def rounds():
        return float(metrics()["stormkeeper_nimbus_rounds_total"])

    # What comes before it was seen that the worker is launched is not the worker's.
    until(lambda: workers("alive"))
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path(storm_id, before.node, before.port), heartbeat(storm_id))
    seen = rounds() + 2
    until(lambda: rounds() >= seen)
    pacemaker.kill()
    lost.disconnect()
    free = SupervisorInfo(1, "free", "free", [], [6700], stormkeeper="0.1.0")
    storm.supervisor_heartbeat("free", free)
    until(lambda: workers("unproven"))
    assert storm.assignment_info(storm_id).launches == [before]
    assert "no Pacemaker can be read" in nimbus.log
    assert "self-preservation: 1 worker is silent" in nimbus.log
    # One that answers, and has not been there for long, can vouch for no more than that.
    pacemaker.start()

    def is_moved():
        storm.supervisor_heartbeat("free", free)  # a machine that is busy may end this session
        return [each.node for each in storm.assignment_info(storm_id).launches] == ["free"]

    until(is_moved)


@pytest.mark.slow
def test_next_leader_finishes_the_commands_of_a_killed_one(start, storm, tmp_path):
    (leader, port), (_, other) = start(), start()
    storm.supervisor_heartbeat(
        "sup", SupervisorInfo(1, "host", "sup", [], [6700], stormkeeper="0.1.0")
    )
    until(lambda: {leader_of(port), leader_of(other)} == {port} or leader_of(port) == other)
    assert leader_of(port) == port
    storm_id = submit(port, tmp_path, "words")
    before = until(lambda: storm.assignment_info(storm_id)).launches
    options = {"name": "words", "options": {"wait_secs": 5 * SESSION_MS // 1000}}
    asked(port, "killTopologyWithOpts", options)
    deadline = storm.storm_base(storm_id).deadline_ms / 1000
    leader.kill()
    until(lambda: leader_of(other) == other)
    assert time.time() < deadline
    assert storm.assignment_info(storm_id).launches == before
    assert storm.storm_base(storm_id).deadline_ms / 1000 == deadline
    until(lambda: storm.storm_base(storm_id) is None)
    assert time.time() >= deadline
    assert storm.assignment_info(storm_id) is None


class Submitter(threading.Thread):
    """Submits and rebalances topologies, one after another, with whichever Nimbus leads."""

    def __init__(self, ports, folder):
        super().__init__(daemon=True)
        self._ports, self._folder = ports, folder
        self.is_stopped = threading.Event()
        #: Held while something is submitted.
        self.turn = threading.Lock()
        self.storm_ids = []
        #: The longest time in which nothing was taken, and what was said meanwhile.
        self.longest = (0.0, [])
        self.failure = None

    def run(self):
        while not self.is_stopped.wait(0.1) and self.failure is None:
            name = f"t{len(self.storm_ids)}"
            with self.turn:
                self._persist(self._submit, name)
                self._persist(self._rebalance, name)

    def more(self):
        """Wait until another topology is taken."""
        before = len(self.storm_ids)
        until(lambda: self.failure or len(self.storm_ids) > before + 1)
        assert self.failure is None

    def _persist(self, do, name):
        began, said = time.monotonic(), []

        def is_done():
            try:
                do(self._leader(), name)
            except (TApplicationException, TTransportException, OSError, EOFError) as error:
                said.append(str(error))
                return False
            return True

        try:
            until(is_done)
        except BaseException as error:
            self.failure = (error, do, said[-5:])
        self.longest = max(self.longest, (time.monotonic() - began, said))

    def _leader(self):
        told = {leader_of(port) for port in self._ports}
        if len(told) != 1 or told == {None}:
            raise ConnectionRefusedError(f"{told} lead")
        return told.pop()

    def _submit(self, port, name):
        with contextlib.suppress(DeclaredError):  # an earlier try has submitted it
            submit(port, self._folder, name)
        self.storm_ids.append(asked(port, "getTopologySummaryByName", {"name": name})["id"])

    def _rebalance(self, port, name):
        options = {"wait_secs": 0, "topology_conf_overrides": '{"stand.in": 1}'}
        with contextlib.suppress(DeclaredError):  # it still rebalances, since an earlier try
            asked(port, "rebalance", {"name": name, "options": options})


@contextlib.contextmanager
def lost(folder):
    """Lose all files that are on a disk; it is whole at once."""
    for each in folder.iterdir():
        shutil.rmtree(each)
    yield


@contextlib.contextmanager
def full(folder):
    """Have no room on a disk meanwhile."""
    ballast = folder / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", 0) as file:
        while file.write(bytes(2**20)):
            pass
    yield
    ballast.unlink()


class ThreeNimbuses:
    """Nimbuses with a disk each, and topologies that are submitted to them all the time."""

    def __init__(self, stack, start, storm, folder):
        self.storm = storm
        #: The folder of the disk of each, by its port.
        self.disks = {}
        for number in range(3):
            disk = folder / f"disk-{number}"
            disk.mkdir()
            stack.enter_context(mounted(disk, "160m"))
            _, port = start(**{"storm.local.dir": str(disk), "nimbus.monitor.freq.secs": 2})
            self.disks[port] = disk
        until(lambda: self.leaders() <= self.disks.keys())
        self.submitter = Submitter(self.disks, folder)
        self.submitter.start()
        stack.callback(self.submitter.join)
        stack.callback(self.submitter.is_stopped.set)
        self.submitter.more()

    def leaders(self):
        return {leader_of(port) for port in self.disks}

    def await_code(self, ports):
        """Wait until each of these has the code of all topologies that there are by now."""
        ids = [*self.submitter.storm_ids]
        blobs = [key for storm_id in ids for key in keys.of_topology(storm_id)]
        names = {f"127.0.0.1:{port}:0" for port in ports}
        until(lambda: all(names <= {*each.alive} for each in self.storm.blobs(blobs).values()))
        assert len(self.storm.blobs(blobs)) == len(blobs)

    def await_faults(self, ports):
        """Wait until these, and no others, say that their disks take nothing."""
        until(lambda: {each.port for each in self.storm.nimbuses() if each.disk_fault} == {*ports})

    def harm(self, fault, *ports):
        """Have a fault on some disks, and others lead and take submissions meanwhile."""
        with contextlib.ExitStack() as faults:
            # Two Nimbuses have the code of what is taken, so one disk may go at any time.
            with self.submitter.turn if len(ports) > 1 else contextlib.nullcontext():
                if len(ports) > 1:
                    self.await_code(self.disks)
                for port in ports:
                    faults.enter_context(fault(self.disks[port]))
            if fault is not lost:
                self.await_faults(ports)
                others = self.disks.keys() - {*ports} or self.disks.keys()
                until(lambda: self.leaders() <= others)
            if len(ports) < len(self.disks):
                self.submitter.more()
        self.await_faults([])


@pytest.mark.slow
def test_disks_of_nimbuses_are_lost_full_and_read_only(start, storm, tmp_path):
    """No code is lost, and what one Nimbus refuses the next leader takes."""
    with contextlib.ExitStack() as stack:
        nimbuses = ThreeNimbuses(stack, start, storm, tmp_path)
        one, two, three = nimbuses.disks
        for fault in (lost, full, read_only):
            for ports in ([one], [two, three]):
                nimbuses.harm(fault, *ports)
            one, two, three = two, three, one
        nimbuses.submitter.is_stopped.set()
        nimbuses.submitter.join()
        assert nimbuses.submitter.failure is None
        print(nimbuses.submitter.longest[0], len(nimbuses.submitter.storm_ids))
        nimbuses.harm(read_only, one, two, three)
        nimbuses.await_code(nimbuses.disks)


def test_who_does_not_lead_names_the_one_that_does(start):
    (_, port), (_, other) = start(), start()
    leaders = until(lambda: {leader_of(port), leader_of(other)} & {port, other})
    [leader] = leaders
    follower = other if leader == port else port
    until(lambda: leader_of(follower) == leader)
    with pytest.raises(TApplicationException, match="Internal error processing beginFileUpload"):
        asked(follower, "beginFileUpload")


def test_takes_over_java_topologies_only_with_the_option(start, storm):
    submit_by_java(storm.state, "java-1-1700000000")
    careful, port = start()
    until(lambda: "start it with --take-over" in careful.log)
    assert leader_of(port) is None
    _, taking = start("--take-over")
    until(lambda: leader_of(port) == taking)


@pytest.mark.parametrize(("host", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_it_warns_where_whoever_comes_is_let_in(caplog, host, is_open):
    with listen(host, 0, keys="", backlog=1) as listener:
        process._warn_of_openness(listener, "HERE")
    assert ("authentication is off" in caplog.text) == is_open


def test_garbage_is_collected_when_a_leadership_ends():
    """The end wakes the thread; else Python collects no old garbage."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with process._started(process._garbage_thread()) as thread:
            left = Left()
            left.itself = left
            is_there = weakref.ref(left)
            gc.freeze()  # as if an earlier collection had found it alive
            del left
            thread.wake()
            until(lambda: is_there() is None)
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


class Left:
    """What a leadership leaves."""


def test_a_port_that_is_taken_is_said(start):
    listener = listen("127.0.0.1", 0, keys="", backlog=1)
    with listener, pytest.raises(AssertionError, match="another Nimbus may run there"):
        start(**{"nimbus.thrift.port": listener.getsockname()[1]})
