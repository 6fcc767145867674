"""The pipeline's source, decoder and tables in a loop of their own, in place of Spark's.

It starts in a second, so it can be killed often. Of a micro-batch it notes what Spark notes: before
it, up to which offset it reads; after it, that it is done. One that was noted and not done is
repeated. Run as a script with what ``storm pipeline`` takes.
"""

import json
import signal
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa

from stormkeeper.conf import Conf, load
from stormkeeper.errors import TableError
from stormkeeper.heartbeats.change_pages import Part
from stormkeeper.history.table_store import TableStore
from stormkeeper.pipeline import queries, tables
from stormkeeper.pipeline.batch import PACKED_PARTS, pack_read
from stormkeeper.pipeline.source import Options, PacemakerStreamReader
from stormkeeper.pipeline.tables import STATISTICS

_TICK_SECS: Final = 0.05


class Notes:
    """The checkpoint of one query."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "metadata").exists():
            self._write("metadata", uuid.uuid4().hex)
        self.query = self.read("metadata")

    def read(self, name: str) -> Any:
        file = self._folder / name
        return json.loads(file.read_text()) if file.exists() else None

    def _write(self, name: str, value: Any) -> None:
        aside = self._folder / f".{name}"
        aside.write_text(json.dumps(value))
        aside.rename(self._folder / name)

    def newest(self) -> int:
        numbers = (int(file.name) for file in self._folder.iterdir() if file.name.isdecimal())
        return max(numbers, default=-1)

    def note(self, number: int, offset: Any) -> None:
        self._write(str(number), offset)

    def is_done(self, number: int) -> bool:
        return (self._folder / f"done-{number}").exists()

    def done(self, number: int) -> None:
        (self._folder / f"done-{number}").touch()


class Query:
    """One of the two queries."""

    def __init__(self, conf: Conf, name: str, places: queries.Stores) -> None:
        servers = [str(address) for address in conf.pacemaker_servers()]
        options = queries.source_options(conf, servers)
        options |= {"values": str(name == STATISTICS).lower(), "parts": "2", "timeoutSecs": "10"}
        self._reader = PacemakerStreamReader(Options.parse(options))
        self._keep = queries.table_updater(conf, servers, name, places)
        self._parts = queries.number_of_parts(conf, name)
        _, checkpoint = tables.query_folders(conf, name)
        self._notes = Notes(checkpoint)
        self._secs = queries.interval_secs(conf, name)
        self._due = 0.0

    def run_if_due(self) -> None:
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._secs
            self._run()

    def _run(self) -> None:
        notes, number = self._notes, self._notes.newest()
        if number < 0 or notes.is_done(number):
            number += 1
        start = notes.read(str(number - 1)) or self._reader.initialOffset()
        end = notes.read(str(number))
        if end is None:
            end = self._reader.latestOffset(start, None)  # type: ignore[arg-type]
            notes.note(number, end)
        batches = (
            batch
            for partition in self._reader.partitions(start, end)
            for batch in self._reader.read(partition)
        )
        packed = pa.Table.from_batches(pack_read(batches, Part(0, self._parts), 1))
        context = SimpleNamespace(
            getLocalProperty=lambda _: notes.query, setLocalProperty=lambda *_: None
        )
        conf = SimpleNamespace(get=lambda _: "10000", set=lambda *_: None)
        rows = zip(*(column.to_pylist() for column in packed), strict=True)
        batch: Any = SimpleNamespace(
            columns=PACKED_PARTS.names,
            sparkSession=SimpleNamespace(sparkContext=context, conf=conf),
            toArrow=lambda: packed,
            rdd=SimpleNamespace(toLocalIterator=lambda **_: rows),
        )
        self._keep(batch, number)
        notes.done(number)


def main(arguments: list[str]) -> int:
    """Run until SIGTERM, or until the disk refuses."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    conf = load(files=[], overrides=arguments)
    places = {
        name: TableStore(
            tables.query_folders(conf, name)[0],
            queries.table_specs(conf, name),
            interval_secs=queries.interval_secs(conf, name),
        )
        for name in queries.NAMES
    }
    try:
        running = [Query(conf, name, places) for name in queries.NAMES]
        while not stopped:
            for query in running:
                query.run_if_due()
            time.sleep(_TICK_SECS)
    except (TableError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main([one.removeprefix("-c") for one in sys.argv[1:]]))
