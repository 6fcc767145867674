"""Which JAAS file a daemon reads: that of its own key, or that of Storm's JVM options."""

import shlex
from pathlib import Path

from stormkeeper.conf import Conf, defaults
from stormkeeper.errors import ConfigError
from stormkeeper.sasl import jaas
from stormkeeper.sasl.jaas import Login

KEY = "java.security.auth.login.config"
CHILDOPTS = "pacemaker.childopts"

_OPTION = f"-D{KEY}="


def login_file(conf: Conf) -> Path | None:
    """Return the JAAS file, or None where none is configured.

    It is the value of ``java.security.auth.login.config``, or else of that JVM property where
    ``pacemaker.childopts`` sets it, which is how Storm's documentation configures a Pacemaker.

    Raises
    ------
    ConfigError
        When ``pacemaker.childopts`` has a quote without its second one.
    """
    if conf[KEY] is not None:
        return Path(conf[KEY])
    named = [o.removeprefix(_OPTION) for o in _childopts(conf) if o.startswith(_OPTION)]
    # As a JVM: of several the last.
    return Path(named[-1]) if named and named[-1] else None


def ignored_childopts(conf: Conf) -> list[str]:
    """Return the JVM options that are configured, beyond the default ones, and without effect.

    Without their values, any of which may be a password.

    Raises
    ------
    ConfigError
        As in `login_file`.
    """
    if conf[CHILDOPTS] == defaults()[CHILDOPTS]:
        return []
    return [
        option.partition("=")[0] for option in _childopts(conf) if not option.startswith(_OPTION)
    ]


def login(conf: Conf, *sections: str) -> Login:
    """Return the first of some sections that the JAAS file has.

    Raises
    ------
    ConfigError
        When there is no file, it is wrong, or it has none of them.
    """
    method = conf["pacemaker.auth.method"]
    path = login_file(conf)
    if path is None:
        raise ConfigError(
            f"pacemaker.auth.method is {method}, which needs a JAAS file: set {KEY} to one"
        )
    logins = jaas.read(path)
    for section in sections:
        if section in logins:
            return logins[section]
    raise ConfigError(
        f"{path} has no section {' or '.join(sections)}, which pacemaker.auth.method {method} needs"
    )


def _childopts(conf: Conf) -> list[str]:
    value = conf[CHILDOPTS]
    texts = [value] if isinstance(value, str) else value or []
    try:
        return [option for text in texts for option in shlex.split(text)]
    except ValueError as error:
        raise ConfigError(f"{CHILDOPTS} has a quote without its second one") from error
