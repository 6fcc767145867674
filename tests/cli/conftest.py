import os
import subprocess
import sys
from pathlib import Path

import pytest

STORM = Path(sys.executable).with_name("storm")


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
