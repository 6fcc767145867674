"""From where a batch reads on."""

from stormkeeper.heartbeats.following import Position
from stormkeeper.pipeline import offsets, reached

SERVER = "a:1"


def test_what_two_failed_reads_missed_is_read_by_the_third(tmp_path):
    """A batch begins where the last one that could read has ended, and not where others began."""
    folder, before = str(tmp_path), offsets.initial()

    def begins(revision, instance="i"):
        nonlocal before
        after = offsets.advance(before, {SERVER: Position(instance, revision)})
        span, before = offsets.span(before, after, SERVER), after
        return reached.begun(folder, SERVER, None, span).after

    assert begins(100) == 0
    reached.note(folder, SERVER, None, Position("i", 103))
    assert begins(200) == 103
    assert begins(300) == 103
    assert begins(400) == 103
    reached.note(folder, SERVER, None, Position("i", 410))
    assert begins(500) == 410
    assert begins(7, "restarted") == 0
