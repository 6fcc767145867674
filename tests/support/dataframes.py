"""What stands for a DataFrame of Spark's where its rows are known."""

from types import SimpleNamespace


def dataframe(table):
    """Return what gives the rows of a table, all at once or one by one."""
    context = SimpleNamespace(getLocalProperty=lambda _: "query", setLocalProperty=lambda *_: None)
    conf = SimpleNamespace(get=lambda _: "10000", set=lambda *_: None)
    rdd = SimpleNamespace(
        toLocalIterator=lambda **_: zip(*(column.to_pylist() for column in table), strict=True)
    )
    return SimpleNamespace(
        columns=table.column_names,
        sparkSession=SimpleNamespace(sparkContext=context, conf=conf),
        toArrow=lambda: table,
        rdd=rdd,
    )
