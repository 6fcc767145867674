"""The Python environment of a topology: its requirements, their pins and wheels, and its identity.

Every machine must install the same: a requirement is a package by name, or an address with fixed
content. Package indexes are not sent, since an address may hold a password. At the submission pip
pins the versions over PySpark and Stormkeeper, as on a machine of the cluster.

Topologies with equal requirements share an environment. Its folder has the identity as name: any
change of the installed packages, or of the Python below, gives another folder.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Parsed
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidName, canonicalize_name

import stormkeeper
from stormkeeper.daemon import children
from stormkeeper.errors import ChildError, TopologyError
from stormkeeper.extras import require

#: Rises when environments are built differently.
_FORMAT: Final = 1

#: Of a SHA-256: short enough for a script's first line, of which Linux reads 255 bytes.
DIGITS: Final = 32

#: A large environment has some hundreds; a line may have fifty hashes, one for each platform.
MAX_REQUIREMENTS: Final = 2000
MAX_LINE: Final = 16 * 1024

_HASH = re.compile(r"--hash[= ]\s*(sha256:[0-9a-f]{64})")
_COMMIT = re.compile(r"@[0-9a-f]{40}(#.*)?$")
_SHA256 = re.compile(r"(^|&)sha256=[0-9a-f]{64}(&|$)")
_ADDRESSED = re.compile(r"[\w.-]+\s*(\[.*?\])?\s*@")
_LOCAL = re.compile(r"[./~\\]|file:|(?!.*://).*\.(whl|zip|tar\.\w+|tgz)$", re.IGNORECASE)

_FROM = (
    "where packages come from is set on each machine of the cluster (pip.conf, PIP_INDEX_URL), "
    "and is not sent"
)
_BRING = (
    "put the code into the folder that is submitted, bring it with --py-files, or name a package "
    "of an index"
)
_NO_PATH = f"a path is none on the machines of the cluster: {_BRING}"
_INSTEAD = "write what stands in that file here"

#: The beginnings of pip's options (pip accepts shortened options), and the advice.
_OPTIONS: Final = (
    (("-r", "--requirement", "-c", "--constraint"), _INSTEAD),
    (("-e", "--editable"), _BRING),
    (("-i", "-f", "--index", "--extra-index", "--find", "--no-index", "--trusted"), _FROM),
)


@dataclass(frozen=True)
class Requirement:
    """A requirement; `text` is one line in a normal form."""

    name: str
    text: str
    is_pinned: bool
    line: int


def parse(text: str, file: str, base: Mapping[str, str]) -> tuple[Requirement, ...]:
    """Return the requirements of a ``requirements.txt``, in order.

    `base` has the versions of packages that every machine has and no topology can replace. A
    requirement of such a package is left out; with an extra, it gets that version. Raises
    `TopologyError` for the first invalid line, without addresses.
    """
    found: dict[str, Requirement] = {}
    for number, line in _logical_lines(text):
        where = f"{file}, line {number}"
        parsed, hashes = _parsed(line, where)
        name = _name(parsed, where)
        if name in base and (parsed.marker is None or parsed.marker.evaluate()):
            _check_base(parsed, name, base[name], where)
            if not parsed.extras:
                continue
            parsed.specifier = SpecifierSet(f"=={base[name]}")
        key = f"{name};{parsed.marker or ''}"
        if key in found:
            raise TopologyError(
                f"{where}: {name} stands in line {found[key].line} already: one line for each"
            )
        parsed.name = name
        found[key] = Requirement(
            name=name,
            text=" ".join([str(parsed), *(f"--hash={value}" for value in sorted(set(hashes)))]),
            is_pinned=_is_pinned(parsed),
            line=number,
        )
    if len(found) > MAX_REQUIREMENTS:
        raise TopologyError(
            f"{file} has {len(found):,} requirements, and may have {MAX_REQUIREMENTS:,}"
        )
    return tuple(found.values())


def pins_fault(pins: Sequence[str]) -> str | None:
    """Return why these are not texts of pinned requirements (`Requirement.text`), or None."""
    try:
        parsed = parse("\n".join(pins), "the list of requirements", {})
    except TopologyError as error:
        return str(error)
    if tuple(pins) != tuple(requirement.text for requirement in parsed):
        return "the requirements are not written as they should be"
    loose = next((requirement for requirement in parsed if not requirement.is_pinned), None)
    return None if loose is None else f"the requirement {loose.text!r} allows several versions"


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line's number and text, without comments, with its continuation lines."""
    joined, first = "", 0
    for number, physical in enumerate([*text.removeprefix("\ufeff").splitlines(), ""], 1):
        line = re.sub(r"(^|\s)#.*", "", physical)
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1]
            continue
        joined = (joined + line).strip()
        if joined:
            yield first, joined
        joined, first = "", 0


def _parsed(line: str, where: str) -> tuple[Parsed, list[str]]:
    if len(line) > MAX_LINE:
        raise TopologyError(f"{where}: it has {len(line):,} characters, and may have {MAX_LINE:,}")
    _check_option(line, where)
    specification, *options = re.split(r"\s+(?=--)", line)
    hashes = [match[1] for option in options if (match := _HASH.fullmatch(option))]
    if len(hashes) < len(options):
        raise TopologyError(
            f"{where}: behind a requirement may stand only hashes, as --hash=sha256:…, with 64 "
            "digits in lower case"
        )
    if not _ADDRESSED.match(specification):
        if _LOCAL.match(specification):
            raise TopologyError(f"{where}: {_NO_PATH}")
        if "://" in specification:
            raise TopologyError(
                f"{where}: write the package's name before an address: NAME @ ADDRESS"
            )
    try:
        parsed = Parsed(specification)
    except (InvalidRequirement, RecursionError) as error:
        if "://" in specification:  # the parser's message would show the address
            raise TopologyError(f"{where}: this is no requirement with an address") from error
        raise TopologyError(
            f"{where}: {specification!r} is no requirement: {_first(error)}"
        ) from error
    if parsed.url is not None:
        _check_address(parsed.url, where)
    return parsed, hashes


def _name(parsed: Parsed, where: str) -> str:
    # A parsed name may end in an underscore; its normal form is then no requirement.
    try:
        return canonicalize_name(parsed.name, validate=True)
    except InvalidName as error:
        raise TopologyError(f"{where}: no package can be called {parsed.name!r}") from error


def _first(error: BaseException) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _check_option(line: str, where: str) -> None:
    option = re.match(r"--?\w[\w-]*", line)
    if option is None:
        return
    name = option[0] if option[0].startswith("--") else option[0][:2]
    advice = (text for beginnings, text in _OPTIONS if name.startswith(beginnings))
    raise TopologyError(
        f"{where}: pip's option {name} cannot be sent: "
        + next(advice, "write packages and their versions only")
    )


def _check_address(address: str, where: str) -> None:
    try:
        parts = urlsplit(address)
        has_user = parts.username is not None
    except ValueError as error:
        raise TopologyError(f"{where}: the address cannot be read") from error
    if has_user or "${" in address:
        raise TopologyError(
            f"{where}: the address has a user, a password or a variable in it, which would be kept "
            "in the cluster: give the machines access (netrc, pip.conf), and leave it out"
        )
    if parts.scheme in {"", "file"}:
        raise TopologyError(f"{where}: {_NO_PATH}")
    if parts.scheme == "https" and _SHA256.search(parts.fragment):
        return
    if parts.scheme == "git+https" and _COMMIT.search(address):
        return
    raise TopologyError(
        f"{where}: what this address gives may change: use https://… with #sha256=… at its end, or "
        "git+https://…@COMMIT with the 40 digits of a commit"
    )


def _check_base(parsed: Parsed, name: str, version: str, where: str) -> None:
    if parsed.url is not None or not parsed.specifier.contains(version, prereleases=True):
        raise TopologyError(
            f"{where}: the cluster has {name} {version}, which no topology can replace: "
            "leave this line out, or allow that version"
        )


def _is_pinned(parsed: Parsed) -> bool:
    if parsed.url is not None:
        return True
    specifiers = list(parsed.specifier)
    if len(specifiers) != 1:
        return False
    only = specifiers[0]
    return only.operator == "===" or (only.operator == "==" and not only.version.endswith(".*"))


class Base(msgspec.Struct, frozen=True):
    """The Python and packages below an environment."""

    python: str
    abi: str
    platform: str
    stormkeeper: str
    pyspark: str

    @classmethod
    def here(cls) -> Base:
        """Return the base of this process; raises `MissingExtraError` without PySpark."""
        require("spark", "an environment for topologies", "pyspark")
        return cls(
            python=platform.python_version(),
            abi=str(sysconfig.get_config_var("SOABI")),
            platform=sysconfig.get_platform(),
            stormkeeper=stormkeeper.__version__,
            pyspark=metadata.version("pyspark"),
        )

    @property
    def versions(self) -> dict[str, str]:
        return {"pyspark": self.pyspark, "stormkeeper": self.stormkeeper}


def identity(pins: Iterable[str], base: Base, wheels: Iterable[str] = ()) -> str:
    """Return the identity of an environment, `DIGITS` hexadecimal digits.

    `wheels` has the SHA-256 of each wheel from the package itself. Raises `TopologyError` without
    pins: then the base is the environment.
    """
    required = sorted(set(pins))
    if not required:
        raise TopologyError("an environment without requirements is not built")
    facts = [_FORMAT, required, msgspec.structs.astuple(base), sorted(set(wheels))]
    return hashlib.sha256(msgspec.json.encode(facts)).hexdigest()[:DIGITS]


#: Pip may fetch large files to see what they require.
PIN_SECS: Final = 900.0

_QUIETLY: Final = ("--no-input", "--disable-pip-version-check", "--progress-bar=off")

#: On every machine that runs topologies.
_CLUSTERS = "stormkeeper[spark]"


def pin(
    required: Sequence[Requirement], base: Base, *, file: str, secs: float = PIN_SECS
) -> tuple[str, ...]:
    """Return the pins of everything that must be installed, sorted.

    Raises `TopologyError` with pip's last lines, and `file`, the source of the requirements.
    """
    if not required:
        return ()
    with tempfile.TemporaryDirectory(prefix="stormkeeper-pins-") as temporary:
        folder = Path(temporary)
        there = _stand_in(folder / "cluster")
        report = folder / "report.json"
        lines, constraints = folder / "requirements.txt", folder / "constraints.txt"
        lines.write_text(_in_their_lines(required))
        constraints.write_text("".join(f"{n}=={v}\n" for n, v in base.versions.items()))
        python = str(folder / "cluster" / "bin" / "python")
        pip = [sys.executable, "-P", "-m", "pip", "--python", python, "install", "--dry-run"]
        pip += [*_QUIETLY, "--report", str(report)]
        pip += ["--requirement", str(lines), "--constraint", str(constraints)]
        try:
            children.run(
                "pip", pip, log=folder / "log", env={**os.environ, "PIP_USER": "0"}, secs=secs
            )
        except ChildError as error:
            said = str(error).replace(str(lines), file)
            raise TopologyError(f"the requirements of {file} cannot be pinned: {said}") from error
        return _pins(required, msgspec.json.decode(report.read_bytes(), type=_Report), there)


class _Metadata(msgspec.Struct):
    name: str
    version: str


class _Install(msgspec.Struct):
    metadata: _Metadata


class _Report(msgspec.Struct):
    """The part of pip's report that is read (pip's documentation, "Installation Report")."""

    install: list[_Install]


def _in_their_lines(required: Sequence[Requirement]) -> str:
    """Keep the lines of the file, which pip names in errors."""
    texts = {requirement.line: requirement.text for requirement in required}
    return "\n".join(texts.get(number, "") for number in range(1, max(texts) + 1))


def _pins(
    required: Sequence[Requirement], report: _Report, there: dict[str, str]
) -> tuple[str, ...]:
    chosen: dict[str, str] = {
        canonicalize_name(install.metadata.name): install.metadata.version
        for install in report.install
    }
    pins = {name: f"{name}=={version}" for name, version in chosen.items()}
    for requirement in required:
        parsed = Parsed(requirement.text.partition(" --hash=")[0])
        if parsed.marker is not None and not parsed.marker.evaluate():
            continue
        name = requirement.name
        if parsed.url is not None:
            pins[name] = requirement.text
        elif name in chosen or name in there:
            # Another machine may have another version of it.
            hashes = requirement.text.partition(" --hash=")[1:]
            pins[name] = f"{name}=={chosen.get(name) or there[name]}{''.join(hashes)}"
    return tuple(sorted(pins.values()))


def _stand_in(place: Path) -> dict[str, str]:
    """Make an environment with the metadata of a worker machine's packages; return versions."""
    venv.EnvBuilder(symlinks=True).create(place)
    packages = next((place / "lib").glob("python*/site-packages"))
    there: dict[str, str] = {}
    left, seen = [Parsed(_CLUSTERS)], set[tuple[str, str]]()
    while left:
        parsed = left.pop()
        found, name = _distribution(parsed.name), canonicalize_name(parsed.name)
        if found is None:
            continue
        if name not in there:
            there[name] = found.version
            info = packages / f"{name.replace('-', '_')}-{found.version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(found.read_text("METADATA") or "", "utf-8")
        for extra in {"", *parsed.extras}:
            if (name, extra) not in seen:
                seen.add((name, extra))
                left += _needs(found, extra)
    return there


def _distribution(name: str) -> metadata.Distribution | None:
    try:
        return metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None


def _needs(distribution: metadata.Distribution, extra: str) -> list[Parsed]:
    environment: Any = {"extra": extra}
    parsed = map(Parsed, distribution.requires or ())
    return [one for one in parsed if one.marker is None or one.marker.evaluate(environment)]


#: Pip may fetch a gigabyte, or compile sources.
GATHER_SECS: Final = 1800.0


def gather(pins: Sequence[str], folder: Path, *, file: str) -> tuple[Path, ...]:
    """Fetch or build the wheels of pinned requirements in an empty folder; return them, sorted.

    The wheels fit this machine. Raises `TopologyError` if pip fails, or for a requirement with an
    address, which every machine would use anyway.
    """
    addressed = next((pin for pin in pins if "://" in pin), None)
    if addressed is not None:
        raise TopologyError(
            f"{file}: the wheel of {addressed.partition(' ')[0]} cannot be brought, as it is"
            " required by its address: name it by its version, or leave out --with-wheels"
        )
    if not pins:
        return ()
    lines = folder / "requirements.txt"
    lines.write_text("".join(f"{pin}\n" for pin in pins))
    pip = [sys.executable, "-P", "-m", "pip", "wheel", "--no-deps", *_QUIETLY]
    pip += ["--wheel-dir", str(folder / "wheels"), "--requirement", str(lines)]
    try:
        children.run("pip", pip, log=folder / "log", env={**os.environ}, secs=GATHER_SECS)
    except ChildError as error:
        raise TopologyError(f"the wheels for {file} cannot be gathered: {error}") from error
    return tuple(sorted((folder / "wheels").glob("*.whl")))
