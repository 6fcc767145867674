"""Python environments of topologies, shared by topologies with the same requirements.

An environment is a virtual environment with the requirements, and a ``.pth`` file that adds the
supervisor's own packages (PySpark, Stormkeeper). Its record is written last, so an environment
without a record is unfinished.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import site
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

import msgspec

from stormkeeper.daemon import children
from stormkeeper.errors import ChildError, EnvironmentBuildError
from stormkeeper.topology.package.environment import DIGITS, Base, identity
from stormkeeper.topology.package.manifest import WHEELS, PackageManifest

_log = logging.getLogger(__name__)

#: Timeout of pip: a gigabyte to fetch, or sources to compile.
BUILD_SECS: Final = 1800.0

CHECK_SECS: Final = 120.0

_STEPS: Final = ("Collecting ", "Downloading ", "Processing ", "Building ", "Installing ")

_REMOVED = ".removing-"
_IDENTITY = re.compile(rf"[0-9a-f]{{{DIGITS}}}")
_RECORD = "environment.json"

_LINK = "_stormkeeper_base.pth"


class Environments:
    """The environments of a machine, in a folder for a single process. Thread-safe."""

    def __init__(self, folder: Path, base: Base, *, build_secs: float = BUILD_SECS) -> None:
        self._folder = folder
        self._base = base
        self._build_secs = build_secs
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._builds: dict[str, Future[Path]] = {}
        self._progress: dict[str, str] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in folder.glob(f"{_REMOVED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def identity(self, manifest: PackageManifest) -> str | None:
        """Return the identity of a package's environment; None without requirements."""
        if not manifest.requirements:
            return None
        wheels = [file.sha256 for file in manifest.files if file.name in manifest.wheels]
        return identity(manifest.requirements, self._base, wheels)

    def python(self, manifest: PackageManifest, unpacked: Path, *, wait_secs: float) -> Path:
        """Return the Python of a topology; build the environment if needed.

        A single caller builds, and the others wait up to `wait_secs`. Without requirements, returns
        this process's Python. A package with wheels, in `unpacked`, is installed without an index.
        Raises `EnvironmentBuildError` with pip's last lines.
        """
        name = self.identity(manifest)
        if name is None:
            return Path(sys.executable)
        with self._lock:
            build = self._builds.get(name)
            builds = build is None
            if build is None:
                build = self._builds[name] = Future()
        if not builds:
            try:
                return build.result(wait_secs)
            except TimeoutError as error:
                raise EnvironmentBuildError(
                    f"the environment {name} is still being built after {wait_secs:.0f} s"
                ) from error
        try:
            build.set_result(self._there_or_built(name, manifest, unpacked))
        except OSError as error:
            build.set_exception(EnvironmentBuildError(f"the environment {name}: {error}"))
        except BaseException as error:
            build.set_exception(error)
        finally:
            self._progress.pop(name, None)
            with self._lock:
                del self._builds[name]
        return build.result()

    def progress(self, name: str) -> str:
        """Return pip's last step for an environment; empty if no build runs."""
        return self._progress.get(name, "")

    def remove_unused(self, used: Callable[[], Collection[str]]) -> list[str]:
        """Remove environments outside `used`, which may change meanwhile; return the removed."""
        unused = []
        for place in sorted(self._folder.iterdir()):
            if not _IDENTITY.fullmatch(place.name):
                continue
            with self._lock:
                if place.name in self._builds or place.name in used():
                    continue
                # Renamed first, so that no caller finds half of it.
                removed = Path(tempfile.mkdtemp(prefix=_REMOVED, dir=self._folder))
                place.rename(removed / place.name)
            shutil.rmtree(removed, ignore_errors=True)
            unused.append(place.name)
        return unused

    def close(self) -> None:
        """Cancel all builds; waiting callers get an error."""
        self._closed.set()

    def _there_or_built(self, name: str, manifest: PackageManifest, unpacked: Path) -> Path:
        place = self._folder / name
        record = _record(manifest, self._base)
        if _is_whole(place, record):
            return _python(place)
        if place.exists():
            _log.warning("the environment %s is broken: it is built again", place)
            shutil.rmtree(place)
        started = time.monotonic()
        try:
            self._build(place, manifest, unpacked)
            (place / _RECORD).write_bytes(record)
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
        _log.info("the environment %s is built, in %.1f s", place, time.monotonic() - started)
        return _python(place)

    def _build(self, place: Path, manifest: PackageManifest, unpacked: Path) -> None:
        if importlib.util.find_spec("pip") is None:
            raise EnvironmentBuildError(
                "the supervisor's environment has no pip, which installs what topologies require: "
                f"{sys.executable} -m ensurepip"
            )
        venv.EnvBuilder(symlinks=True).create(place)
        packages = next((place / "lib").glob("python*/site-packages"))
        (packages / _LINK).write_text(_link(), encoding="ascii")
        required = place / "requirements.txt"
        required.write_text("".join(f"{pin}\n" for pin in manifest.requirements))
        constraints = place / "constraints.txt"
        constraints.write_text(
            "".join(f"{package}=={version}\n" for package, version in self._base.versions.items())
        )
        pip = ["-m", "pip", "install", "--no-input", "--disable-pip-version-check"]
        pip += ["--progress-bar=off", "--no-warn-script-location"]
        pip += ["--requirement", str(required), "--constraint", str(constraints)]
        if manifest.wheels:
            pip += ["--no-index", "--find-links", str(unpacked / WHEELS)]
        self._run("pip", place, pip, self._build_secs, self._noted(place.name))
        check = ["-c", "import pyspark, stormkeeper"]
        self._run("the import of PySpark beside the requirements", place, check, CHECK_SECS)
        os.sync()  # otherwise a power failure may leave empty files beside the record

    def _noted(self, name: str) -> Callable[[str], None]:
        def note(line: str) -> None:
            step = line.strip()
            if step.startswith(_STEPS):
                self._progress[name] = f"pip: {step}"
                _log.info("the environment %s is being built: pip: %s", name, step)

        return note

    def _run(
        self,
        what: str,
        place: Path,
        arguments: Sequence[str],
        secs: float,
        progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        try:
            children.run(
                what,
                [str(_python(place)), "-P", *arguments],
                log=place / "build.log",
                env={**os.environ, "PIP_USER": "0"},
                secs=secs,
                cancelled=self._closed.is_set,
                progress=progress,
            )
        except ChildError as error:
            raise EnvironmentBuildError(str(error)) from error


def _python(place: Path) -> Path:
    return place / "bin" / "python"


def _record(manifest: PackageManifest, base: Base) -> bytes:
    return msgspec.json.encode({"requirements": sorted(manifest.requirements), "base": base})


def _is_whole(place: Path, record: bytes) -> bool:
    try:
        # The Python is a link, whose target may have been removed.
        return (place / _RECORD).read_bytes() == record and os.access(_python(place), os.X_OK)
    except OSError:
        return False


def _link() -> str:
    folders = site.getsitepackages()
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    there = [folder for folder in folders if Path(folder).is_dir()]
    # `site` runs the line in a function, where a comprehension would not see the import.
    return f"import site; list(map(site.addsitedir, {there!a}))\n"
