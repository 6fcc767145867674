"""How a client speaks TLS with Pacemakers, out of configuration (``pacemaker.tls.*``)."""

import ssl
from datetime import datetime
from pathlib import Path
from typing import Final

from stormkeeper.conf import Conf
from stormkeeper.errors import ConfigError
from stormkeeper.tls_files import Contexts, expiry, load_named_pair, renewed

_ENABLE: Final = "pacemaker.tls.enable"
_AUTHORITIES: Final = "pacemaker.tls.ca.file"
_CERTIFICATE: Final = "pacemaker.tls.client.certificate.file"
_KEY: Final = "pacemaker.tls.client.key.file"
_CHECK_HOSTNAME: Final = "pacemaker.tls.check.hostname"
_MINIMUM: Final = "pacemaker.tls.minimum.version"

#: The keys that a client's context is made of, and of which some name files.
KEYS: Final = (_ENABLE, _AUTHORITIES, _CERTIFICATE, _KEY, _CHECK_HOSTNAME, _MINIMUM)

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class ClientContext(ssl.SSLContext):
    """How a client speaks TLS."""

    #: Whether it has a certificate of its own to show, and when that expires, if it can be read.
    has_certificate = False
    expires: datetime | None = None


def client_contexts(conf: Conf) -> Contexts | None:
    """Return what gives the context for each connection; None without TLS.

    A file that was renewed and cannot be used is logged, and what held before holds on.

    Raises
    ------
    ConfigError
        As `client_context`; later, what it returns raises nothing.
    """
    if not conf[_ENABLE]:
        return None
    return renewed([conf[key] for key in (_AUTHORITIES, _CERTIFICATE, _KEY)], lambda: _made(conf))


def client_context(conf: Conf) -> ssl.SSLContext | None:
    """Return what a client speaks TLS with; None without TLS.

    Raises
    ------
    ConfigError
        When a file cannot be read or is not what it should be; with key and file.
    """
    return _made(conf) if conf[_ENABLE] else None


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
