"""What a local run shows, in a terminal and in a pipe."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from stormkeeper.local.pacemaker_watch import (
    ComponentCounts,
    PacemakerStatus,
    RunSnapshot,
    WorkerPulses,
)
from stormkeeper.local.run_view import (
    ComponentRates,
    LiveView,
    Picture,
    ProcessRow,
    RunView,
    clock,
    flow,
    render,
    view_on,
)
from stormkeeper.paths import WorkerId

ADDRESS = "127.0.0.1:41001"
WORKER = WorkerId("wc-1-1", "local", 6700)


def picture(
    now=100.0,
    output=(),
    status="alive",
    output_count=None,
    waits_for="",
    completed=False,
    **moment,
):
    components = {"lines": ComponentCounts(1200, 0), "words": ComponentCounts(34567, 1200)}
    return Picture(
        title="wc-1-1",
        hint="Ctrl-C stops everything.",
        waits_for=waits_for,
        now=now,
        up_secs=65,
        processes=[ProcessRow("pacemaker 1", 4711, "running", ADDRESS, 31.4)],
        snapshot=RunSnapshot(
            [PacemakerStatus(ADDRESS, 21, 1)],
            [WorkerPulses(WORKER, ADDRESS, 21, now - 1.5, components, completed, max_gap_secs=3.1)],
        ),
        statuses={WORKER: status},
        rates={"words": ComponentCounts(345, 12)},
        output=output,
        output_count=len(output) if output_count is None else output_count,
        **moment,
    )


def text_of(view_class, *pictures, width=120):
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=view_class is LiveView)
    with view_class(console) as view:
        for each in pictures:
            view.show(each)
    return out.getvalue()


def test_picture_shows_processes_workers_components_and_output():
    out = io.StringIO()
    Console(file=out, width=120).print(render(picture(output=["batch 7: 12 words"])))
    shown = out.getvalue()
    for part in (
        "up 1:05",
        "pacemaker 1",
        ADDRESS,
        "4711",
        "31 MiB",
        "1.5 s ago",
        "3.1 s",
        "alive",
        "34,567",
        "1,200",
        "345",
        "batch 7: 12 words",
        "Ctrl-C stops everything.",
    ):
        assert part in shown, part


def test_a_spout_of_several_queries_says_so_and_a_part_is_marked():
    seen = picture()
    worker = seen.snapshot.workers[0]
    worker.components.update(
        lines=ComponentCounts(2400, 0, queries=2),
        looked_at=ComponentCounts(0, 3, queries=1, partial=True),
    )
    out = io.StringIO()
    Console(file=out, width=120).print(render(seen))
    assert "lines (in 2 queries)" in out.getvalue()
    assert "words (in" not in out.getvalue()
    shown = text_of(RunView, seen)
    assert "lines (in 2 queries) 2,400 out · looked_at ≥ 3 in · words 1,200 in" in shown


@pytest.mark.parametrize("width", [60, 80, 200])
def test_picture_fits_its_terminal(width):
    out = io.StringIO()
    Console(file=out, width=width).print(render(picture(output=["x" * 500])))
    assert max(len(line) for line in out.getvalue().splitlines()) <= width


@pytest.mark.parametrize("view", [RunView, LiveView])
def test_what_a_worker_waits_for_is_shown(view):
    seen = picture()
    worker = replace(seen.snapshot.workers[0], waiting="no executor has come")
    waiting = replace(seen, snapshot=replace(seen.snapshot, workers=[worker]))
    assert "no executor has come" in text_of(view, waiting)
    assert "waiting" not in text_of(RunView, seen)


def test_a_line_has_the_beginning_of_what_a_worker_waits_for():
    seen = picture()
    worker = replace(seen.snapshot.workers[0], waiting="no executor has come " * 20)
    shown = text_of(RunView, replace(seen, snapshot=replace(seen.snapshot, workers=[worker])))
    assert "waiting: no executor has come no executor has come no executor has…" in shown


def test_live_view_redraws_the_newest_picture():
    shown = text_of(LiveView, picture(status="alive"), picture(status="dead"))
    assert "dead" in shown


def test_plain_view_prints_new_output_once_and_some_progress():
    shown = text_of(
        RunView,
        picture(now=100.0, output=["batch 1"]),
        picture(now=101.0, output=["batch 1", "batch 2"]),
        picture(now=106.0, output=["batch 1", "batch 2"]),
    )
    assert shown.count("batch 1") == 1
    assert shown.count("batch 2") == 1
    assert shown.count("1.5 s ago") == 2
    assert "words 1,200 in, 34,567 out" in shown


def test_plain_view_ends_with_the_last_counts():
    stopped = picture(now=101.0, is_running=False, is_last=True)
    stopped.snapshot.workers[0].components["words"] = ComponentCounts(40_000, 1_300)
    shown = text_of(RunView, picture(now=100.0), stopped).splitlines()
    assert [line for line in shown if " ago " in line][1:] == [shown[-1]]
    assert "words 1,300 in, 40,000 out" in shown[-1]


def test_plain_view_ignores_the_table_while_stopping():
    stopping = picture(status="alive", is_running=False)
    assert " at 6700 is " not in text_of(RunView, picture(status=""), stopping)
    completed = picture(completed=True, is_running=False)
    assert "is completed" in text_of(RunView, picture(status=""), completed)


def test_plain_view_says_when_a_worker_turns_dead_or_alive():
    statuses = ["", "alive", "alive", "late", "dead", "dead", "alive", ""]
    pictures = [picture(now=100.0 + n, status=status) for n, status in enumerate(statuses)]
    said = [line for line in text_of(RunView, *pictures).splitlines() if "liveness" in line]
    assert said == [
        f"  65 s  wc-1-1 at 6700 is {status} in the liveness table"
        for status in ("alive", "late", "dead", "alive", "no more")
    ]


def test_who_has_completed_is_neither_late_nor_dead():
    pictures = [picture(), *(picture(status=status, completed=True) for status in ("late", "dead"))]
    said = [line for line in text_of(RunView, *pictures).splitlines() if " at 6700 is " in line]
    assert said == [
        "  65 s  wc-1-1 at 6700 is alive in the liveness table",
        "  65 s  wc-1-1 at 6700 is completed: its queries have ended",
    ]
    out = io.StringIO()
    Console(file=out, width=120).print(render(pictures[-1]))
    assert "completed" in out.getvalue()
    assert "dead" not in out.getvalue()


def test_plain_view_says_once_what_is_waited_for():
    waits = ["Spark is starting", "Spark is starting", "waiting: no core", "waiting: no core", ""]
    pictures = [picture(now=100.0 + n, waits_for=wait) for n, wait in enumerate(waits)]
    said = [line for line in text_of(RunView, *pictures).splitlines() if "waiting" in line]
    assert said == [
        "  65 s  waiting: Spark is starting",
        "  65 s  waiting: no core",
    ]


def test_picture_says_what_is_waited_for_and_nothing_else():
    out = io.StringIO()
    console = Console(file=out, width=120)
    console.print(render(picture()))
    assert "Waiting" not in out.getvalue()
    console.print(render(picture(waits_for="Spark is starting")))
    assert "Waiting: Spark is starting" in out.getvalue()


def test_plain_view_leaves_long_lines_and_brackets_whole():
    out = io.StringIO()
    with RunView(Console(file=out, width=40)) as view:
        view.note("-c 'pacemaker.servers=[127.0.0.1:41001, 127.0.0.1:41002]' [bold]")
    assert out.getvalue() == "-c 'pacemaker.servers=[127.0.0.1:41001, 127.0.0.1:41002]' [bold]\n"


def test_view_fits_the_console():
    assert type(view_on(Console(file=io.StringIO()))) is RunView
    assert isinstance(view_on(Console(file=io.StringIO(), force_terminal=True)), LiveView)


def test_plain_view_prints_repeated_output_longer_than_its_tail():
    pictures = [picture(output=["done"] * min(n, 3), output_count=n) for n in (1, 3, 5, 5, 9)]
    # Of the last four only three were kept.
    text = text_of(RunView, *pictures)
    assert text.count("| done") == 8
    assert text.count("| (lines left out here: 1)") == 1


def test_rates_are_over_the_last_seconds_not_since_the_start():
    rates = ComponentRates()
    assert rates.update(0.0, {"w": ComponentCounts(0, 0)}) == {"w": ComponentCounts(0, 0)}
    assert rates.update(10.0, {"w": ComponentCounts(1000, 500)}) == {"w": ComponentCounts(100, 50)}
    for second in range(11, 40):
        last = rates.update(float(second), {"w": ComponentCounts(1000, 500)})
    assert last == {"w": ComponentCounts(0, 0)}


def test_rate_of_a_restarted_worker_is_never_negative():
    rates = ComponentRates()
    rates.update(0.0, {"w": ComponentCounts(1000, 500)})
    assert rates.update(5.0, {"w": ComponentCounts(10, 5)}) == {"w": ComponentCounts(0, 0)}


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (ComponentCounts(), "nothing yet"),
        (ComponentCounts(1200, 0), "1,200 out"),
        (ComponentCounts(0, 3), "3 in"),
        (ComponentCounts(2, 1), "1 in, 2 out"),
        (ComponentCounts(2000, 1, partial=True), "≥ 1 in, ≥ 2,000 out"),
        (ComponentCounts(partial=True), "nothing yet"),
    ],
)
def test_flow_in_words(counts, words):
    assert flow(counts) == words


def test_clock():
    assert [clock(0), clock(59.9), clock(3601)] == ["0:00", "0:59", "60:01"]
