"""The TLS side of a Pacemaker's port: the context, words for the log, and the transport.

Python's own choice of ciphers stands. Client certificates are asked for only together with a file
of who may have signed them: what the system trusts signs for anybody.

The transport does what ``loop.start_tls`` does, with a small buffer for each connection. asyncio
makes one of 256 KiB for every connection, all of it touched, and a Pacemaker has thousands. It has
no word for the size, so its protocol is used here by name, which the documentation of asyncio does
not mention. Nothing of it is changed for others in the process, and no underscore of it is used.
Its attribute `max_size`, its arguments and what every `asyncio.BufferedProtocol` has are used, and
the tests of this module fail if they change.
"""

import asyncio
import logging
import ssl
from asyncio import sslproto
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.tls_files import Certificate, load_named_pair, read_certificate

_log = logging.getLogger(__name__)

_ENABLE: Final = "pacemaker.tls.enable"
_CERTIFICATE: Final = "pacemaker.tls.certificate.file"
_KEY: Final = "pacemaker.tls.key.file"
_AUTHORITIES: Final = "pacemaker.tls.ca.file"
_CLIENT_AUTH: Final = "pacemaker.tls.client.auth"
_MINIMUM: Final = "pacemaker.tls.minimum.version"

#: The keys that name files, whose contents may change while their names stay.
FILES: Final = (_CERTIFICATE, _KEY, _AUTHORITIES)

#: How long before a certificate ends that is told: time to notice, and to have another one made.
_SOON: Final = timedelta(days=14)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_CERTIFICATES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

#: What OpenSSL's reasons mean here, by their names.
_FAULTS: Final = {
    "HTTP_REQUEST": "plain HTTP on a port with TLS",
    "WRONG_VERSION_NUMBER": f"no TLS on a port with TLS; set {_ENABLE}: true for this client too",
    "RECORD_LAYER_FAILURE": f"no TLS on a port with TLS; set {_ENABLE}: true for this client too",
    "UNSUPPORTED_PROTOCOL": f"a version of TLS older than {_MINIMUM}",
    "TLSV1_ALERT_PROTOCOL_VERSION": f"a version of TLS other than from {_MINIMUM} on",
    "NO_SHARED_CIPHER": "no cipher that both sides have",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": f"no client certificate, and {_CLIENT_AUTH} is required",
    "TLSV1_ALERT_UNKNOWN_CA": "the client does not trust who signed this server's certificate"
    f" (its {_AUTHORITIES})",
    "SSLV3_ALERT_BAD_CERTIFICATE": "the client does not accept this server's certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "this server's certificate has expired, says the client",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "the client does not accept this server's certificate",
    "UNEXPECTED_EOF_WHILE_READING": "the client went away within the TLS handshake",
}

#: Bytes that are decrypted at a time: a record has no more.
TLS_BYTES: Final = 16_384

#: A fatal alert, protocol_version (RFC 8446 §6): what a client that speaks no TLS is told, since
#: OpenSSL tells it nothing. One of ours knows by it that another try is in vain.
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x46"

#: How TLS begins: with a record of the type handshake, or, in the form of SSL 2, a length with this
#: bit.
_HANDSHAKE: Final = 0x16
_SSL_2: Final = 0x80


class ServerContext(ssl.SSLContext):
    """What a server speaks TLS with; knows the certificate that it shows."""

    #: None if it cannot be read.
    certificate: Certificate | None = None


def server_context(conf: Conf) -> ServerContext | None:
    """Return what a Pacemaker's port speaks TLS with; None without TLS.

    A certificate that clients do not accept, or soon will not, is warned of.

    Raises
    ------
    ConfigError
        When a file is not named, cannot be read or is not what it should be; with key and file.
    """
    if not conf[_ENABLE]:
        return None
    certificate, key = _named(conf, _CERTIFICATE), _named(conf, _KEY)
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[conf[_MINIMUM]]
    # A client could have the server compute without end by renegotiating.
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_pair(context, certificate, key)
    context.certificate = read_certificate(certificate)
    wrong = what_is_wrong(context.certificate, datetime.now(UTC))
    if wrong:
        _log.warning("%s: %s: %s", _CERTIFICATE, certificate, wrong)
    wanted = conf[_CLIENT_AUTH]
    context.verify_mode = _CLIENT_CERTIFICATES[wanted]
    if wanted == "none":
        return context
    if conf[_AUTHORITIES] is None:
        raise ConfigError(
            f"{_AUTHORITIES}: must name who signs clients' certificates, as {_CLIENT_AUTH} is"
            f" {wanted}; whom the system trusts signs for anybody"
        )
    _load_authorities(context, _named(conf, _AUTHORITIES))
    return context


def what_is_wrong(certificate: Certificate | None, now: datetime) -> str:
    """Say why clients do not accept a server's certificate, or soon will not; empty if they do."""
    if certificate is None:
        return "when the certificate ends cannot be read"
    whose = f"the certificate of {certificate.subject!r}"
    begins, ends = shown(certificate.begins), shown(certificate.ends)
    if certificate.ends <= now:
        return f"{whose} expired at {ends}: clients do not accept it"
    if certificate.begins > now:
        return f"{whose} is not valid before {begins} (until {ends}): clients do not accept it yet"
    if certificate.ends - now < _SOON:
        return f"{whose} ends at {ends}, in less than {_SOON.days} days: renew it, and reload"
    return ""


def shown(moment: datetime) -> str:
    """Return a moment for the log."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _named(conf: Conf, key: str) -> Path:
    if conf[key] is None:
        raise ConfigError(f"{key}: must name a file, as {_ENABLE} is true")
    path = Path(conf[key])
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ConfigError(f"{key}: {path}: {error.strerror}") from error


def _load_pair(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    load_named_pair(context, (_CERTIFICATE, certificate), (_KEY, key))
    with suppress(OSError):
        if key.stat().st_mode & 0o077:
            _log.warning("%s: %s can be read by others than its owner: chmod 600", _KEY, key)


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise ConfigError(f"{_AUTHORITIES}: {path} holds no certificates in PEM") from error


def describe(connection: Any) -> tuple[str, str]:
    """Return how a connection is encrypted, and whose its certificate is.

    Parameters
    ----------
    connection
        An `ssl.SSLObject` or `ssl.SSLSocket` after its handshake.

    Returns
    -------
    tuple of (version, name)
        ``TLSv1.3``; and, where the client gave a certificate, its common name or the first of its
        alternative names, quoted. Empty without one.
    """
    certificate = connection.getpeercert() or {}
    names = [
        value
        for part in certificate.get("subject", ())
        for key, value in part
        if key == "commonName"
    ]
    names += [value for _, value in certificate.get("subjectAltName", ())]
    if not certificate:
        return connection.version() or "TLS", ""
    return connection.version() or "TLS", repr(names[0]) if names else "somebody without a name"


def fault_of(error: BaseException) -> str:
    """Say why a TLS handshake failed, in a line for the operator."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    # asyncio aborts a handshake that takes too long, without an error of the system's.
    if isinstance(error, TimeoutError | ConnectionAbortedError) and not getattr(error, "errno", 0):
        return "TLS handshake not finished in time (pacemaker.handshake.timeout.secs)"
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    said = _FAULTS.get(str(reason))
    if said is not None:
        return f"TLS handshake failed: {said}"
    if isinstance(error, ConnectionError) or not reason:
        return "TLS handshake failed: the client went away"
    return f"TLS handshake failed: {str(reason).replace('_', ' ').lower()}"


class _SmallTls(sslproto.SSLProtocol):
    max_size = TLS_BYTES
    #: The connection, until the client has sent something.
    below: asyncio.Transport | None = None
    #: Where that is put.
    taken: memoryview

    def get_buffer(self, n: int) -> memoryview:
        self.taken = super().get_buffer(n)
        return self.taken

    def buffer_updated(self, nbytes: int) -> None:
        if self.below is not None:
            if self.taken[0] != _HANDSHAKE and self.taken[0] < _SSL_2:
                self.below.write(_ALERT)
            self.below = None
        super().buffer_updated(nbytes)


async def secure(
    below: asyncio.Transport,
    protocol: asyncio.BufferedProtocol,
    context: ssl.SSLContext,
    *,
    handshake_timeout: float,
    shutdown_timeout: float,
) -> None:
    """Speak TLS on a connection, as its server; return when the client has done its part.

    Parameters
    ----------
    below
        The connection, which is not read from; it is from now on.
    protocol
        Is given, by then, a transport with the extra information ``ssl_object``.
    context
        How TLS is spoken.
    handshake_timeout, shutdown_timeout
        Seconds for TLS to begin, and to end.

    Raises
    ------
    OSError
        If it did not come to that; the connection is closed.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    tls = _SmallTls(
        loop,
        protocol,
        context,
        done,
        server_side=True,
        ssl_handshake_timeout=handshake_timeout,  # type: ignore[arg-type]  # as start_tls does
        ssl_shutdown_timeout=shutdown_timeout,
    )
    tls.below = below
    below.set_protocol(tls)
    tls.connection_made(below)
    below.resume_reading()
    try:
        await done
    except BaseException:
        below.close()
        raise
