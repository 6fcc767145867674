"""The code of topologies: fetched when it is not what the cluster's state says, and laid out."""

import gzip
import http.client
import json
import logging
import shutil
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from stormkeeper.blobs import keys
from stormkeeper.daemon.http import HttpThread
from stormkeeper.daemon.sockets import listen
from stormkeeper.errors import BlobNotFoundError, PeerError, StateUnavailableError, SupervisorError
from stormkeeper.supervisor.disk import Directories, Needed
from stormkeeper.supervisor.http_pages import MOST_BYTES, code_queries
from stormkeeper.supervisor.topology_code import LocalTopologyCode
from stormkeeper.thrift.records import Assignment, NodeInfo, SupervisorInfo
from support.code import Cluster, activate
from support.packages import of_folder, packed, tree

WC, JOB = "wc-1-1700000000", "job-2-1700000000"


def always():
    return True


class Site:
    """A supervisor's code, and a Nimbus from which it comes."""

    def __init__(self, folder):
        self.folder = folder
        self.cluster = Cluster(folder / "nimbuses")
        self.nimbus = self.cluster.start(1)
        self.storm = self.cluster.connect()
        self.directories = Directories(folder / "local", folder / "logs")
        self.directories.make()
        self.code = LocalTopologyCode(self.storm, self.cluster.peers, self.directories)

    def package(self, name="t", **files):
        place = tree(self.folder / name, {"topology.py": f"print({name!r})\n", **files})
        return packed(of_folder(place))[0].getvalue()

    def upload(self, storm_id, package, **conf):
        parts = {
            "stormjar.jar": package,
            "stormcode.ser": b"",
            "stormconf.ser": gzip.compress(json.dumps(conf).encode()),
        }
        self.nimbus.code.upload(storm_id, parts)

    def update(self, storm_id, part, data):
        key = keys.of_topology(storm_id)[keys.PARTS.index(part)]
        uploads = self.nimbus.code.uploads
        update = uploads.begin_update(key)
        uploads.chunk(update, data)
        uploads.finish(update)

    def fetch(self, storm_id=WC):
        """Fetch, and return how often a Nimbus was connected to."""
        before = len(self.cluster.dialled)
        self.code.fetch(storm_id, always)
        return len(self.cluster.dialled) - before

    def packages(self):
        return sorted(path.name for path in self.directories.packages.iterdir())

    def close(self):
        self.storm.disconnect()
        self.cluster.close()


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    yield site
    site.close()


def test_code_is_fetched_once_and_laid_out(site):
    site.upload(WC, site.package(), level=3)
    assert site.fetch() == len(keys.PARTS)
    unpacked = site.code.unpacked(WC)
    assert (unpacked / "code" / "topology.py").read_text() == "print('t')\n"
    assert site.code.manifest(WC).entry_point == "code/topology.py"
    assert site.code.conf(WC) == {"level": 3}
    assert site.fetch() == 0


def test_changed_configuration_is_fetched_alone(site):
    site.upload(WC, site.package(), level=3)
    site.fetch()
    unpacked = site.code.unpacked(WC)
    inode = unpacked.stat().st_ino
    site.update(WC, "stormconf.ser", b'{"level": 4}')
    assert site.fetch() > 0
    assert site.code.conf(WC) == {"level": 4}
    assert site.code.unpacked(WC) == unpacked
    assert unpacked.stat().st_ino == inode


def test_topologies_of_one_package_share_it(site):
    package = site.package()
    site.upload(WC, package)
    site.upload(JOB, package)
    site.fetch(WC)
    site.fetch(JOB)
    assert site.code.unpacked(WC) == site.code.unpacked(JOB)


def test_what_is_here_counts_where_the_state_cannot_be_read(site, monkeypatch):
    site.upload(WC, site.package())
    site.fetch()

    def fail(*_):
        raise StateUnavailableError("no server answered")

    asked = []
    whole = site.storm.blobs
    monkeypatch.setattr(site.storm, "blobs", lambda keys: asked.append(keys) or whole(keys))
    site.cluster.ensemble.suspend(site.storm.state)
    assert site.fetch() == 0
    assert asked == [], "nobody waited for it"
    site.cluster.ensemble.resume(site.storm.state)
    monkeypatch.setattr(site.storm, "blobs", fail)
    assert site.fetch() == 0
    with pytest.raises(StateUnavailableError):
        site.fetch(JOB)


def test_what_was_lost_on_the_disk_is_had_again(site):
    site.upload(WC, site.package())
    site.fetch()
    unpacked = site.code.unpacked(WC)
    (unpacked / "manifest.json").unlink()
    for file in unpacked.rglob("*.py"):
        file.unlink()
    unpacked.rename(unpacked.with_name("elsewhere"))
    assert site.fetch() == 0, "the package itself is here"
    assert (unpacked / "code" / "topology.py").exists()
    (site.directories.code(WC) / "checksums.json").write_text("{")
    assert site.fetch() > 0
    assert site.code.conf(WC) == {}


def test_a_package_without_its_manifest_is_laid_out_again(site):
    site.upload(WC, site.package())
    site.fetch()
    for lost in ("manifest.json", "code/topology.py"):
        (site.code.unpacked(WC) / lost).unlink()
    assert site.fetch() == 0, "the package itself is here"
    assert (site.code.unpacked(WC) / "code/topology.py").exists()
    assert list(site.directories.temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["code/topology.py", "code/data/words.txt", "manifest.json"])
def test_a_laid_out_file_that_differs_is_laid_out_again(site, caplog, name):
    site.upload(WC, site.package(**{"data/words.txt": "to be\n"}))
    site.fetch()
    unpacked = site.code.unpacked(WC)
    before = (unpacked / name).read_bytes()
    (unpacked / "code" / "__pycache__").mkdir()
    assert site.fetch() == 0
    assert caplog.messages == []
    for spoilt in (before[:-1] + b"#", b"", before + b"#"):
        (unpacked / name).write_bytes(spoilt)
        assert site.fetch() == 0, "the package itself is here"
        assert (unpacked / name).read_bytes() == before
        assert caplog.messages.pop().startswith(f"{unpacked / name} differs from its package")
        caplog.clear()


@pytest.mark.parametrize("spoil", [Path.unlink, lambda file: file.write_bytes(b"")])
def test_a_configuration_that_was_lost_is_fetched_again(site, spoil):
    site.upload(WC, site.package(), level=3)
    site.fetch()
    spoil(site.directories.code(WC) / "stormconf.ser")
    assert site.fetch() > 0
    assert site.code.conf(WC) == {"level": 3}


def test_code_that_nobody_has_is_an_error(site):
    with pytest.raises(BlobNotFoundError, match=f"no Nimbus has ever had {WC}-stormjar.jar"):
        site.fetch()
    site.upload(WC, site.package())
    site.cluster.stop(site.nimbus)
    with pytest.raises(PeerError, match="no live Nimbus has"):
        site.fetch()
    for ask in (site.code.unpacked, site.code.manifest, site.code.conf):
        with pytest.raises(SupervisorError, match=WC):
            ask(WC)


def test_code_that_is_no_package_is_an_error(site):
    site.upload(WC, b"PK a jar of Java's")
    for _ in range(2):
        with pytest.raises(SupervisorError, match=f"{WC} is no topology that this supervisor"):
            site.fetch()


@pytest.mark.parametrize("conf", [b"[1]", b"", b"\x1f\x8b\x08", b'{"a": '])
def test_a_configuration_that_is_none_is_an_error(site, conf):
    site.upload(WC, site.package())
    site.update(WC, "stormconf.ser", conf)
    site.fetch()
    with pytest.raises(SupervisorError, match=f"the configuration of {WC} cannot be read"):
        site.code.conf(WC)


def test_a_fetch_that_nobody_wants_any_more_ends(site):
    site.upload(WC, site.package())
    with pytest.raises(PeerError, match="is not wanted any more"):
        site.code.fetch(WC, lambda: False)
    assert site.fetch() > 0


def test_unneeded_code_goes_and_used_package_stays(site):
    site.upload(WC, site.package("one"))
    site.upload(JOB, site.package("two"))
    site.fetch(WC)
    site.fetch(JOB)
    one, two = site.code.unpacked(WC), site.code.unpacked(JOB)
    worker = site.directories.make_worker("w1", WC, 6700)
    (worker / "package").symlink_to(one)
    needed = Needed(frozenset({JOB}), frozenset({"w1"}))

    def remove():
        return site.code.remove_unneeded(lambda: needed)

    assert remove() == [WC]
    assert site.packages() == sorted([one.name, two.name])
    needed = Needed(frozenset(), frozenset())
    assert remove() == [JOB, "w1"]
    assert site.packages() == []
    assert remove() == []


class TestNimbusesThatHaveLostTheCode:
    """They fetch it from a supervisor that runs the topology."""

    @contextmanager
    def serving(self, site, *nodes):
        """Serve the code over HTTP; the topology runs on these nodes, of which s1 is the site."""
        listener = listen("127.0.0.1", 0, keys="none", backlog=16)
        port = listener.getsockname()[1]
        with HttpThread(listener, {}, code_queries(site.code)):
            activate(site.nimbus, WC)
            places = {(n, n): NodeInfo(node, {6700}) for n, node in enumerate(nodes, 1)}
            site.nimbus.leader.set_assignment(WC, Assignment("", executor_node_port=places))
            for node, its_port in (("s0", 1), ("s1", port), ("s2", None)):
                info = SupervisorInfo(1, "127.0.0.1", http_port=its_port)
                site.storm.supervisor_heartbeat(node, info)
            yield port

    def asked(self, port, query):
        with closing(http.client.HTTPConnection("127.0.0.1", port)) as client:
            client.request("GET", f"/api/v1/code?{query}")
            answer = client.getresponse()
            return answer.status, answer.read()

    def has_all(self, site):
        return all(site.nimbus.code.store.get(key) for key in keys.of_topology(WC))

    def test_it_is_there_again_byte_for_byte(self, site, caplog):
        site.upload(WC, site.package(data=Random(1).randbytes(MOST_BYTES).hex()))
        site.fetch()
        before = site.nimbus.code.store.all()
        assert before[f"{WC}-stormjar.jar"].size > MOST_BYTES
        with self.serving(site, "s0", "s1", "s2"), caplog.at_level(logging.INFO):
            shutil.rmtree(site.nimbus.folder)
            site.nimbus.code.sync.run_once()
            assert site.nimbus.code.store.all() == before
            assert site.nimbus.code.sync.missing() == {}
            assert "from supervisor s0, next try in" in caplog.text
            assert f"fetched {WC}-stormjar.jar, version 1" in caplog.text

    def test_only_a_supervisor_that_runs_it_is_asked(self, site):
        site.upload(WC, site.package())
        site.fetch()
        with self.serving(site, "s2"):
            shutil.rmtree(site.nimbus.folder)
            site.nimbus.code.sync.run_once()
            assert not self.has_all(site)

    def test_bytes_that_have_changed_there_are_not_taken(self, site, caplog):
        site.upload(WC, site.package())
        site.fetch()
        (site.directories.code(WC) / "stormconf.ser").write_bytes(b"changed")
        with self.serving(site, "s1"):
            shutil.rmtree(site.nimbus.folder)
            site.nimbus.code.sync.run_once()
            assert f"could not fetch {WC}-stormconf.ser from supervisor s1" in caplog.text
            assert not self.has_all(site)

    def test_who_does_not_know_the_checksum_gets_nothing(self, site):
        site.upload(WC, site.package())
        site.fetch()
        record = site.nimbus.code.store.get(f"{WC}-stormconf.ser")
        known = f"topology={WC}&part=stormconf.ser&sha256={record.sha256}"
        with self.serving(site) as port:
            status, body = self.asked(port, known)
            assert (status, len(body)) == (200, record.size)
            assert self.asked(port, f"{known}&start={record.size}") == (200, b"")
            for wrong in (
                f"topology={WC}&part=stormconf.ser",
                f"topology={WC}&part=stormconf.ser&sha256={'0' * 64}",
                f"topology={WC}&part=stormconf.ser&sha256=%ff",
                f"topology={WC}&part=../../x&sha256={record.sha256}",
                f"topology={WC}&part=checksums.json&sha256={record.sha256}",
                f"topology={'x' * 200}&part=stormconf.ser&sha256={record.sha256}",
            ):
                assert self.asked(port, wrong)[0] == 404, wrong
            for wrong in ("", "topology=..", "topology=%2F", f"topology={'x' * 256}"):
                assert self.asked(port, wrong)[0] == 400, wrong
