"""``python -m stormkeeper.worker SCRIPT --storm-id ID --node NODE --port PORT``.

A supervisor adds ``--root``, ``--overrides`` and ``--alive``.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stormkeeper import extras
from stormkeeper.conf import load
from stormkeeper.daemon.logs import configure_logging
from stormkeeper.errors import ConfigError, InvalidPathError, MissingExtraError, WorkerError
from stormkeeper.topology.plan import Claim
from stormkeeper.worker.job import (
    Job,
    ScriptArgumentParser,
    merged_conf,
    read_overrides,
    read_package,
    with_overrides,
)

if TYPE_CHECKING:
    from io import TextIOWrapper

#: Exit code for a missing extra: EX_UNAVAILABLE of sysexits.h.
_MISSING_EXTRA = 69

_LINGER_SECS = 5.0


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    files = options.config or None
    configure_logging()
    # Print line by line, also to a file or a pipe; escape characters that the encoding
    # (PYTHONIOENCODING=ascii) lacks.
    for stream in (sys.stdout, sys.stderr):
        cast("TextIOWrapper", stream).reconfigure(
            line_buffering=True, write_through=False, errors="backslashreplace"
        )
    try:
        extras.require("spark", "a worker")
        from stormkeeper.worker import process  # noqa: PLC0415  (PySpark)

        saved = read_overrides(options.overrides) if options.overrides is not None else {}
        # Unknown keys are reported later, as a topology has its own.
        conf = load(files=files, overrides=options.conf, unknown="keep")
        commanded = {override.partition("=")[0].strip() for override in options.conf}
        conf = with_overrides(conf, saved, keep=commanded)
        job = Job(
            script=options.script,
            storm_id=options.storm_id,
            node=options.node,
            port=options.port,
            arguments=options.arguments,
            py_files=options.py_files,
            queries=options.query,
            claims=dict(options.claim),
            package=read_package(options.root) if options.root is not None else None,
            alive=options.alive,
        )
        return process.serve(
            conf,
            job,
            lambda topology: merged_conf(
                topology, files=files, overrides=options.conf, strict=options.strict, saved=saved
            ),
        )
    except (ConfigError, InvalidPathError) as error:  # the latter of --storm-id or --node
        sys.stderr.write(f"{error}\n")
        return 2
    except WorkerError as error:  # of --root
        sys.stderr.write(f"{error}\n")
        return 1
    except MissingExtraError as error:
        sys.stderr.write(f"{error}\n")
        return _MISSING_EXTRA


def _parser() -> ScriptArgumentParser:
    parser = ScriptArgumentParser(
        prog="python -m stormkeeper.worker",
        description="Run a topology, or any PySpark streaming script, as a worker that beats.",
    )
    parser.add_argument(
        "--query",
        action="append",
        default=[],
        metavar="ID",
        help="run only this query of the topology, named by its sink; may be given several times",
    )
    parser.add_argument(
        "--claim",
        action="append",
        default=[],
        type=_claim,
        metavar="ID=CLAIM",
        help="run this query with this claim, EPOCH-COUNTER-LAUNCH, and end it when a greater one"
        " is in its checkpoint; may be given several times",
    )
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help="run SCRIPT of the topology's package that lies unpacked in DIR, and those of its"
        " queries that have claims; follow whether it is active, and report to the cluster's state",
    )
    parser.add_argument(
        "--overrides",
        type=Path,
        metavar="FILE",
        help="a JSON object with the topology's saved configuration: wins over all else but -c",
    )
    parser.add_argument(
        "--alive",
        type=Path,
        metavar="FILE",
        help="touch this file every worker.heartbeat.frequency.secs as long as the worker gets on",
    )
    parser.add_argument("--storm-id", required=True, help="id of the topology: NAME-NUMBER-EPOCH")
    parser.add_argument("--node", required=True, help="id of the supervisor")
    parser.add_argument("--port", required=True, type=int, help="port that names the slot")
    return parser


def _claim(text: str) -> tuple[str, Claim]:
    query, _, claim = text.rpartition("=")
    try:
        return query, Claim.parse(claim)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _leave_lingering_threads(code: int) -> None:
    time.sleep(_LINGER_SECS)
    os._exit(code)


if __name__ == "__main__":
    code = main()
    threading.Thread(target=_leave_lingering_threads, args=(code,), daemon=True).start()
    sys.exit(code)
