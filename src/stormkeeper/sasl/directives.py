"""The text of DIGEST-MD5's tokens: ``name=value, name="value"`` (RFC 2831 §2.1.1, §7.1)."""

import re
from collections.abc import Iterable

from stormkeeper.errors import AuthenticationError

# RFC 2831 §7.1: a token is of ASCII without controls and these separators. Some servers write a
# value with a "/" or "=" in it unquoted all the same, but none of those that we speak to.
_ITEM = re.compile(
    rb"""
    (?P<name> [^\x00-\x20\x7f-\xff()<>@,;:\\"/\[\]?={}]+ )
    [ \t\r\n]* = [ \t\r\n]*
    (?: " (?P<quoted> (?: [^"\\] | \\[\x00-\x7f] )* ) "
      | (?P<token> [^\x00-\x20\x7f-\xff()<>@,;:\\"/\[\]?={}]+ ) )
    [ \t\r\n]*
    """,
    re.VERBOSE,
)
_SPACE_AND_COMMAS = re.compile(rb"[ \t\r\n,]*")
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def parse(token: bytes, most: int) -> list[tuple[str, bytes]]:
    """Return the directives of a token: names in lower case, values without quotes and escapes.

    Parameters
    ----------
    token
        What the peer sent.
    most
        Its longest length in bytes: RFC 2831 has 2048 for a challenge, 4096 for a response.

    Raises
    ------
    AuthenticationError
        When it is longer, or no such list.
    """
    if len(token) > most:
        raise AuthenticationError(f"the token has {len(token)} bytes, more than {most}")
    directives = []
    position = _after_commas(token, 0)
    while position < len(token):
        match = _ITEM.match(token, position)
        if match is None or (match.end() < len(token) and token[match.end()] != ord(",")):
            raise AuthenticationError(f"the token is malformed at its byte {position}")
        name, quoted, plain = match.group("name", "quoted", "token")
        value = plain if quoted is None else _ESCAPE.sub(rb"\1", quoted)
        directives.append((name.decode("ascii").lower(), value))
        position = _after_commas(token, match.end())
    return directives


def write(directives: Iterable[tuple[str, bytes, bool]]) -> bytes:
    """Return the token of some directives: name, value, and whether the value is to be quoted.

    Without spaces, as the JDK writes it.
    """
    return b",".join(
        name.encode("ascii") + b"=" + (_quote(value) if quoted else value)
        for name, value, quoted in directives
    )


def _after_commas(token: bytes, position: int) -> int:
    match = _SPACE_AND_COMMAS.match(token, position)
    assert match is not None
    return match.end()


def _quote(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'
