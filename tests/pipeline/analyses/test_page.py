"""The examples of docs/analytics.md, run as they stand but for folders and the time of day."""

import re
from pathlib import Path

import pytest

from support import troubled_cluster

PAGE = (Path(__file__).parents[3] / "docs" / "analytics.md").read_text()

NOW = troubled_cluster.NOW.timestamp()

#: An example, and what it prints, where the page shows it.
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n(?:\n^```\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


@pytest.fixture
def in_utc(spark):
    """Has the session show times as the page does."""
    key = "spark.sql.session.timeZone"
    before = spark.conf.get(key)
    spark.conf.set(key, "UTC")
    yield
    spark.conf.set(key, before)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.usefixtures("in_utc")
def test_the_examples_print_what_the_page_shows(tmp_path, capsys):
    troubled_cluster.write(tmp_path / "heartbeats")
    namespace, differing = {}, []
    for code, shown in EXAMPLE.findall(PAGE):
        told = code.replace("/data", str(tmp_path))
        told = told.replace("datetime.now(UTC)", f"datetime.fromtimestamp({NOW}, UTC)")
        exec(compile(told, "docs/analytics.md", "exec"), namespace)
        printed = capsys.readouterr().out
        if "".join(printed.split()) != "".join(shown.split()):
            differing.append(f"{code}\n{printed}")
    assert not differing, "\n".join(differing)
