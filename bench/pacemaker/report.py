"""The tables, as Markdown that is readable in a terminal too."""

from pacemaker import cells

NOT_MEASURED = "-"


def table(head, lines):
    """Return a Markdown table, its columns as wide as what is in them."""
    lines = [[str(cell) for cell in line] for line in [head, *lines]]
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    rule = ["-" * (width - 1) + ":" if i else "-" * width for i, width in enumerate(widths)]
    padded = [
        "| "
        + " | ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        + " |"
        for line in [lines[0], rule, *lines[1:]]
    ]
    return "\n".join(padded)


def closed_table(figures, servers):
    """SEND and GET: requests a second, and the server's CPU for one."""
    places = _places(figures, ("send", "get"))
    return table(
        ["requests/s · CPU µs", *servers],
        [
            [
                f"{op.upper()} {size:,} B, {connections:,} x {outstanding}",
                *(
                    _speed_and_cpu(figures, (s, op, size, connections, outstanding))
                    for s in servers
                ),
            ]
            for op, size, connections, outstanding in places
        ],
    )


def paced_table(figures, servers):
    """The workers of a cluster, each at its own time: cores and latency."""
    lines = []
    for rate in cells.RATES:
        key = (f"send-{rate}/s", 3_072, cells.WORKERS, 1)
        if any((server, *key) in figures.keys for server in servers):
            shares = [_share_and_p99(figures, (server, *key), rate) for server in servers]
            lines.append([f"{rate:,} pulses/s, {cells.WORKERS:,} connections", *shares])
    return table(["% of a core · p99 ms", *servers], lines) if lines else ""


def children_table(figures, servers):
    """The children of one topology, among more and more keys."""
    servers = [server for server in servers if server in cells.PACEMAKERS]
    lines = []
    for keys in cells.KEYS_STORED:
        key = (f"children-{keys}", None, 1, 1)
        if any((server, *key) in figures.keys for server in servers):
            costs = [_cpu_and_p99(figures, (server, *key)) for server in servers]
            lines.append([f"among {keys:,} keys", *costs])
    return table(["CPU µs · p99 ms", *servers], lines) if lines else ""


def memory_table(figures, servers):
    """Resident memory above the empty server's, and its share of the payload."""
    payload = cells.MEMORY_KEYS * 3_072 / 2**20
    lines = []
    for state in ("empty", "fresh", "overwritten"):
        line = [{"empty": "empty, MiB"}.get(state, f"{state}, of the payload")]
        for server in servers:
            empty = figures.median((server, "memory-empty", 3_072, 50, 16), "rss_mib")
            rss = figures.median((server, f"memory-{state}", 3_072, 50, 16), "rss_mib")
            if rss is None or empty is None:
                line.append(NOT_MEASURED)
            else:
                share = (rss - empty) / payload
                line.append(f"{rss:,.1f}" if state == "empty" else f"{share:.2f}")
        lines.append(line)
    if all(cell == NOT_MEASURED for line in lines for cell in line[1:]):
        return ""
    return table([f"72,000 x 3 KiB = {payload:,.0f} MiB", *servers], lines)


def read_table(figures, servers):
    """All of 72,000 pulses read while they are written, and their ages of a quiet server."""
    servers = [server for server in servers if server in cells.OURS]
    lines = []
    for how in cells.READINGS:
        read = (f"read-72000-{how}", 3_072, 1, 1)
        write = (f"send-{cells.RATES[-1]}/s-during-{how}", 3_072, cells.WRITERS, 1)
        if any((server, *read) in figures.keys for server in servers):
            line = [how]
            for server in servers:
                secs = _text(figures.median((server, *read), "p50_ms"), "{:,.0f}")
                p99 = _text(figures.median((server, *write), "p99_ms"), "{:,.1f}")
                line.append(f"{secs} · {p99}")
            lines.append(line)
    quiet = [figures.median((s, "read-72000-ages-quiet", 3_072, 1, 1), "p50_ms") for s in servers]
    if any(secs is not None for secs in quiet):
        lines.append(["ages, nobody writes", *(_text(secs, "{:,.0f}") for secs in quiet)])
    return table(["all read, ms · writers' p99 ms", *servers], lines) if lines else ""


def bars_table(bars):
    """Each promise, what came of it, and whether it holds."""
    words = {True: "holds", False: "FAILS", None: "not measured"}
    return table(
        ["bar", "measured", "limit", ""],
        [[bar.name, _significant(bar.value), bar.limit, words[bar.holds]] for bar in bars],
    )


def summary(figures, servers, bars, about):
    """Return all of it as one page of Markdown."""
    parts = [
        "# Pacemaker: measured",
        about,
        closed_table(figures, servers) if _places(figures, ("send", "get")) else "",
        paced_table(figures, servers),
        children_table(figures, servers),
        memory_table(figures, servers),
        read_table(figures, servers),
        "## Bars",
        bars_table(bars),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _places(figures, operations):
    return list(dict.fromkeys(key[1:] for key in figures.keys if key[1] in operations))


def _text(value, form):
    return NOT_MEASURED if value is None else form.format(value)


def _significant(value):
    if value is None:
        return NOT_MEASURED
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.3g}"


def _speed_and_cpu(figures, key):
    speed, cpu = figures.median(key, "requests_per_s"), figures.median(key, "cpu_us")
    if speed is None or cpu is None:
        return NOT_MEASURED
    return f"{speed / 1000:,.0f}k · {cpu:.2f}"


def _share_and_p99(figures, key, rate):
    cpu, p99 = figures.median(key, "cpu_us"), figures.median(key, "p99_ms")
    if cpu is None or p99 is None:
        return NOT_MEASURED
    return f"{cpu * rate / 1e4:.1f} · {p99:.2f}"


def _cpu_and_p99(figures, key):
    cpu, p99 = figures.median(key, "cpu_us"), figures.median(key, "p99_ms")
    if cpu is None or p99 is None:
        return NOT_MEASURED
    return f"{cpu:.1f} · {p99:.2f}"
