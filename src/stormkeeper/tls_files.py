"""Certificates and keys in files, read again after a change, for new connections."""

import logging
import ssl
import threading
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from stormkeeper.errors import ConfigError

log = logging.getLogger(__name__)

Contexts = Callable[[], ssl.SSLContext]

_Mark = tuple[int, int, int] | None

_PEM_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_PEM_END: Final = "-----END CERTIFICATE-----"

#: DER tags: a certificate's version, the older form of times, and a form of text.
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_BMP_STRING: Final = 0x1E

_ATTRIBUTES: Final = {
    b"\x55\x04\x03": "CN",
    b"\x55\x04\x06": "C",
    b"\x55\x04\x0a": "O",
    b"\x55\x04\x0b": "OU",
}


class Certificate(NamedTuple):
    """A certificate's subject, as ``O=Example, CN=a.example`` or empty, and validity."""

    subject: str
    begins: datetime
    ends: datetime


class PassphraseError(ValueError):
    """A key's passphrase is missing or wrong."""


def renewed(files: Iterable[str | None], make: Contexts) -> Contexts:
    """Return a function that returns the TLS context, anew after a file changed.

    An unusable new file is logged, and the old context stays. The function raises nothing and is
    thread-safe.
    """
    watched = [Path(file) for file in files if file is not None]
    lock = threading.Lock()
    # Before the files are read, so that a change meanwhile counts as new.
    seen = [_mark(file) for file in watched]
    context = make()

    def newest() -> ssl.SSLContext:
        nonlocal seen, context
        with lock:
            marks = [_mark(file) for file in watched]
            if marks != seen:
                seen = marks
                try:
                    context = make()
                except ConfigError as error:
                    log.warning("a renewed file is not used: %s", error)
            return context

    return newest


def load_pair(
    context: ssl.SSLContext, certificate: Path, key: Path | None = None, passphrase: str = ""
) -> None:
    """Load a certificate with chain and key from PEM files; without `key`, both from `certificate`.

    Raises `PassphraseError` for a wrong passphrase, and `OSError` or `ValueError` for bad files.
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
    """Load a certificate and key from two PEM files, each with the configuration key.

    Raises `ConfigError` if a file holds something else, or the key is of another certificate or has
    a passphrase.
    """
    (certificate_name, certificate_file), (key_name, key_file) = certificate, key
    # `load_cert_chain` does not say which file is at fault.
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
            f"{key_name}: {key_file} has a passphrase; remove it, as a daemon cannot ask for it"
        ) from error
    except (OSError, ValueError) as error:
        is_of_another = getattr(error, "reason", None) == "KEY_VALUES_MISMATCH"
        what = "is not the key of" if is_of_another else "holds no private key in PEM for"
        raise ConfigError(
            f"{key_name}: {key_file} {what} the certificate in {certificate_file}"
            f" ({certificate_name})"
        ) from error


def expiry(certificate: Path) -> datetime | None:
    """Return when the first certificate in a PEM file expires; None if unreadable."""
    found = read_certificate(certificate)
    return None if found is None else found.ends


def read_certificate(file: Path) -> Certificate | None:
    """Return the first certificate in a PEM file; None if unreadable.

    Python's ssl parses only a peer's certificate.
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
    parts = []
    for _, attributes in _der(value):
        for _, attribute in _der(attributes):
            (_, identifier), (kind, raw) = _der(attribute)
            if identifier in _ATTRIBUTES:
                text = raw.decode("utf-16-be" if kind == _BMP_STRING else "utf-8", "replace")
                parts.append(f"{_ATTRIBUTES[identifier]}={text}")
    return ", ".join(parts)


def _der(data: bytes) -> list[tuple[int, bytes]]:
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


def _mark(file: Path) -> _Mark:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
