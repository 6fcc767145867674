"""Measures how fast heartbeats become Arrow's columns, beside gunzip and Apache Thrift.

    python bench/decoding_bench.py [--rounds 15] [--workers 200] [--quick]

The heartbeats are as Storm's own workers write them: five executors, gzipped, no names of
components. Everything reads the same bytes, on one core, in turns of a tenth of a second or so, as
the machine's speed changes from one second to the next. Writes bench/results/decoding.json: of each
the heartbeats a second, the median of the rounds; and its ratio to gunzip of the same round. Exits
with 1 if the promised ratio is not reached.
"""

import argparse
import gc
import json
import operator
import random
import statistics
import sys
import time
import zlib
from pathlib import Path

from thrift.protocol.TBinaryProtocol import TBinaryProtocolAcceleratedFactory
from thrift.transport.TTransport import TMemoryBuffer

from stormkeeper.pipeline import decoded_rows
from stormkeeper.thrift.idl import BINARY, LIST, MAP, SET, STRING, STRUCT, schema_of
from stormkeeper.thrift.records import (
    BoltStats,
    ClusterWorkerHeartbeat,
    ExecutorInfo,
    ExecutorSpecificStats,
    ExecutorStats,
    GlobalStreamId,
    SpoutStats,
)
from stormkeeper.thrift.serialization import Compression, deserialize, serialize

RESULTS = Path(__file__).resolve().parent / "results" / "decoding.json"
WINDOWS = {"600": 600, "10800": 10_800, "86400": 86_400, ":all-time": 900_000}
#: Seconds that each turn takes, about.
TURN_SECS = 0.15
#: The bar, and the aim: of gunzip's rate.
BARS = (0.2, 0.4)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--workers", type=int, default=200, help="different heartbeats")
    parser.add_argument("--quick", action="store_true", help="three rounds")
    options = parser.parse_args()
    plain = [heartbeat(random.Random(number)) for number in range(options.workers)]
    beats = [zlib.compress(beat, 6, wbits=31) for beat in plain]
    rounds = [measured(beats) for _ in range(3 if options.quick else options.rounds)]
    rows = [
        {
            "decoder": name,
            "per_sec": round(statistics.median(each[name] for each in rounds)),
            "of_gunzip": round(
                statistics.median(each[name] / each["gunzip"] for each in rounds), 3
            ),
        }
        for name in rounds[0]
    ]
    sizes = {
        "raw_bytes": round(statistics.mean(map(len, plain))),
        "gzip_bytes": round(statistics.mean(map(len, beats))),
    }
    RESULTS.write_text(json.dumps({**sizes, "rounds": rounds, "decoders": rows}, indent=1) + "\n")
    print(json.dumps(sizes))
    for row in rows:
        print(json.dumps(row))
    compiled = next((row for row in rows if row["decoder"] == "compiled"), None)
    if compiled:
        held = compiled["of_gunzip"] >= BARS[0]
        print(f"at least {BARS[0]} of gunzip: {'held' if held else 'FAILED'}; aim: {BARS[1]}")
        sys.exit(0 if held else 1)


def measured(beats):
    """Give everybody a turn; return the heartbeats a second of CPU."""
    return {name: rate(decode, beats) for name, decode in decoders().items()}


def decoders():
    """Return what is compared, by name: functions of a list of heartbeats."""
    engines = {one.name: one for one in (decoded_rows.load(), decoded_rows.INTERPRETED)}
    return {
        "gunzip": lambda beats: one_by_one(gunzip, beats),
        **{name: lambda beats, one=one: columns(beats, one) for name, one in engines.items()},
        "records": lambda beats: one_by_one(record, beats),
        "Apache Thrift": lambda beats: one_by_one(apache, beats),
    }


def one_by_one(decode, beats):
    """Decode, and keep nothing: objects that are alive together cost more each."""
    for beat in beats:
        decode(beat)


def gunzip(beat):
    return zlib.decompress(beat, 31)


def record(beat):
    return deserialize(ClusterWorkerHeartbeat, beat)


def columns(beats, one):
    decoded = list(decoded_rows.decode(beats, one))
    assert sum(count for count, _ in decoded) == len(beats)


def rate(decode, beats):
    decode(beats[:10])
    gc.collect()
    count, began = 0, time.process_time()
    while (used := time.process_time() - began) < TURN_SECS:
        decode(beats)
        count += len(beats)
    return count / used


def heartbeat(chance):
    """Return the bytes of a spout and four bolts, counting for ten days."""
    executors, source, task = {}, "spout", 1
    for name in ("spout", "split", "normalize", "count", "report"):
        tasks = ExecutorInfo(task, task + chance.choice((0, 0, 1)))
        per_sec = chance.uniform(0.5, 900)
        if name == "spout":
            executors[tasks] = spout(chance, per_sec)
        else:
            executors[tasks] = bolt(chance, per_sec, source)
            source = name
        task = tasks.task_end + chance.randrange(1, 9)
    record = ClusterWorkerHeartbeat(
        f"word-count-{chance.randrange(400)}-1763900000",
        executors,
        1763900000 + chance.randrange(10_000),
        chance.randrange(900_000),
    )
    return serialize(record, Compression.PLAIN)


def spout(chance, per_sec):
    sent = counts(chance, {"default": per_sec, "__ack_init": per_sec, "__metrics": 0.02})
    acked = counts(chance, {"default": per_sec})
    failed = counts(chance, {"default": per_sec / 10_000})
    specific = SpoutStats(acked, failed, averages(chance, ["default"], 40))
    return ExecutorStats(sent, sent, ExecutorSpecificStats(spout=specific), 1.0)


def bolt(chance, per_sec, source):
    sent = counts(chance, {"default": per_sec, "__ack_ack": per_sec, "__metrics": 0.02})
    from_there = GlobalStreamId(source, "default")
    inputs = {from_there: per_sec, GlobalStreamId("__system", "__tick"): 0.1}
    acked = counts(chance, inputs)
    specific = BoltStats(
        acked,
        counts(chance, {from_there: per_sec / 10_000}),
        averages(chance, inputs, 3),
        acked,
        averages(chance, inputs, 2),
    )
    return ExecutorStats(sent, sent, ExecutorSpecificStats(bolt=specific), 1.0)


def counts(chance, per_sec):
    """Return counts by window; Storm counts one row in twenty, and so multiples of 20."""
    return {
        window: {
            stream: 20 * round(rate * secs * chance.uniform(0.9, 1.1) / 20)
            for stream, rate in per_sec.items()
        }
        for window, secs in WINDOWS.items()
    }


def averages(chance, streams, most):
    return {window: {stream: chance.uniform(0, most) for stream in streams} for window in WINDOWS}


def apache(beat):
    """Read a heartbeat with Apache Thrift's accelerated protocol, to objects."""
    protocol = PROTOCOLS.getProtocol(TMemoryBuffer(gunzip(beat)))
    found = APACHE()
    protocol._fast_decode(found, protocol, [APACHE, APACHE.thrift_spec])
    return found


def apache_class(cls):
    """Return the class that Apache's compiler would make for a record class of ours."""
    fields = {field.id: field for field in schema_of(cls).fields}
    spec = tuple(
        (number, *argument(fields[number].name, fields[number].type), None)
        if number in fields
        else None
        for number in range(max(fields) + 1)
    )
    names = [field.name for field in fields.values()]
    key = operator.attrgetter(*names[:2])
    return type(
        cls.__name__,
        (),
        {
            **dict.fromkeys(names),
            "__hash__": lambda self: hash(key(self)),
            "__eq__": lambda self, other: self.__dict__ == other.__dict__,
            "thrift_spec": spec,
        },
    )


def argument(name, of):
    kind, detail = of
    return (STRING if kind == BINARY else kind, name, type_argument(kind, detail))


def type_argument(kind, detail):
    if kind == STRUCT:
        cls = apache_class(detail)
        return [cls, cls.thrift_spec]
    if kind == STRING:
        return "UTF8"
    if kind == MAP:
        (key, key_detail), (value, value_detail) = detail
        return (
            key,
            type_argument(key, key_detail),
            value,
            type_argument(value, value_detail),
            False,
        )
    if kind in (LIST, SET):
        return (detail[0], type_argument(*detail), False)
    return None


APACHE = apache_class(ClusterWorkerHeartbeat)
PROTOCOLS = TBinaryProtocolAcceleratedFactory(fallback=False)


if __name__ == "__main__":
    main()
