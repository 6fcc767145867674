import os
import subprocess

import pytest

from support.command import STORM
from support.pacemaker import pacemaker, start_pacemaker

__all__ = ["environ", "pacemaker", "start_pacemaker", "storm"]


@pytest.fixture
def environ(tmp_path):
    """The environment of a user who has configured nothing."""
    home = tmp_path / "home"
    home.mkdir()
    return {k: v for k, v in os.environ.items() if k != "STORM_CONF_DIR"} | {"HOME": str(home)}


@pytest.fixture
def storm(environ, tmp_path):
    """Runs the installed command."""

    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [STORM, *arguments],
            env=environ | env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
