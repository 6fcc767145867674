"""TLS of clients: contexts from ``pacemaker.tls.*``, and the bytes of a connection.

`TlsStream` works on buffers in memory: two threads must not use one TLS connection at once, and
each calling thread sends its own request.
"""

import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from stormkeeper.conf import Conf
from stormkeeper.errors import (
    ConfigError,
    PacemakerUnavailableError,
    StormkeeperError,
    UntrustedServerError,
)
from stormkeeper.tls_files import Contexts, expiry, load_named_pair, renewed

_ENABLE: Final = "pacemaker.tls.enable"
_AUTHORITIES: Final = "pacemaker.tls.ca.file"
_CERTIFICATE: Final = "pacemaker.tls.client.certificate.file"
_KEY: Final = "pacemaker.tls.client.key.file"
_CHECK_HOSTNAME: Final = "pacemaker.tls.check.hostname"
_MINIMUM: Final = "pacemaker.tls.minimum.version"

KEYS: Final = (_ENABLE, _AUTHORITIES, _CERTIFICATE, _KEY, _CHECK_HOSTNAME, _MINIMUM)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}

#: A TLS record.
_RECORD: Final = 16_384

_CLIENT_CERTIFICATE: Final = (
    "name one with pacemaker.tls.client.certificate.file and pacemaker.tls.client.key.file"
)
_WANTS_CERTIFICATE: Final = (
    "perhaps it wants a client certificate: pacemaker.tls.client.certificate.file and"
    " pacemaker.tls.client.key.file"
)
_NOT_ACCEPTED: Final = (
    "perhaps it does not accept this client's certificate"
    " (pacemaker.tls.client.certificate.file); its log has the reason"
)
_UNKNOWN_CA: Final = (
    "its certificate is signed by no authority that this client trusts: name the authority with"
    " pacemaker.tls.ca.file"
)
_NO_VERSION: Final = (
    "the two have no version of TLS in common: see pacemaker.tls.minimum.version at both"
)
NO_ROOM: Final = (
    "takes no more connections (pacemaker.max.connections, pacemaker.max.connections.per.address):"
    " its log has the reason"
)
_NOT_TLS: Final = "it does not speak TLS: set pacemaker.tls.enable to true there, or to false here"
_NOT_TRUSTED: Final = f"it does not trust our certificate: {_CLIENT_CERTIFICATE}"

#: By OpenSSL's code (X509_V_ERR_…).
_CERTIFICATE_FAULTS: Final = {
    9: "its certificate is not valid yet: see its dates and this machine's clock",
    10: "its certificate has expired: renew it",
    **dict.fromkeys((2, 18, 19, 20, 21), _UNKNOWN_CA),
    **dict.fromkeys(
        (62, 64),
        "its certificate is not for {host!r}, to which this client connects: write one of"
        " its names (openssl s_client -connect {peer} | openssl x509 -noout -ext subjectAltName"
        " shows them) into pacemaker.servers, or set pacemaker.tls.check.hostname to false",
    ),
}

#: By OpenSSL's reason. With TLS 1.3 a server rejects the client's certificate only after the
#: client's handshake.
_FAULTS: Final = {
    "WRONG_VERSION_NUMBER": _NOT_TLS,
    "RECORD_LAYER_FAILURE": _NOT_TLS,
    "PACKET_LENGTH_TOO_LONG": _NOT_TLS,
    "UNSUPPORTED_PROTOCOL": _NO_VERSION,
    "TLSV1_ALERT_PROTOCOL_VERSION": _NO_VERSION,
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": f"it wants a client's certificate: {_CLIENT_CERTIFICATE}",
    "SSLV3_ALERT_HANDSHAKE_FAILURE": (
        f"it refuses the handshake; where it wants a client's certificate, {_CLIENT_CERTIFICATE}"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": _NOT_TRUSTED,
    "SSLV3_ALERT_BAD_CERTIFICATE": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": _NOT_TRUSTED,
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "our certificate has expired: renew it",
}


class ClientContext(ssl.SSLContext):
    """A TLS context, with data of the client's certificate."""

    has_certificate = False
    expires: datetime | None = None


def client_contexts(conf: Conf) -> Contexts | None:
    """Return a function that returns the context of a new connection; None without TLS.

    The function loads renewed files; after an error, which it logs, the old context stays. Raises
    `ConfigError` if a file is unreadable or wrong now.
    """
    if not conf[_ENABLE]:
        return None
    return renewed([conf[key] for key in (_AUTHORITIES, _CERTIFICATE, _KEY)], lambda: _made(conf))


def _made(conf: Conf) -> ClientContext:
    context = ClientContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _VERSIONS[conf[_MINIMUM]]
    context.check_hostname = conf[_CHECK_HOSTNAME]
    if conf[_AUTHORITIES] is None:
        context.load_default_certs()
    else:
        path = _readable(conf, _AUTHORITIES)
        try:
            context.load_verify_locations(path)
        except OSError as error:
            raise ConfigError(f"{_AUTHORITIES}: {path} holds no certificates in PEM") from error
    _load_pair(context, conf)
    return context


def _load_pair(context: ClientContext, conf: Conf) -> None:
    if conf[_CERTIFICATE] is None and conf[_KEY] is None:
        return
    for key, other in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE)):
        if conf[key] is None:
            raise ConfigError(f"{key}: must name a file, as {other} does")
    certificate, key_file = _readable(conf, _CERTIFICATE), _readable(conf, _KEY)
    load_named_pair(context, (_CERTIFICATE, certificate), (_KEY, key_file))
    context.has_certificate = True
    context.expires = expiry(certificate)


def _readable(conf: Conf, key: str) -> Path:
    path = Path(conf[key])
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise ConfigError(f"{key}: {path} cannot be read: {error.strerror}") from error


def says_tls(data: bytes) -> bool:
    """Return whether a server's first bytes are a TLS alert."""
    return data[:2] == b"\x15\x03"


class TlsStream:
    """The client's end of a TLS connection; not thread-safe.

    The server's certificate must be for `host`; `peer` names the server in errors.
    """

    def __init__(self, context: ssl.SSLContext, host: str, peer: str) -> None:
        self._host = host
        self._peer = peer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self.is_up = False
        #: The TCP connection may stay open after the end of TLS, as the server may wait for the
        #: client.
        self.is_ended = False
        self._has_read = False
        ours = context if isinstance(context, ClientContext) else None
        self._has_certificate = ours is not None and ours.has_certificate
        self._expires = None if ours is None else ours.expires

    def begin(self) -> bytes:
        """Return the first bytes to send."""
        self._shake_hands()
        return self._outgoing.read()

    def received(self, data: bytes) -> tuple[bytes, bytes]:
        """Decrypt received bytes; return the plain bytes and the bytes to send for TLS itself.

        Raises `UntrustedServerError` without trust or a common TLS version, and
        `PacemakerUnavailableError` if the connection broke.
        """
        self._incoming.write(data)
        if not self.is_up:
            self._shake_hands()
        plain = b""
        if self.is_up:
            plain = self._read()
        return plain, self._outgoing.read()

    def sealed(self, data: bytes) -> bytes:
        """Encrypt `data`, with the errors of `received`."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise self._fault(error) from error
        return self._outgoing.read()

    def farewell(self) -> bytes:
        """Return the alert to send after `received` raised."""
        return self._outgoing.read()

    def ended(self, how: str) -> str:
        """Describe why the connection may have ended."""
        if not self.is_up:
            doubts = [f"perhaps {_NOT_TLS}", f"or it {NO_ROOM}"]
            # TLS 1.2: the server checks the client's certificate within the handshake.
            if self._has_certificate:
                doubts.append(self._doubt())
            return f"{how} in the TLS handshake; {'; '.join(doubts)}"
        if self._has_read:
            return how
        # TLS 1.3: the server checks after the client's handshake.
        return f"{how} before it answered; {self._doubt()}"

    def _doubt(self) -> str:
        if not self._has_certificate:
            return _WANTS_CERTIFICATE
        if self._expires is not None and self._expires <= datetime.now(UTC):
            return (
                f"this client's certificate has expired on {self._expires:%Y-%m-%d %H:%M} UTC:"
                " renew pacemaker.tls.client.certificate.file"
            )
        return _NOT_ACCEPTED

    def _shake_hands(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise self._fault(error) from error
        self.is_up = True

    def _read(self) -> bytes:
        pieces: list[bytes] = []
        while True:
            try:
                piece = self._tls.read(_RECORD)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLZeroReturnError:
                piece = b""
            except ssl.SSLError as error:
                raise self._fault(error) from error
            if not piece:
                self.is_ended = True
                break
            pieces.append(piece)
        self._has_read = self._has_read or bool(pieces)
        return b"".join(pieces)

    def _fault(self, error: ssl.SSLError) -> StormkeeperError:
        if isinstance(error, ssl.SSLCertVerificationError):
            words = _CERTIFICATE_FAULTS.get(error.verify_code)
            if words is None:
                words = f"its certificate is not acceptable: {error.verify_message}"
            else:
                # OpenSSL hides the names in a rejected certificate.
                words = words.format(host=self._host, peer=self._peer)
            return UntrustedServerError(f"{self._peer} is not to be trusted: {words}")
        reason = str(error.reason or error.strerror or error)
        words = _FAULTS.get(reason)
        if words is not None:
            return UntrustedServerError(f"no TLS with {self._peer}: {words}")
        return PacemakerUnavailableError(
            f"TLS with {self._peer} broke: {reason.replace('_', ' ').lower()}"
        )
