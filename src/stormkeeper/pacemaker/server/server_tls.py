"""TLS of a Pacemaker's port: context, texts for the log, and transport.

The transport does what ``loop.start_tls`` does, with a small buffer per connection: asyncio would
allocate 256 KiB. `asyncio.sslproto.SSLProtocol` is not documented; none of its private names is
used, and the tests fail if the class changes.
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

FILES: Final = (_CERTIFICATE, _KEY, _AUTHORITIES)

_SOON: Final = timedelta(days=14)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_CERTIFICATES: Final = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

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

TLS_BYTES: Final = 16_384

#: A fatal alert, protocol_version (RFC 8446 §6), for clients without TLS, as OpenSSL sends nothing.
#: Our client then does not try again.
_ALERT: Final = b"\x15\x03\x03\x00\x02\x02\x46"

# TLS begins with a handshake record or, in SSL 2's format, with a length that has this bit.
_HANDSHAKE: Final = 0x16
_SSL_2: Final = 0x80


class ServerContext(ssl.SSLContext):
    """A TLS context; `certificate` is None if the file cannot be parsed."""

    certificate: Certificate | None = None


def server_context(conf: Conf) -> ServerContext | None:
    """Make the context of the port; None without TLS; raise `ConfigError`."""
    if not conf[_ENABLE]:
        return None
    certificate, key = _named(conf, _CERTIFICATE), _named(conf, _KEY)
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[conf[_MINIMUM]]
    # Renegotiation would let a client keep the server computing.
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
            f"{_AUTHORITIES}: must name the authorities of clients' certificates, as"
            f" {_CLIENT_AUTH} is {wanted}; the system's authorities sign for anybody"
        )
    _load_authorities(context, _named(conf, _AUTHORITIES))
    return context


def what_is_wrong(certificate: Certificate | None, now: datetime) -> str:
    """Explain why clients reject the certificate, now or soon; empty if good."""
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
    """Return the TLS version and the quoted name in the client's certificate, if any."""
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
    return connection.version() or "TLS", repr(names[0]) if names else "a name that is missing"


def fault_of(error: BaseException) -> str:
    """Explain a failed TLS handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the client's certificate is not accepted: {error.verify_message}"
    # asyncio's error for a slow handshake has no errno.
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
    below: asyncio.Transport | None = None
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
    """Run a TLS handshake on a paused TCP transport.

    Raises `OSError`, with the connection closed, if the handshake fails.
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
