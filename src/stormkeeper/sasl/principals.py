"""Kerberos principals, and which of them may read a Pacemaker."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from stormkeeper.errors import AuthenticationError

# What krb5_unparse_name writes: components between slashes, then the realm; any of these
# characters stands for itself behind a backslash.
_PART = re.compile(r"((?:[^\\/@]|\\.)*)([/@]|\Z)", re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Principal:
    """A principal's parts: ``nimbus/host@REALM`` has the components "nimbus" and "host"."""

    components: tuple[str, ...]
    realm: str

    @classmethod
    def parse(cls, text: str) -> "Principal":
        """Return the principal that `text` is, as Kerberos writes it, with its realm.

        Raises
        ------
        AuthenticationError
            When it has no realm, or nothing before it, or something behind it.
        """
        components: list[str] = []
        position = 0
        while (match := _PART.match(text, position)) is not None and match[2]:
            components.append(_unescape(match[1]))
            position = match.end()
            if match[2] == "@":
                break
        realm = _PART.fullmatch(text, position)
        if realm is None or not realm[1] or "@" not in text[:position] or not components[0]:
            raise AuthenticationError(f"{text!r} is not a principal with its realm")
        return cls(tuple(components), _unescape(realm[1]))

    def short_name(self, default_realm: str) -> str | None:
        """Return its short name, or None where it has none.

        The first of one or two components, for a principal of the default realm alone: the rule
        ``DEFAULT`` of Java's ``auth_to_local``, by which ``nimbus/host@REALM`` is "nimbus". Who is
        called nimbus in another realm is somebody else.
        """
        if self.realm != default_realm or len(self.components) > 2:
            return None
        return self.components[0]


def admits(users: Iterable[str], principal: str, default_realm: str) -> bool:
    """Return whether one of `users` is `principal`.

    Parameters
    ----------
    users
        Full principals (``nimbus/host@REALM``), those of the default realm also without it
        (``nimbus/host``), and short names (``nimbus``).
    principal
        Who it is, with its realm.
    default_realm
        This machine's realm.

    Raises
    ------
    AuthenticationError
        When `principal` is none.
    """
    parsed = Principal.parse(principal)
    names = {principal, parsed.short_name(default_realm)}
    if parsed.realm == default_realm and len(parsed.components) > 1:
        names.add(principal.rpartition("@")[0])
    return not names.isdisjoint(users)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(r"\1", text)
