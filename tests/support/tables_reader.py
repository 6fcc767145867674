"""Reads tables as fast as it can until a file is there, and tells what was wrong with them.

python tables_reader.py FOLDER STOP
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stormkeeper.history import manifest
from stormkeeper.history.table_reader import Tables

if __name__ == "__main__":
    folder, stop = map(Path, sys.argv[1:])
    wrong, looks, newest = [], 0, -1
    while not stop.exists():
        if manifest.load(folder) is None:
            continue
        tables = Tables(folder)
        batch = tables.manifest.origin.batch
        state = tables.arrow("state")["x"].to_pylist()
        events = sorted(tables.arrow("events")["x"].to_pylist())
        if state != [batch] or events != list(range(batch + 1)) or batch < newest:
            wrong.append((newest, batch, state, len(events)))
        time.sleep(0.005)  # the writer needs a core, too
        newest, looks = batch, looks + 1
    print(json.dumps({"wrong": wrong, "looks": looks}))
