"""The code of a package: what travels of a script, a folder or a wheel, and which script runs.

- **A script** brings the modules and packages beside it that it imports, itself or by way of
  others, as far as its source says so, and the ``requirements.txt`` beside it. Whatever else it
  needs comes with its folder, or with ``--py-files``.
- **A folder** comes as a whole, but for what `ignoring` names. Its script is ``__main__.py``, or
  else ``topology.py``, or else the only one at its top.
- **A wheel** is laid out as a folder: `wheel`.

Faults in the script's source are found here, before anything is sent.
"""

from __future__ import annotations

import fnmatch
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.parser import BytesParser
from pathlib import Path
from typing import Final

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from stormkeeper import names
from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults, script_source
from stormkeeper.topology.package import manifest, requirements

REQUIREMENTS: Final = "requirements.txt"

_SCRIPTS: Final = ("__main__.py", "topology.py")

#: What the specification of one of Spark's Declarative Pipelines is called.
_PIPELINES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")


@dataclass(frozen=True)
class SubmittedCode:
    """What travels, and which script of it runs.

    Parameters
    ----------
    root
        The folder that is first in ``sys.path``.
    script
        The script, in that folder or below.
    files
        All files that travel, the script among them.
    name
        What a topology is called that has no name of its own: after the script, folder or wheel.
    required
        The text that says what must be installed, and where it stands; None where nothing does.
    """

    root: Path
    script: Path
    files: tuple[Path, ...]
    name: str
    required: tuple[str, str] | None

    def requirements(self, base: dict[str, str]) -> tuple[requirements.Requirement, ...]:
        """Return what must be installed over `base`, as of `requirements.parse`.

        Raises
        ------
        TopologyError
            For the first line that cannot be sent.
        """
        if self.required is None:
            return ()
        text, file = self.required
        return requirements.parse(text, file, base)


def collect(
    given: Path,
    folder: Path,
    py_files: Sequence[Path] = (),
    required: tuple[str, str] | None = None,
) -> SubmittedCode:
    """Return the code that is submitted.

    Parameters
    ----------
    given
        A script, a folder or a wheel.
    folder
        An empty folder, where a wheel is laid out. Keep it as long as the result.
    py_files
        Modules, and archives of modules, that come with it.
    required
        As `SubmittedCode.required`; None: as the code itself says it.

    Raises
    ------
    TopologyError
        It is none of the three, it cannot be sent, or its script has a fault. Of a fault the
        message begins with the file and the line.
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
) -> SubmittedCode:
    beside = _required(given.resolve().parent)
    required = required or beside
    script_source.check(given, py_files, runs_here=required is None)
    script = given.resolve()  # Python, too, looks for modules where a link leads
    root = script.parent
    ignored = read(root)
    files = {script}
    for module in script_source.modules_beside(script, py_files):
        files.update(walk(root, ignored, module) if module.is_dir() else [module])
    if beside is not None:
        files.add(root / REQUIREMENTS)
    return SubmittedCode(
        root, script, tuple(sorted(files)), script_source.script_name(script), required
    )


def _of_folder(
    root: Path, py_files: Sequence[Path], required: tuple[str, str] | None
) -> SubmittedCode:
    files = tuple(walk(root, read(root)))
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
    return SubmittedCode(root, script, files, script_source.script_name(root.resolve()), required)


def _of_wheel(
    given: Path, folder: Path, py_files: Sequence[Path], required: tuple[str, str] | None
) -> SubmittedCode:
    laid_out = lay_out(given, folder)
    if required is None and laid_out.requires:
        required = ("\n".join(laid_out.requires), f"the METADATA of {given}")
    try:
        script_source.check(laid_out.script, [folder, *py_files], runs_here=required is None)
    except TopologyError as error:
        # The user knows the wheel, and not the folder.
        raise TopologyError(str(error).replace(f"{folder}/", f"{given}/", 1)) from error
    return SubmittedCode(
        root=folder,
        script=laid_out.script,
        files=tuple(sorted(path for path in folder.rglob("*") if path.is_file())),
        name=laid_out.name,
        required=required,
    )


def _required(root: Path) -> tuple[str, str] | None:
    file = root / REQUIREMENTS
    try:
        return (file.read_text(), str(file)) if file.exists() else None
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{file} cannot be read: {error}") from error


def _check_complete(code: SubmittedCode, py_files: Sequence[Path]) -> None:
    """Look for modules of the script that stay behind.

    Raises
    ------
    TopologyError
        For the first one.
    """
    resolved = [file.resolve() for file in code.files]
    travelling = {*resolved, *(folder for file in resolved for folder in file.parents)}
    for module in script_source.modules_beside(code.script, py_files):
        if module.resolve() not in travelling:
            raise TopologyError(
                f"{code.script} imports {module.stem}, and {module} stays behind: take it out of "
                f"{FILE}"
            )


FILE: Final = ".stormignore"

_NEVER: Final = frozenset({"__pycache__", "metastore_db", "spark-warehouse"})

#: Whether a file or folder stays behind, by its path from the top and whether it is a folder.
Ignored = Callable[[str, bool], bool]


def read(folder: Path) -> Ignored:
    """Return what stays behind of a folder.

    Raises
    ------
    TopologyError
        Its ``.stormignore`` cannot be read, or has a line that is no pattern.
    """
    file = folder / FILE
    try:
        lines = file.read_text().splitlines() if file.exists() else []
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f"{file} cannot be read: {error}") from error
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
    """Yield the files of a folder that do not stay behind, sorted by name in each folder.

    Parameters
    ----------
    root
        The folder that the patterns are meant from.
    ignored
        What stays behind.
    start
        The folder in it to begin in, `root` itself by default.

    Raises
    ------
    TopologyError
        A folder cannot be read, or has what cannot be sent: a link to a folder or to outside of
        `root`, a socket.
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
        f"{path} is {what}, which cannot be sent: remove it, or name it in {FILE} at the top"
    )


_MAIN = "/__main__.py"


@dataclass(frozen=True)
class LaidOut:
    """A wheel in a folder.

    Parameters
    ----------
    name
        Of its distribution.
    script
        Which of its files runs.
    requires
        What must be installed for it, a requirement in each item; without its extras.
    """

    name: str
    script: Path
    requires: tuple[str, ...]


def lay_out(wheel: Path, folder: Path) -> LaidOut:
    """Unpack a wheel into an empty folder.

    Raises
    ------
    TopologyError
        It cannot be read, is not pure, or has no script to run.
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
            _check(wheel, files)
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
    return LaidOut(str(name), folder / scripts[0], _requires(folder))


def _check(wheel: Path, files: list[zipfile.ZipInfo]) -> None:
    in_it = [info.filename for info in files]
    problem = manifest.limit_fault(len(files), sum(info.file_size for info in files))
    problem = problem or names.files_fault(in_it)
    if problem is None and any(name.partition("/")[0].endswith(".data") for name in in_it):
        problem = "it has a folder .data, which only an installation puts into its place"
    if problem is not None:
        raise TopologyError(f"the wheel {wheel} cannot be sent: {problem}")


def _requires(folder: Path) -> tuple[str, ...]:
    found = []
    for metadata in sorted(folder.glob("*.dist-info/METADATA")):
        message = BytesParser().parsebytes(metadata.read_bytes(), headersonly=True)
        for line in message.get_all("Requires-Dist", []):
            try:
                # A marker that only an extra makes true is an extra's.
                marker = Requirement(str(line)).marker
                if marker is None or "extra" not in str(marker):
                    found.append(str(line))
            except InvalidRequirement:
                found.append(str(line))  # whoever reads the requirements says what is wrong
    return tuple(found)
