"""Which JAAS file is read: that of its own key, or that of Storm's JVM options.

As in Storm, where the JVM's system property overrides the configuration
(``ConfigUtils.overrideLoginConfigWithSystemProperty``), ``pacemaker.childopts`` wins over the key
``java.security.auth.login.config``; unless the key was given with ``-c``, which is somebody's word
for this one run.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

from stormkeeper.conf import Conf, defaults
from stormkeeper.errors import ConfigError
from stormkeeper.sasl import jaas
from stormkeeper.sasl.jaas import Login

KEY = "java.security.auth.login.config"
CHILDOPTS = "pacemaker.childopts"

_OPTION = f"-D{KEY}="


@dataclass(frozen=True, slots=True)
class LoginFile:
    """A JAAS file, and the key by which it is named: `KEY` or `CHILDOPTS`."""

    path: Path
    named_by: str

    def __str__(self) -> str:
        """Return both, for messages."""
        return f"{self.path} ({self.named_by})"


def login_file(conf: Conf) -> LoginFile | None:
    """Return the JAAS file, or None where none is configured.

    It is the value of ``java.security.auth.login.config`` where that was given with ``-c``; else
    of that JVM property where ``pacemaker.childopts`` sets it, which is how Storm's documentation
    configures a Pacemaker; else of the key in whichever layer it stands.

    Raises
    ------
    ConfigError
        When ``pacemaker.childopts`` has a quote without its second one.
    """
    own = None if conf[KEY] is None else LoginFile(Path(conf[KEY]), KEY)
    if own is not None and conf.is_override(KEY):
        return own
    named = [o.removeprefix(_OPTION) for o in _childopts(conf) if o.startswith(_OPTION)]
    # As a JVM: of several the last.
    return LoginFile(Path(named[-1]), CHILDOPTS) if named and named[-1] else own


def in_one_layer(conf: Conf) -> Conf:
    """Return a configuration that names the same file once it is written to a ``storm.yaml``.

    There nothing is given with ``-c`` any more: what that won over is left out.

    Raises
    ------
    ConfigError
        As in `login_file`.
    """
    if conf[KEY] is None or not conf.is_override(KEY):
        return conf
    options = _childopts(conf)
    kept = [shlex.quote(option) for option in options if not option.startswith(_OPTION)]
    return conf if len(kept) == len(options) else conf.with_values({CHILDOPTS: kept or None})


def ignored_childopts(conf: Conf) -> list[str]:
    """Return the configured JVM options that have no effect, without the default ones.

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
    file = login_file(conf)
    if file is None:
        raise ConfigError(
            f"pacemaker.auth.method is {method}, which needs a JAAS file: set {KEY} to one"
        )
    logins = jaas.read(file.path, file.named_by)
    for section in sections:
        if section in logins:
            return logins[section]
    raise ConfigError(
        f"{file} has no section {' or '.join(sections)}, which pacemaker.auth.method {method} needs"
    )


def _childopts(conf: Conf) -> list[str]:
    value = conf[CHILDOPTS]
    texts = [value] if isinstance(value, str) else value or []
    try:
        return [option for text in texts for option in shlex.split(text)]
    except ValueError as error:
        raise ConfigError(f"{CHILDOPTS} has a quote without its second one") from error
