"""What the guide says of `storm state` is what it does."""

import json
import re
from pathlib import Path

from stormkeeper.cli import state, watches
from stormkeeper.state.node_values import decode
from stormkeeper.state.storage import NodeData, NodeStat
from stormkeeper.state.survey import ADVICE

PAGE = (Path(__file__).parents[2] / "docs" / "cluster-state.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("| ").split(" | ")]
    for line in PAGE.partition("## Look at the tree")[2].splitlines()
    if line.startswith("| `")
]


def fields(command):
    """The names of the fields that the guide gives to a command's objects, in order."""
    (row,) = (row for row in ROWS if row[0] == f"`{command}`")
    return re.findall(r"`(\w+)`", row[2].replace("without `--json`", ""))


def test_the_fields_of_objects():
    node = NodeData(b"", NodeStat(0, 1, 1, 1, 0, 0))
    assert fields("tree") == list(state.node_summary("/storms", node))
    assert fields("get") == list(state.node_detail("/storms", node, decode("/storms", b"")))
    change = json.loads(watches._json_line(watches.NodeChange("deleted", "/storms")))
    assert fields("watch") == list(change)


def test_the_kinds_of_findings():
    kinds = [row[0].strip("`") for row in ROWS]
    assert [kind for kind in kinds if kind in ADVICE] == list(ADVICE)
