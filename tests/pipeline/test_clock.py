"""A clock that is set between two batches."""

import pyarrow as pa
import pytest

from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.heartbeats.following import Position
from stormkeeper.heartbeats.liveness import Limits
from stormkeeper.pipeline import decode, queries, rows, tables
from stormkeeper.pipeline.batch import Batch
from stormkeeper.pipeline.clock import Clock
from stormkeeper.pipeline.current import WORKER_LIVENESS
from support.heartbeats import change_of, heartbeat, page_of, path

NOW = 1_772_366_400.0


class Clocks:
    """A machine's clocks, of which one is set."""

    def __init__(self):
        self.wall, self.steady = NOW, 7.0

    def pass_by(self, secs):
        self.wall, self.steady = self.wall + secs, self.steady + secs


@pytest.fixture
def clocks(monkeypatch):
    made = Clocks()
    monkeypatch.setattr(queries, "Clock", lambda: Clock(lambda: made.wall, lambda: made.steady))
    return made


@pytest.mark.parametrize("set_secs", [3600.0, -3600.0, 1.5])
def test_who_said_nothing_since_is_as_old_as_before(clocks, set_secs):
    """A worker beats once, and is late and dead by its silence, however often the clock is set."""
    advance = queries.liveness_tables(Limits(9, 30))
    kept = {}

    def status(*changes):
        health = Coverage(clocks.wall, None, Position("x", 1), 1e6, 1e6, 1)
        raw = [
            rows.of_page("a:1", page_of("x", changes, clocks.wall)),
            rows.of_server("a:1", health),
        ]
        batch = pa.Table.from_batches([decode.decode_batch(one) for one in raw])
        between = (clocks.wall - 0.1, clocks.wall)
        kept.update(advance(lambda name, _since=None: kept.get(name), Batch.of(batch), between))
        (row,) = kept[tables.WORKER_LIVENESS].to_pylist()
        return row["status"], round(row["age_secs"])

    small = set_secs if abs(set_secs) < 2 else 0
    assert status(change_of(path("t"), heartbeat(), 1, 1.0)) == ("alive", 1)
    clocks.pass_by(5)
    clocks.wall += set_secs
    assert status() == ("alive", round(6 + small))
    clocks.pass_by(5)
    assert status() == ("late", round(11 + small))
    clocks.wall += set_secs
    clocks.pass_by(10)
    assert status()[0] == "late"
    clocks.pass_by(10)
    assert status()[0] == "dead"


def test_what_is_noted_on_the_table_stays():
    clocks = Clocks()
    clock = Clock(lambda: clocks.wall, lambda: clocks.steady)
    empty = WORKER_LIVENESS.empty_table()
    noted = empty.replace_schema_metadata({"a": "b"})
    assert clock.on_time(noted) is noted
    clocks.wall += 60
    assert clock.on_time(noted).schema.equals(noted.schema, check_metadata=True)
    assert clock.on_time(None) is None
