"""The code of a package: the files of a script, a folder or a wheel, and the script that runs.

- **A script** brings the modules that it imports and the ``requirements.txt``, from beside it.
- **A folder** comes whole, except for ignored files. Its script is ``__main__.py``, else
  ``topology.py``, else the only script at its top.
- **A wheel** is unpacked, not installed, so it must be pure. Its script is the ``__main__.py`` of
  its one package with such a file.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from email.parser import BytesParser
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from stormkeeper import names
from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults, script_source
from stormkeeper.topology.package import environment, manifest

REQUIREMENTS: Final = "requirements.txt"

_SCRIPTS: Final = ("__main__.py", "topology.py")

_PIPELINES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")

_MAIN: Final = "/__main__.py"

IGNORE_FILE: Final = ".stormignore"

_NEVER: Final = frozenset({"__pycache__", "metastore_db", "spark-warehouse"})

#: Whether a path from the top is ignored, given whether it is a folder.
Ignored = Callable[[str, bool], bool]


@dataclass(frozen=True)
class PackagedCode:
    """The files of a topology, and the script that runs.

    `root` is the first folder in ``sys.path``, `name` the default name of the topology, `required`
    the text of the requirements and its source.
    """

    root: Path
    script: Path
    files: tuple[Path, ...]
    name: str
    required: tuple[str, str] | None

    def requirements(self, base: dict[str, str]) -> tuple[environment.Requirement, ...]:
        if self.required is None:
            return ()
        text, file = self.required
        return environment.parse(text, file, base)


def collect(
    given: Path,
    folder: Path,
    py_files: Sequence[Path] = (),
    required: tuple[str, str] | None = None,
) -> PackagedCode:
    """Return the code of a script, a folder or a wheel, with its source checked.

    `folder` is empty, for the files of a wheel, and must be kept; `required` replaces the code's
    own requirements. Raises `TopologyError`, with file and line of a fault.
    """
    if given.name in _PIPELINES or any((given / name).is_file() for name in _PIPELINES):
        raise TopologyError(f"{given}: {faults.PIPELINES}")
    if given.is_dir():
        code = _of_folder(given, py_files, required)
    elif given.suffix == ".whl":
        code = _of_wheel(given, folder, py_files, required)
    elif given.suffix == ".py":
        code = _of_script(given, py_files, required)
    else:
        there = "is no topology" if given.exists() else "is not there"
        raise TopologyError(f"{given} {there}: name a script (.py), a folder or a wheel (.whl)")
    _check_complete(code, py_files)
    return code


def _of_script(
    given: Path, py_files: Sequence[Path], required: tuple[str, str] | None
) -> PackagedCode:
    beside = _required(given.resolve().parent)
    required = required or beside
    script_source.check(given, py_files, runs_here=required is None)
    script = given.resolve()  # like Python, which looks for modules at the target of a link
    root = script.parent
    ignored = read_ignored(root)
    files = {script}
    for module in script_source.modules_beside(script, py_files):
        files.update(walk(root, ignored, module) if module.is_dir() else [module])
    if beside is not None:
        files.add(root / REQUIREMENTS)
    return PackagedCode(
        root, script, tuple(sorted(files)), script_source.script_name(script), required
    )


def _of_folder(
    root: Path, py_files: Sequence[Path], required: tuple[str, str] | None
) -> PackagedCode:
    files = tuple(walk(root, read_ignored(root)))
    scripts = [file for file in files if file.parent == root and file.suffix == ".py"]
    named = [file for name in _SCRIPTS for file in scripts if file.name == name]
    if not named and len(scripts) != 1:
        there = ", ".join(file.name for file in scripts)
        raise TopologyError(
            f"{root} has no __main__.py and no topology.py at its top"
            f"{f', but {there}' if there else ', and no other script'}: give one of these two names"
            " to the script that is to run"
        )
    script = (named or scripts)[0]
    if script.is_symlink():
        raise TopologyError(
            f"{script} is a link, and its modules are looked for where it leads: put the script "
            "itself there"
        )
    required = required or _required(root)
    script_source.check(script, py_files, runs_here=required is None)
    return PackagedCode(root, script, files, script_source.script_name(root.resolve()), required)


def _of_wheel(
    given: Path, folder: Path, py_files: Sequence[Path], required: tuple[str, str] | None
) -> PackagedCode:
    code = unpack_wheel(given, folder)
    code = replace(code, required=required or code.required)
    try:
        script_source.check(code.script, [folder, *py_files], runs_here=code.required is None)
    except TopologyError as error:
        # The user knows the wheel, not the folder.
        raise TopologyError(str(error).replace(f"{folder}/", f"{given}/", 1)) from error
    return code


def _required(root: Path) -> tuple[str, str] | None:
    file = root / REQUIREMENTS
    return (read_text(file), str(file)) if file.exists() else None


def read_text(file: Path) -> str:
    """Return the text of a file; raises `TopologyError`."""
    try:
        return file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{file} cannot be read: {error}") from error


def _check_complete(code: PackagedCode, py_files: Sequence[Path]) -> None:
    resolved = [file.resolve() for file in code.files]
    travelling = {*resolved, *(folder for file in resolved for folder in file.parents)}
    for module in script_source.modules_beside(code.script, py_files):
        if module.resolve() not in travelling:
            raise TopologyError(
                f"{code.script} imports {module.stem}, and {module} stays behind: take it out of "
                f"{IGNORE_FILE}"
            )


def read_ignored(folder: Path) -> Ignored:
    """Return which files of a folder are ignored: fixed ones, and those in ``.stormignore``.

    Always ignored are names that begin with a dot, virtual environments, ``__pycache__``, and what
    Spark leaves behind. A line of ``.stormignore`` is a comment (``#``) or a pattern of a shell, in
    which ``*`` and ``?`` match slashes too: with a slash it is relative to the top, else a name at
    any depth; with a slash at its end it matches folders only.
    """
    file = folder / IGNORE_FILE
    lines = read_text(file).splitlines() if file.exists() else []
    patterns = []
    for number, line in enumerate(lines, 1):
        pattern = line.strip()
        if pattern.startswith("!"):
            raise TopologyError(
                f"{file}, line {number}: a pattern cannot be taken back with !: write the patterns "
                "so that they do not match what is to be sent"
            )
        if pattern and not pattern.startswith("#"):
            patterns.append(pattern)

    def ignored(path: str, is_folder: bool) -> bool:
        name = path.rpartition("/")[2]
        if name.startswith(".") or name in _NEVER:
            return True
        return any(_matches(pattern, path, name, is_folder) for pattern in patterns)

    return ignored


def _matches(pattern: str, path: str, name: str, is_folder: bool) -> bool:
    if pattern.endswith("/"):
        if not is_folder:
            return False
        pattern = pattern.rstrip("/")
    if "/" in pattern:
        return fnmatch.fnmatchcase(path, pattern.removeprefix("/"))
    return fnmatch.fnmatchcase(name, pattern)


def walk(root: Path, ignored: Ignored, start: Path | None = None) -> Iterator[Path]:
    """Yield the files of a folder that are not ignored, sorted by name in each folder.

    Patterns are relative to `root`; `start` is a folder in it. Raises `TopologyError` for a link to
    a folder or out of `root`, and for a socket.
    """
    folder = start or root
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        raise TopologyError(f"{folder} cannot be read: {error.strerror}") from error
    for entry in entries:
        path = Path(entry.path)
        if ignored(path.relative_to(root).as_posix(), entry.is_dir()):
            continue
        if entry.is_dir(follow_symlinks=False):
            if not (path / "pyvenv.cfg").exists():
                yield from walk(root, ignored, path)
        elif not entry.is_file():
            what = "a link to a folder" if entry.is_dir() else "neither a file nor a folder"
            raise _cannot_be_sent(path, what)
        elif entry.is_symlink() and not path.resolve().is_relative_to(root.resolve()):
            raise _cannot_be_sent(path, f"a link to {path.resolve()}, outside of {root}")
        else:
            yield path


def _cannot_be_sent(path: Path, what: str) -> TopologyError:
    return TopologyError(
        f"{path} is {what}, which cannot be sent: remove it, or name it in {IGNORE_FILE} at the top"
    )


def unpack_wheel(wheel: Path, folder: Path) -> PackagedCode:
    """Unpack a wheel into an empty folder; return the code, with the wheel's own requirements.

    Raises `TopologyError` if the wheel is unreadable, is not pure, or has no script.
    """
    try:
        name, _, _, tags = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename as error:
        raise TopologyError(f"{wheel} does not have the name of a wheel: {error}") from error
    if not any(tag.abi == "none" and tag.platform == "any" for tag in tags):
        raise TopologyError(
            f"{wheel} is for one platform: submit the script that uses it, and name it in a "
            "requirements.txt"
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            files = [info for info in archive.infolist() if not info.is_dir()]
            _check_wheel(wheel, files)
            for info in files:
                target = folder / info.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as packed, target.open("wb") as file:
                    shutil.copyfileobj(packed, file)
    except (OSError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, ValueError) as error:
        raise TopologyError(f"the wheel {wheel} cannot be read: {error}") from error
    scripts = [
        info.filename
        for info in files
        if info.filename.endswith(_MAIN) and info.filename.count("/") == 1
    ]
    if len(scripts) != 1:
        there = ", ".join(scripts) or "none"
        raise TopologyError(
            f"{wheel} must have one package with a __main__.py, which is what runs, and has {there}"
        )
    requires = _requires(folder)
    return PackagedCode(
        root=folder,
        script=folder / scripts[0],
        files=tuple(sorted(path for path in folder.rglob("*") if path.is_file())),
        name=str(name),
        required=("\n".join(requires), f"the METADATA of {wheel}") if requires else None,
    )


def _check_wheel(wheel: Path, files: list[zipfile.ZipInfo]) -> None:
    in_it = [info.filename for info in files]
    problem = manifest.limit_fault(len(files), sum(info.file_size for info in files))
    problem = problem or names.files_fault(in_it)
    if problem is None and any(name.partition("/")[0].endswith(".data") for name in in_it):
        problem = "it has a folder .data, which only an installation puts into its place"
    if problem is not None:
        raise TopologyError(f"the wheel {wheel} cannot be sent: {problem}")


def _requires(folder: Path) -> list[str]:
    """Return the requirements of an unpacked wheel, without those of extras."""
    found = []
    for metadata in sorted(folder.glob("*.dist-info/METADATA")):
        message = BytesParser().parsebytes(metadata.read_bytes(), headersonly=True)
        for line in message.get_all("Requires-Dist", []):
            try:
                # A requirement of an extra has a marker that names it.
                marker = Requirement(str(line)).marker
                if marker is None or "extra" not in str(marker):
                    found.append(str(line))
            except InvalidRequirement:
                found.append(str(line))  # `environment.parse` says what is wrong
    return found
