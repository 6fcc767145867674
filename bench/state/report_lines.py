"""The tables, as Markdown that is readable in a terminal too."""

from pacemaker.report import NOT_MEASURED, bars_table, table


def sides_table(figures):
    """Each cell: what each side took, and ours in kazoo's time."""
    lines = []
    for cell, of in figures.keys:
        if cell.startswith("far-"):
            continue
        ratio = None if of == "kazoo" else figures.ratio(cell, of, "kazoo")
        lines.append(
            [
                cell,
                of,
                f"{figures.median(cell, of, 'secs') * 1000:,.1f}",
                f"{figures.median(cell, of, 'per_s'):,.0f}",
                NOT_MEASURED if ratio is None else f"{ratio:.2f}",
            ]
        )
    return table(["cell", "of", "ms", "nodes/s", "time, of kazoo's"], lines)


def far_table(figures):
    """Requests and round trips through a slow network."""
    lines = [
        [
            cell.removeprefix("far-"),
            f"{figures.most(cell, of, 'requests'):,}",
            f"{figures.most(cell, of, 'round_trips'):,}",
        ]
        for cell, of in figures.keys
        if cell.startswith("far-")
    ]
    return table(["far away", "requests", "round trips"], lines) if lines else ""


def summary(figures, bars, about):
    """Return all of it as one page of Markdown."""
    parts = [
        "# Cluster state: measured",
        about,
        sides_table(figures),
        far_table(figures),
        "## Bars",
        bars_table(bars),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
