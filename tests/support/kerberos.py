"""A real MIT Kerberos realm for tests: one per test run, its KDC on loopback.

``tests/conftest.py`` gives the fixture to every room. Its environment (``KRB5_CONFIG`` and the
like) is this process's from then on, and so that of the daemons that tests start.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stormkeeper.local import reservations

#: Where Debian puts the programs of a KDC, which are on no user's PATH.
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist")
_ADMINISTRATORS = "/usr/sbin:/usr/local/sbin"

_CLIENT_SETTINGS = {
    "libdefaults": {
        "default_realm": "$realm",
        "dns_lookup_kdc": "false",
        "dns_lookup_realm": "false",
        "dns_canonicalize_hostname": "false",
        "rdns": "false",
        "udp_preference_limit": "1",
    },
    "realms": {"$realm": {"kdc": "127.0.0.1:$port0"}},
}
_KDC_SETTINGS = {
    "realms": {
        "$realm": {
            "kdc_ports": None,
            "kdc_tcp_ports": None,
            "kdc_listen": "127.0.0.1:$port0",
            "kdc_tcp_listen": "127.0.0.1:$port0",
        }
    }
}


class KerberosRealm:
    """The realm PM.TEST, in which the service ``pacemaker/localhost`` has a key.

    Attributes
    ----------
    env
        What a process needs in its environment to belong to the realm.
    """

    name = "PM.TEST"
    service = "pacemaker/localhost"

    def __init__(self, folder: Path) -> None:
        import k5test  # noqa: PLC0415 - where Kerberos is not, tests are skipped

        self.folder = folder
        self._realm: Any = k5test.K5Realm(
            realm=self.name,
            portbase=reservations.reserve(),
            krb5_conf=_CLIENT_SETTINGS,
            kdc_conf=_KDC_SETTINGS,
            create_user=False,
            create_host=False,
            get_creds=False,
        )
        self.env: dict[str, str] = dict(self._realm.env)
        self._keytabs: dict[str, Path] = {}

    def stop(self) -> None:
        """Stop the KDC and remove the realm's files."""
        self._realm.stop()

    def stop_kdc(self) -> None:
        """Stop the KDC alone."""
        self._realm.stop_kdc()

    def start_kdc(self) -> None:
        """Start the KDC again."""
        self._realm.start_kdc()

    def keytab(self, *principals: str) -> Path:
        """Return a keytab with the keys of some principals, which are made if need be."""
        path = self.folder / ("+".join(principals).replace("/", "_") + ".keytab")
        if not path.exists():
            for principal in principals:
                if principal not in self._keytabs:
                    self._realm.addprinc(principal)
                    self._keytabs[principal] = path
                self._realm.extract_keytab(principal, str(path))
        return path

    def renew_key(self, principal: str) -> None:
        """Give a principal a new key, which is in none of its keytabs."""
        self._realm.change_password(principal)

    def kinit(self, principal: str) -> Path:
        """Return a ticket cache of its own with a ticket for a principal."""
        cache = self.folder / f"{principal.replace('/', '_')}.ccache"
        keytab = self.keytab(principal)
        self._realm.kinit(
            principal,
            flags=["-k", "-t", str(keytab), "-c", f"FILE:{cache}"],
            env={**os.environ, **self.env},
        )
        return cache

    def jaas(self, folder: Path, client: str = "nimbus", service: str = service) -> Path:
        """Return a JAAS file for both ends of a connection, written into `folder`."""
        path = folder / "jaas.conf"
        path.write_text(
            f"""
PacemakerServer {{
    com.sun.security.auth.module.Krb5LoginModule required
    useKeyTab=true
    keyTab="{self.keytab(service)}"
    storeKey=true
    useTicketCache=false
    principal="{service}";
}};
PacemakerClient {{
    com.sun.security.auth.module.Krb5LoginModule required
    useKeyTab=true
    keyTab="{self.keytab(client)}"
    storeKey=true
    useTicketCache=false
    serviceName="{service.partition("/")[0]}"
    principal="{client}";
}};
"""
        )
        return path


def missing() -> str | None:
    """Return what is not there that a realm needs, or None."""
    path = f"{os.environ.get('PATH', '')}:{_ADMINISTRATORS}"
    programs = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    modules = [name for name in ("gssapi", "k5test") if importlib.util.find_spec(name) is None]
    return ", ".join(programs + modules) or None


@pytest.fixture(scope="session")
def kerberos_realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosRealm]:
    """The realm; the test is skipped where Kerberos is not installed, but fails so in CI."""
    lacking = missing()
    if lacking is not None:
        reason = f"Kerberos is not installed ({lacking}); `make test` installs it where it may"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    former = dict(os.environ)
    os.environ["PATH"] = f"{former.get('PATH', '')}:{_ADMINISTRATORS}"
    realm = KerberosRealm(tmp_path_factory.mktemp("kerberos"))
    os.environ.update(realm.env)
    yield realm
    realm.stop()
    for name in ("PATH", *realm.env):
        if name in former:
            os.environ[name] = former[name]
        else:
            os.environ.pop(name, None)
