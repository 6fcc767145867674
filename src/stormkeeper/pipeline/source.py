"""``format("pacemaker")``: Pacemakers as a Spark data source, batch and streaming.

An offset is a JSON object, ``{"host:port": [instance, revision]}``: the end of a planned batch.
Executors read the changes later, and a server that fails then fails no query: a batch repeats the
changes of the batch before, from the entry ``"before host:port"``. Where driver and executors share
a machine, files in the spill folder say how far each part was read instead.

``"tick": ["reader", n]`` grows at every trigger, so that a batch also runs without changes: silence
must be noticed. A Java Pacemaker has the instance ``""`` and the tick as its revision, and is read
as a whole.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError, StormkeeperError
from stormkeeper.heartbeats import change_pages, coverage
from stormkeeper.heartbeats.change_pages import WITHOUT_REVISIONS, ChangePage, Part, Position
from stormkeeper.heartbeats.coverage import Coverage
from stormkeeper.pacemaker.client import DEFAULT_PORT, PacemakerClient, client_settings
from stormkeeper.pacemaker.client.client_settings import ClientSettings, of_texts
from stormkeeper.paths import WORKERBEATS
from stormkeeper.pipeline import rows
from stormkeeper.pipeline.batch import PACKED_PARTS, pack_read, release_memory

_CLIENT_NAME: Final = "spark-pacemaker"

#: Least rows of an Arrow batch, or bytes of pulses, if there are as many.
_ROWS: Final = 1024
_BYTES: Final = 2 << 20

#: Servers that failed during a read in this process: coverage when planned, and when failed. A
#: hanging server delays only one part of a batch.
_failed: Final[dict[str, tuple[Coverage, Coverage]]] = {}

DEFAULT_PATH: Final = WORKERBEATS

#: Enough for a busy server's page of 10 MB, and short for a trigger of a few seconds.
DEFAULT_TIMEOUT_SECS: Final = 2.0

NAMES: Final = (
    *("servers", "path", "pageSize", "timeoutSecs", "values", "parts", "packed", "aside"),
    *client_settings.KEYS,
)

#: The prefix of options in a table of Spark's catalog, beside other properties.
_OF_TABLE: Final = "option."


class PacemakerDataSource(DataSource):
    """The pulses that Pacemakers hold, a row per change and a row per server.

    docs/pacemaker-clients.md describes the options and the columns (`rows.SCHEMA`). ``kind`` is
    ``pulse``, ``tombstone`` (a deleted pulse, streams only) or ``server``: one row per server,
    batch and part, after the server's other rows.

    A server that does not answer within ``timeoutSecs`` fails no query, and the next batch reads
    the missed changes, but not the batch after that one. With a Java Pacemaker among the servers,
    all are read with values: only content tells there whether a pulse is new.

    >>> df = spark.read.format("pacemaker").option("servers", "a:6699,b:6699").load()
    >>> df.where("kind = 'pulse'").select("path", "age_secs").show()  # doctest: +SKIP
    """

    @classmethod
    def name(cls) -> str:
        return "pacemaker"

    def schema(self) -> StructType:
        """Raise `ConfigError` for missing or wrong options."""
        return _schema(Options.parse(self.options))

    def reader(self, schema: StructType) -> PacemakerReader:
        return PacemakerReader(self._checked(schema))

    def streamReader(self, schema: StructType) -> PacemakerStreamReader:  # noqa: N802
        return PacemakerStreamReader(self._checked(schema))

    def _checked(self, schema: StructType) -> Options:
        options = Options.parse(self.options)
        if schema.simpleString() != _schema(options).simpleString():
            raise ConfigError(
                'format("pacemaker") has its own schema: leave .schema(…) out and select the '
                f"columns afterwards; got {schema.simpleString()}"
            )
        return options


@dataclass(frozen=True)
class ServerPartition(InputPartition):
    """A server's share of a batch, or a part of the share.

    `span` is None for a server that has never answered, or for all pulses of the server. Without
    `health`, as in a batch read or an earlier run's batch, the server is asked when it is read.
    """

    server: Address
    span: Span | None
    health: Coverage | None
    values: bool = True
    part: Part | None = None


class PacemakerReader(DataSourceReader):
    """Reads the servers' present pulses."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        values = self._options.values or any(
            _is_java(health.position) for health in _ask(self._options).values()
        )
        return [
            ServerPartition(server, None, None, values, part)
            for part in _parts(self._options)
            for server in self._options.servers
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ServerPartition)
        found = _read(self._options, partition)
        # A batch read has no tombstones.
        held = (batch.filter(pc.not_equal(batch["kind"], rows.TOMBSTONE)) for batch in found)
        return _as_wanted(self._options, partition, held)


class PacemakerStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the changes since the batch before, a partition per server and part.

    The trigger AvailableNow is one batch, up to the query's start.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        #: Coverage when the newest batch was planned, by server.
        self._health: Mapping[str, Coverage] = {}
        self._planned: Offset | None = None
        #: Coverage when a query with the trigger AvailableNow started.
        self._available: Mapping[str, Coverage] | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        return INITIAL_OFFSET

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Note the servers' positions: later changes are not read."""
        self._available = _ask(self._options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802, ARG002
        """Ask all servers, within a timeout, for the end of the batch that begins at `start`."""
        if self._available is not None and self._planned == start:
            return start
        self._health = _ask(self._options) if self._available is None else self._available
        self._planned = next_offset(
            start, {server: health.position for server, health in self._health.items()}
        )
        return self._planned

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return a partition per part and server, also for servers that are down."""
        if start == end:
            return []
        health = self._health if end == self._planned else {}
        spans = {server: batch_span(start, end, str(server)) for server in self._options.servers}
        values = self._options.values or any(_is_java(span) for span in spans.values())
        return [
            ServerPartition(server, begun, planned, values, part)
            for part in _parts(self._options)
            for server, span in spans.items()
            for planned in [health.get(str(server))]
            for begun in [resume_span(self._options.aside, str(server), part, span)]
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ServerPartition)
        found = _read(self._options, partition, self._options.aside)
        return _as_wanted(self._options, partition, found)


def _schema(options: Options) -> StructType:
    return from_arrow_schema(PACKED_PARTS if options.packed else rows.SCHEMA)


def _as_wanted(
    options: Options, partition: ServerPartition, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    if not options.packed:
        yield from batches
        return
    part, reads = partition.part or Part(0, 1), len(options.servers)
    yield from pack_read(batches, part, reads, options.aside)
    release_memory()


def _parts(options: Options) -> list[Part | None]:
    count = options.parts
    return [None] if count == 1 else [Part(number, count) for number in range(count)]


def _is_java(found: Position | Span | None) -> bool:
    return found is not None and found.instance == WITHOUT_REVISIONS


def _ask(options: Options, *servers: Address) -> Mapping[str, Coverage]:
    return coverage.ask(
        servers or options.servers, options.timeout_secs, options.settings(), name=_CLIENT_NAME
    )


def _read(
    options: Options, partition: ServerPartition, noted: str | None = None
) -> Iterator[pa.RecordBatch]:
    """Read a server's share of a batch, and record the position reached in the folder `noted`."""
    server, span, planned = str(partition.server), partition.span, partition.health
    before, found = _failed.get(server, (None, None))
    health = found if planned == before else planned
    if repeated := health is None:
        # Not planned, or by an earlier run: the server can only vouch for what it holds now.
        health = _ask(options, partition.server)[server]
        if span is None and health.position is not None:
            span = Span(health.position.instance, 0, health.position.revision)
    reset = span is not None and span.reset
    # Outside the `try`: a file missing on this machine is not the server's failure.
    client = options.settings().client(
        partition.server, name=_CLIENT_NAME, try_timeout=options.timeout_secs, retries=1
    )
    if health.is_reachable and span is not None and (repeated or not span.is_empty):
        try:
            with client:
                # Before the list of topologies is read: later changes are in the next batch.
                position = Coverage.of(client.server_info()).position if noted else None
                pages = _pages(client, options, partition.part, span, values=partition.values)
                for some in _together(pages):
                    # Only the first page after a reset is marked.
                    reset = reset or any(page.is_anew for page in some)
                    health = replace(health, read_at=some[-1].read_at)
                    yield rows.page_rows(server, some)
            if noted and position is not None:
                record_position(noted, server, partition.part, position)
        except StormkeeperError as error:
            health = Coverage.failed(error)
            if planned is not None:
                _failed[server] = planned, health
    yield rows.server_row(server, health, reset=reset)


def _together(pages: Iterable[ChangePage]) -> Iterator[list[ChangePage]]:
    """Merge small pages, to save the fixed cost of a page."""
    held, count, size = list[ChangePage](), 0, 0
    try:
        for page in pages:
            held.append(page)
            count += len(page.changes)
            size += sum(len(change.details or b"") for change in page.changes)
            if count >= _ROWS or size >= _BYTES:
                yield held
                held, count, size = [], 0, 0
    except StormkeeperError:
        if held:  # pages read before the failure count
            yield held
        raise
    if held:
        yield held


def _pages(
    client: PacemakerClient, options: Options, part: Part | None, span: Span, *, values: bool
) -> Iterator[ChangePage]:
    """Read a part of a server's share; a Java Pacemaker is in the first part."""
    begin = Position(span.instance, span.after)
    path, size = options.path, options.page_size
    if part is None or (_is_java(begin) and part.number == 0):
        yield from change_pages.pages(client, path, begin, page_size=size, values=values)
    elif not _is_java(begin):
        yield from change_pages.pages_of_part(
            client, path, begin, part, page_size=size, values=values
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of ``format("pacemaker")``.

    `packed` rows are decoded and compressed, for `batch.read_parts`. `aside` is a query's folder
    for spill files and positions, on the machine that driver and tasks share. `access` configures
    authentication and TLS by names of files, as Spark shows options in its plans.
    """

    servers: tuple[Address, ...]
    path: str = DEFAULT_PATH
    page_size: int = 0
    timeout_secs: float = DEFAULT_TIMEOUT_SECS
    values: bool = True
    parts: int = 1
    packed: bool = False
    aside: str | None = None
    access: tuple[tuple[str, str], ...] = ()

    def settings(self) -> ClientSettings:
        """Read the files of `access` on this machine; raise `ConfigError` for a bad file."""
        return of_texts(dict(self.access)) if self.access else ClientSettings()

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Parse options; raise `ConfigError` for a missing, unknown or wrong option."""
        options = {name.lower(): value.strip() for name, value in given.items()}
        of_table = {name for name in options if name.startswith(_OF_TABLE)}
        if of_table:
            options = {name.removeprefix(_OF_TABLE): options[name] for name in of_table}
        _check_names(options)
        return cls(
            _servers(options.get("servers", "")),
            _path(options.get("path", DEFAULT_PATH)),
            int(_number(options, "pageSize", 0, minimum=0, whole=True)),
            _number(options, "timeoutSecs", DEFAULT_TIMEOUT_SECS, minimum=0.01),
            _switch(options, "values", default=True),
            int(_number(options, "parts", 1, minimum=1, whole=True)),
            _switch(options, "packed", default=False),
            options.get("aside"),
            tuple((key, options[key]) for key in client_settings.KEYS if key in options),
        )


def _check_names(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"is {known[near[0]]!r} meant?" if near else f"it has {', '.join(NAMES)}"
            raise ConfigError(f'format("pacemaker") has no option {name!r}: {remedy}')


def _servers(text: str) -> tuple[Address, ...]:
    entries = [entry for entry in (part.strip() for part in text.split(",")) if entry]
    if not entries:
        raise ConfigError(
            "the option 'servers' of format(\"pacemaker\") is missing: name the Pacemakers, as in "
            '.option("servers", "host-a:6699,host-b:6699")'
        )
    try:
        return tuple(dict.fromkeys(Address.parse(entry, DEFAULT_PORT) for entry in entries))
    except ConfigError as error:
        raise ConfigError(f"the option 'servers' of format(\"pacemaker\"): {error}") from error


def _path(text: str) -> str:
    if not text.startswith("/"):
        raise ConfigError(
            f"the option 'path' of format(\"pacemaker\") must begin with '/', got {text!r}"
        )
    return text.rstrip("/") or "/"


def _number(
    options: Mapping[str, str], name: str, default: float, *, minimum: float, whole: bool = False
) -> float:
    text = options.get(name.lower())
    if text is None:
        return default
    kind = "a whole number" if whole else "a number"
    try:
        value: float = int(text) if whole else float(text)
    except ValueError:
        value = math.nan
    if not minimum <= value < math.inf:
        raise ConfigError(
            f'the option {name!r} of format("pacemaker") must be {kind} of at least '
            f"{minimum:g}, got {text!r}"
        )
    return value


def _switch(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = options.get(name.lower(), str(default)).lower()
    if text not in ("true", "false"):
        raise ConfigError(
            f'the option {name!r} of format("pacemaker") must be true or false, got {text!r}'
        )
    return text == "true"


#: ``{server: [instance, revision]}``, the same for "before", and the tick: kept in checkpoints.
Offset = dict[str, list[str | int]]

TICK: Final = "tick"
INITIAL_OFFSET: Final[Offset] = {TICK: ["reader", 0]}

_BEFORE: Final = "before "


@dataclass(frozen=True, slots=True)
class _Entry:
    """A server in an offset; revisions up to `sure` were read by earlier batches."""

    instance: str
    revision: int
    sure: int


@dataclass(frozen=True, slots=True)
class Span:
    """A server's share of a batch: revisions above `after`, up to `until`.

    `reset`: the server started anew since the batch before.
    """

    instance: str
    after: int
    until: int
    reset: bool = False

    @property
    def is_empty(self) -> bool:
        """False for a server without revisions."""
        return self.instance != WITHOUT_REVISIONS and self.until <= self.after


def next_offset(start: Offset, found: Mapping[str, Position | None]) -> Offset:
    """Return the end of the next batch, from each server's position (None: no answer).

    A server without an answer keeps its place; servers that are not in `found` are dropped.
    """
    tick = int(start[TICK][1]) + 1
    end: Offset = {TICK: ["reader", tick]}
    for server, position in found.items():
        if position is not None:
            known = position.instance != WITHOUT_REVISIONS
            before = _entry(start, server)
            same = before is not None and before.instance == position.instance
            end[server] = [position.instance, position.revision if known else tick]
            sure = before.revision if before is not None and same else 0
            end[_BEFORE + server] = [position.instance, sure]
        else:
            end |= {k: start[k] for k in (server, _BEFORE + server) if k in start}
    return end


def batch_span(start: Offset, end: Offset, server: str) -> Span | None:
    """Return a server's span between offsets; None if the server never answered."""
    until = _entry(end, server)
    if until is None:
        return None
    before = _entry(start, server)
    if before is None or before.instance != until.instance:
        return Span(until.instance, 0, until.revision, reset=before is not None)
    return Span(until.instance, before.sure, until.revision)


def _entry(offset: Offset, server: str) -> _Entry | None:
    if server not in offset:
        return None
    instance, revision = offset[server]
    _, sure = offset.get(_BEFORE + server, offset[server])
    return _Entry(str(instance), int(revision), int(sure))


def record_position(folder: str, server: str, part: Part | None, position: Position) -> None:
    """Record the position reached in a part of a server, for the next batch."""
    file = _file(folder, server, part)
    written = file.with_suffix(".new")
    written.write_text(json.dumps([position.instance, position.revision]))
    written.replace(file)


def resume_span(
    folder: str | None, server: str, part: Part | None, span: Span | None
) -> Span | None:
    """Begin a span at the recorded position of a part of a server, if any."""
    if folder is None or span is None:
        return span
    try:
        instance, revision = json.loads(_file(folder, server, part).read_text())
    except FileNotFoundError:
        return span
    if instance != span.instance:
        return span
    # Less than the offsets' position if reads have failed since.
    return replace(span, after=revision)


def _file(folder: str, server: str, part: Part | None) -> Path:
    return Path(folder) / f"{server}-{part.number if part else 0}.reached"
