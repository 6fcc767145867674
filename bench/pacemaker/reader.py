"""Reads all pulses of one Pacemaker again and again until SIGTERM, as Nimbus or Spark would.

    python reader.py HOST:PORT changes|scan

One JSON object for each reading of all: ``{"secs": 1.2, "pulses": 72000, "bytes": 221184000}``.
It only counts what it reads.
"""

import json
import os
import signal
import sys
import time

from stormkeeper.pacemaker.client import PacemakerClient

ROOT = "/workerbeats"


def changes(client):
    after, instance, more = 0, None, True
    while more:
        page = client.changes(ROOT, after, 0, instance)
        yield page.changes
        after, instance, more = page.next, page.instance, page.more


def scan(client):
    after, more = None, True
    while more:
        page = client.scan(ROOT, after)
        yield page.pulses
        more = page.more
        after = page.pulses[-1].path if page.pulses else None


def main():
    address, how = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    # It shares its core with the generator, whose latencies are what is measured.
    os.nice(5)
    pages = {"changes": changes, "scan": scan}[how]
    with PacemakerClient(address) as client:
        while True:
            began = time.monotonic()
            pulses = size = 0
            for page in pages(client):
                pulses += len(page)
                size += sum(len(pulse.details or b"") for pulse in page)
            secs = time.monotonic() - began
            print(json.dumps({"secs": secs, "pulses": pulses, "bytes": size}), flush=True)


if __name__ == "__main__":
    main()
