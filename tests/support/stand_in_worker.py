"""Stands in for a worker, so that no Spark has to start: as ``stormkeeper.worker``, in `folder`.

It is started by a supervisor as the real one is. It says in its log, as JSON, what it was started
with. It gives signs of life until SIGTERM, or until there is a file, ``stand.in.order`` of its
topology, that says with which code to exit; ``0 unsaid`` is an exit that user code brings about.
With ``stand.in.child`` it has a child in a session of its own. With ``stand.in.stubborn`` it does
not end on SIGTERM.
"""

from pathlib import Path

PROGRAM = """
import json, os, signal, subprocess, sys, time
from pathlib import Path

arguments = sys.argv[1:]
alive = Path(arguments[arguments.index("--alive") + 1])
overrides = json.loads(Path(arguments[arguments.index("--overrides") + 1]).read_bytes())
children = []
if overrides.get("stand.in.child"):
    children.append(subprocess.Popen(["setsid", "sleep", "600"]))


def stop(code, is_said=True):
    if is_said and code in (0, 4):
        alive.with_name("ended").write_text(str(code))
    for child in children:
        child.kill()
    sys.exit(code)


if not overrides.get("stand.in.stubborn"):
    signal.signal(signal.SIGTERM, lambda *_: stop(0))
else:
    signal.signal(signal.SIGTERM, lambda *_: print("STAYS", flush=True))
said = {
    "pid": os.getpid(),
    "children": [child.pid for child in children],
    "arguments": arguments,
    "python": sys.executable,
    "folder": os.getcwd(),
    "environment": dict(os.environ),
    "nice": os.getpriority(os.PRIO_PROCESS, 0),
}
print(f"STARTED {json.dumps(said)}\\n", end="", flush=True)  # in one write
order = Path(overrides["stand.in.order"])
while True:
    alive.touch()
    if order.exists():
        code, *unsaid = order.read_text().split()
        order.unlink()
        print(f"exits with {code}, as it was told", flush=True)
        stop(int(code), not unsaid)
    time.sleep(0.05)
"""


def folder(place: Path) -> Path:
    """Make the folder that, first in ``PYTHONPATH``, has this for a worker; return it."""
    package = place / "stormkeeper" / "worker"
    package.mkdir(parents=True)
    for init in (package, package.parent):
        (init / "__init__.py").touch()
    (package / "__main__.py").write_text(PROGRAM)
    return place
