"""What is listed of several servers is what the bulk read finds, whatever lies and lay on them."""

from hypothesis import example, given
from hypothesis import strategies as st

from stormkeeper.conf import Address
from stormkeeper.errors import PacemakerUnavailableError
from stormkeeper.pacemaker.client.pool_reads import (
    Outcomes,
    in_doubt,
    names_that_count,
    newest_of_each,
)
from stormkeeper.pacemaker.client.server_reads import contents_below, names_below
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import serialize
from support.questions import Clock, Java, Ours, ask

ONE, OTHER, JAVA = (Address(name, 6699) for name in ("one", "other", "java"))

#: A Java Pacemaker is asked for nothing below a pulse.
LEAVES = [f"/w/{topology}/{worker}" for topology in "ab" for worker in "xy"]
PATHS = ["/w", "/w/a", *LEAVES, "/w/a/x/deep", "/w/a!", "/v"]

#: In their order, a second apart: who was sent a pulse of which path, and whether it was deleted.
courses = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([ONE, OTHER]), st.sampled_from(PATHS), st.booleans()),
        st.tuples(st.just(JAVA), st.sampled_from(LEAVES), st.booleans()),
    ),
    max_size=16,
)


def heartbeat(time_secs):
    return serialize(
        ClusterWorkerHeartbeat(storm_id="", executor_stats={}, time_secs=time_secs, uptime_secs=0)
    )


class Cluster:
    """Two Pacemakers of ours and one of Storm's after a course of events."""

    def __init__(self, course):
        self.clock = Clock()
        self.servers = {ONE: Ours(self.clock), OTHER: Ours(self.clock), JAVA: Java({})}
        for number, (server, path, is_deleted) in enumerate(course):
            self.clock.now += 1.0
            store, value = self.servers[server].store, heartbeat(number)
            if server is JAVA:
                store[path] = value
                if is_deleted:
                    del store[path]
            else:
                store.put(path.encode(), value)
                if is_deleted:
                    store.delete(path.encode())

    def names(self, path):
        return {server: ask(names_below(path), reply)[0] for server, reply in self.servers.items()}

    def listed(self, path, *, gone=None):
        """The names that count where a server is gone after the first answer."""
        names, read = self.names(path), Outcomes()
        for server in (ONE, OTHER) if in_doubt(names) else ():
            if server == gone:
                read.failed[server] = PacemakerUnavailableError("gone")
            else:
                question = contents_below(path, server, self.clock.elapsed, values=False)
                read.answered[server], _ = ask(question, self.servers[server])
        return names_that_count(path, names, read)

    def read(self, path, *, without=None):
        """The names below a path that the bulk read has something of."""
        copies = [
            ask(contents_below(path, server, self.clock.elapsed), reply)[0].copies
            for server, reply in self.servers.items()
            if server != without
        ]
        top = path.rstrip("/") + "/"
        found = newest_of_each(copies)
        return {there[len(top) :].partition("/")[0] for there in found if there.startswith(top)}


@given(courses)
@example([(ONE, "/w/a/x", False), (OTHER, "/w/a/x", True)])
@example([(ONE, "/w/a/x", False), (OTHER, "/w/a/y", True), (OTHER, "/w/a/x", True)])
def test_what_is_listed_is_what_is_read(course):
    cluster = Cluster(course)
    for path in ("/", "/w", "/w/a", "/w/a/x"):
        assert cluster.listed(path) == cluster.read(path), path


@given(courses, st.sampled_from([ONE, OTHER]))
def test_of_who_is_gone_in_between_all_counts_that_it_listed(course, gone):
    cluster = Cluster(course)
    for path in ("/", "/w", "/w/a", "/w/a/x"):
        expected = cluster.names(path)[gone].listed | cluster.read(path, without=gone)
        assert expected <= cluster.listed(path, gone=gone), path
