"""Any course of commits, merges, full disks and new writers, against lists of rows."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from stormkeeper.errors import TableError
from stormkeeper.history.table_reader import Tables
from support.disks import room_for
from support.tables import (
    BEGAN,
    EVENTS,
    SHORT,
    STATE,
    data_files,
    events,
    origin,
    state,
    store,
    values,
)

KEEP_SECS = 300
NUMBERS = st.lists(st.integers(0, 99), max_size=3)


class AnyCourse(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="tables-"))
        self.now = BEGAN
        self.batch = 0
        self.state, self.events, self.short = None, [], []
        #: What a reader has opened: the tables, until when they stay, what is in them.
        self.open = []
        self.writer = self.new_writer()

    def new_writer(self):
        specs = (STATE, EVENTS, SHORT)
        clock = lambda: self.now  # noqa: E731
        return store(self.folder, *specs, fan_in=2, keep_secs=KEEP_SECS, clock=clock)

    def commit(self, rows, numbers):
        secs = self.now - BEGAN
        named = {} if rows is None else {"state": state(*rows)}
        named |= {name: events(*numbers, secs=secs) for name in ("events", "short")}
        self.writer.publish(origin(self.batch), named)

    @rule(rows=st.none() | NUMBERS, numbers=NUMBERS)
    def commits(self, rows, numbers):
        self.batch += 1
        self.commit(rows, numbers)
        if rows is not None:
            self.state = rows
        self.events += numbers
        self.short += [(self.now, number) for number in numbers]

    @precondition(lambda self: self.batch)
    @rule(numbers=NUMBERS)
    def repeats(self, numbers):
        self.commit(numbers, numbers)

    @rule(numbers=NUMBERS, size=st.sampled_from([0, 700]))
    def has_no_room(self, numbers, size):
        self.batch += 1
        with room_for(size), pytest.raises(TableError):
            self.commit(numbers, [*numbers, 1])
        self.batch -= 1

    @rule()
    def has_merged(self):
        assert self.writer.settle(60)

    @rule(properly=st.booleans())
    def starts_again(self, properly):
        if properly:
            self.writer.__exit__()
        self.writer.settle(60)  # else a merge of the old writer's is one of the new writer's
        self.writer = self.new_writer()

    @rule(secs=st.sampled_from([1, 299, 600, 4000]))
    def time_passes(self, secs):
        self.now += secs

    @precondition(lambda self: self.batch)
    @rule()
    def is_opened(self):
        found = Tables(self.folder)
        rows = {name: found.arrow(name) for name in found.names()}
        self.open.append((found, self.now + KEEP_SECS, rows))

    @invariant()
    def has_these_rows(self):
        if not self.batch:
            return
        assert Tables(self.folder).manifest.origin == origin(self.batch)
        assert values(self.folder, "state") == sorted(self.state or [])
        assert values(self.folder, "events") == sorted(self.events)
        found = values(self.folder, "short")
        for number in set(found):
            assert found.count(number) <= [n for _, n in self.short].count(number)
        young = sorted(number for at, number in self.short if self.now - at <= 3600)
        assert all(found.count(number) >= young.count(number) for number in set(young))

    @invariant()
    def keeps_what_is_open(self):
        self.open = [one for one in self.open if one[1] >= self.now]
        for found, _, rows in self.open:
            for name, before in rows.items():
                assert found.arrow(name) == before

    def teardown(self):
        self.writer.settle(60)
        # Whatever happened, nothing is left over for ever.
        for _ in range(8):
            self.now += KEEP_SECS + 1
            self.batch += 1
            self.commit(None, [])
            self.writer.settle(60)
        assert data_files(self.folder) == Tables(self.folder).manifest.paths
        self.writer.__exit__()
        shutil.rmtree(self.folder)


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(max_examples=10, stateful_step_count=15)
