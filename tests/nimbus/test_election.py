"""The election's decisions: events in, instructions out."""

import pytest

from stormkeeper.nimbus.election import (
    DISK_PAUSE_SECS,
    FETCH_PAUSE_SECS,
    FETCHES,
    FIRST_PAUSE_SECS,
    FOREIGN_PAUSE_SECS,
    HESITATION_SECS,
    LEASE_SHARE,
    LONGEST_PAUSE_SECS,
    LOOK_SECS,
    LOOKS_PER_TIMEOUT,
    NEVER,
    UNFIT_PAUSE_SECS,
    Check,
    Checked,
    CheckFailed,
    ConnectionChanged,
    Depose,
    Elect,
    Election,
    Fetch,
    Fetched,
    GiveUp,
    Look,
    Looked,
    Notified,
    NotifyFailed,
    QueueChanged,
    Recheck,
    Stand,
    StoreFailed,
    Take,
    TimePassed,
    Withdraw,
    Wrote,
)
from stormkeeper.state.leader_lock import Lock

SESSION, FORMER, OTHERS = 7, 6, 99
TIMEOUT = 12.0
LEASE = TIMEOUT * LEASE_SHARE


def lock(number, session=SESSION, *, revoked=False):
    return Lock(f"/leader-lock/_c_x-latch-{number:010d}", number, session, b"n:1:0", revoked)


MINE, THEIRS, BEHIND = lock(5), lock(3, OTHERS), lock(8, OTHERS)

CONNECTED, CUT = ConnectionChanged(True), ConnectionChanged(False)


class Script:
    """Tells an election what happens, and when."""

    def __init__(self):
        self.election = Election()
        self.now = 100.0

    def tell(self, *events):
        """Return what the last of some events leads to."""
        for event in events:
            instructions = self.election.handle(event, self.now)
        return instructions

    def saw(self, *line, session=SESSION, ago=0.0):
        return self.tell(Looked(line, session, TIMEOUT, self.now - ago))

    def later(self, secs):
        """Let time pass, and tell what is due at its end."""
        self.now += secs
        return self.tell(TimePassed())

    @property
    def leads(self):
        return self.election.leads(self.now)


def out():
    script = Script()
    script.tell(CONNECTED)
    return script


def fit():
    """It has the code; its look is under way."""
    script = out()
    assert script.tell(Stand()) == [Check(None)]
    assert script.tell(Checked()) == [Look()]
    return script


def waiting():
    script = fit()
    assert script.saw(THEIRS) == [Take()]
    assert script.tell(Wrote()) == [Look()]
    assert script.saw(THEIRS, MINE) == []
    return script


def first():
    """It is the first; whether it has the code by now is being checked."""
    script = waiting()
    assert script.tell(QueueChanged()) == [Look()]
    assert script.saw(MINE, BEHIND) == [Check(MINE)]
    assert not script.leads
    return script


def leading():
    script = first()
    assert script.tell(Checked()) == [Elect(MINE)]
    assert script.leads
    assert script.tell(Notified()) == []
    return script


def suspended():
    script = leading()
    assert script.tell(CUT) == [Depose()]
    assert script.tell(Notified()) == []
    return script


@pytest.mark.parametrize(
    ("before", "event", "instructions", "leads"),
    [
        (Script, Stand(), [], False),
        (Script, CONNECTED, [], False),
        (out, QueueChanged(), [], False),
        (out, Stand(), [Check(None)], False),
        (fit, CUT, [], False),
        (waiting, Stand(), [], False),
        (waiting, TimePassed(), [], False),
        (waiting, QueueChanged(), [Look()], False),
        (waiting, CUT, [], False),
        (waiting, CONNECTED, [Look()], False),
        (waiting, Withdraw(), [GiveUp(MINE)], False),
        (first, Withdraw(), [GiveUp(MINE)], False),
        (first, CheckFailed(), [GiveUp(MINE)], False),
        (first, Checked(frozenset("a")), [GiveUp(MINE), Fetch(frozenset("a"))], False),
        (first, Checked(foreign=frozenset("a")), [GiveUp(MINE)], False),
        (first, Checked(yields=True), [GiveUp(MINE)], False),
        (first, Checked(), [Elect(MINE)], True),
        (out, Recheck(), [], False),
        (waiting, Recheck(), [Check(None)], False),
        (leading, Recheck(), [Check(MINE)], True),
        (leading, Stand(), [], True),
        (leading, QueueChanged(), [Look()], True),
        (leading, CUT, [Depose()], False),
        (leading, Withdraw(), [GiveUp(MINE), Depose()], False),
        (suspended, CUT, [], False),
        (suspended, CONNECTED, [Look()], False),
        (suspended, Withdraw(), [], False),
    ],
)
def test_what_follows(before, event, instructions, leads):
    script = before()
    assert script.tell(event) == instructions
    assert script.leads == leads


@pytest.mark.parametrize(
    ("before", "line", "instructions", "leads"),
    [
        (fit, (), [Take()], False),
        (fit, (THEIRS, BEHIND), [Take()], False),
        (waiting, (THEIRS, MINE), [], False),
        (waiting, (MINE,), [Check(MINE)], False),
        (waiting, (BEHIND, MINE), [], False),
        # Gone, or revoked, by hand or with the session: the code may be another one by now.
        (waiting, (THEIRS,), [Check(None)], False),
        (waiting, (THEIRS, lock(5, revoked=True)), [GiveUp(lock(5, revoked=True)), Check(None)], 0),
        (leading, (MINE, BEHIND), [], True),
        (leading, (BEHIND,), [Depose()], False),
        (leading, (), [Depose()], False),
        (leading, (THEIRS, MINE), [Depose()], False),
        (leading, (lock(5, revoked=True),), [GiveUp(lock(5, revoked=True)), Depose()], False),
    ],
)
def test_what_follows_from_a_look(before, line, instructions, leads):
    script = before()
    if before is not fit:
        assert script.tell(QueueChanged()) == [Look()]
    assert script.saw(*line) == instructions
    assert script.leads == leads


class TestOneLock:
    """Nobody queues behind himself."""

    def test_one_that_was_made_all_the_same_is_adopted(self):
        script = fit()
        assert script.saw(THEIRS) == [Take()]
        assert script.tell(StoreFailed()) == []
        assert script.later(FIRST_PAUSE_SECS) == [Look()]
        assert script.saw(THEIRS, MINE) == []
        assert script.tell(QueueChanged()) == [Look()]
        assert script.saw(MINE) == [Check(MINE)]

    def test_no_lock_is_taken_before_the_last_ones_outcome(self):
        script = fit()
        assert script.saw(THEIRS) == [Take()]
        assert script.tell(CUT, StoreFailed()) == []
        assert script.later(60) == []
        assert script.tell(CONNECTED) == [Look()]
        assert script.tell(StoreFailed()) == []
        assert script.later(LONGEST_PAUSE_SECS) == [Look()]
        assert script.saw(THEIRS) == [Take()]

    def test_one_that_is_not_wanted_any_more_is_deleted(self):
        script = fit()
        assert script.saw(THEIRS) == [Take()]
        assert script.tell(Withdraw()) == []
        assert not script.election.is_out
        assert script.tell(StoreFailed()) == []
        assert script.later(FIRST_PAUSE_SECS) == [Look()]
        assert script.saw(THEIRS, MINE) == [GiveUp(MINE)]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(THEIRS) == []
        assert script.election.is_out

    def test_of_two_the_earlier_is_kept(self):
        script = fit()
        later = lock(9)
        assert script.saw(THEIRS, MINE, BEHIND, later) == [GiveUp(later)]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(THEIRS, MINE, BEHIND) == []
        assert script.election.lock == MINE

    def test_one_that_is_revoked_is_not_adopted(self):
        script, revoked = fit(), lock(5, revoked=True)
        assert script.saw(THEIRS, revoked) == [GiveUp(revoked)]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(THEIRS) == [Take()]

    def test_lock_of_a_former_session_is_deleted_first(self):
        script = waiting()
        script.tell(CUT, CONNECTED)
        assert script.saw(THEIRS, MINE, session=8) == [GiveUp(MINE), Check(None)]
        assert script.tell(Wrote()) == [Look()]
        script.tell(Checked())
        assert script.saw(THEIRS, session=8) == [Take()]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(THEIRS, lock(9, 8), session=8) == []

    def test_one_that_could_not_be_deleted_is_deleted_later(self):
        script = leading()
        assert script.tell(Withdraw()) == [GiveUp(MINE), Depose()]
        assert script.tell(StoreFailed()) == []
        assert script.later(FIRST_PAUSE_SECS) == [Look()]
        assert script.saw(MINE) == [GiveUp(MINE)]

    def test_one_that_was_to_be_deleted_may_be_wanted_again(self):
        script = waiting()
        assert script.tell(Withdraw()) == [GiveUp(MINE)]
        assert script.tell(Stand()) == [Check(None)]
        script.tell(Checked())
        script.tell(StoreFailed())
        assert script.later(FIRST_PAUSE_SECS) == [Look()]
        assert script.saw(THEIRS, MINE) == []
        assert script.election.lock == MINE


class TestTheLease:
    def test_it_lasts_from_when_the_look_began(self):
        script = leading()
        script.tell(QueueChanged())
        script.now += 1
        assert script.saw(MINE, ago=1.0) == []
        assert script.later(LEASE - 1.01)[:1] != [Depose()]
        assert script.leads
        assert Depose() in script.later(0.02)
        assert not script.leads

    def test_it_ends_before_the_session_can(self):
        assert LEASE < TIMEOUT - TIMEOUT / 4

    def test_it_is_renewed_in_time(self):
        script = leading()
        for _ in range(20):
            assert script.later(TIMEOUT / LOOKS_PER_TIMEOUT) == [Look()]
            assert script.leads
            assert script.saw(MINE) == []

    def test_a_session_without_an_end_is_looked_at_all_the_same(self):
        script = fit()
        script.tell(Looked((), SESSION, NEVER, script.now))
        script.tell(Wrote(), Looked((MINE,), SESSION, NEVER, script.now), Checked(), Notified())
        assert script.later(LOOK_SECS) == [Look()]
        assert script.leads

    def test_it_ends_while_the_store_does_not_answer(self):
        script = leading()
        assert script.later(TIMEOUT / LOOKS_PER_TIMEOUT) == [Look()]
        assert script.election.alarm <= script.now + LEASE
        assert script.later(LEASE - TIMEOUT / LOOKS_PER_TIMEOUT) == [Depose()]
        script.tell(Notified())
        # The answer comes, late: it says how it was when it was asked.
        assert script.saw(MINE, ago=LEASE) == []
        assert not script.leads
        assert script.later(TIMEOUT / LOOKS_PER_TIMEOUT) == [Look()]
        assert script.saw(MINE) == [Elect(MINE)]
        assert script.leads

    def test_time_alone_ends_it_for_whoever_was_stopped(self):
        script = leading()
        script.now += LEASE
        assert not script.leads


class TestAnInterruption:
    def test_who_led_leads_on_after_another_look(self):
        script = suspended()
        assert script.tell(CONNECTED) == [Look()]
        assert not script.leads
        assert script.saw(MINE, BEHIND) == [Elect(MINE)]
        assert script.leads

    def test_a_look_that_began_before_it_proves_nothing(self):
        script = leading()
        assert script.tell(QueueChanged()) == [Look()]
        assert script.tell(CUT) == [Depose()]
        assert script.tell(CONNECTED) == []
        assert script.saw(MINE) == [Look()]
        assert not script.leads
        script.tell(Notified())
        assert script.saw(MINE) == [Elect(MINE)]

    def test_who_lost_its_session_queues_anew(self):
        script = suspended()
        assert script.tell(CONNECTED) == [Look()]
        assert script.saw(BEHIND, session=8) == [Check(None)]
        assert script.tell(Checked()) == [Take()]

    def test_lead_that_ends_before_the_nimbus_knows_is_skipped(self):
        script = first()
        assert script.tell(Checked()) == [Elect(MINE)]
        assert script.tell(CUT) == []
        assert not script.leads
        assert script.tell(CONNECTED) == [Look()]
        assert script.saw(MINE) == []
        assert script.leads
        assert script.tell(Notified()) == []

    def test_lead_that_outlasts_a_slow_nimbus_is_reported(self):
        script = first()
        assert script.tell(Checked()) == [Elect(MINE)]
        assert script.tell(CUT) == []
        assert script.tell(Notified()) == [Depose()]

    def test_two_reigns_are_never_told_as_one(self):
        script = leading()
        again = lock(9)
        assert script.tell(QueueChanged()) == [Look()]
        assert script.saw() == [Depose()]
        assert script.tell(Notified()) == [Check(None)]
        assert script.tell(Checked()) == [Take()]
        script.tell(Wrote())
        assert script.saw(again) == [Check(again)]
        assert script.tell(Checked()) == [Elect(again)]


class TestTheCode:
    LACKING = frozenset(("a-1-1", "b-2-2"))

    def test_it_is_fetched_before_a_lock_is_taken(self):
        script = out()
        assert script.tell(Stand()) == [Check(None)]
        assert script.tell(Checked(self.LACKING)) == [Fetch(self.LACKING)]
        assert script.later(3600) == []
        assert script.tell(Fetched()) == [Check(None)]
        assert script.tell(Checked()) == [Look()]

    def test_a_check_that_nobody_waits_for_any_more_allows_nothing(self):
        script = out()
        assert script.tell(Stand()) == [Check(None)]
        assert script.tell(Withdraw()) == []
        assert script.tell(Checked()) == []
        assert script.tell(Stand()) == [Check(None)]

    def test_the_first_gives_its_lock_back_fetches_and_queues_again(self):
        script = first()
        assert script.tell(Checked(self.LACKING)) == [GiveUp(MINE), Fetch(self.LACKING)]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(BEHIND) == []
        assert script.tell(Fetched()) == [Check(None)]
        assert script.tell(Checked()) == [Take()]

    def test_what_is_fetched_in_vain_is_done_without_in_the_end(self):
        script = out()
        script.tell(Stand())
        assert script.tell(Checked(self.LACKING)) == [Fetch(self.LACKING)]
        rest = frozenset(("a-1-1",))
        for _ in range(FETCHES - 1):
            assert script.tell(Fetched()) == [Check(None)]
            assert script.tell(Checked(rest)) == []
            assert script.later(FETCH_PAUSE_SECS) == [Fetch(rest)]
        assert script.tell(Fetched()) == [Check(None)]
        assert script.tell(Checked(rest)) == [Look()]
        assert script.saw() == [Take()]
        script.tell(Wrote())
        assert script.saw(MINE) == [Check(MINE)]
        # Another one has its three times; what came meanwhile has them again when it goes.
        assert script.tell(Checked(self.LACKING)) == [GiveUp(MINE), Fetch(self.LACKING - rest)]
        assert script.tell(Fetched()) == [Check(None)]
        assert Look() in script.tell(Checked(), Wrote())
        assert script.saw() == [Take()]
        script.tell(Wrote())
        script.saw(lock(9))
        assert script.tell(Checked(rest)) == [GiveUp(lock(9)), Fetch(rest)]

    def test_failed_check_is_repeated_without_the_lock(self):
        script = first()
        assert script.tell(CheckFailed()) == [GiveUp(MINE)]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(BEHIND) == []
        pauses = []
        for _ in range(8):
            began = script.now
            script.now = script.election.alarm
            while script.tell(TimePassed()) != [Check(None)]:
                script.now = script.election.alarm
            pauses.append(script.now - began)
            script.tell(CheckFailed())
        assert pauses[0] == FIRST_PAUSE_SECS
        assert pauses == sorted(pauses)
        assert pauses[-1] == LONGEST_PAUSE_SECS
        while script.later(1.0) != [Check(None)]:
            pass
        assert script.tell(Checked()) == [Look()]
        # The next failure is a first one again.
        script.saw(MINE)
        script.tell(CheckFailed(), Wrote())
        script.saw()
        assert script.later(FIRST_PAUSE_SECS) == [Check(None)]

    def test_who_does_not_come_to_lead_makes_room(self):
        script = first()
        for _ in range(int(HESITATION_SECS) - 1):
            assert GiveUp(MINE) not in script.later(1.0)
            script.tell(QueueChanged())
            assert script.saw(MINE) == []
        assert script.later(1.0) == [GiveUp(MINE)]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(BEHIND) == []
        # Its late answer is that of a check before a lock is taken.
        assert script.tell(Checked()) == [Take()]

    def test_who_has_led_for_long_does_not_hesitate(self):
        script = leading()
        for _ in range(60):
            script.later(1.0)
            script.tell(QueueChanged())
            script.saw(MINE)
        assert script.tell(CUT) == [Depose()]
        assert script.tell(CONNECTED) == [Look()]
        assert script.saw(MINE) == []
        assert script.leads
        assert script.tell(Notified()) == [Elect(MINE)]


class TestALeaderThatChecksAgain:
    def test_it_leads_on_while_it_checks_and_afterwards(self):
        script = leading()
        assert script.tell(Recheck()) == [Check(MINE)]
        assert script.tell(Recheck()) == []
        assert script.tell(Checked()) == [Check(MINE)]
        assert script.tell(Checked()) == []
        assert script.leads

    def test_it_gives_the_lead_to_one_that_has_the_code(self):
        script = leading()
        script.tell(Recheck())
        assert script.tell(Checked(frozenset("a"))) == [GiveUp(MINE), Depose()]
        assert script.tell(Notified(), Wrote()) == [Look()]
        assert script.saw(BEHIND) == []
        assert script.tell(Fetched()) == [Check(None)]
        assert script.tell(Checked()) == [Take()]

    def test_it_gives_the_lead_to_one_that_can_write(self):
        script = leading()
        script.tell(Recheck())
        assert script.tell(Checked(frozenset("a"), yields=True)) == [GiveUp(MINE), Depose()]
        assert script.tell(Notified(), Wrote()) == [Look()]
        assert script.saw(BEHIND) == []
        assert script.later(DISK_PAUSE_SECS - 0.1) == []
        assert script.later(0.1) == [Check(None)]
        assert script.tell(Checked()) == [Look()]

    def test_it_queues_again_once_its_disk_is_mended(self):
        script = leading()
        script.tell(Recheck())
        script.tell(Checked(yields=True))
        assert script.tell(Notified(), Wrote()) == [Look()]
        assert script.saw(BEHIND) == []
        assert script.tell(Recheck()) == [Check(None)]

    @pytest.mark.parametrize("state", [leading, waiting])
    def test_a_check_that_fails_changes_nothing_and_is_made_again(self, state):
        script = state()
        leads = script.leads
        [check] = script.tell(Recheck())
        assert script.tell(CheckFailed()) == []
        assert script.leads == leads
        assert script.later(FIRST_PAUSE_SECS) == [check]

    def test_a_check_that_takes_too_long_ends_its_lead(self):
        script = leading()
        for _ in range(int(2 * HESITATION_SECS)):
            script.later(1.0)
            script.tell(QueueChanged())
            script.saw(MINE, BEHIND)
        assert script.tell(Recheck()) == [Check(MINE)]
        for _ in range(int(HESITATION_SECS) - 1):
            assert GiveUp(MINE) not in script.later(1.0)
            script.tell(QueueChanged())
            assert script.saw(MINE, BEHIND) == []
        assert script.later(1.0) == [GiveUp(MINE)]
        assert not script.leads

    def test_one_that_becomes_the_first_meanwhile_is_checked_as_such(self):
        script = waiting()
        assert script.tell(Recheck()) == [Check(None)]
        script.tell(QueueChanged())
        assert script.saw(MINE) == []
        assert script.tell(Checked()) == [Check(MINE)]


class TestTopologiesOfJava:
    FOREIGN = Checked(foreign=frozenset(("wc-1-1",)))

    def test_no_lock_is_taken(self):
        script = out()
        script.tell(Stand())
        assert script.tell(self.FOREIGN) == []
        assert script.later(FOREIGN_PAUSE_SECS) == [Check(None)]
        assert script.tell(Checked()) == [Look()]

    def test_nothing_is_fetched_for_a_cluster_that_is_not_led(self):
        script = out()
        script.tell(Stand())
        assert script.tell(Checked(frozenset("a"), frozenset("b"))) == []
        assert script.later(FOREIGN_PAUSE_SECS) == [Check(None)]


class TestTheNimbus:
    def test_that_cannot_be_told_yet_is_told_later(self):
        script = first()
        assert script.tell(Checked()) == [Elect(MINE)]
        assert script.tell(NotifyFailed(is_unfit=False)) == [Look()]
        assert script.saw(MINE) == []
        assert script.later(FIRST_PAUSE_SECS) == [Elect(MINE)]

    def test_that_cannot_lead_leaves_it_to_others(self):
        script = first()
        assert script.tell(Checked()) == [Elect(MINE)]
        assert script.tell(NotifyFailed(is_unfit=True)) == [Look()]
        assert not script.leads
        assert script.saw(MINE, BEHIND) == [GiveUp(MINE)]
        script.tell(Wrote())
        script.saw(BEHIND)
        assert script.later(UNFIT_PAUSE_SECS - 0.1) == []
        assert script.later(0.1) == [Check(None)]

    def test_that_does_not_stop_leading_does_not_lead_again(self):
        script = leading()
        assert script.tell(CUT) == [Depose()]
        assert script.tell(CONNECTED) == [Look()]
        assert script.saw(MINE, BEHIND) == []
        for _ in range(int(HESITATION_SECS) - 1):
            script.later(1.0)
            script.tell(QueueChanged())
            assert script.saw(MINE, BEHIND) == []
        assert script.later(1.0) == [GiveUp(MINE)]
        assert script.tell(Wrote()) == [Look()]
        assert script.saw(BEHIND) == []
        assert script.tell(Notified()) == [Check(None)]

    def test_may_take_as_long_to_lead_as_it_likes(self):
        script = first()
        assert script.tell(Checked()) == [Elect(MINE)]
        for _ in range(int(2 * HESITATION_SECS)):
            script.later(1.0)
            script.tell(QueueChanged())
            assert script.saw(MINE) == []
        assert script.leads


def test_pauses_grow_after_failures_of_the_store():
    script = fit()
    pauses = []
    for _ in range(8):
        script.tell(StoreFailed())
        pauses.append(script.election.alarm - script.now)
        assert script.later(pauses[-1]) == [Look()]
    assert pauses[0] == FIRST_PAUSE_SECS
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_SECS
    script.saw()
    script.tell(StoreFailed())
    assert script.election.alarm == script.now + FIRST_PAUSE_SECS


def test_what_changes_during_a_look_is_looked_at_again():
    script = waiting()
    assert script.tell(QueueChanged()) == [Look()]
    assert script.tell(QueueChanged()) == []
    assert script.saw(THEIRS, MINE) == [Look()]
    assert script.saw(MINE) == [Check(MINE)]
