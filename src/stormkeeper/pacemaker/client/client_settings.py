"""Settings of clients from the configuration: authentication, TLS, and the largest message.

Like Storm's workers, writers hold no secrets and do not authenticate, unless
``pacemaker.auth.writes`` is true.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from stormkeeper.conf import Address, Conf
from stormkeeper.names import as_text
from stormkeeper.pacemaker.client import client_tls
from stormkeeper.pacemaker.client.connection_opener import Identity
from stormkeeper.pacemaker.client.pacemaker_client import PacemakerClient
from stormkeeper.pacemaker.wire.messages import DEFAULT_MAX_SIZE
from stormkeeper.tls_files import Contexts

if TYPE_CHECKING:
    from stormkeeper.sasl import Mechanism

#: A writer only sends pulses.
Role = Literal["reader", "writer"]

_METHOD: Final = "pacemaker.auth.method"
_LOGIN_FILE: Final = "java.security.auth.login.config"
_MAX_SIZE: Final = "pacemaker.thrift.message.size.max"

#: None holds a secret; some name files that do.
KEYS: Final = (_METHOD, _LOGIN_FILE, _MAX_SIZE, *client_tls.KEYS)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """Settings for clients of any Pacemaker.

    `tls` returns the TLS context of a new connection, `identify` the credentials for a host.
    """

    max_message_size: int = DEFAULT_MAX_SIZE
    tls: Contexts | None = None
    identify: Callable[[str], Identity] | None = None

    @classmethod
    def of(cls, conf: Conf, role: Role = "reader") -> "ClientSettings":
        """Read the settings from the configuration.

        Raises `ConfigError` if a TLS file is missing or wrong; `client` raises `ConfigError` for
        the files of authentication, which depend on the server.
        """
        demanded = role == "reader" or conf["pacemaker.auth.writes"]
        authenticates = demanded and conf[_METHOD] != "NONE"
        return cls(
            max_message_size=conf[_MAX_SIZE],
            tls=client_tls.client_contexts(conf),
            identify=(lambda host: _identity(conf, host)) if authenticates else None,
        )

    def client(self, address: Address, **options: Any) -> PacemakerClient:
        """Make a client, not yet connected.

        Raises `ConfigError` if the JAAS file or an entry in the file is missing or wrong.
        """
        return PacemakerClient(
            address,
            max_message_size=self.max_message_size,
            tls=self.tls,
            identity=None if self.identify is None else self.identify(address.host),
            **options,
        )


def access_of(conf: Conf) -> dict[str, str]:
    """Return the values of `KEYS` that differ from the defaults, as texts for another process.

    ``java.security.auth.login.config`` is the effective file, also from ``pacemaker.childopts``.
    """
    from stormkeeper.sasl.jaas import login_file  # noqa: PLC0415 - with NONE not needed

    changed = conf.changed()
    access: dict[str, str] = {key: as_text(changed[key]) for key in KEYS if key in changed}
    if conf[_METHOD] != "NONE":
        file = login_file(conf)
        if file is not None:
            access[_LOGIN_FILE] = str(file.path)
    return access


def for_a_file(conf: Conf) -> Conf:
    """Return a configuration that gives the same settings from a file, without ``-c``.

    Raises `ConfigError` for an unbalanced quote in ``pacemaker.childopts``.
    """
    from stormkeeper.sasl.jaas import in_one_layer  # noqa: PLC0415 - as above

    return in_one_layer(conf)


def of_texts(given: Mapping[str, str]) -> ClientSettings:
    """Return a reader's settings from texts by `KEYS`; raise `ConfigError`."""
    from stormkeeper.conf import load  # noqa: PLC0415 - YAML, for those who come from elsewhere

    overrides = [f"{key}={value}" for key, value in given.items()]
    return ClientSettings.of(load(files=(), overrides=overrides))


def _identity(conf: Conf, host: str) -> Identity:
    from stormkeeper.sasl import methods  # noqa: PLC0415
    from stormkeeper.sasl.jaas import login, login_file  # noqa: PLC0415

    method = conf[_METHOD]
    methods.client_mechanism(conf, host)  # checks the files

    def mechanism() -> "Mechanism":
        # Read for each connection, as passwords change while clients run.
        make = methods.client_mechanism(conf, host)
        assert make is not None
        return make()

    section = login(conf, *_SECTIONS[method])
    file = login_file(conf)
    assert file is not None
    place = f"section {section.section} of {file}"
    return Identity(method, mechanism, _REMEDIES[method].format(place=place))


_SECTIONS: Final = {
    "DIGEST": ("PacemakerDigest",),
    "SCRAM": ("PacemakerScram", "PacemakerDigest"),
    "KERBEROS": ("PacemakerClient",),
}

_PASSWORD: Final = (
    "check that username and password in {place} are those of the Pacemaker's file, and that its"
    " pacemaker.auth.method is the same"
)

_REMEDIES: Final = {
    "DIGEST": _PASSWORD,
    "SCRAM": _PASSWORD,
    "KERBEROS": (
        "check the keytab or ticket and the serviceName in {place}, and that the Pacemaker admits"
        " the principal (its nimbus.daemon.user or pacemaker.kerberos.users)"
    ),
}
