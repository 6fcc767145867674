"""The options that all commands have which run a script."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class CommandLine(argparse.ArgumentParser):
    """Reads ``SCRIPT [OPTIONS] [-- ARGUMENTS]``; the script finds ARGUMENTS in ``sys.argv``.

    Parameters
    ----------
    prog, description
        As of `argparse.ArgumentParser`.
    """

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(
            prog=prog,
            usage="%(prog)s SCRIPT [OPTIONS] [-- ARGUMENTS]",
            description=description,
            epilog="The script finds ARGUMENTS in sys.argv.",
            allow_abbrev=False,
        )
        self.add_argument(
            "script", type=Path, help="defines a Topology, or starts streaming queries"
        )
        self.add_argument(
            "--py-files",
            action="append",
            default=[],
            type=Path,
            metavar="FILE",
            help="a .py, .zip or .egg file that the script can import, in Spark's executors too",
        )
        self.add_argument(
            "--config", action="append", type=Path, metavar="FILE", help="instead of storm.yaml"
        )
        self.add_argument(
            "-c",
            "--conf",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="wins over all else",
        )
        self.add_argument("--strict", action="store_true", help="an unknown key is an error")

    def parse_args(self, args: Sequence[str]) -> Any:  # type: ignore[override]
        """Return what is given; `arguments` is what stands behind ``--``."""
        end = args.index("--") if "--" in args else len(args)
        given = super().parse_args(args[:end])
        given.arguments = list(args[end + 1 :])
        return given
