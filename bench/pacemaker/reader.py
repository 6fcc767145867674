"""Reads all pulses of one Pacemaker again and again until SIGTERM, as Nimbus or Spark would.

    python reader.py HOST:PORT changes|ages

``ages`` are the same pages without the values: enough to tell who is alive. One JSON object for
each reading of all: ``{"secs": 1.2, "pulses": 72000, "bytes": 221184000}``, the bytes being those
of the values that came. It only counts what it reads.
"""

import json
import os
import signal
import sys
import time

from stormkeeper.pacemaker.client import PacemakerClient

ROOT = "/workerbeats"


def pages(client, values):
    after, instance, more = 0, None, True
    while more:
        page = client.changes(ROOT, after, 0, instance, values=values)
        yield page.columns
        after, instance, more = page.next, page.instance, page.more


def main():
    address, how = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # It shares its core with the generator, as workers do not: it gives way to it, so that
    # the latencies that the generator measures are the server's.
    os.nice(10)
    values = {"changes": True, "ages": False}[how]
    with PacemakerClient(address) as client:
        while True:
            began = time.monotonic()
            pulses = size = 0
            for columns in pages(client, values):
                pulses += len(columns.paths)
                size += sum(len(value or b"") for value in columns.details or ())
            secs = time.monotonic() - began
            print(json.dumps({"secs": secs, "pulses": pulses, "bytes": size}), flush=True)


if __name__ == "__main__":
    main()
