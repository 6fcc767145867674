from datetime import UTC, datetime

import pyarrow as pa
from pipeline.watching import Watch

AT = 1_700_000_000.0


def rows(*found):
    """Rows of workers: revision, how many seconds before `AT` it was received, how many skipped."""
    return pa.Table.from_pylist(
        [
            {
                "server": "a:1",
                "instance": "x",
                "revision": revision,
                "received_at": datetime.fromtimestamp(AT - age, UTC),
                "skipped": skipped,
            }
            for revision, age, skipped in found
        ]
    )


def test_pulse_is_new_whichever_part_was_read_first(tmp_path):
    watch = Watch(tmp_path, "worker_reports", "received_at", "skipped")
    watch._note(AT, rows((5, 2.0, 0), (9, 1.0, 3)))
    # The first one's part was read before, up to a revision below that of the second one's.
    watch._note(AT, rows((8, 1.5, 4), (9, 1.0, 3)))
    watch._note(AT, rows((8, 1.5, 4), (9, 1.0, 3)))
    assert [(sorted(lags), skipped) for _, lags, skipped in watch.versions] == [
        ([1.0, 2.0], 3),
        ([1.5], 4),
        ([], 0),
    ]
