"""Storm's keys of access control and addresses that Stormkeeper does not support.

Nimbus and supervisors authenticate no callers, so they refuse to start with a configuration that
asks for access control, unless `IGNORE` is true. Empty values and Storm's defaults are accepted.
The keys of Pacemaker's and ZooKeeper's authentication are supported, and not here.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf.layers import Conf, Finding
from stormkeeper.conf.yaml_text import key_lines, read
from stormkeeper.errors import ConfigError

#: Lets a daemon start nevertheless.
IGNORE: Final = "stormkeeper.ignore.security.keys"

_REFUSED: Final = (
    "asks for access control, which Stormkeeper does not have: storm nimbus and storm supervisor do"
    f" not start with it, unless {IGNORE} is true"
)

#: Values of any key that ask for nothing: empty, or a default of Storm's, now and before 1.0.
_EMPTY: Final[tuple[Any, ...]] = (None, "", [], {}, False, 0, -1)
_DEFAULT: Final = re.compile(
    r"(org\.apache|backtype)\.storm\.security\.auth\.(SimpleTransportPlugin"
    r"|authorizer\.(Noop|Impersonation)Authorizer|DefaultPrincipalToLocal|ShellBasedGroupsMapping"
    r"|DefaultHttpCredentialsPlugin)|drpc-auth-acl\.yaml"
)

#: Keys that ask for access control or encryption, except with these values.
_ASKS: Final = frozenset(
    (
        "drpc.authorizer",
        "drpc.authorizer.acl",
        "drpc.authorizer.acl.filename",
        "drpc.authorizer.acl.strict",
        "drpc.http.creds.plugin",
        "drpc.http.filter",
        "drpc.http.filter.params",
        "drpc.invocations.thrift.transport",
        "drpc.thrift.transport",
        "logs.groups",
        "logs.users",
        "logviewer.filter",
        "logviewer.filter.params",
        "nimbus.admins",
        "nimbus.admins.groups",
        "nimbus.authorizer",
        "nimbus.daemon.users",
        "nimbus.groups",
        "nimbus.impersonation.acl",
        "nimbus.impersonation.authorizer",
        "nimbus.supervisor.users",
        "nimbus.thrift.client.use.tls",
        "nimbus.thrift.tls.port",
        "nimbus.thrift.tls.server.only",
        "nimbus.thrift.transport",
        "nimbus.users",
        "storm.auth.simple-acl.admins",
        "storm.auth.simple-acl.users",
        "storm.auth.simple-acl.users.commands",
        "storm.auth.simple-white-list.users",
        "storm.blobstore.acl.validation.enabled",
        "storm.doAsUser",
        "storm.group.mapping.service",
        "storm.group.mapping.service.params",
        "storm.messaging.netty.authentication",
        "storm.messaging.netty.tls.enable",
        "storm.principal.tolocal",
        "storm.thrift.transport",
        "storm.zookeeper.drpcACL",
        "supervisor.authorizer",
        "supervisor.run.worker.as.user",
        "supervisor.thrift.client.use.tls",
        "supervisor.thrift.tls.client.auth.required",
        "supervisor.thrift.transport",
        "topology.groups",
        "topology.readonly.groups",
        "topology.readonly.users",
        "topology.users",
        "topology.worker.nimbus.thrift.client.use.tls",
        "ui.filter",
        "ui.filter.params",
        "ui.groups",
        "ui.http.creds.plugin",
        "ui.users",
        "x509.cert.principal.to.local.regex",
    )
)

#: Keys that ask for TLS: ports, and files with private keys and certificates.
_ASKS_FOR_TLS: Final = re.compile(
    r"((nimbus|supervisor)\.thrift\.tls\.(server|client)"
    r"|storm\.messaging\.netty\.tls(\.client)?|(drpc|logviewer|ui)\.https)"
    r"\.(keystore|truststore|key|cert)\.path"
    r"|(drpc|logviewer|ui)\.https\.(port|(need|want)\.client\.auth)"
)

#: Keys of servers without effect, with the reason.
_NOWHERE: Final = {
    "drpc.servers": "there is no DRPC here",
    "storm.exhibitor.servers": "Exhibitor is not asked: name the ensemble's servers in"
    " storm.zookeeper.servers",
    "transactional.zookeeper.servers": "there is no Trident here",
    "blobstore.hdfs.principal": "blobs are on the Nimbuses' own disks",
    "storm.hdfs.login.principal": "blobs are on the Nimbuses' own disks",
}

#: Not "credential" and "token": Storm's keys of these names hold classes and times.
_PASSWORD: Final = re.compile(r"passw(or)?d|payload|secret|(access|private)[._]?key", re.IGNORECASE)


def asks(values: Mapping[str, Any]) -> list[str]:
    return sorted(
        key
        for key, value in values.items()
        if (key in _ASKS or _ASKS_FOR_TLS.fullmatch(key))
        and value not in _EMPTY
        and not (isinstance(value, str) and _DEFAULT.fullmatch(value))
    )


def check(conf: Conf) -> list[str]:
    """Return warnings about keys of access control that `IGNORE` permits.

    Without `IGNORE` raises `ConfigError`, with each key and its place.
    """
    keys = [_named(conf, key) for key in asks(conf)]
    if keys and not conf[IGNORE]:
        raise ConfigError(
            f"the configuration asks for access control, which Stormkeeper does not have:"
            f" {', '.join(keys)}. Remove the keys, or set {IGNORE} to true to start without"
            " access control, where only trusted machines reach this one"
        )
    if not keys:
        return []
    return [f"access control is off, as {IGNORE} is true; without effect: {', '.join(keys)}"]


def findings(path: Path) -> list[Finding]:
    """Return findings about a file's keys, in the file's order."""
    try:
        text = path.read_bytes()
        values = read(text)
    except (OSError, ConfigError):
        return []
    if not isinstance(values, dict):
        return []
    lines, is_error = key_lines(text), values.get(IGNORE) is not True
    return [
        Finding(key, f"{path}: line {lines[key]}: {key}: {_REFUSED}", is_error)
        for key in sorted(asks(values), key=lines.__getitem__)
    ]


def of_topology(own: Iterable[str]) -> Iterator[str]:
    for key in own:
        if key in _ASKS and key.startswith("topology."):
            yield f"{key} has no effect: Stormkeeper does not check who calls"


def without_effect(conf: Conf) -> Iterator[str]:
    for key, why in _NOWHERE.items():
        if conf.get(key) not in _EMPTY:
            yield f"{_named(conf, key)} has no effect: {why}"
    host, seeds = conf["nimbus.host"], conf["nimbus.seeds"]
    if host is not None and seeds != [host]:
        yield (
            f"{_named(conf, 'nimbus.host')} has no effect: nimbus.seeds is set, to"
            f" {', '.join(seeds)}"
        )


def readable_secrets(conf: Conf) -> Iterator[str]:
    """Yield warnings about files with passwords that every user can read."""
    for path in conf.files:
        try:
            is_readable = path.stat().st_mode & stat.S_IROTH and all(
                folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents
            )
        except OSError:  # removed since it was read
            continue
        secret = [key for key in _lines(path) if _is_password(key, conf.get(key))]
        if is_readable and secret:
            yield (
                f"{path} can be read by every user of this machine and holds {', '.join(secret)}:"
                f" chmod o= {path}"
            )


def _is_password(key: str, value: Any) -> bool:
    return isinstance(value, str) and value != "" and _PASSWORD.search(key) is not None


def _named(conf: Conf, key: str) -> str:
    """Return a key with file and line, such as ``ui.filter (storm.yaml, line 3)``."""
    where = "-c" if conf.is_override(key) else _line(conf, key)
    return f"{key} ({where})" if where else key


def _lines(path: Path) -> dict[str, int]:
    try:
        return key_lines(path.read_bytes())
    except OSError:  # removed since it was read
        return {}


def _line(conf: Conf, key: str) -> str:
    for path in reversed(list(conf.files)):
        line = _lines(path).get(key)
        if line is not None:
            return f"{path}, line {line}"
    return ""
