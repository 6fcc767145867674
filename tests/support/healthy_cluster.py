"""Tables of a cluster without troubles, as large as a rate of false alarms needs.

What varies in a healthy cluster does so here: a daily rhythm (at its peak up to three times the
trough), noise of each minute and of each ten, bursts, counts that are sampled as Storm's are and
read a little earlier or later, machines that are not equally fast, keys that differ in frequency
(by Zipf's law, with an exponent of up to 0.8), workers that are restarted, a node of each topology
that is restarted once a day, and topologies that are rebalanced.

Rows are computed in Spark from hashes, so a seed gives the same rows wherever they are computed.
"""

import math
import random
import zlib
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F

from stormkeeper.pipeline.analyses.trends import computed

#: When the tables begin.
START = datetime(2026, 3, 2, tzinfo=UTC)

_DAY_MINUTES = 1440


def rollup(spark, seed, *, topologies, components=6, hours=24, minutes=1):
    """Return a roll-up whose buckets are so many minutes long."""
    cluster = spark.createDataFrame([*_components(seed, topologies, components)], _COMPONENTS)
    buckets = spark.range(hours * 60 // minutes).select((F.col("id") * minutes).alias("minute"))
    rows = buckets.crossJoin(F.broadcast(cluster)).withColumn("seed", F.lit(seed))
    rows = computed(rows, row=F.xxhash64("seed", "topology", "component", "minute"))
    whole = (F.col("minute") / 10).cast("long")
    noise = (
        0.1 * _normal("ten", F.col("topology"), whole)
        + 0.08 / math.sqrt(minutes) * _normal("one", F.col("topology"), F.col("minute"))
        + 0.03 / math.sqrt(minutes) * _normal("own", *_ROW)
    )
    angle = 2 * math.pi * (F.col("minute") - F.col("peak_minute")) / _DAY_MINUTES
    burst = _uniform("burst", F.col("topology"), F.col("minute")) < 0.003
    load = F.exp(F.col("rhythm") * (F.cos(angle) - 1) + noise)
    rows = computed(rows, load=load * F.when(burst, 1 + 1 / minutes).otherwise(1.0))
    # A worker that ends is away for half a minute; a node that is restarted for three.
    ended = _uniform("ended", *_ROW) < minutes / _DAY_MINUTES
    node_away = (F.col("minute") <= F.col("restart_minute") + 2) & (
        F.col("minute") + minutes > F.col("restart_minute")
    )
    rows = computed(rows, ended=ended, node_away=node_away)

    def count(share, place):
        mean = F.col("rate") * minutes * F.col("load") * share
        mean *= F.exp(0.05 * _normal("executor", *_ROW, place))
        # Four readings of a worker are in a minute, sometimes three or five.
        mean *= 1 + (_uniform("read", *_ROW, place % F.col("workers")) - 0.5) / (2 * minutes)
        mean *= F.when(F.col("ended") & (place == 0), 1 - 0.5 / minutes).otherwise(1.0)
        gone = F.col("node_away") & (place % F.col("workers") == 0) & (F.col("workers") > 1)
        mean *= F.when(gone, 1 - min(1.0, 3 / minutes)).otherwise(1.0)
        return 20 * _poisson(mean / 20, "count", *_ROW, place)

    rows = computed(rows, counts=F.transform("shares", count))
    sum_ = F.aggregate("counts", F.lit(0.0), lambda total, one: total + one)
    square = F.aggregate("counts", F.lit(0.0), lambda total, one: total + one * one)
    rows = computed(rows, work=sum_, square=square)
    size = F.size("counts")
    mean = F.col("work") / size
    spread = F.sqrt(F.greatest(F.col("square") / size - mean * mean, F.lit(0.0)))
    capacity = F.col("capacity_peak") * F.col("load") * F.exp(0.05 * _normal("capacity", *_ROW))
    uptime = F.col("minute") - F.when(
        F.col("minute") > F.col("restart_minute"), F.col("restart_minute")
    ).otherwise(F.lit(-300))
    size_ = F.col("bytes") * (1 + 0.05 * (1 - F.exp(-uptime / 60))) * (1 + 0.02 * F.cos(angle))
    size_ *= F.when(F.col("minute") > F.col("rebalance_minute"), 1.5).otherwise(1.0)
    size_ *= 1 + 0.01 * _normal("bytes", *_ROW)
    bolt = F.col("kind") == "bolt"
    return rows.select(
        F.timestamp_seconds(F.lit(START.timestamp()) + F.col("minute") * 60).alias("bucket"),
        F.concat("topology", F.lit("-1-1700000000")).alias("storm_id"),
        "topology",
        "component",
        "kind",
        "workers",
        size.cast("long").alias("executors"),
        size.cast("long").alias("tasks"),
        F.col("work").cast("long").alias("emitted"),
        F.col("work").cast("long").alias("transferred"),
        F.when(bolt, F.col("work").cast("long")).alias("executed"),
        F.col("work").cast("long").alias("acked"),
        F.lit(0).cast("long").alias("failed"),
        F.lit(None).cast("double").alias("complete_ms_avg"),
        F.lit(1.0).alias("execute_ms_avg"),
        F.lit(1.0).alias("process_ms_avg"),
        F.when(bolt, capacity * 1.1).alias("capacity"),
        F.when(bolt, capacity).alias("capacity_mean"),
        (F.col("ended") | F.col("node_away")).cast("long").alias("restarts"),
        size_.alias("heartbeat_bytes"),
        F.lit(4 * minutes).cast("long").alias("readings"),
        F.lit(0).cast("long").alias("skipped"),
        F.lit(15).alias("interval_secs"),
        F.when(F.col("work") > 0, F.array_max("counts") / F.col("work")).alias("largest_share"),
        F.when(F.col("work") > 0, spread / mean).alias("executed_cv"),
    )


def events(spark, seed, *, workers, days=1):
    """Return what happens to healthy workers: each is late once a day and ends every five days.

    Once a day its node is restarted, and all its workers with it.
    """
    draw = random.Random(seed)
    rows = []
    for worker in range(workers):
        who = (f"t{worker // 16}-1-1700000000", f"t{worker // 16}", f"node-{worker // 24}")
        port = 6700 + worker % 24
        for day in range(days):
            ends = [random.Random(f"{seed} {worker // 24} {day}").random()]
            ends += [draw.random() for _ in range(draw.random() < 0.2)]
            steps = [(end, step) for end in ends for step in _ENDING]
            late = [draw.random() for _ in range(draw.choice((0, 1, 1, 2)))]
            steps += [(blip, step) for blip in late for step in ((9, "late"), (15, "back"))]
            for part, (secs, event) in steps:
                at = START + timedelta(days=day + part, seconds=secs)
                rows.append((at, *who, port, event))
    columns = "at timestamp, storm_id string, topology string, node string, port int, event string"
    return spark.createDataFrame(rows, columns)


def liveness(spark, seed, *, nodes, workers_per_node, servers, readings, late=0.005):
    """Return readings of the liveness table: some workers are late, each by itself.

    In one reading of a hundred, three tenths of the whole cluster are.
    """
    count = nodes * workers_per_node
    rows = spark.range(readings * count).withColumn("seed", F.lit(seed))
    reading, worker = (F.col("id") / count).cast("long"), F.col("id") % count
    rows = rows.select("seed", reading.alias("reading"), worker.alias("worker"))
    bad = _uniform("bad", F.col("reading")) < 0.01
    chance = F.when(bad, 0.3).otherwise(late)
    status = F.when(_uniform("late", F.col("reading"), F.col("worker")) < chance, "late")
    server = _uniform("server", F.col("worker")) * servers
    at = F.timestamp_seconds(F.lit(START.timestamp()) + F.col("reading") * 15)
    return rows.select(
        at.alias("updated_at"),
        F.concat(F.lit("node-"), F.floor(F.col("worker") / workers_per_node)).alias("node"),
        F.concat(F.lit("pacemaker-"), F.floor(server), F.lit(":6699")).alias("server"),
        F.coalesce(status, F.lit("alive")).alias("status"),
    )


#: A worker that ends, as its events say, in seconds after the end.
_ENDING = ((9, "late"), (30, "dead"), (40, "restarted"))

#: What tells rows of a roll-up apart.
_ROW = ("row",)

_COMPONENTS = (
    "topology string, component string, kind string, workers bigint, rate double, rhythm double,"
    " peak_minute double, restart_minute bigint, rebalance_minute bigint, bytes double,"
    " capacity_peak double, shares array<double>"
)


def _components(seed, topologies, components):
    draw = random.Random(seed)
    for number in range(topologies):
        of_all = {
            "workers": draw.choice((1, 2, 4, 8, 16)),
            "rhythm": draw.uniform(0, 0.55),
            "peak_minute": draw.uniform(0, _DAY_MINUTES),
            "restart_minute": draw.randrange(_DAY_MINUTES),
            "rebalance_minute": draw.choice((draw.randrange(_DAY_MINUTES), *[10**6] * 19)),
            "bytes": draw.uniform(1000, 60_000),
        }
        rate = 10 ** draw.uniform(1, 6)
        for place in range(components):
            executors = draw.choice((1, 2, 3, 4, 4, 8, 8, 16, 32))
            keyed = place > 0 and draw.random() < 0.5
            yield {
                "topology": f"t{number}",
                "component": f"c{place}",
                "kind": "bolt" if place else "spout",
                **of_all,
                "rate": rate * (10 ** draw.uniform(-1, 1) if place else 1),
                "capacity_peak": draw.uniform(0.02, 0.7),
                "shares": _shares(draw, executors, keyed),
            }


def _shares(draw, executors, keyed):
    """Return the parts of the work that executors have: equal but for machines, or by key."""
    if keyed:
        parts = [0.0] * executors
        exponent = draw.uniform(0, 0.8)
        for key in range(draw.randrange(1000, 5000)):
            parts[draw.randrange(executors)] += (key + 1) ** -exponent
    else:
        parts = [draw.uniform(0.8, 1.25) for _ in range(executors)]
    return [part / sum(parts) for part in parts]


def _uniform(what, *parts):
    return _part(F.xxhash64(F.lit(zlib.crc32(what.encode())), F.col("seed"), *parts))


def _normal(what, *parts):
    hashed = F.xxhash64(F.lit(zlib.crc32(what.encode())), F.col("seed"), *parts)
    radius = F.sqrt(-2 * F.log(_part(hashed)))
    return radius * F.cos(2 * math.pi * _part(F.shiftright(hashed, 32)))


def _part(hashed):
    return (hashed.bitwiseAND(2**32 - 1) + 0.5) / 2**32


def _poisson(mean, what, *parts):
    # Anscombe's: the root of a count is nearly normal, for small means too.
    root = _normal(what, *parts) / 2 + F.sqrt(mean + 0.375)
    root = F.greatest(root, F.lit(0.0))
    return F.when(mean <= 0, 0.0).otherwise(F.greatest(F.round(root * root - 0.375), F.lit(0.0)))
