"""Every way in which user code can end or hang: `storm list` shows it, and the cluster heals it.

One real cluster, and a topology for each way, whose first run does the harm in its third batch. The
second run does none.
"""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from support.cluster import RealCluster
from support.waiting import until

pytestmark = [pytest.mark.faults, pytest.mark.spark, pytest.mark.timeout(3000)]

#: For a worker that starts beside others on a busy machine.
SOON = 240.0

#: `storm list` has to show each harm within so many seconds, with the default time-outs.
SHOWN_SECS = 30.0

PROGRAM = """
import ctypes, os, signal, sys, threading, time
from pathlib import Path
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from stormkeeper.topology import Topology

topology = Topology("harm", conf={"how": None, "place": None})

class WithoutTextError(Exception):
    def __str__(self):
        raise KeyboardInterrupt

def raises(error):
    raise error

def takes_all_memory(spark):
    kept = spark._jvm.java.util.ArrayList()
    while True:
        kept.add(spark.sparkContext._gateway.new_array(spark._jvm.long, 2**24))

HARMS = {
    "exit": lambda spark: sys.exit(),
    "interrupt": lambda spark: raises(KeyboardInterrupt()),
    "surrogate": lambda spark: raises(ValueError("half \\udcff")),
    "megabytes": lambda spark: raises(ValueError("x" * 5_000_000)),
    "no text": lambda spark: raises(WithoutTextError()),
    "exit code 0": lambda spark: os._exit(0),
    "thread exits": lambda spark: threading.Thread(target=os._exit, args=(4,)).start(),
    "killed": lambda spark: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda spark: ctypes.string_at(0),
    "holds the interpreter": lambda spark: ctypes.PyDLL(None).sleep(3600),
    "driver stopped": lambda spark: os.kill(os.getpid(), signal.SIGSTOP),
    "jvm stopped": lambda spark: os.kill(spark.sparkContext._gateway.proc.pid, signal.SIGSTOP),
    "jvm exits": lambda spark: spark._jvm.System.exit(0),
    "jvm without memory": takes_all_memory,
    "listener hangs": lambda spark: raises(ValueError("unheard")),
    "query stopped by a lock": lambda spark: threading.Lock().acquire() and time.sleep(3600),
}

class Listener(StreamingQueryListener):
    def onQueryProgress(self, event):
        time.sleep(3600)

    onQueryStarted = onQueryIdle = onQueryTerminated = lambda self, event: None

@topology.spout
def numbers(spark, conf):
    if conf["how"] == "listener hangs" and not Path(conf["place"], "done").exists():
        spark.streams.addListener(Listener())
    if conf["how"] == "script hangs":
        Path(conf["place"], "done").touch()
        threading.Event().wait()
    return spark.readStream.format("rate").option("rowsPerSecond", 20).load()

@topology.bolt(numbers)
def out(numbers, conf):
    place, how = Path(conf["place"]), conf["how"]

    def once(act):
        try:
            (place / "done").touch(exist_ok=False)
        except FileExistsError:
            return
        act()

    if how == "udf exits":
        @F.udf("long")
        def checked(value):
            if (place / "2").exists():
                once(lambda: os._exit(0))
            return value
        numbers = numbers.withColumn("value", checked("value"))

    def write(batch, number):
        batch.count()
        (place / str(number)).touch()
        if number >= 2 and how in HARMS:
            once(lambda: HARMS[how](batch.sparkSession))

    return numbers.writeStream.foreachBatch(write).trigger(processingTime="500 milliseconds")
"""

LISTENER = "a StreamingQueryListener of the topology holds up Spark's events"


@dataclass(frozen=True)
class Harm:
    """A harm: a pattern of what `storm list` says, what the error names, and whether it heals."""

    how: str
    shown: str
    error: str = ""
    heals: bool = True


def raised(how, error):
    return Harm(how, "crashing", error)


HARMS = [
    raised("exit", "SystemExit"),
    raised("interrupt", "KeyboardInterrupt"),
    raised("surrogate", "ValueError: half \\udcff"),
    raised("megabytes", "ValueError: xxx"),
    raised("no text", "WithoutTextError: <exception str() failed>"),
    raised("exit code 0", "exit code 0 before its queries had ended"),
    raised("thread exits", "exit code 4 before its queries had ended"),
    raised("killed", "it ended by SIGKILL"),
    raised("segfault", "it ended by SIGSEGV"),
    raised("jvm exits", "Spark's JVM ended with status 0"),
    raised("jvm without memory", "OutOfMemoryError"),
    raised("udf exits", "Python worker exited unexpectedly"),
    Harm("jvm stopped", "its JVM has not answered", "Spark's JVM had not answered for 30 s"),
    Harm("holds the interpreter", "no pulse for|silent for", "it was silent for 30 s"),
    Harm("driver stopped", "no pulse for|silent for", "it was silent for 30 s"),
    Harm("listener hangs", LISTENER, LISTENER),
    Harm("query stopped by a lock", "of out has run for", heals=False),
    Harm("script hangs", "Spark and its queries start, for", heals=False),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with RealCluster(folder, nimbuses=1, supervisors=1) as cluster:
        (folder / "harm.py").write_text(PROGRAM)
        yield cluster


def suffers(cluster, harm, folder):
    """Run a topology through its harm; return what did not come true."""
    name, place = harm.how.replace(" ", "-"), folder / harm.how
    place.mkdir()
    values = ["-c", f"how={harm.how}", "-c", f"place={place}", "-c", "spark.driver.memory=500m"]
    cluster.storm("submit", str(cluster.folder / "harm.py"), name, *values, "--no-wait")
    said = []

    def health():
        [found] = [each for each in cluster.told("list") if each["name"] == name]
        found = found["health"] or {}
        text = f"{found.get('state')}: {found.get('text')}"
        if text not in said:
            said.append(text)
        return text

    def batches():
        return max((int(each.name) for each in place.iterdir() if each.name.isdigit()), default=-1)

    try:
        until((place / "done").exists, SOON)
        began = time.monotonic()
        until(lambda: re.search(harm.shown, health()), SOON)
        shown_secs = time.monotonic() - began
        if harm.heals:
            before = batches()
            until(lambda: batches() >= before + 2, SOON)
            until(lambda: health().startswith("running"), SOON)
        errors = cluster.storm("get-errors", name).stdout
        print(f"{name}: shown after {shown_secs:.0f} s, {said}\n{errors[:600]}\n", flush=True)
        if harm.error.replace("\\", "\\\\") not in errors:
            return f"{harm.how}: no {harm.error!r} in {errors[:2000]}"
        if shown_secs > SHOWN_SECS:
            return f"{harm.how}: shown after {shown_secs:.0f} s: {said}"
    except AssertionError as error:
        errors = cluster.storm("get-errors", name).stdout
        return f"{harm.how}: {error}, {said}, {errors[:2000]}"
    finally:
        cluster.storm("kill", name, "-w", "0", check=False)
    return ""


def test_every_end_and_every_hang_is_shown_and_healed(cluster, tmp_path):
    with ThreadPoolExecutor(2) as two:
        failed = [*filter(None, two.map(lambda harm: suffers(cluster, harm, tmp_path), HARMS))]
    assert not failed, "\n\n".join(failed)
