"""A machine on which a query of the pipeline runs, without Spark: batches, clocks and tables."""

import pyarrow as pa

from stormkeeper.heartbeats.change_pages import Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.table_updates import Clock
from support.heartbeats import decoded_batch, page_of

#: When it begins.
NOW = 1_772_366_400.0


class Machine:
    """A machine's clocks, of which one is set, and the tables of a query that runs on it."""

    def __init__(self, advance):
        self.wall, self.steady = NOW, 7.0
        self.kept = {}
        self._advance = advance
        self.start()

    def start(self):
        """Start the process that runs the query."""
        self._clock = Clock(lambda: self.wall, lambda: self.steady)

    def pass_by(self, secs):
        self.wall, self.steady = self.wall + secs, self.steady + secs

    def batch(self, changes=None, up=("a:1", "b:1"), instance="x", revision=1):
        """Read what each server has (one that is not up cannot be read); return the new tables."""
        on_time, began = self._clock.look(), self.wall
        self.pass_by(0.1)
        raw = []
        for server in ("a:1", "b:1"):
            position = Position(f"{instance} of {server}", revision)
            health = Coverage(self.wall, None, position, 1e6, 1e6, 1)
            if server not in up:
                health = Coverage(self.wall, "refused")
            elif server in (changes or {}):
                page = page_of(position.instance, changes[server], self.wall)
                raw.append(rows.page_rows(server, [page]))
            raw.append(rows.server_row(server, health))
        read = decoded_batch(raw)

        def before(name, _since=None, schema=None):
            table = on_time(name, self.kept.get(name))
            return (
                table
                if table is None or schema is None
                else table.select(schema.names).cast(schema)
            )

        made = {}
        for name, found in self._advance(before, read, (began, self.wall)):
            pieces = [found] if isinstance(found, pa.Table) else [*found]
            if pieces:
                made[name] = pa.concat_tables(pieces)
        self.kept |= made
        return made
