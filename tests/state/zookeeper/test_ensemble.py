"""What holds between sessions with different members of an ensemble."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stormkeeper.errors import BadVersionError, TransactionError
from stormkeeper.state.storage import EventType
from stormkeeper.state.zookeeper.zookeeper_state import ZooKeeperState
from support.hearing import Hearing
from support.outgoing import connected_from
from support.stores import settings_for
from support.transactions import Transaction
from support.waiting import DEADLINE_SECS, until

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def sessions(zookeeper_ensemble, zookeeper_root):
    """A session with each member."""
    opened = [
        ZooKeeperState(settings_for(member, zookeeper_root))
        for member in zookeeper_ensemble.members
    ]
    yield opened
    for session in opened:
        session.close()


def test_a_member_that_is_down_loses_no_port_to_a_connection(zookeeper_ensemble):
    members = zookeeper_ensemble.members
    written = (members[0].data_dir / "zoo.cfg").read_bytes()
    settings = written.decode("unicode_escape")  # as Java reads it
    among_them = re.findall(r"^server\..=127\.0\.0\.1:(\d+):(\d+)$", settings, re.MULTILINE)
    wanted = [member.port for member in members] + [int(p) for pair in among_them for p in pair]
    assert len(set(wanted)) == 9
    with connected_from(wanted) as got:
        assert not set(got) & set(wanted)


def test_what_one_member_took_another_has_after_a_sync(sessions):
    for number in range(30):
        writer, reader = sessions[number % 3], sessions[(number + 1) % 3]
        writer.set_data("/a", str(number).encode())
        reader.sync_path("/a")
        assert reader.get_data("/a") == str(number).encode()


def test_a_watch_hears_what_was_done_at_another_member(sessions):
    heard = Hearing(sessions[1])
    sessions[1].get_data("/a", watch=True)
    sessions[0].set_data("/a", b"")
    until(lambda: sessions[1].get_data("/a") == b"")
    assert heard.events() == [(EventType.NODE_CREATED, "/a")]


def test_locks_made_at_different_members_have_growing_counts(sessions):
    made = []
    for session in sessions * 3:
        path = session.create_sequential("/locks/e", b"")
        made.append(session.get_stat(path).created)
    assert made == sorted(set(made))


def test_one_of_the_transactions_for_a_version_happens(sessions):
    sessions[0].set_data("/a", b"")
    for session in sessions:
        session.sync_path("/a")
    for version in range(20):
        together = threading.Barrier(len(sessions))

        def write(session, version=version, together=together):
            transaction = Transaction(session.commit).set_data("/a", b"", version)
            together.wait(DEADLINE_SECS)
            try:
                return transaction.commit()
            except TransactionError as error:
                return type(error.reason)

        with ThreadPoolExecutor(len(sessions)) as writers:
            outcomes = list(writers.map(write, sessions))
        assert outcomes.count([version + 1]) == 1
        assert outcomes.count(BadVersionError) == 2
    assert sessions[0].get_version("/a") == 20
