"""What an installed package has beside its modules."""

import subprocess
import tomllib
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[1]
PACKAGE = PROJECT / "src" / "stormkeeper"

#: Read when a package is built, and not needed once it is.
BUILT_FROM = {".py", ".pyx"}


def test_every_file_that_is_no_module_is_installed():
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--", str(PACKAGE)],
            cwd=PROJECT,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only git knows what belongs to the package")
    files = {PROJECT / name for name in listed.split("\0") if name}
    others = {file for file in files if file.suffix not in BUILT_FROM}
    settings = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["stormkeeper"]
    installed = {file for pattern in patterns for file in PACKAGE.glob(pattern)}
    assert others
    assert others - installed == set()
