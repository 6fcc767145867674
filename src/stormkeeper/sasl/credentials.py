"""Users and passwords of a JAAS section, and Storm's form for DIGEST-MD5."""

import base64
import binascii
import hashlib
from dataclasses import dataclass, field

from stormkeeper.errors import ConfigError
from stormkeeper.sasl import Mechanism
from stormkeeper.sasl.jaas import Login

#: Storm's client without a topology's name.
DEFAULT_CLIENT_NAME = "pacemaker-client"

#: Prefix of further users, as in ZooKeeper's ``DigestLoginModule``: ``user_NAME="password"``.
_USER_OPTION = "user_"

_SHOWN = 100


@dataclass(frozen=True, slots=True)
class UserPassword:
    """A user's name and password; the ``repr`` hides the password."""

    username: str
    password: str = field(repr=False)


def user_password(login: Login) -> UserPassword:
    """Return the user of a section; raise `ConfigError` without a user, or with two passwords."""
    user = UserPassword(login.option("username"), login.option("password"))
    other = f"{_USER_OPTION}{user.username}"
    if login.options.get(other, user.password) != user.password:
        raise ConfigError(
            f"{login.place}: section {login.section} has two passwords for the user"
            f" {printable(user.username)!r}, as password and as {printable(other)}; keep one"
        )
    return user


def user_passwords(login: Login) -> dict[str, UserPassword]:
    """Return all users of a section by name, of ``username`` and of ``user_NAME``.

    Raises `ConfigError` without users, or for a user with no or two passwords.
    """
    users = {
        option.removeprefix(_USER_OPTION): UserPassword(
            option.removeprefix(_USER_OPTION), login.option(option)
        )
        for option in login.options
        if option.startswith(_USER_OPTION) and option != _USER_OPTION
    }
    if "username" in login.options or not users:
        user = user_password(login)
        users[user.username] = user
    return users


def storm_password(user: UserPassword) -> str:
    """Return the password in Storm's DIGEST-MD5.

    That is SHA-512 of ``username:password`` in lower-case hex, in base64.
    """
    secret = hashlib.sha512(f"{user.username}:{user.password}".encode()).hexdigest()
    return base64.b64encode(secret.encode()).decode()


def storm_username(client_name: str) -> str:
    """Return the name in base64, the user name in Storm's DIGEST-MD5."""
    return base64.b64encode(client_name.encode()).decode()


def client_name(storm_username: str) -> str:
    """Return the client's name in Storm's user name, or else the user name."""
    try:
        return base64.b64decode(storm_username, validate=True).decode()
    except (binascii.Error, ValueError):
        return storm_username


def printable(text: str, limit: int = _SHOWN) -> str:
    """Return a foreign text, short and printable."""
    shown = "".join(c if c.isprintable() else "�" for c in text[:limit])
    return shown if len(text) <= limit else f"{shown}…"


def shown(mechanism: Mechanism) -> str:
    name = mechanism.authorization_id
    if name is None:
        return "nobody"
    return printable(client_name(name) if mechanism.name == "DIGEST-MD5" else name)
