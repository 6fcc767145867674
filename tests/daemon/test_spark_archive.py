"""The archive of Spark's classes: one JVM makes it, the next ones map it where it fits."""

import subprocess
import sys
import textwrap

import pytest

from stormkeeper.daemon import spark

OPTIONS = "spark.driver.defaultJavaOptions"


def run(program, home):
    """Run a program whose environment, as far as the archive goes, is `home`."""
    there = f"import sys\nsys.prefix = {str(home)!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", there + textwrap.dedent(program)],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


SESSION = """
    import psutil
    from pyspark import SparkContext
    from stormkeeper.daemon import spark
    session = spark.session({}, "fresh")
    print(session.range(5).count())
    maps = psutil.Process(SparkContext._gateway.proc.pid).memory_maps()
    archive = [m for m in maps if m.path == str(spark.archive_place())]
    print(sum(m.rss for m in archive), sum(m.anonymous for m in archive))
    spark.end(session)
"""


def test_without_an_archive_the_jvm_is_told_of_none(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert "SharedArchiveFile" not in spark.settings({}, "x")[OPTIONS]
    spark.archive_place().parent.mkdir(parents=True)
    spark.archive_place().touch()
    assert f"-XX:SharedArchiveFile={spark.archive_place()}" in spark.settings({}, "x")[OPTIONS]
    assert "SharedArchiveFile" not in spark.settings({}, "x", archive=False)[OPTIONS]


@pytest.mark.spark
@pytest.mark.slow
def test_archive_is_made_and_mapped_by_the_next_jvm(tmp_path):
    made = run(
        "from stormkeeper.daemon.spark_archive import make\nprint(make())\n", tmp_path
    ).stdout.strip()
    assert made == str(tmp_path / "var" / "stormkeeper" / "spark.jsa")
    count, mapped, written_on = map(int, run(SESSION, tmp_path).stdout.split())
    assert count == 5
    assert 0 < written_on < mapped / 2
    assert [path.name for path in (tmp_path / "var" / "stormkeeper").iterdir()] == ["spark.jsa"]


@pytest.mark.slow
@pytest.mark.spark
def test_an_archive_that_is_none_is_passed_over_in_silence(tmp_path):
    (tmp_path / "var" / "stormkeeper").mkdir(parents=True)
    (tmp_path / "var" / "stormkeeper" / "spark.jsa").write_bytes(b"no archive" * 1000)
    done = run(SESSION, tmp_path)
    assert done.stdout.split() == ["5", "0", "0"]
    noise = [line for line in done.stderr.splitlines() if "incubator modules" not in line]
    assert noise == []
