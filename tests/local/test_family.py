"""How long the processes of a local run may take to end."""

from stormkeeper.local.family import GRACE_SECS
from stormkeeper.pipeline import process as pipeline
from stormkeeper.worker import process as worker


def test_whoever_ends_in_time_is_not_ended_by_force():
    cutting_off = pipeline._SPARK_DEFAULTS["spark.sql.streaming.stopTimeout"].removesuffix("s")
    end = pipeline._STOP_SECS + float(cutting_off) + pipeline._END_SECS
    assert end < GRACE_SECS
    assert worker.END_SECS < GRACE_SECS
