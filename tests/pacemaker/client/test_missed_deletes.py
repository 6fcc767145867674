from stormkeeper.conf import Address
from stormkeeper.pacemaker.client.pool_writes import MissedDeletes

A, B = Address("a", 1), Address("b", 1)


def taken(missed, server):
    return [delete.path for delete in missed.take(server)]


def test_each_server_is_owed_what_it_missed_in_order():
    missed = MissedDeletes()
    missed.remember(A, "/x")
    missed.remember(A, "/y")
    missed.remember(B, "/z")
    assert set(missed.servers()) == {A, B}
    assert taken(missed, A) == ["/x", "/y"]
    assert taken(missed, A) == [], "somebody is at it"
    assert taken(missed, B) == ["/z"]


def test_what_failed_is_owed_again_and_what_is_done_is_forgotten():
    missed = MissedDeletes()
    missed.remember(A, "/x")
    missed.remember(A, "/y")
    x, y = missed.take(A)
    missed.settle(A, x, done=False)
    missed.settle(A, y, done=True)
    assert taken(missed, A) == ["/x"]
    missed.settle(A, x, done=True)
    assert missed.servers() == []


def test_a_delete_that_covers_an_older_one_replaces_it():
    missed = MissedDeletes()
    for path in ("/a/b", "/c", "/a"):
        missed.remember(A, path)
    assert taken(missed, A) == ["/c", "/a"]


def test_delete_missed_again_during_repeat_is_kept():
    missed = MissedDeletes()
    missed.remember(A, "/a")
    (first,) = missed.take(A)
    missed.remember(A, "/a")
    missed.settle(A, first, done=True)
    assert taken(missed, A) == ["/a"]


def test_the_newest_are_kept():
    missed = MissedDeletes(limit=3)
    forgotten = [missed.remember(A, f"/{number}") for number in range(5)]
    assert [delete and delete.path for delete in forgotten] == [None, None, None, "/0", "/1"]
    assert taken(missed, A) == ["/2", "/3", "/4"]


def test_pulse_cancels_deletes_on_its_server_only():
    missed = MissedDeletes()
    for server in (A, B):
        missed.remember(server, "/a")
        missed.remember(server, "/b")
        missed.remember(server, "/b/c")
    missed.pulse_sent(A, "/a/x")
    missed.pulse_sent(A, "/b")
    assert taken(missed, A) == ["/b/c"]
    assert taken(missed, B) == ["/a", "/b", "/b/c"]
    missed.pulse_sent(A, "/b/c")
    assert missed.servers() == [B]


def test_a_server_that_missed_nothing_is_owed_nothing():
    missed = MissedDeletes()
    missed.pulse_sent(A, "/a")
    assert missed.take(A) == []
    assert missed.servers() == []
