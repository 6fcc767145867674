"""Compiles the bench's C programs into ``build/bench``, where they are out of date."""

import os
import shutil
import subprocess
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BUILD = FOLDER.parents[1] / "build" / "bench"

PROGRAMS = {
    "load": ["load.c", "connections.c", "protocol.c", "zookeeper.c", "measure.c"],
    "echo": ["echo.c"],
}
FLAGS = ["-O2", "-Wall", "-Wextra"]


def compiled(name):
    """Return the path of a program, compiled if its sources are newer."""
    program = BUILD / name
    sources = [FOLDER / source for source in PROGRAMS[name]]
    newest = max(file.stat().st_mtime for file in [*sources, *FOLDER.glob("*.h")])
    if program.exists() and program.stat().st_mtime > newest:
        return program
    compiler = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), None)
    if compiler is None:
        raise SystemExit(
            "bench: the load generator is C, and there is no C compiler: scripts/bench-setup"
            " installs one (Debian: apt-get install gcc libc6-dev), or name yours with CC=..."
        )
    BUILD.mkdir(parents=True, exist_ok=True)
    # Beside its place until it is whole: two runs may compile at once.
    unfinished = program.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [*compiler.split(), *FLAGS, "-o", unfinished, *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"bench: {compiler} cannot compile {name}:\n{done.stderr}")
    unfinished.replace(program)
    return program
