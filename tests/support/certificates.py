"""Certificates for tests, made when a test run first asks for them."""

import functools
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import trustme

#: Removed when the process ends.
_FOLDER = tempfile.TemporaryDirectory(prefix="certificates-")


class Certificate:
    """A certificate with its key, and that of its authority, as PEM files."""

    def __init__(self, authority, folder, *names, **settings):
        folder.mkdir()
        leaf = authority.issue_cert(*names, key_type=trustme.KeyType.ECDSA, **settings)
        self.file, self.key, self.authority = (
            folder / name for name in ("certificate.pem", "key.pem", "authority.pem")
        )
        leaf.private_key_pem.write_to_path(self.key)
        self.key.chmod(0o600)
        for blob in leaf.cert_chain_pems:
            blob.write_to_path(self.file, append=True)
        authority.cert_pem.write_to_path(self.authority)


class Certificates:
    """Of servers and one client, from the same authority, and of a stranger's."""

    def __init__(self, folder):
        ours = trustme.CA(key_type=trustme.KeyType.ECDSA)
        theirs = trustme.CA(key_type=trustme.KeyType.ECDSA)
        names = ("127.0.0.1", "localhost")
        self.server = Certificate(ours, folder / "server", *names)
        self.elsewhere = Certificate(ours, folder / "elsewhere", "elsewhere.example")
        self.renewed = Certificate(ours, folder / "renewed", *names)
        self.expired = Certificate(
            ours, folder / "expired", *names, not_after=datetime(2020, 2, 28, 1, 2, 3, tzinfo=UTC)
        )
        self.client = Certificate(ours, folder / "client", "worker-1", common_name="worker-1")
        self.stranger = Certificate(theirs, folder / "stranger", *names)


@functools.cache
def certificates():
    """Return the certificates of this test run; nobody changes their files."""
    return Certificates(Path(_FOLDER.name))


def tls_conf(certificate=None, **conf):
    """Return the configuration of a server with TLS."""
    certificate = certificate or certificates().server
    return {
        "pacemaker.tls.enable": True,
        "pacemaker.tls.certificate.file": str(certificate.file),
        "pacemaker.tls.key.file": str(certificate.key),
        **{key.replace("_", "."): value for key, value in conf.items()},
    }
