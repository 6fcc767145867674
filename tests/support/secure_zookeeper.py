"""Real ZooKeeper servers that want to know who one is: by SASL, and over TLS by certificates."""

from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from stormkeeper.conf import Address
from stormkeeper.local import reservations
from stormkeeper.local.dev_zookeeper import DevZooKeeper
from support.certificates import Certificate

#: Users of its SASL by name, with their passwords.
USERS = {"nimbus": "pass word", "other": "other's own"}


class SecureZooKeeper(DevZooKeeper):
    """A server with a plain port and one for TLS, and SASL on both.

    Parameters
    ----------
    folder
        For all that it keeps.
    certificate
        What it shows, and whose authority's clients it trusts.
    client_auth
        Whether clients must show a certificate: "need", or "none".
    sasl_required
        Whether it serves only those that come with SASL.
    """

    def __init__(
        self,
        folder: Path,
        certificate: Certificate,
        *,
        client_auth: str,
        sasl_required: bool = False,
    ) -> None:
        folder.mkdir()
        self.tls_address = Address("127.0.0.1", reservations.reserve())
        users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
        (folder / "jaas.conf").write_text(
            f"Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required {users}; }};"
        )
        super().__init__(
            folder / "server",
            settings={
                "authProvider.sasl": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                "sessionRequireClientSASLAuth": str(sasl_required).lower(),
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "secureClientPortAddress": self.tls_address.host,
                "secureClientPort": str(self.tls_address.port),
                "ssl.keyStore.location": str(pem_store(folder / "key.pem", certificate)),
                "ssl.trustStore.location": str(certificate.authority),
                "ssl.clientAuth": client_auth,
            },
            jvm_options=[f"-Djava.security.auth.login.config={folder / 'jaas.conf'}"],
        )

    def conf(self, **values: object) -> dict[str, object]:
        """Return configuration values of a client that comes without TLS."""
        return {
            "storm.zookeeper.servers": [self.host],
            "storm.zookeeper.port": self.port,
            **values,
        }

    def tls_conf(self, certificate: Certificate, **values: object) -> dict[str, object]:
        """Return those of a client with TLS that trusts the authority of `certificate`."""
        return {
            **self.conf(**values),
            "storm.zookeeper.port": self.tls_address.port,
            "storm.zookeeper.ssl.enable": True,
            "storm.zookeeper.ssl.truststore.path": str(certificate.authority),
        }


def pem_store(path: Path, certificate: Certificate) -> Path:
    """Write a key and its certificates to one file, as ZooKeeper's servers and clients want it."""
    key = load_pem_private_key(certificate.key.read_bytes(), None).private_bytes(
        # Java reads no other form.
        Encoding.PEM,
        PrivateFormat.PKCS8,
        NoEncryption(),
    )
    path.write_bytes(key + certificate.file.read_bytes())
    return path


def sasl_conf(folder: Path, user: str, password: str) -> dict[str, object]:
    """Return configuration values of a client that logs in by SASL."""
    path = folder / f"{user}.jaas"
    path.write_text(
        "Client { org.apache.zookeeper.server.auth.DigestLoginModule required"
        f' username="{user}" password="{password}"; }};'
    )
    return {"java.security.auth.login.config": str(path)}


def digest_conf(payload: str) -> Mapping[str, object]:
    """Return configuration values of a daemon that logs in by a digest."""
    return {
        "storm.zookeeper.auth.scheme": "digest",
        "storm.zookeeper.auth.payload": payload,
    }


def topology_conf(payload: str) -> Mapping[str, object]:
    """Return configuration values of who has a topology's digest, or gives it its rights."""
    return {
        "storm.zookeeper.topology.auth.scheme": "digest",
        "storm.zookeeper.topology.auth.payload": payload,
    }
