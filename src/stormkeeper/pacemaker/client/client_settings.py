"""From the configuration to clients: how they authenticate, speak TLS, and how much they take.

Everything that talks to Pacemakers uses this module, so that one configuration works everywhere.
Workers only beat. Like Storm's workers they hold no secrets and do not authenticate, unless the
Pacemakers demand it of writers too (``pacemaker.auth.writes``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from stormkeeper.conf import Address, Conf
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.client import client_tls
from stormkeeper.pacemaker.client.authentication import Identity
from stormkeeper.pacemaker.client.pacemaker_client import PacemakerClient
from stormkeeper.pacemaker.wire import DEFAULT_MAX_SIZE
from stormkeeper.tls_files import Contexts

if TYPE_CHECKING:
    from stormkeeper.sasl import Mechanism

#: What a client is for: a writer sends pulses and nothing else.
Role = Literal["reader", "writer"]

_METHOD: Final = "pacemaker.auth.method"
_LOGIN_FILE: Final = "java.security.auth.login.config"
_MAX_SIZE: Final = "pacemaker.thrift.message.size.max"

#: The keys that say how to come to a Pacemaker. None holds a secret: some name files that do.
KEYS: Final = (_METHOD, _LOGIN_FILE, _MAX_SIZE, *client_tls.KEYS)


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """How to talk to Pacemakers, whichever.

    Parameters
    ----------
    max_message_size
        Largest frame either way, in bytes.
    tls
        Gives how TLS is spoken on a new connection; None for plain TCP.
    identify
        Returns who we are to the server of a host; None where we authenticate to none.
    """

    max_message_size: int = DEFAULT_MAX_SIZE
    tls: Contexts | None = None
    identify: Callable[[str], Identity] | None = None

    @classmethod
    def of(cls, conf: Conf, role: Role = "reader") -> "ClientSettings":
        """Return what the configuration says.

        Parameters
        ----------
        conf
            Gives the values of `KEYS` and ``pacemaker.auth.writes``.
        role
            A writer authenticates only where ``pacemaker.auth.writes`` is true.

        Raises
        ------
        ConfigError
            When a file that TLS needs is missing or wrong. What authentication needs is read for
            each server: `client` raises for that.
        """
        demanded = role == "reader" or conf["pacemaker.auth.writes"]
        authenticates = demanded and conf[_METHOD] != "NONE"
        return cls(
            max_message_size=conf[_MAX_SIZE],
            tls=client_tls.client_contexts(conf),
            identify=(lambda host: _identity(conf, host)) if authenticates else None,
        )

    def client(self, address: Address, **options: Any) -> PacemakerClient:
        """Return a client of one server; nothing is connected yet.

        Parameters
        ----------
        address
            Where the server listens.
        options
            Further arguments of `PacemakerClient`: its name, patience and the like.

        Raises
        ------
        ConfigError
            When the JAAS file, or what must stand in it, is missing or wrong.
        """
        return PacemakerClient(
            address,
            max_message_size=self.max_message_size,
            tls=self.tls,
            identity=None if self.identify is None else self.identify(address.host),
            **options,
        )


def access_of(conf: Conf) -> dict[str, str]:
    """Return what leads another process to the same settings: values of `KEYS`, as texts.

    Only what is not as in the defaults. ``java.security.auth.login.config`` has the file that
    counts, also where ``pacemaker.childopts`` names it; given with ``-c``, it counts there too.
    """
    from stormkeeper.sasl.jaas import login_file  # noqa: PLC0415 - with NONE not needed

    changed = conf.changed()
    access: dict[str, str] = {key: _text(changed[key]) for key in KEYS if key in changed}
    if conf[_METHOD] != "NONE":
        file = login_file(conf)
        if file is not None:
            access[_LOGIN_FILE] = str(file.path)
    return access


def for_a_file(conf: Conf) -> Conf:
    """Return a configuration that leads to the same settings when another process reads it.

    From a file that it was written to, in which nothing is given with ``-c`` any more.

    Raises
    ------
    ConfigError
        When ``pacemaker.childopts`` has a quote without its second one.
    """
    from stormkeeper.sasl.jaas import in_one_layer  # noqa: PLC0415 - as above

    return in_one_layer(conf)


def of_texts(given: Mapping[str, str]) -> ClientSettings:
    """Return the settings of a reader that values of `KEYS`, as texts, describe.

    Raises
    ------
    ConfigError
        When a value is not what its key may be, or a file is missing or wrong.
    """
    from stormkeeper.conf import load  # noqa: PLC0415 - YAML, for those who come from elsewhere

    overrides = [f"{key}={value}" for key, value in given.items()]
    return ClientSettings.of(load(files=(), overrides=overrides))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _identity(conf: Conf, host: str) -> Identity:
    # Most processes authenticate to nobody and need none of this.
    from stormkeeper.sasl import methods  # noqa: PLC0415
    from stormkeeper.sasl.jaas import login, login_file  # noqa: PLC0415

    method = conf[_METHOD]
    sections = _SECTIONS.get(method)
    # Once now, so that a file that is missing or wrong is told before anything is connected.
    if sections is None or methods.client_mechanism(conf, host) is None:
        raise ConfigError(f"{_METHOD} {method} is none that a client has")

    def mechanism() -> "Mechanism":
        # Read anew for each connection: passwords are changed while clients live.
        make = methods.client_mechanism(conf, host)
        assert make is not None
        return make()

    section = login(conf, *sections)
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
