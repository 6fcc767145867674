"""Certificates and keys in files: read again when they change; nobody is asked for a passphrase.

Certificates are renewed while clients live, so the files are looked at for every new connection,
and read again when one has changed.
"""

import logging
import ssl
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from stormkeeper.errors import ConfigError

log = logging.getLogger(__name__)

#: Gives the context for a new connection.
Contexts = Callable[[], ssl.SSLContext]

_Mark = tuple[int, int, int] | None

_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"

#: Tags of DER: a certificate's version, the older of the two ways to write a time, and one of the
#: ways to write text.
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_BMP_STRING: Final = 0x1E

#: The attributes that say whose a certificate is, by their object identifiers in DER (2.5.4.x).
_ATTRIBUTES: Final = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
}


class Certificate(NamedTuple):
    """A certificate's subject, as ``O=Example, CN=a.example`` or empty, and its validity."""

    subject: str
    begins: datetime
    ends: datetime


class PassphraseError(ValueError):
    """A key has a passphrase, and a wrong one was given, or none."""


def renewed(files: Iterable[str | None], make: Contexts) -> Contexts:
    """Return a function that returns the context for a connection: a new one if a file changed.

    A file that was renewed and cannot be used is logged, and what held before holds on. What is
    returned raises nothing, and is safe for threads.

    Parameters
    ----------
    files
        What the context is made of; None is none.
    make
        Reads the files and makes the context.

    Raises
    ------
    ConfigError
        If `make` does so now.
    """
    return _Renewed([Path(file) for file in files if file is not None], make).context


def load_pair(
    context: ssl.SSLContext, certificate: Path, key: Path | None = None, passphrase: str = ""
) -> None:
    """Load a certificate, with its chain, and its key.

    Parameters
    ----------
    context
        What they are to be shown by.
    certificate
        The certificates, as PEM.
    key
        The key, as PEM; None where it stands with the certificates.
    passphrase
        Of the key. Without it OpenSSL would ask for it on the terminal.

    Raises
    ------
    PassphraseError
        When the key has another passphrase.
    OSError, ValueError
        When the files cannot be read, or do not hold what they should.
    """
    asked: list[None] = []

    def answer() -> str:
        asked.append(None)
        return passphrase

    try:
        context.load_cert_chain(certificate, key, password=answer)
    except (OSError, ValueError) as error:
        if asked and getattr(error, "reason", None) != "KEY_VALUES_MISMATCH":
            raise PassphraseError(f"{key or certificate} has another passphrase") from error
        raise


def load_named_pair(
    context: ssl.SSLContext, certificate: tuple[str, Path], key: tuple[str, Path]
) -> None:
    """Load a certificate, with its chain, and its key, out of two files that are configured.

    Parameters
    ----------
    context
        What they are to be shown by.
    certificate, key
        The key of the configuration, for messages, and the file in PEM that it names.

    Raises
    ------
    ConfigError
        When a file does not hold what it should, or the key is another certificate's or has a
        passphrase.
    """
    (certificate_name, certificate_file), (key_name, key_file) = certificate, key
    # `load_cert_chain` does not tell from which of the two files a fault comes.
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(certificate_file)
    except OSError as error:
        raise ConfigError(
            f"{certificate_name}: {certificate_file} holds no certificate in PEM"
        ) from error
    try:
        load_pair(context, certificate_file, key_file)
    except PassphraseError as error:
        raise ConfigError(
            f"{key_name}: {key_file} has a passphrase; take it off, as nobody is there to be asked"
            " for it"
        ) from error
    except (OSError, ValueError) as error:
        is_of_another = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
        what = "is not the key of" if is_of_another else "holds no private key in PEM for"
        raise ConfigError(
            f"{key_name}: {key_file} {what} the certificate in {certificate_file}"
            f" ({certificate_name})"
        ) from error


def expiry(certificate: Path) -> datetime | None:
    """Return when the first certificate in a file in PEM expires; None if that cannot be read."""
    found = read_certificate(certificate)
    return None if found is None else found.ends


def read_certificate(file: Path) -> Certificate | None:
    """Return the first certificate in a file in PEM; None if that cannot be read.

    Python's ssl tells this of a peer's certificate alone.
    """
    try:
        text = file.read_text("ascii", "replace")
        begin = text.index(_PEM_BEGIN)
        end = text.index(_PEM_END, begin) + len(_PEM_END)
        # RFC 5280 §4.1: Certificate, tbsCertificate, and in that version (which may be left out),
        # serialNumber, signature, issuer, validity, subject.
        fields = _der(_der(_der(ssl.PEM_cert_to_DER_cert(text[begin:end]))[0][1])[0][1])
        validity, subject = fields[4:6] if fields[0][0] == _VERSION else fields[3:5]
        begins, ends = (_time(*value) for value in _der(validity[1]))
        return Certificate(_name(subject[1]), begins, ends)
    except (OSError, ValueError, IndexError):
        return None


def _time(kind: int, value: bytes) -> datetime:
    shape = "%y%m%d%H%M%SZ" if kind == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(value.decode("ascii"), shape).replace(tzinfo=UTC)


def _name(value: bytes) -> str:
    """Return the text of a Name: a sequence of sets of pairs of an attribute and its value."""
    parts = []
    for _, attributes in _der(value):
        for _, attribute in _der(attributes):
            (_, identifier), (kind, raw) = _der(attribute)
            if identifier in _ATTRIBUTES:
                text = raw.decode("utf-16-be" if kind == _BMP_STRING else "utf-8", "replace")
                parts.append(f"{_ATTRIBUTES[identifier]}={text}")
    return ", ".join(parts)


def _der(data: bytes) -> list[tuple[int, bytes]]:
    """Return the tags and contents of the values that stand one after the other in `data`."""
    values: list[tuple[int, bytes]] = []
    pos = 0
    while pos < len(data):
        tag, length = data[pos], data[pos + 1]
        pos += 2
        if length & 0x80:
            octets = length & 0x7F
            length = int.from_bytes(data[pos : pos + octets], "big")
            pos += octets
        values.append((tag, data[pos : pos + length]))
        pos += length
    return values


class _Renewed:
    """A context and the marks of its files."""

    def __init__(self, files: list[Path], make: Contexts) -> None:
        self._files = files
        self._make = make
        self._lock = threading.Lock()
        # Before the files are read: what is renewed meanwhile is seen to be new the next time.
        self._seen = self._marks()
        self._context = make()

    def context(self) -> ssl.SSLContext:
        with self._lock:
            marks = self._marks()
            if marks != self._seen:
                self._seen = marks
                try:
                    self._context = self._make()
                except ConfigError as error:
                    log.warning("a renewed file is not used: %s", error)
            return self._context

    def _marks(self) -> list[_Mark]:
        return [_mark(file) for file in self._files]


def _mark(file: Path) -> _Mark:
    """Return what changes when a file does."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
