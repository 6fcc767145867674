"""Watches the tables of a query while they are written: how long a pulse took to become a row."""

import threading
import time

import numpy as np
import pyarrow.compute as pc

from stormkeeper.errors import TableError
from stormkeeper.history import parquet  # noqa: F401 - here, as several threads need it at once
from stormkeeper.history.manifest import NAME
from stormkeeper.history.table_reader import Tables

#: Seconds between two looks for a new version.
_LOOK_SECS = 0.02


class Watch:
    """Notes, of each version of a table, which of its pulses are new, and how old they were.

    A pulse is as old as the time from its receipt by a Pacemaker to the moment at which the
    manifest that names its row took its place.

    Parameters
    ----------
    folder
        The query's tables.
    table, received, skipped
        The table with a row for each worker, the column with the receipt of its newest pulse, and
        the one with how many pulses were overwritten unread, if there is one.
    """

    def __init__(self, folder, table, received, skipped=None):
        self._folder, self._table = folder, table
        self._columns = [
            "server",
            "instance",
            "revision",
            received,
            *([skipped] if skipped else []),
        ]
        self._stop = threading.Event()
        #: The revisions of the version before, by server and instance.
        self._known = {}
        #: Of each version: when it was published, lags of its new pulses, how many were skipped.
        self.versions = []
        self.fault = None
        self._thread = threading.Thread(target=self._run, name=f"watch-{table}", daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc):
        self._stop.set()
        self._thread.join()

    def published(self):
        """Return how many versions were seen."""
        return len(self.versions)

    def between(self, begin, end):
        """Return the versions that were published in that time."""
        return [version for version in self.versions if begin <= version[0] < end]

    def _run(self):
        seen, manifest = 0, self._folder / NAME
        while not self._stop.wait(_LOOK_SECS):
            try:
                # The change of the file's name: what is in it was written before.
                at = manifest.stat().st_ctime
                if at == seen:
                    continue
                tables = Tables(self._folder)
                seen = at
                self._note(at, tables.arrow(self._table, columns=self._columns))
            except FileNotFoundError:
                continue
            except TableError as error:
                self.fault = str(error)

    def _note(self, at, rows):
        *_, received = rows.column_names[:4]
        lags = []
        skipped = 0
        # Each server counts its changes, from its start on; parts of it are read one after another.
        for server in rows.group_by(["server", "instance"]).aggregate([]).to_pylist():
            of_server = rows.filter(
                pc.and_(
                    pc.equal(rows["server"], server["server"]),
                    pc.equal(rows["instance"], server["instance"]),
                )
            )
            key = (server["server"], server["instance"])
            revisions = of_server["revision"]
            before = self._known.get(key, revisions.slice(0, 0))
            new = of_server.filter(pc.invert(pc.is_in(revisions, before)))
            self._known[key] = revisions
            if not new.num_rows:
                continue
            lags.append(at - new[received].cast("int64").to_numpy() / 1e6)
            if len(self._columns) > 4:
                skipped += pc.sum(new[self._columns[4]]).as_py() or 0
        self.versions.append((at, np.concatenate(lags) if lags else np.empty(0), skipped))


def figures(versions, secs):
    """Return what versions of so many seconds say: rows a second, lags, and their bound over time.

    `lag p99 by thirds` are the lags of the first, the second and the last third of the versions:
    what grows would show there.
    """
    lags = [lags for _, lags, _ in versions if len(lags)]
    if not lags:
        return {"versions": len(versions), "new pulses/s": 0.0}
    every = np.concatenate(lags)
    thirds = [part for part in _in_thirds(lags) if part]
    times = [at for at, _, _ in versions]
    gaps = np.diff(times) if len(times) > 1 else np.array([0.0])
    return {
        "versions": len(versions),
        "new pulses/s": round(len(every) / secs, 1),
        "overwritten unread": sum(skipped for _, _, skipped in versions),
        "lag p50, s": _rounded(np.percentile(every, 50)),
        "lag p99, s": _rounded(np.percentile(every, 99)),
        "lag max, s": _rounded(every.max()),
        "lag p99 by thirds, s": [
            _rounded(np.percentile(np.concatenate(part), 99)) for part in thirds
        ],
        "between versions p50, s": _rounded(np.percentile(gaps, 50)),
        "between versions max, s": _rounded(gaps.max()),
    }


def _in_thirds(lags):
    third = max(1, len(lags) // 3)
    return lags[:third], lags[third : 2 * third], lags[2 * third :]


def _rounded(value):
    return round(float(value), 3)


def wait_for(watches, counts, secs, is_going):
    """Wait until each watch has seen so many versions; return whether that was in time.

    There will be no more once `is_going` says so.
    """
    deadline = time.monotonic() + secs
    while any(w.published() < n for w, n in zip(watches, counts, strict=True)):
        if time.monotonic() > deadline or not is_going():
            return False
        time.sleep(0.05)
    return True
