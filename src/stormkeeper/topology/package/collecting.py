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

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stormkeeper.errors import TopologyError
from stormkeeper.topology import faults, source
from stormkeeper.topology.package import ignoring, requirements, wheel

REQUIREMENTS: Final = "requirements.txt"

_SCRIPTS: Final = ("__main__.py", "topology.py")

#: What the specification of one of Spark's Declarative Pipelines is called.
_PIPELINES: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")


@dataclass(frozen=True)
class Code:
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
) -> Code:
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
        As `Code.required`; None: as the code itself says it.

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


def _of_script(given: Path, py_files: Sequence[Path], required: tuple[str, str] | None) -> Code:
    beside = _required(given.resolve().parent)
    required = required or beside
    source.check(given, py_files, runs_here=required is None)
    script = given.resolve()  # Python, too, looks for modules where a link leads
    root = script.parent
    ignored = ignoring.read(root)
    files = {script}
    for module in source.modules_beside(script, py_files):
        files.update(ignoring.walk(root, ignored, module) if module.is_dir() else [module])
    if beside is not None:
        files.add(root / REQUIREMENTS)
    return Code(root, script, tuple(sorted(files)), source.script_name(script), required)


def _of_folder(root: Path, py_files: Sequence[Path], required: tuple[str, str] | None) -> Code:
    files = tuple(ignoring.walk(root, ignoring.read(root)))
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
    source.check(script, py_files, runs_here=required is None)
    return Code(root, script, files, source.script_name(root.resolve()), required)


def _of_wheel(
    given: Path, folder: Path, py_files: Sequence[Path], required: tuple[str, str] | None
) -> Code:
    laid_out = wheel.lay_out(given, folder)
    if required is None and laid_out.requires:
        required = ("\n".join(laid_out.requires), f"the METADATA of {given}")
    try:
        source.check(laid_out.script, [folder, *py_files], runs_here=required is None)
    except TopologyError as error:
        # The user knows the wheel, and not the folder.
        raise TopologyError(str(error).replace(f"{folder}/", f"{given}/", 1)) from error
    return Code(
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


def _check_complete(code: Code, py_files: Sequence[Path]) -> None:
    """Look for modules of the script that stay behind.

    Raises
    ------
    TopologyError
        For the first one.
    """
    resolved = [file.resolve() for file in code.files]
    travelling = {*resolved, *(folder for file in resolved for folder in file.parents)}
    for module in source.modules_beside(code.script, py_files):
        if module.resolve() not in travelling:
            raise TopologyError(
                f"{code.script} imports {module.stem}, and {module} stays behind: take it out of "
                f"{ignoring.FILE}"
            )
