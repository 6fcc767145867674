"""What of a changed configuration a running Pacemaker takes, and what waits for its next start."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf import Conf
from stormkeeper.conf.keys import is_secret

#: Keys whose new values hold from a reload on.
RELOADED: Final = frozenset(
    {
        "java.security.auth.login.config",
        "nimbus.daemon.user",
        "pacemaker.auth.writes",
        "pacemaker.childopts",
        "pacemaker.frame.timeout.secs",
        "pacemaker.handshake.timeout.secs",
        "pacemaker.kerberos.users",
        "pacemaker.max.connections",
        "pacemaker.max.connections.per.address",
        "pacemaker.output.timeout.secs",
        "pacemaker.path.max.bytes",
        "pacemaker.path.max.segments",
        "pacemaker.pulse.ttl.secs",
        "pacemaker.store.max.bytes",
        "pacemaker.tls.ca.file",
        "pacemaker.tls.certificate.file",
        "pacemaker.tls.client.auth",
        "pacemaker.tls.key.file",
        "pacemaker.tls.minimum.version",
        "task.heartbeat.frequency.secs",
    }
)
#: Keys of a Pacemaker's that are read once, at its start.
AT_START: Final = frozenset(
    {
        "pacemaker.auth.method",
        "pacemaker.bind.host",
        "pacemaker.engine",
        "pacemaker.metrics.bind.host",
        "pacemaker.metrics.port",
        "pacemaker.port",
        "pacemaker.thrift.message.size.max",
        "pacemaker.tls.enable",
    }
)
#: Keys whose values are not shown: JVM options may hold anything.
_HIDDEN: Final = frozenset({"pacemaker.childopts"})


@dataclass(frozen=True, slots=True)
class Reload:
    """A configuration that was read anew, beside the one that holds.

    Parameters
    ----------
    conf
        What is to hold from now on: the new values, but the old ones of the keys `AT_START`.
    changes
        What is new in it, in words.
    later
        What is new and waits for the next start, in words.
    """

    conf: Conf
    changes: tuple[str, ...]
    later: tuple[str, ...]

    def describe(self) -> str:
        """Return in a line what holds from now on, and what does not yet."""
        if not self.later:
            return "; ".join(self.changes) or "nothing has changed"
        now = "; ".join(self.changes) or "nothing is new that can hold at once"
        return f"{now}; for a restart only: {'; '.join(self.later)}"


def compare(old: Conf, new: Conf) -> Reload:
    """Tell what a reload changes.

    Parameters
    ----------
    old
        What holds.
    new
        What was read.
    """
    return Reload(
        new.with_values({key: old[key] for key in AT_START}),
        tuple(_change(key, old, new) for key in sorted(RELOADED) if old[key] != new[key]),
        tuple(_change(key, old, new) for key in sorted(AT_START) if old[key] != new[key]),
    )


def fingerprint(conf: Mapping[str, Any], keys: tuple[str, ...]) -> bytes:
    """Return a hash of the files that some keys name.

    A file that cannot be read counts as empty: whoever needs it reports the error.
    """
    digest = hashlib.sha256()
    for key in keys:
        try:
            content = Path(conf[key]).read_bytes() if conf[key] else b""
        except OSError:
            content = b""
        digest.update(len(content).to_bytes(8) + content)
    return digest.digest()


def _change(key: str, old: Conf, new: Conf) -> str:
    if key in _HIDDEN or is_secret(key):
        return key
    return f"{key} = {_shown(new[key])} (was {_shown(old[key])})"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)
