"""What `stormkeeper.history` gives to Spark."""

import pytest

from stormkeeper.history.table_reader import Tables
from support.tables import at, events, origin, state, store


@pytest.mark.spark
def test_spark_reads_the_tables_of_one_commit(spark, tmp_path):
    folder = tmp_path / "a[b]{c} %20"
    with store(folder) as tables:
        tables.publish(origin(0), {"state": state(1)})
        assert Tables(folder).spark(spark, "events").collect() == []
        tables.publish(origin(1), {"events": events(1, 2, 3)})
    read = Tables(folder)
    assert [row.x for row in read.spark(spark, "state").collect()] == [1]
    found = read.spark(spark, "events", at(2), at(3))
    assert [(row.subject, row.x) for row in found.collect()] == [("2", 2)]
    assert dict(found.dtypes) == {"at": "timestamp", "subject": "string", "x": "bigint"}
