"""The ways in which a Pacemaker can be secured, each with what its clients need."""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import trustme

from stormkeeper.conf import defaults
from stormkeeper.sasl import Mechanism
from stormkeeper.sasl.methods import client_mechanism
from support.kerberos import KerberosRealm

_PASSWORD: Final = "a password of the tests"
_KEY: Final = "java.security.auth.login.config"


@dataclass(frozen=True)
class Mode:
    """Configuration of both ends, and what an attacker needs to get as far as it can."""

    server: Mapping[str, Any] = field(default_factory=dict)
    client: Mapping[str, Any] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    #: Makes a client's half of the authentication, with a password, or with Kerberos as a
    #: principal; for None, with the right one.
    mechanism: Callable[[str | None], Mechanism] | None = None
    #: What must never be seen in a log.
    secrets: tuple[str, ...] = ()


def none() -> Mode:
    """Return the mode in which everything is open."""
    return Mode()


def password(method: str, folder: Path) -> Mode:
    """Return a mode in which clients know a password; `folder` holds its files."""

    def conf(word: str) -> dict[str, Any]:
        file = folder / f"{method}-{len(word)}.jaas"
        file.write_text(f'PacemakerDigest {{ username="nimbus" password="{word}"; }};\n')
        return {"pacemaker.auth.method": method, _KEY: str(file)}

    right = conf(_PASSWORD)

    def mechanism(word: str | None) -> Mechanism:
        chosen = right if word is None else conf(word)
        make = client_mechanism(defaults().with_values(chosen), "localhost")
        assert make is not None
        return make()

    return Mode(right, right, mechanism=mechanism, secrets=(_PASSWORD,))


def tls(folder: Path) -> Mode:
    """Return the mode with certificates, which are made in `folder`."""
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    ca, chain, key = (folder / name for name in ("ca.pem", "server.pem", "server.key"))
    authority.cert_pem.write_to_path(str(ca))
    certificate.private_key_pem.write_to_path(str(key))
    chain.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    both = {"pacemaker.tls.enable": True, "pacemaker.tls.ca.file": str(ca)}
    context = ssl.create_default_context(cafile=ca)
    return Mode(
        {
            **both,
            "pacemaker.tls.certificate.file": str(chain),
            "pacemaker.tls.key.file": str(key),
        },
        both,
        tls=context,
        secrets=(key.read_text().splitlines()[1],),
    )


def kerberos(realm: KerberosRealm, folder: Path) -> Mode:
    """Return the mode in which clients have tickets of `realm`."""

    def conf(principal: str) -> dict[str, Any]:
        place = folder / principal
        place.mkdir(parents=True, exist_ok=True)
        return {
            "pacemaker.auth.method": "KERBEROS",
            "nimbus.daemon.user": "nimbus",
            _KEY: str(realm.jaas(place, client=principal, service="pacemaker/127.0.0.1")),
        }

    right = conf("nimbus")

    def mechanism(principal: str | None) -> Mechanism:
        chosen = right if principal is None else conf(principal)
        make = client_mechanism(defaults().with_values(chosen), "127.0.0.1")
        assert make is not None
        return make()

    return Mode(right, right, mechanism=mechanism)
