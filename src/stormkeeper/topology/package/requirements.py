"""The requirements of a topology: which lines of a ``requirements.txt`` can be sent. Pure.

Every machine must install the same. So a line is a package by name, with versions, extras, markers
and hashes, or an address with fixed content: a file with its SHA-256, or a commit. Package indexes
are set on each machine and not sent, since an address may hold a password.

A requirement is *pinned* if it allows one version only. A package holds pinned ones only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Parsed
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidName, canonicalize_name

from stormkeeper.errors import TopologyError

#: Most requirements, and most characters of a line with its hashes. A large environment has some
#: hundreds, and a package with a wheel for each platform some fifty hashes.
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

#: The beginnings of pip's options (pip accepts shortened ones), and what to do instead.
_OPTIONS: Final = (
    (("-r", "--requirement", "-c", "--constraint"), _INSTEAD),
    (("-e", "--editable"), _BRING),
    (("-i", "-f", "--index", "--extra-index", "--find", "--no-index", "--trusted"), _FROM),
)


@dataclass(frozen=True)
class Requirement:
    """A requirement with its normalized name and its text in one line, always written the same."""

    name: str
    text: str
    is_pinned: bool
    line: int


def parse(text: str, file: str, base: Mapping[str, str]) -> tuple[Requirement, ...]:
    """Return the requirements in the order of the file.

    `base` has the versions of packages that every machine has and no topology can replace. A
    requirement of one of them is left out, and one of an extra of it gets that version.

    Raises
    ------
    TopologyError
        For the first invalid line, with its number and what to do, and without addresses.

    Examples
    --------
    >>> [r.text for r in parse("Requests == 2.32.5  # HTTP", "requirements.txt", {})]
    ['requests==2.32.5']
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
