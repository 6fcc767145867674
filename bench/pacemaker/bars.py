"""What the Pacemaker promises, held against the figures."""

from dataclasses import dataclass

from pacemaker import cells

OURS = "stormkeeper"

#: Requests a second of Storm's own Pacemaker with both of two cores, 3 KiB, by operation,
#: connections and outstanding: measured on a machine like this one, for when it is not at hand.
STORM_REQUESTS_PER_S = {
    ("send", 50, 1): 53_000,
    ("send", 50, 16): 147_000,
    ("send", 1_000, 1): 61_000,
    ("get", 50, 1): 50_000,
}
#: How much more CPU the children of a topology may cost among 150,000 keys than among 1,000: the
#: caches of the processor hold the one and not the other.
SAME_COST = 1.5
#: What is read, for each way of reading.
READ = {"changes": "72,000 x 3 KiB", "ages": "72,000 ages"}


@dataclass(frozen=True)
class Bar:
    """A promise: `value` must be `at_most` or `at_least`; no value means not measured."""

    name: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None

    @property
    def holds(self):
        """Whether it holds; None if it was not measured."""
        if self.value is None:
            return None
        if self.at_most is not None:
            return self.value <= self.at_most
        return self.value >= self.at_least

    @property
    def limit(self):
        word, limit = ("≤", self.at_most) if self.at_most is not None else ("≥", self.at_least)
        return f"{word} {limit:,.3g}" if limit < 1000 else f"{word} {limit:,.0f}"


def all_bars(figures, server=OURS):
    """Return the bars in the order of the table."""
    return [
        *_cpu(figures, server),
        *_speed(figures, server),
        *_children(figures, server),
        *_paced(figures, server),
        *_memory(figures, server),
        *_read(figures, server),
    ]


def _closed_cells(figures, server):
    return [k for k in figures.keys if k[0] == server and k[1] in ("send", "get")]


def _name(key):
    _, op, size, connections, outstanding = key
    return f"{op.upper()} {size:,} B, {connections:,} x {outstanding}"


def _cpu(figures, server):
    for key in _closed_cells(figures, server):
        ratio = figures.ratio(key, ("redis", *key[1:]), "cpu_us")
        yield Bar(f"{_name(key)}: CPU, of Redis's", ratio, at_most=1.0)
        if key[4] == 1:
            ratio = figures.ratio(key, ("echo", *key[1:]), "cpu_us")
            yield Bar(f"{_name(key)}: CPU, of the echo's", ratio, at_most=1.3)


def _speed(figures, server):
    for key in _closed_cells(figures, server):
        _, op, size, connections, outstanding = key
        storm = figures.median(("storm", *key[1:]), "requests_per_s")
        if storm is None and size == 3_072:
            storm = STORM_REQUESTS_PER_S.get((op, connections, outstanding))
        if storm is None:
            continue
        speed = figures.median(key, "requests_per_s")
        echo = ("echo", *key[1:])
        echo_speed = figures.median(echo, "requests_per_s")
        if echo_speed is None or 3 * storm <= 0.8 * echo_speed:
            yield Bar(f"{_name(key)}: requests/s, 3 x Storm's", speed, at_least=3 * storm)
        else:
            ratio = figures.ratio(key, echo, "requests_per_s")
            yield Bar(f"{_name(key)}: requests/s, of the echo's", ratio, at_least=0.8)


def _children(figures, server):
    few, *_, many = ((server, f"children-{n}", None, 1, 1) for n in cells.KEYS_STORED)
    p99 = figures.median(many, "p99_ms")
    yield Bar(f"children among {cells.KEYS_STORED[-1]:,} keys: p99, ms", p99, at_most=1.0)
    yield Bar(
        f"the same: CPU, of that among {cells.KEYS_STORED[0]:,}",
        figures.ratio(many, few, "cpu_us"),
        at_most=SAME_COST,
    )


def _paced(figures, server):
    rate = cells.RATES[-1]
    key = (server, f"send-{rate}/s", 3_072, cells.WORKERS, 1)
    cpu = figures.median(key, "cpu_us")
    share = None if cpu is None else cpu * rate / 1e6
    yield Bar(f"{rate:,} pulses/s of {cells.WORKERS:,}: cores", share, at_most=0.55)
    p99 = figures.median(key, "p99_ms")
    yield Bar(f"{rate:,} pulses/s of {cells.WORKERS:,}: p99, ms", p99, at_most=5.0)


def _memory(figures, server):
    payload_mib = cells.MEMORY_KEYS * 3_072 / 2**20
    empty = figures.median((server, "memory-empty", 3_072, 50, 16), "rss_mib")
    for state, limit in (("fresh", 1.15), ("overwritten", 1.25)):
        full = figures.median((server, f"memory-{state}", 3_072, 50, 16), "rss_mib")
        missing = full is None or empty is None
        share = None if missing else (full - empty) / payload_mib
        yield Bar(f"memory of 72,000 x 3 KiB, {state}, of the payload", share, at_most=limit)


def _read(figures, server):
    p50 = figures.median((server, "read-72000-ages-quiet", 3_072, 1, 1), "p50_ms")
    secs = None if p50 is None else p50 / 1000
    yield Bar("72,000 ages read of a quiet server: s", secs, at_most=0.15)
    for how in cells.READINGS:
        p50 = figures.median((server, f"read-72000-{how}", 3_072, 1, 1), "p50_ms")
        secs = None if p50 is None else p50 / 1000
        yield Bar(f"{READ[how]} read while they beat: s", secs, at_most=2.0)
        key = (server, f"send-{cells.RATES[-1]}/s-during-{how}", 3_072, cells.WRITERS, 1)
        yield Bar(f"writers during {how}: p99, ms", figures.median(key, "p99_ms"), at_most=20.0)
