"""What the pipeline's statistics query makes of simulated heartbeats, without Spark."""

import pyarrow.parquet as pq

from stormkeeper.conf import load
from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.history.table_reader import Tables
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import queries, rows, table_updates, tables
from support.heartbeats import change_of, decoded_batch, page_of
from support.simulations import PERIOD_SECS, details, write_truth
from support.tables import origin


def write_told(file, told, made, *, named=False):
    """Write the truth of a simulation with what its process adds."""
    run = {"event": "run", "tells_counters": True, "names_components": named}
    topologies = [
        {"event": "topology", "storm_id": one.storm_id, "components": []}
        for one in made.cluster.topologies
    ]
    write_truth(file, [run, *topologies, *told])


class Statistics:
    """The tables of the statistics query, in a folder; close them as a context manager."""

    def __init__(self, folder, period_secs=PERIOD_SECS):
        conf = load(files=())
        self.folder = folder
        self._now = 0.0
        self._revision = self._batch = 0
        self._store = TableStore(
            folder,
            queries.table_specs(conf, tables.STATISTICS),
            interval_secs=15.0,
            clock=lambda: self._now,
        )
        self._advance = table_updates.statistics_tables(queries.limits(conf), period_secs)

    def read(self, beats, now):
        """Publish a batch of heartbeats, of workers that have new ones."""
        self._now = now
        changes = []
        for beat in beats:
            self._revision += 1
            age = now - beat.sent_at
            changes.append(change_of(beat.worker.path, details(beat), self._revision, age))
        health = Coverage(now, None, Position("x", self._revision), 1e6, 1e6, 1)
        servers = [
            rows.page_rows("a:6699", [page_of("x", changes, now)]),
            rows.server_row("a:6699", health),
        ]
        found = dict(self._advance(self._store.read, decoded_batch(servers), (now, now)))
        self._store.publish(origin(self._batch), found)
        self._batch += 1

    def __enter__(self):
        self._store.__enter__()
        return self

    def __exit__(self, *exc):
        self._store.__exit__(*exc)

    def tables(self):
        """Return the tables as they are."""
        return Tables(self.folder)


class Spoiled:
    """Tables of which one was replaced."""

    def __init__(self, whole, folder, name, rows):
        self._whole, self._name, self._file = whole, name, str(folder / "spoiled.parquet")
        pq.write_table(rows, self._file)

    def files(self, name):
        return [self._file] if name == self._name else self._whole.files(name)
