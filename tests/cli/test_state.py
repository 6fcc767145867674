"""`storm state` with a real ZooKeeper that has what Storm kept in it."""

import json
import re

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from stormkeeper.local.dev_zookeeper import four_letter_word
from stormkeeper.thrift import readable, records
from stormkeeper.thrift.serialization import deserialize, serialize
from support import vectors
from support.command import HEAVY, Running, imported_by
from support.proxy import Proxy
from support.waiting import DEADLINE_SECS, until

pytestmark = pytest.mark.zookeeper

STORM_ID = "wc-1-1700000000"
RELEASES = {"znodes-gzip": "/stormgz", "znodes-zstd": "/storm"}


@pytest.fixture
def kazoo(zookeeper_server):
    client = KazooClient(str(zookeeper_server.address), timeout=20)
    client.start(timeout=DEADLINE_SECS)
    yield client
    client.stop()
    client.close()


@pytest.fixture
def fill(kazoo, zookeeper_root):
    """Makes the nodes of a file of vectors below this test's root."""

    def make(name):
        (top,) = {vector["path"].split("/")[1] for vector in vectors.load(name)}
        nodes = {}
        for vector in vectors.load(name):
            path = vector["path"].removeprefix(f"/{top}")
            data = bytes.fromhex(vector["hex"] or "")
            kazoo.create(zookeeper_root + path, data, ephemeral=vector["ephemeral"])
            nodes[path or "/"] = vector
        return nodes

    return make


@pytest.fixture
def options(zookeeper_settings):
    """The options that point a command to this test's root."""

    def given(**changes):
        settings = zookeeper_settings(**changes).items()
        return [word for key, value in settings for word in ("-c", f"{key}={json.dumps(value)}")]

    return given


@pytest.fixture
def ask(storm, options):
    """Runs ``storm state``."""
    return lambda *arguments: storm("state", *arguments, *options())


@pytest.mark.parametrize("release", RELEASES)
def test_the_tree_of_a_cluster_of_storms(ask, fill, release):
    nodes = fill(release)
    told = ask("tree", "--json")
    assert (told.returncode, told.stderr) == (0, "")
    found = {node["path"]: node for node in map(json.loads, told.stdout.splitlines())}
    assert found.keys() == nodes.keys()
    for path, vector in nodes.items():
        assert found[path]["ephemeral"] == vector["ephemeral"]
        assert found[path]["bytes"] == len(bytes.fromhex(vector["hex"] or ""))
        assert found[path]["kind"] not in ("bytes", "java")
    assert found[f"/storms/{STORM_ID}"]["kind"] == "StormBase"
    assert found["/storms"]["children"] == 1
    told = ask("tree", "/supervisors")
    assert (told.returncode, told.stderr) == (0, "")
    heading, top, supervisor = told.stdout.splitlines()
    assert heading.split() == ["NODE", "HOLDS", "BYTES"]
    assert top.split()[:2] == ["/supervisors", "directory"]
    assert supervisor.startswith("  sup-aaaa-10.0.0.1")
    assert supervisor.endswith("  ephemeral")


def test_list_and_get(ask, fill):
    nodes = fill("znodes-gzip")
    assert ask("list", "storms").stdout == f"{STORM_ID}\n"
    assert json.loads(ask("list", "/storms/", "--json").stdout) == [STORM_ID]
    path = f"/storms/{STORM_ID}"
    base = deserialize(records.StormBase, bytes.fromhex(nodes[path]["hex"]))
    told = ask("get", path)
    assert (told.returncode, told.stderr) == (0, "")
    date = re.compile(r"(launch-time-secs +\d+) \(\d{4}-.* UTC\)")
    assert date.search(told.stdout)
    assert date.sub(r"\1", told.stdout) == readable.render(base) + "\n"
    told = ask("get", path, "--json")
    assert json.loads(told.stdout) == {
        "path": path,
        "kind": "StormBase",
        "value": readable.to_builtins(base),
        "version": 0,
        "ephemeral": False,
        "epoch": None,
        "note": None,
    }
    told = ask("get", "/storms")
    assert (told.returncode, told.stdout) == (0, "")
    assert told.stderr == "storm: a directory of 1 node; see `storm state list /storms`\n"


def test_credentials_are_shown_when_that_is_asked_for(ask, kazoo, zookeeper_root):
    path = f"/credentials/{STORM_ID}"
    value = serialize(records.Credentials({"user": "s3cret"}))
    kazoo.create(f"{zookeeper_root}{path}", value, makepath=True)
    for form in ((), ("--json",)):
        told = ask("get", path, *form)
        assert told.returncode == 0
        assert "user" in told.stdout
        assert "s3cret" not in told.stdout + told.stderr
        assert "not shown without --show-secrets" in told.stdout + told.stderr
        told = ask("get", path, "--show-secrets", *form)
        assert (told.returncode, told.stderr) == (0, "")
        assert "s3cret" in told.stdout


def test_bytes_that_nobody_can_read_are_hexadecimal_with_a_note(ask, fill, kazoo, zookeeper_root):
    fill("znodes-gzip")
    kazoo.set(f"{zookeeper_root}/storms/{STORM_ID}", b"\x1f\x8b\xff what")
    told = ask("get", f"/storms/{STORM_ID}")
    assert (told.returncode, told.stdout) == (0, b"\x1f\x8b\xff what".hex() + "\n")
    assert told.stderr.startswith("storm: not a StormBase: ")
    assert len(told.stderr.splitlines()) == 1


def test_what_is_not_there(ask, fill, kazoo, zookeeper_root):
    for command in (["tree"], ["list", "/"], ["get", "/storms"], ["check"]):
        told = ask(*command)
        assert (told.returncode, told.stdout) == (3 if command == ["check"] else 1, ""), command
        assert zookeeper_root in told.stderr, command
        assert len(told.stderr.splitlines()) == 1
    # Looking makes nothing.
    assert kazoo.exists(zookeeper_root) is None
    fill("znodes-gzip")
    for command in ("tree", "list", "get"):
        told = ask(command, "/storms/nobody")
        assert (told.returncode, told.stdout) == (1, "")
        assert told.stderr == "storm: nothing at /storms/nobody\n"


def test_a_path_with_the_root_in_it_is_put_right(ask, fill, zookeeper_root):
    fill("znodes-gzip")
    for command in ("tree", "list", "get"):
        told = ask(command, f"{zookeeper_root}/storms")
        assert (told.returncode, told.stdout) == (1, "")
        assert told.stderr == (
            f"storm: nothing at {zookeeper_root}/storms: paths are below storm.zookeeper.root,"
            f" which is {zookeeper_root}; try /storms\n"
        )


def test_a_list_of_nothing_says_so(ask, fill):
    fill("znodes-gzip")
    told = ask("list", f"/storms/{STORM_ID}")
    assert (told.returncode, told.stdout) == (0, "")
    assert told.stderr.startswith(f"storm: /storms/{STORM_ID} has no children")
    told = ask("list", f"/storms/{STORM_ID}", "--json")
    assert (told.returncode, told.stdout, told.stderr) == (0, "[]\n", "")


def test_paths_that_cannot_be_are_wrong_usage(ask):
    for path in ("/storms/../supervisors", "/storms/\x01"):
        told = ask("get", path)
        assert (told.returncode, told.stdout) == (2, "")
        assert "Usage: storm state get" in told.stderr


@pytest.mark.parametrize("command", [["tree"], ["list", "/"], ["get", "/storms"], ["check"]])
def test_no_zookeeper_is_there(storm, command):
    closed = ("-c", "storm.zookeeper.port=1", "-c", "storm.zookeeper.connection.timeout=500")
    told = storm("state", *command, "-c", "storm.zookeeper.servers=[127.0.0.1]", *closed)
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.startswith("storm: ")
    assert "127.0.0.1:1" in told.stderr
    assert "Traceback" not in told.stderr


def test_heartbeats_in_pacemakers_are_pointed_to(storm, fill, options, start_pacemaker):
    fill("znodes-gzip")
    conf = options(
        **{
            "storm.cluster.state.store": "org.apache.storm.cluster.PaceMakerStateStorageFactory",
            "pacemaker.servers": [start_pacemaker().address],
        }
    )
    told = storm("state", "get", "/workerbeats/nobody/node-6700", *conf)
    assert told.returncode == 1
    assert "storm heartbeats list /workerbeats/nobody/node-6700" in told.stderr


def test_only_check_asks_pacemakers(storm, fill, options):
    """Nobody listens at port 1."""
    fill("znodes-gzip")
    conf = options(
        **{
            "storm.cluster.state.store": "org.apache.storm.cluster.PaceMakerStateStorageFactory",
            "pacemaker.servers": ["127.0.0.1:1"],
        }
    )
    told = storm("state", "tree", *conf)
    assert (told.returncode, told.stderr) == (0, "")
    told = storm("state", "check", *conf)
    assert (told.returncode, told.stdout) == (3, "")
    assert "the Pacemaker 127.0.0.1:1 was not looked at" in told.stderr
    assert "all well" not in told.stderr


def test_check_names_the_one_pacemaker_that_does_not_answer(
    storm, fill, options, kazoo, zookeeper_root, start_pacemaker
):
    fill("znodes-gzip")
    conf = options(
        **{
            "storm.cluster.state.store": "org.apache.storm.pacemaker.pacemaker_state_factory",
            "pacemaker.servers": [start_pacemaker().address, "127.0.0.1:1"],
        }
    )
    told = storm("state", "check", *conf)
    assert (told.returncode, told.stdout) == (3, "")
    note, summary = told.stderr.splitlines()
    assert note.startswith("storm: the Pacemaker 127.0.0.1:1 was not looked at: ")
    assert "not all could be read" in summary
    told = storm("state", "check", "--json", *conf)
    assert told.returncode == 3
    (note,) = json.loads(told.stdout)["notes"]
    assert note.startswith("the Pacemaker 127.0.0.1:1 ")
    # What was found all the same comes first.
    kazoo.create(f"{zookeeper_root}/errors/gone-1", b"\x07")
    told = storm("state", "check", *conf)
    assert told.returncode == 1
    assert "the Pacemaker 127.0.0.1:1 was not looked at" in told.stderr


def test_the_code_says_that_the_configuration_is_wrong(storm):
    assert storm("state", "check", "-c", "storm.cluster.state.store=none").returncode == 2


def test_check_of_a_cluster_that_is_well_and_of_one_that_is_not(ask, kazoo, zookeeper_root):
    def put(path, record, **how):
        kazoo.create(zookeeper_root + path, serialize(record), makepath=True, **how)

    put("/storms/wc-1", records.StormBase("wc", records.TopologyStatus.ACTIVE, 1))
    put("/assignments/wc-1", records.Assignment("/dir"))
    supervisor = records.SupervisorInfo(1, "host")
    put("/supervisors/sup-a", supervisor, ephemeral=True)
    told = ask("check")
    assert (told.returncode, told.stdout) == (0, "")
    told = ask("check", "--json")
    assert (told.returncode, json.loads(told.stdout)) == (
        0,
        {"findings": [], "advice": {}, "notes": []},
    )
    put("/assignments/wc-2", records.Assignment("/dir"))
    put("/supervisors/sup-b", supervisor)
    put("/supervisors/sup-c", supervisor)
    put("/errors/wc-3/split/e0000000001", records.ErrorInfo("boom", 1), ephemeral=True)
    kazoo.create(f"{zookeeper_root}/storms/wc-4", b"garbage")
    told = ask("check")
    assert told.returncode == 1
    lines = told.stdout.splitlines()
    kinds = [tuple(line.split(": ")[0].split()) for line in lines if not line.startswith(" ")]
    assert kinds == [
        ("assignment-without-topology", "/assignments/wc-2"),
        ("unreadable", "/storms/wc-4"),
        ("ephemeral-without-session", "/supervisors/sup-b"),
        ("ephemeral-without-session", "/supervisors/sup-c"),
        ("left-behind", "/errors/wc-3"),
    ]
    # What to do is told once, below all of a kind.
    assert told.stdout.count("does not end with any session") == 1
    assert lines[-2].startswith("  ")
    told = ask("check", "--json")
    assert told.returncode == 1
    found = json.loads(told.stdout)
    assert [(f["kind"], f["path"]) for f in found["findings"]] == kinds
    assert list(found["advice"]) == list(dict.fromkeys(kind for kind, _ in kinds))
    marked = [line.split()[0] for line in ask("tree").stdout.splitlines() if "unreadable" in line]
    assert marked == ["wc-4"]


def test_bidi_characters_are_escaped_in_notes(ask, kazoo, zookeeper_root):
    closed = [make_digest_acl("storm", "secret", all=True)]
    for path in ("", "/storms", "/storms/a\u202eb"):
        kazoo.create(zookeeper_root + path, b"\x07")
    kazoo.set_acls(f"{zookeeper_root}/storms/a\u202eb", closed)
    for command in ("tree", "check"):
        told = ask(command)
        assert "storm: /storms/a\\u202eb was not looked at: " in told.stderr
        assert "\u202e" not in told.stderr


def test_what_may_not_be_read_is_named(ask, kazoo, zookeeper_root):
    closed = [make_digest_acl("storm", "secret", all=True)]
    for path in ("", "/storms", "/storms/wc-1"):
        kazoo.create(zookeeper_root + path, b"\x07")
    kazoo.set_acls(f"{zookeeper_root}/storms", closed)
    told = ask("tree")
    assert told.returncode == 0
    assert told.stdout.splitlines()[1].startswith("/ ")
    assert "wc-1" not in told.stdout
    assert told.stderr.startswith("storm: /storms was not looked at: ")
    told = ask("check")
    assert (told.returncode, told.stdout) == (3, "")
    assert told.stderr.startswith("storm: /storms was not looked at: ")
    assert "all well" not in told.stderr
    for command in ("tree", "list", "get"):
        told = ask(command, "/storms")
        assert (told.returncode, told.stdout) == (3, "")
        assert "ACL" in told.stderr
        assert "nothing at" not in told.stderr
    kazoo.set_acls(zookeeper_root, closed)
    told = ask("check")
    assert (told.returncode, told.stdout) == (3, "")
    assert "ACL" in told.stderr
    assert len(told.stderr.splitlines()) == 1


def test_watch_tells_changes_until_it_is_interrupted(environ, options, kazoo, zookeeper_root):
    kazoo.create(f"{zookeeper_root}/storms", b"\x07", makepath=True)
    with Running(["state", "watch", "/storms", "-r", *options()], environ) as watching:
        assert watching.remark().endswith(" watching /storms")
        kazoo.create(f"{zookeeper_root}/storms/wc-1", b"1")
        assert watching.line().split()[1:] == ["children", "+wc-1", "/storms"]
        assert watching.line().split()[1:] == ["created", "/storms/wc-1"]
        kazoo.set(f"{zookeeper_root}/storms/wc-1", b"2")
        assert watching.line().split()[1:] == ["changed", "/storms/wc-1"]
        kazoo.delete(f"{zookeeper_root}/storms/wc-1")
        told = {tuple(watching.line().split()[1:]) for _ in range(2)}
        assert told == {("children", "-wc-1", "/storms"), ("deleted", "/storms/wc-1")}
        assert watching.interrupt() == 0


def test_watch_goes_on_after_its_session_has_expired(
    environ, options, kazoo, zookeeper_server, zookeeper_root
):
    path = f"{zookeeper_root}/storms"
    kazoo.create(path, b"1", makepath=True)
    before = sessions(zookeeper_server)
    with Proxy(zookeeper_server.address) as proxy:
        through = {"storm.zookeeper.port": proxy.address.port}
        conf = options(**through, **{"storm.zookeeper.session.timeout": 4_000})
        with Running(["state", "watch", "/storms", "--json", *conf], environ) as watching:
            assert watching.remark().endswith(" watching /storms")
            (session,) = sessions(zookeeper_server) - before
            proxy.stall()
            assert watching.remark().endswith(" the connection to ZooKeeper is lost")
            kazoo.set(path, b"2")
            until(lambda: session not in sessions(zookeeper_server))
            proxy.flow()
            remarks = [watching.remark() for _ in range(3)]
            assert remarks[0].endswith(" the session with ZooKeeper has expired")
            assert remarks[1].endswith(" connected to ZooKeeper again")
            assert "changes during the lost connection are printed as one" in remarks[2]
            told = json.loads(watching.line())
            assert (told["event"], told["path"], told["version"]) == ("changed", "/storms", 1)
            kazoo.delete(path)
            assert json.loads(watching.line())["event"] == "deleted"
            assert watching.interrupt() == 0


def sessions(server):
    """The ids of all sessions that have not ended."""
    dump = four_letter_word(server.host, server.port, "dump")
    return set(re.findall(r"^\t(0x[0-9a-f]+)$", dump, re.MULTILINE))


def test_nothing_heavy_is_imported_for_help(environ):
    modules = imported_by(["state", "get", "--help"], environ)
    assert not modules & (HEAVY | {"yaml", "msgspec"})


def test_list_goes_on_with_what_comes_and_goes(environ, options, kazoo, zookeeper_root):
    kazoo.create(f"{zookeeper_root}/storms/wc-1", b"x", makepath=True)
    with Running(["state", "list", "/storms", "--watch", *options()], environ) as listing:
        assert listing.line() == "wc-1"
        assert listing.remark().endswith(" watching /storms")
        kazoo.create(f"{zookeeper_root}/storms/wc-2", b"x")
        assert listing.line().split()[1:] == ["+wc-2"]
        kazoo.set(f"{zookeeper_root}/storms/wc-2", b"y")
        kazoo.delete(f"{zookeeper_root}/storms/wc-1")
        assert listing.line().split()[1:] == ["-wc-1"]
        assert listing.interrupt() == 0
    watched = ["state", "list", "/storms", "--watch", "--json", *options()]
    with Running(watched, environ) as listing:
        assert json.loads(listing.line()) == ["wc-2"]
        kazoo.delete(f"{zookeeper_root}/storms", recursive=True)
        assert json.loads(listing.line()) == []
        kazoo.create(f"{zookeeper_root}/storms/wc-3", b"x", makepath=True)
        while (names := json.loads(listing.line())) != ["wc-3"]:
            assert names == []
        assert listing.interrupt() == 0
