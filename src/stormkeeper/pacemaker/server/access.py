"""Who may do what on a Pacemaker: the rules of its configuration, as one value."""

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.sasl import Mechanism, methods
from stormkeeper.sasl.login_file import login

_log = logging.getLogger(__name__)

#: Methods for which the JAAS file holds passwords; for KERBEROS it names a keytab.
_WITH_PASSWORDS: Final = ("DIGEST", "SCRAM")


def _nobody(authorization_id: str) -> bool:  # noqa: ARG001
    return False


@dataclass(frozen=True, slots=True)
class Policy:
    """What a client may do before it has authenticated, and how it does that.

    Parameters
    ----------
    method
        ``pacemaker.auth.method``. With NONE everyone may do everything; with any other, reading
        is for those who have authenticated.
    mechanism
        Makes the server's half of one authentication; None with NONE.
    is_authorised
        Whether somebody who has proved who they are may read.
    authenticates_writers
        Whether writing and deleting, too, are for those who have authenticated.
    handshake_timeout
        Seconds that a client has to authenticate, once it has begun to.
    fingerprint
        Another for another JAAS file; tells nothing of the passwords in it. Whoever authenticated
        under another must do so anew.
    keytab
        Another for another content of the keytab that the JAAS file names. Those who have
        authenticated stay: a service's key is renewed as a matter of course, and says nothing of
        them.
    """

    method: str = "NONE"
    mechanism: Callable[[], Mechanism] | None = None
    is_authorised: Callable[[str], bool] = _nobody
    authenticates_writers: bool = False
    handshake_timeout: float = 10.0
    fingerprint: bytes = field(default=b"", repr=False)
    keytab: bytes = field(default=b"", repr=False)

    @property
    def everyone_may_read(self) -> bool:
        """Whether reading needs no authentication."""
        return self.mechanism is None

    @property
    def everyone_may_write(self) -> bool:
        """Whether writing and deleting need no authentication."""
        return self.mechanism is None or not self.authenticates_writers

    @classmethod
    def from_conf(cls, conf: Conf) -> Self:
        """Read the policy of a configuration, and the files that this names.

        Raises
        ------
        ConfigError
            When the JAAS file or something in it is missing or wrong, or writers shall
            authenticate and there is no method by which they could.
        """
        method: str = conf["pacemaker.auth.method"]
        authenticates_writers: bool = conf["pacemaker.auth.writes"]
        mechanism = methods.server_mechanism(conf)
        if mechanism is None and (authenticates_writers or method != "NONE"):
            raise ConfigError(
                "pacemaker.auth.writes: writers can only authenticate where there is a method: set"
                " pacemaker.auth.method to DIGEST, KERBEROS or SCRAM, or pacemaker.auth.writes to"
                " false"
            )
        return cls(
            method=method,
            mechanism=mechanism,
            is_authorised=lambda name: methods.authorised(conf, name),
            authenticates_writers=authenticates_writers,
            handshake_timeout=conf["pacemaker.handshake.timeout.secs"],
            fingerprint=_fingerprint(conf),
            keytab=_keytab(conf),
        )


def _fingerprint(conf: Conf) -> bytes:
    """Tell one content of the JAAS file from another; warn if others can read passwords in it."""
    file, method = methods.login_file(conf), conf["pacemaker.auth.method"]
    if file is None or method == "NONE":
        return b""
    path = file.path
    try:
        if method in _WITH_PASSWORDS and path.stat().st_mode & 0o077:
            _log.warning(
                "%s, which holds passwords, can be read by others than its owner: chmod 600", path
            )
        return hashlib.sha256(path.read_bytes()).digest()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error


def _keytab(conf: Conf) -> bytes:
    """Tell one content of the server's keytab from another, where the JAAS file names it."""
    if conf["pacemaker.auth.method"] != "KERBEROS":
        return b""
    path = login(conf, methods.SERVER_SECTION).options.get("keyTab", "").removeprefix("FILE:")
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest() if path else b""
    except OSError:
        return b""  # who takes the key out of it says what is wrong
