"""What ``examples/two_queries.py`` writes: even and odd numbers, each in a folder of its own."""

import json
from pathlib import Path
from typing import Final

from support.waiting import until

TWO_QUERIES: Final = Path(__file__).resolve().parents[2] / "examples" / "two_queries.py"

#: Spark's drivers start one after another, on a machine that has other things to do.
SOON: Final = 180.0


def written(folder: Path) -> list[int]:
    """The numbers in a file sink's folder, as its log has them: what a reader gets."""
    log = folder / "_spark_metadata"
    entries = [file for file in log.glob("*") if not file.name.startswith(".")]
    files = set()
    for entry in entries:
        for line in entry.read_text().splitlines()[1:]:
            files.add(Path(json.loads(line)["path"].removeprefix("file://")))
    values = []
    for file in files:
        values += [json.loads(line)["value"] for line in file.read_text().splitlines()]
    return sorted(values)


def grows(folder: Path) -> None:
    """Wait until there is more in a file sink's folder than now."""
    before = len(written(folder))
    until(lambda: len(written(folder)) > before, SOON)


def assert_once(folder: Path, first: int) -> None:
    """Every number from the first one on is there, each once."""
    values = written(folder)
    assert values == list(range(first, values[-1] + 1, 2))
