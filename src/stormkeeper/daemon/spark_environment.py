"""Prepares what a process with Spark's JVM needs: its environment, Java, and files of properties.

Spark takes home, configuration, user and address from the environment, which may lack some in a
container, and name another Spark in a shell.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pwd
import re
import shlex
import shutil
import socket
import string
import struct
import subprocess
import tempfile
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final

from stormkeeper.errors import EngineError

log = logging.getLogger(__name__)

MINIMUM_VERSION: Final = 17

_VERSION_TIMEOUT_SECS: Final = 20.0

_RELEASE_LINE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_VERSION_OUTPUT = re.compile(r'version "([^"]+)"')

#: Variables with which PySpark runs or connects to another Spark.
FOREIGN_VARIABLES: Final = (
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_PIN_THREAD",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_API_MODE",
    "SPARK_CONF_DIR",
    "SPARK_CONNECT_MODE",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_ENV_LOADED",
    "SPARK_HOME",
    "SPARK_LOCAL_REMOTE",
    "SPARK_PREPEND_CLASSES",
    "SPARK_REMOTE",
    "SPARK_TESTING",
)

#: The user's name if the system has none.
NAMELESS: Final = "stormkeeper"

_JVM_OPTIONS: Final = "SPARK_SUBMIT_OPTS"

#: Spark's variable for a host's address, if the name does not resolve.
_ADDRESS: Final = "SPARK_LOCAL_IP"

#: No machine's address (RFC 5737); nothing is sent there.
_ELSEWHERE: Final = ("192.0.2.1", 9)

_ASCII_LOCALES: Final = {"", "C", "POSIX"}

#: Characters without a meaning in Java properties.
_PLAIN: Final = frozenset(string.ascii_letters + string.digits + "._-/")


def prepare(chosen: Mapping[str, object] | None = None, *, home: Path | None = None) -> None:
    """Prepare this process's environment for children with Spark; log removed variables.

    The children also get `chosen`, ``topology.environment``. Raises `EngineError` without a
    suitable Java, or a place for a home.
    """
    find_java({**os.environ, **{name: str(value) for name, value in (chosen or {}).items()}})
    if removed := clean(os.environ):
        log.warning("%s", removal_text(removed))
    complete(os.environ, home=home)


def clean(environ: MutableMapping[str, str]) -> list[str]:
    """Remove `FOREIGN_VARIABLES`; return the removed names."""
    return [name for name in FOREIGN_VARIABLES if environ.pop(name, None) is not None]


def removal_text(names: list[str]) -> str:
    return (
        f"{', '.join(names)} of the environment {'has' if len(names) == 1 else 'have'} no effect on"
        " Spark here: write Spark's settings as spark.* keys, and what a topology needs into"
        " topology.environment"
    )


def complete(environ: MutableMapping[str, str], *, home: Path | None = None) -> None:
    """Add a missing home, user's name and UTF-8 locale.

    The default `home` is a temporary folder of this process. Raises `EngineError` without a place
    for a home.
    """
    account = _account()
    if not _is_folder(environ.get("HOME")):
        of_account = account.pw_dir if account is not None else None
        environ["HOME"] = str(of_account if _is_folder(of_account) else _made(home))
    name = environ.get("USER") or environ.get("LOGNAME")
    name = name or (account.pw_name if account is not None else NAMELESS)
    environ.setdefault("USER", name)
    environ.setdefault("LOGNAME", name)
    options = environ.get(_JVM_OPTIONS, "")
    # The JVM asks the system for both, not the environment; without an answer it takes "?".
    needed = [] if account is not None else [f"-Duser.name={name}"]
    if account is None or not _is_folder(account.pw_dir):
        needed.append(f"-Duser.home={environ['HOME']}")
    missing = [shlex.quote(each) for each in needed if each.partition("=")[0] not in options]
    if missing:
        environ[_JVM_OPTIONS] = " ".join([*missing, options]).rstrip()
    _complete_locale(environ)


def complete_address(environ: MutableMapping[str, str], master: str) -> None:
    """Set this host's address for Spark if the host's name does not resolve.

    Asks the name service, which may take seconds.
    """
    if _ADDRESS in environ or "SPARK_LOCAL_HOSTNAME" in environ:
        return
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        environ[_ADDRESS] = "127.0.0.1" if master.startswith("local") else _outward_address()
        log.info(
            "the name of this host, %s, does not resolve: Spark uses the address %s (%s)",
            *(socket.gethostname(), environ[_ADDRESS], _ADDRESS),
        )


def login_name(environ: Mapping[str, str]) -> str | None:
    """Return the name for Hadoop's login if the system has none for this user."""
    if _account() is not None:
        return None
    return environ.get("HADOOP_USER_NAME") or environ.get("USER") or NAMELESS


def is_home_writable(environ: Mapping[str, str]) -> bool:
    account = _account()
    home = account.pw_dir if account is not None else ""
    return os.access(home if _is_folder(home) else environ.get("HOME", ""), os.W_OK | os.X_OK)


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the ``java`` executable of ``JAVA_HOME``, or else of ``PATH``.

    Raises `EngineError`, with the remedy, if missing, broken, or older than 17.
    """
    home = environ.get("JAVA_HOME")
    if home:
        found = str(Path(home) / "bin" / "java")
        remedy = "point JAVA_HOME at one, or unset JAVA_HOME to use the java of PATH"
        if not os.access(found, os.X_OK):
            raise _no_java(f"JAVA_HOME={home} has no bin/java that can be run", remedy)
    else:
        found = shutil.which("java", path=environ.get("PATH", os.defpath)) or ""
        remedy = (
            "install one (on Debian or Ubuntu: apt-get install openjdk-17-jre-headless) or point"
            " JAVA_HOME at it"
        )
        if not found:
            raise _no_java("JAVA_HOME is not set, and PATH has no java", remedy)
    version = java_version(Path(found))
    named = f"{found}, of JAVA_HOME," if home else f"{found}, of PATH,"
    if version is None:
        raise _no_java(f"{named} does not run", remedy)
    if version < MINIMUM_VERSION:
        raise _no_java(f"{named} is version {version}", remedy)
    return Path(found)


def java_version(executable: Path) -> int | None:
    """Return the feature version of a ``java`` (8, 11, 17…); None for a broken executable."""
    numbers = re.findall(r"\d+", java_release(executable) or "")
    if not numbers:
        return None
    # Before Java 9: 1.8.0_392.
    return int(numbers[1]) if numbers[0] == "1" and len(numbers) > 1 else int(numbers[0])


def java_release(executable: Path) -> str | None:
    """Return the release of a ``java``, such as 17.0.15; None for a broken executable."""
    # A file of the JDK or JRE has the version, without a JVM's start.
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
    return match[1] if match else None


def java_properties(values: Mapping[str, str]) -> str:
    """Return the text of a file of Java properties (java.util.Properties.load)."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in values.items())


def _escaped(value: str) -> str:
    units = struct.iter_unpack(">H", value.encode("utf-16-be", "surrogatepass"))
    return "".join(chr(unit) if chr(unit) in _PLAIN else f"\\u{unit:04x}" for (unit,) in units)


def _no_java(cause: str, remedy: str) -> EngineError:
    return EngineError(f"Java {MINIMUM_VERSION} or newer is needed ({cause}): {remedy}")


def _account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        return None


def _is_folder(path: str | None) -> bool:
    return bool(path) and Path(path or "").is_absolute() and os.access(path or "", os.X_OK)


def _made(home: Path | None) -> Path:
    if home is not None:
        with contextlib.suppress(OSError):
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            return home.absolute()
    try:
        made = tempfile.mkdtemp(prefix="stormkeeper-home-")
    except OSError as error:
        raise EngineError(
            f"this user has no home, and there is no temporary folder ({error}): set HOME or TMPDIR"
            " to a folder that can be written"
        ) from error
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return Path(made)


def _complete_locale(environ: MutableMapping[str, str]) -> None:
    names = ("LC_ALL", "LC_CTYPE", "LANG")
    name = next((each for each in names if environ.get(each)), "LC_CTYPE")
    if environ.get(name, "") in _ASCII_LOCALES:
        # Otherwise the JVM can name only ASCII files.
        environ["LC_ALL" if name == "LC_ALL" else "LC_CTYPE"] = "C.UTF-8"
        environ["PYTHONUTF8"] = "1"
        environ.pop("PYTHONIOENCODING", None)


def _outward_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
