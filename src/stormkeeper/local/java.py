"""Which Java runs the JVM programs that we start.

``JAVA_HOME`` is asked first, then ``PATH``, as every Java program's start script does. One that
is too old is passed over, so that a stale ``JAVA_HOME`` does not hide a good ``java`` on the path.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from stormkeeper.errors import LocalClusterError

#: Spark 4 needs 17, and its jars (ZooKeeper's among them) are what we start.
MINIMUM_VERSION = 17

#: ``java -version`` of a cold JVM takes well under a second; a hanging one must not hang us.
_VERSION_TIMEOUT_SECS = 20.0

_RELEASE_LINE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_VERSION_OUTPUT = re.compile(r'version "([^"]+)"')


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the ``java`` executable to use.

    Raises
    ------
    LocalClusterError
        There is none, or none of version 17 or newer; one sentence that says what to do.
    """
    seen = []
    for executable in _candidates(environ):
        version = java_version(executable)
        if version is not None and version >= MINIMUM_VERSION:
            return executable
        seen.append(f"{executable} is {'unusable' if version is None else f'version {version}'}")
    found = f"found only: {'; '.join(seen)}" if seen else "neither JAVA_HOME nor PATH has one"
    raise LocalClusterError(
        f"Java {MINIMUM_VERSION} or newer is needed ({found}): install one (on Debian or Ubuntu:"
        " apt-get install openjdk-17-jre-headless) or point JAVA_HOME at it."
    )


def java_version(executable: Path) -> int | None:
    """Return the feature version of a ``java`` executable (8, 11, 17…), None if it does not run."""
    # A JDK or JRE names its version in a file; reading it saves the start of a JVM.
    release = executable.resolve().parent.parent / "release"
    try:
        match = _RELEASE_LINE.search(release.read_text(errors="replace"))
    except OSError:
        match = None
    if match is None:
        try:
            answer = subprocess.run(
                [executable, "-version"],
                capture_output=True,
                text=True,
                timeout=_VERSION_TIMEOUT_SECS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        match = _VERSION_OUTPUT.search(answer.stderr + answer.stdout)
    return _feature(match[1]) if match else None


def _feature(version: str) -> int | None:
    """``17.0.15`` is 17, ``1.8.0_392`` is 8 (the numbering before Java 9)."""
    numbers = re.findall(r"\d+", version)
    if not numbers:
        return None
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    home = environ.get("JAVA_HOME")
    if home and os.access(candidate := Path(home) / "bin" / "java", os.X_OK):
        yield candidate
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield Path(on_path)
