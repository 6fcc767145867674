from stormkeeper.pacemaker.client import PacemakerClient
from stormkeeper.pipeline import scan
from stormkeeper.pipeline.offsets import WITHOUT_REVISIONS, Span
from support.heartbeats import path
from support.scripted_pacemaker import JavaPacemaker, ScriptedPacemaker, answered


def read(client, span, page_size=0, root="/workerbeats"):
    return list(scan.pages(client, root, span, page_size))


def span_of(client, after=0):
    info = client.server_info()
    return Span(info.instance, after, info.revision)


def paths(pages):
    return [reading.path for page in pages for reading in page.readings]


def test_all_pages_of_what_is_new_are_read_in_order(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        for number in range(10):
            client.send_pulse(path(f"t-{number}"), b"%d" % number)
        pages = read(client, span_of(client), page_size=3)
        assert len(pages) == 4
        assert paths(pages) == [path(f"t-{number}") for number in range(10)]
        readings = [reading for page in pages for reading in page.readings]
        assert [reading.details for reading in readings] == [b"%d" % n for n in range(10)]
        assert [reading.revision for reading in readings] == list(range(1, 11))
        assert all(0 <= reading.age_secs < 60 for reading in readings)
        assert not any(page.reset for page in pages)
        assert paths(read(client, span_of(client, after=7))) == [path(f"t-{n}") for n in (7, 8, 9)]


def test_a_value_is_read_once_and_a_deleted_one_as_a_tombstone(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), b"1")
        client.send_pulse(path("b"), b"2")
        client.send_pulse(path("a"), b"3")
        client.delete_path("/workerbeats/b")
        client.send_pulse("/elsewhere/c", b"4")
        (page,) = read(client, span_of(client))
        found = [(reading.path, reading.details) for reading in page.readings]
        assert found == [(path("a"), b"3"), (path("b"), None)]


def test_what_comes_after_the_planning_is_read_too(pacemaker):
    """Or a worker that beats in step with the triggers would never be seen."""
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("a"), b"1")
        planned = span_of(client)
        client.send_pulse(path("a"), b"2")
        (page,) = read(client, planned)
        assert [reading.details for reading in page.readings] == [b"2"]


def test_a_server_restarted_since_the_planning_is_read_from_its_beginning(pacemaker):
    with PacemakerClient(pacemaker.address) as client:
        for number in range(5):
            client.send_pulse(path(f"t-{number}"), b"old")
        planned = span_of(client, after=4)
    pacemaker.restart()
    with PacemakerClient(pacemaker.address) as client:
        client.send_pulse(path("new"), b"1")
        pages = read(client, planned)
        assert paths(pages) == [path("new")]
        assert pages[-1].reset
        assert pages[-1].instance == client.server_info().instance != planned.instance


def test_a_java_pacemaker_is_walked():
    java = JavaPacemaker()
    java.store = {
        path("wc-1-17", "a", 1): b"1",
        path("wc-1-17", "b", 2): b"2",
        path("wc-1-1700000000", "a", 3): b"3",
        "/elsewhere/x": b"4",
    }
    span = Span(WITHOUT_REVISIONS, 0, 1)
    with ScriptedPacemaker(java) as server, PacemakerClient(server.address) as client:
        found = [reading for page in read(client, span) for reading in page.readings]
        assert {r.path: r.details for r in found} == {
            key: value for key, value in java.store.items() if key.startswith("/workerbeats")
        }
        assert all(r.revision is None and r.age_secs is None for r in found)
        everything = read(client, span, root="/")
        assert sorted(paths(everything)) == sorted(java.store)
        leaf = read(client, span, root=path("wc-1-17", "a", 1))
        assert paths(leaf) == [path("wc-1-17", "a", 1)]


def test_many_pulses_of_a_java_pacemaker_come_in_several_pages():
    java = JavaPacemaker()
    java.store = {path(f"t-{n % 3}", f"n{n}"): b"%d" % n for n in range(950)}
    with ScriptedPacemaker(java) as server, PacemakerClient(server.address) as client:
        pages = read(client, Span(WITHOUT_REVISIONS, 0, 1))
    assert len(pages) == 10, "a hundred at most in each"
    assert {r.path: r.details for page in pages for r in page.readings} == java.store


def test_names_that_a_java_pacemaker_lists_by_mistake_lead_nowhere():
    """It matches paths as texts: /wc-1-17 seems to have the child 00000000 of /wc-1-1700000000."""

    class Java(JavaPacemaker):
        def __call__(self, connection):
            while True:
                request = connection.request()
                answer = answered(self.store, request)
                if request.path == "/workerbeats/wc-1-17" and answer.nodes is not None:
                    answer.nodes = sorted([*answer.nodes, "00000000", ""])
                connection.answer(answer)

    java = Java()
    java.store = {path("wc-1-17", "a", 1): b"1", path("wc-1-1700000000", "b", 2): b"2"}
    with ScriptedPacemaker(java) as server, PacemakerClient(server.address) as client:
        pages = read(client, Span(WITHOUT_REVISIONS, 0, 1))
    assert sorted(paths(pages)) == sorted(java.store)
