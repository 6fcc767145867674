import io

import pytest
from rich.console import Console

from stormkeeper.cli.heartbeats_top import (
    ServerRow,
    ServerState,
    Summary,
    TopologyRow,
    WorkerRow,
    render,
)

TOPOLOGIES = [
    TopologyRow(
        f"a-topology-with-a-long-name-{n}-1760000000", 100, n, 33.3, 1e5 / (n + 1), 3072.0, 5.0 + n
    )
    for n in range(30)
]
PICTURE = Summary(
    servers=[
        ServerRow(
            "10.0.0.1:6699",
            ServerState.SERVING,
            "",
            "0.1.0",
            90_000.0,
            7000.0,
            12_345,
            6648,
            2216.4,
        ),
        ServerRow("10.0.0.2:6699", ServerState.FILLING, "", "0.1.0", 2.0, 2.0, 0, 1, None),
        ServerRow(
            "10.0.0.3:6699", ServerState.DOWN, "10.0.0.3:6699 did not answer (connection refused)"
        ),
        ServerRow("10.0.0.4:6699", ServerState.REFUSED, "asks for authentication"),
    ],
    topologies=TOPOLOGIES,
    oldest=[
        WorkerRow(TOPOLOGIES[0].topology, f"node-{n}-6700", 1000.0 / (n + 1), 600, "10.0.0.1:6699")
        for n in range(20)
    ],
    workers=3000,
    silent=7,
    pulses_per_s=999.04,
    bytes_per_s=3_221_225.0,
)


def lines(summary=PICTURE, width=120, height=None):
    console = Console(file=io.StringIO(), width=width, height=50)
    console.print(render(summary, width=width, height=height, timeout_secs=30, title="12:00:00"))
    return console.file.getvalue().splitlines()


def test_everything_is_there_on_a_wide_terminal():
    text = lines()
    assert text[0] == (
        "3,000 workers of 30 topologies · 2 of 4 Pacemakers · 999.0 pulses/s · 3.1 MiB/s"
        " · 7 silent   12:00:00"
    )
    assert text[3].split() == [
        "10.0.0.1:6699",
        "serving",
        "12,345",
        "2,216",
        "6,648",
        *("1", "d", "1", "h"),
        *("1", "h", "56", "min"),
        "0.1.0",
    ]
    assert text[4].split()[:5] == ["10.0.0.2:6699", "filling", "0", "-", "1"]
    assert text[5].split() == ["10.0.0.3:6699", "down"]
    assert "  10.0.0.3:6699 did not answer (connection refused)" in text
    assert "  10.0.0.4:6699: asks for authentication" in text
    assert "  and 10 more topologies" in text
    assert any(
        "a-topology-with-a-long-name-0-1760000000" in line and "3.0 KiB" in line for line in text
    )
    assert any(line.split()[:1] == ["node-0-6700"] and "16 min" in line for line in text)


@pytest.mark.parametrize("width", [40, 60, 72, 80, 100, 200])
@pytest.mark.parametrize("height", [10, 24, 50])
def test_it_fits_the_terminal_and_figures_stay_whole(width, height):
    text = lines(width=width, height=height)
    assert max(map(len, text)) <= width
    if height > 10 and width >= 60:
        assert len(text) <= height
    noisiest = next(line for line in text if line.startswith("a-t"))
    assert " 97.7 KiB/s" in noisiest
    assert " 100 " in noisiest
    assert "12,345" in "\n".join(text)


def test_nothing_is_held():
    empty = Summary(PICTURE.servers[1:2], [], [], 0, 0, None, None)
    text = lines(empty)
    assert text[0].startswith("0 workers of 0 topologies · 1 of 1 Pacemaker · - pulses/s · -")
    assert text[-1] == "no pulses are held"


def test_names_cannot_act_upon_the_terminal():
    evil = "a\x1b[2J\nb\u202e"
    row = TopologyRow(evil, 1, 0, None, None, 1.0, 1.0)
    worker = WorkerRow(evil, evil, 1.0, 1, "s")
    text = "\n".join(lines(Summary([], [row], [worker], 1, 0, None, None)))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"a\x1b[2J\nb\u202e" in text
