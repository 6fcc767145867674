"""Another client, in a process of its own: at each line that it is sent, it sets all nodes.

    python bench/state/setter.py HOST:PORT FOLDER COUNT

Sets FOLDER/n00000 and so on; says "ready" when it is connected, and "done" when all are set.
"""

import sys

from kazoo.client import KazooClient


def main():
    hosts, folder, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    client = KazooClient(hosts=hosts, timeout=60)
    client.start(timeout=30)
    print("ready", flush=True)
    for line in sys.stdin:
        value = line.strip().encode()
        pending = [client.set_async(f"{folder}/n{n:05d}", value) for n in range(count)]
        for each in pending:
            each.get(timeout=60)
        print("done", flush=True)
    client.stop()


if __name__ == "__main__":
    main()
