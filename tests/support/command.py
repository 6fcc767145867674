"""The installed ``storm`` command, and what a command line imports."""

import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

STORM = Path(sys.executable).with_name("storm")

#: What makes a command slow to start, and so must wait until it is needed.
HEAVY = {"pyspark", "py4j", "thriftpy2", "pandas", "numpy", "pyarrow", "rich", "kazoo", "asyncio"}


def imported_by(arguments: Sequence[str], environ: Mapping[str, str]) -> set[str]:
    """Return the top-level modules that a command line has imported when it ends."""
    program = (
        "import sys\n"
        "from stormkeeper.cli.commands import storm\n"
        "try:\n"
        f"    storm.main({list(arguments)!r}, prog_name='storm')\n"
        "except SystemExit:\n"
        "    pass\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules}))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(ast.literal_eval(ran.stdout.splitlines()[-1]))
