"""What a ZooKeeper server's JVM is started with: class path, options, configuration files."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stormkeeper import extras
from stormkeeper.errors import LocalClusterError

#: What runs a server that is alone, and one that is a member of an ensemble.
MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
MEMBER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

#: What the server needs of PySpark's 280 jars, by name without version. With all of them it takes
#: 30 MB more memory and starts more slowly; all of them are used where one of these is not found.
JARS = (
    "zookeeper",
    "zookeeper-jute",
    "slf4j-api",
    "log4j-api",
    "log4j-core",
    "log4j-slf4j2-impl",
    "metrics-core",
    "commons-io",
    "snappy-java",
    "audience-annotations",
    "netty-buffer",
    "netty-codec",
    "netty-codec-base",
    "netty-common",
    "netty-handler",
    "netty-resolver",
    "netty-transport",
    # Clients that come with TLS.
    "netty-transport-classes-epoll",
    "netty-transport-native-unix-common",
    "netty-tcnative-classes",
)

#: The serial collector and the C1 compiler: a small, quick JVM. A larger heap than a development
#: cluster fills costs nothing until it is filled.
JVM_OPTIONS = (
    "-Xms16m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:+ExitOnOutOfMemoryError",
    # A JVM that is killed leaves nothing in the system's temporary folder.
    "-XX:-UsePerfData",
    "-Dzookeeper.admin.enableServer=false",
    "-Dzookeeper.jmx.log4j.disable=true",
    "-Dlog4j2.disable.jmx=true",
    "-Dzookeeper.forceSync=no",
    # The transaction log is preallocated in blocks of this many KiB; the default is 64 MiB.
    "-Dzookeeper.preAllocSize=1024",
)

#: Sessions may be shorter (tests) and longer (Storm's 20 s default fits anyway) than ZooKeeper's
#: own bounds of 2 and 20 ticks allow. Expiry is noticed at ticks, so ticks are short.
TICK_MILLIS = 250
MIN_SESSION_MILLIS = 500
MAX_SESSION_MILLIS = 120_000


def classpath() -> str:
    """Return the class path of a ZooKeeper server, out of PySpark's jars.

    Raises
    ------
    MissingExtraError
        PySpark is not installed.
    LocalClusterError
        It has no ZooKeeper among its jars.
    """
    extras.require("spark", "ZooKeeper, which is started out of PySpark's jars,", "pyspark")
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations or []) if spec else []
    folders = [Path(place) / "jars" for place in places]
    folder = next(filter(Path.is_dir, folders), Path("jars"))
    chosen = [sorted(folder.glob(f"{name}-[0-9]*.jar")) for name in JARS]
    if not chosen[0]:
        raise LocalClusterError(f"there is no zookeeper-*.jar in {folder}: re-install pyspark 4")
    if all(chosen):
        return os.pathsep.join(str(jar) for jars in chosen for jar in jars)
    return str(folder / "*")


def command(
    java: Path,
    classpath: str,
    settings: Path,
    logging: Path,
    *,
    options: Sequence[str] = (),
    main: str = MAIN_CLASS,
) -> list[str]:
    """Return the command of a server.

    Parameters
    ----------
    java, classpath
        What runs it, and out of what.
    settings, logging
        The files of `server_settings` and `logging_settings`.
    options
        Of the JVM; they prevail over `JVM_OPTIONS`.
    main
        `MAIN_CLASS` or `MEMBER_CLASS`.
    """
    return [
        *(str(java), *JVM_OPTIONS, f"-Dlog4j2.configurationFile={logging.as_uri()}", *options),
        *("-cp", classpath, main, str(settings)),
    ]


def main_class(settings: Mapping[str, str]) -> str:
    """Return what runs a server with these settings: they name the members of an ensemble."""
    return MEMBER_CLASS if any(key.startswith("server.") for key in settings) else MAIN_CLASS


def server_settings(
    data: Path, host: str, port: int, settings: Mapping[str, str] | None = None
) -> str:
    """Return the text of a ``zoo.cfg``; `settings` are added to ours, and prevail over them."""
    values = {
        "dataDir": str(data),
        "clientPortAddress": host,
        "clientPort": str(port),
        "tickTime": str(TICK_MILLIS),
        "minSessionTimeout": str(MIN_SESSION_MILLIS),
        "maxSessionTimeout": str(MAX_SESSION_MILLIS),
        "maxClientCnxns": "0",
        "4lw.commands.whitelist": "*",
        "autopurge.snapRetainCount": "3",
        "autopurge.purgeInterval": "1",
        **(settings or {}),
    }
    return "".join(f"{key}={_java_property(value)}\n" for key, value in values.items())


def logging_settings(log: Path) -> str:
    """Return the text of a ``log4j2.properties`` that writes warnings and errors to `log`."""
    values = {
        "status": "error",
        "appender.file.type": "File",
        "appender.file.name": "file",
        "appender.file.fileName": str(log),
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{ISO8601} %-5p %c{1} %m%n",
        "rootLogger.level": "warn",
        "rootLogger.appenderRef.file.ref": "file",
    }
    return "".join(f"{key}={_java_property(value)}\n" for key, value in values.items())


def _java_property(value: str) -> str:
    """Write a value as Java's Properties.load reads it: Latin-1, with backslash escapes."""
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)
