"""DIGEST-MD5 (RFC 2831), the mechanism of Storm's ``pacemaker.auth.method: DIGEST``.

Quality of protection ``auth``, no "subsequent authentication", written as by the JDK. Historic
since 2011 (RFC 6331): a listener can try passwords offline.
"""

import base64
import hashlib
import hmac
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from stormkeeper.errors import AuthenticationError
from stormkeeper.sasl import SAME_METHOD
from stormkeeper.sasl.credentials import UserPassword, client_name, printable

#: RFC 2831 §2.1.1, §2.1.2.
MAX_CHALLENGE = 2048
MAX_RESPONSE = 4096

#: Storm uses no protocol, which the JDK writes as "null", and "default" as server name and realm.
STORM_REALM = "default"
STORM_DIGEST_URI = "null/default"

# As the JDK's client; no effect without a security layer.
_MAXBUF = b"65536"

_NONCE_COUNT = b"00000001"

_CHALLENGE_ONCE = ("nonce", "algorithm")
_CHALLENGE_AT_MOST_ONCE = ("qop", "stale", "maxbuf", "charset", "cipher")
_RESPONSE_ONCE = ("username", "nonce", "cnonce", "nc", "digest-uri", "response")
_RESPONSE_AT_MOST_ONCE = ("realm", "qop", "maxbuf", "charset", "cipher", "authzid")

# Begins the first token of our SCRAM server.
_SCRAM = b"SCRAM-"

_HEX = re.compile(rb"[0-9a-f]{32}")


def random_nonce() -> bytes:
    """Return 240 random bits in 40 characters, as the JDK."""
    return base64.b64encode(secrets.token_bytes(30))


class DigestServer:
    """The server's half: a challenge, a response, and the server's proof.

    `password_of` returns None for an unknown user. The client must use `realm` and `digest_uri`.
    """

    name = "DIGEST-MD5"

    def __init__(
        self,
        password_of: Callable[[str], str | None],
        *,
        realm: str = STORM_REALM,
        digest_uri: str = STORM_DIGEST_URI,
        nonce: Callable[[], bytes] = random_nonce,
    ) -> None:
        self._password_of = password_of
        self._realm = realm
        self._digest_uri = digest_uri.encode()
        self._new_nonce = nonce
        self._nonce: bytes | None = None
        self._answered = False
        self.complete = False
        self.authorization_id: str | None = None

    def start(self) -> bytes:
        """Return the challenge; raises `AuthenticationError` at a second call."""
        if self._nonce is not None:
            raise AuthenticationError("the authentication has begun already")
        self._nonce = self._new_nonce()
        return write_directives(
            [
                ("realm", self._realm.encode(), True),
                ("nonce", self._nonce, True),
                ("charset", b"utf-8", False),
                ("algorithm", b"md5-sess", False),
            ]
        )

    def step(self, token: bytes) -> bytes:
        """Return the proof for a correct response; raise `AuthenticationError`."""
        if self._nonce is None:
            raise AuthenticationError("a response came before the challenge")
        if self._answered:
            raise AuthenticationError("a second response came to one challenge")
        # First of all: a client has one guess per nonce.
        self._answered = True
        response = _checked(
            parse_directives(token, MAX_RESPONSE), _RESPONSE_ONCE, _RESPONSE_AT_MOST_ONCE
        )
        utf8 = _has_utf8(response)
        self._check_terms(response)
        username = _decoded(response["username"], "username", utf8=utf8)
        authzid = _text(response["authzid"], "authzid") if "authzid" in response else None
        if authzid is not None and authzid != username:
            raise AuthenticationError("authzid differs from username: no client may act as another")
        password = self._password_of(username)
        key = _session_key(
            UserPassword(username, password or ""),
            self._realm,
            self._nonce,
            response["cnonce"],
            authzid=authzid,
            utf8=utf8,
        )
        # In the client's spelling, as in the JDK: case does not matter.
        uri = response["digest-uri"]
        expected = _digest(key, self._nonce, response["cnonce"], b"AUTHENTICATE:" + uri)
        if not hmac.compare_digest(expected, response["response"]) or password is None:
            raise AuthenticationError(
                f"wrong password or user: the digest of {printable(client_name(username))!r} does"
                " not match"
            )
        self.complete, self.authorization_id = True, username
        return b"rspauth=" + _digest(key, self._nonce, response["cnonce"], b":" + uri)

    def _check_terms(self, response: Mapping[str, bytes]) -> None:
        assert self._nonce is not None
        if not hmac.compare_digest(response["nonce"], self._nonce):
            raise AuthenticationError(
                "nonce is not this challenge's: a response is being used again, or was damaged"
            )
        if response["nc"] != _NONCE_COUNT:
            raise AuthenticationError("nc must be 00000001: this is the nonce's first use")
        realm = _decoded(response.get("realm", b""), "realm", utf8=_has_utf8(response))
        if realm != self._realm:
            raise AuthenticationError(f"realm must be {self._realm!r}")
        if response["digest-uri"].lower() != self._digest_uri.lower():
            raise AuthenticationError(f"digest-uri must be {self._digest_uri.decode()!r}")
        if response.get("qop", b"auth") != b"auth" or "cipher" in response:
            raise AuthenticationError("qop must be auth, without a cipher: no other was offered")
        if not response["cnonce"]:
            raise AuthenticationError("cnonce is empty")
        if not _HEX.fullmatch(response["response"]):
            raise AuthenticationError("response must be 32 digits of lower-case hex")


class DigestClient:
    """The client's half: answers a challenge, and checks the server's proof.

    For Storm `user` has `credentials.storm_username` and `credentials.storm_password`.
    """

    name = "DIGEST-MD5"
    authorization_id = None

    def __init__(
        self,
        user: UserPassword,
        *,
        realm: str = STORM_REALM,
        digest_uri: str = STORM_DIGEST_URI,
        cnonce: Callable[[], bytes] = random_nonce,
    ) -> None:
        self._user = user
        self._realm = realm
        self._digest_uri = digest_uri.encode()
        self._new_cnonce = cnonce
        self._challenged = False
        self._rspauth: bytes | None = None
        self.complete = False

    def start(self) -> None:
        """Return None: the server begins."""

    def step(self, token: bytes) -> bytes | None:
        """Return the response to the challenge; None after the server's proof."""
        if self.complete:
            raise AuthenticationError("a token came after the end of the authentication")
        if self._rspauth is None:
            if self._challenged:
                raise AuthenticationError("a token came after a challenge that was refused")
            self._challenged = True
            return self._respond(token)
        expected, self._rspauth = self._rspauth, None
        proof = _checked(parse_directives(token, MAX_CHALLENGE), ("rspauth",), ())
        if not hmac.compare_digest(expected, proof["rspauth"]):
            raise AuthenticationError("the server does not know the password: rspauth is wrong")
        self.complete = True
        return None

    def _respond(self, token: bytes) -> bytes:
        if token.startswith(_SCRAM):
            raise AuthenticationError(f"the server does not speak DIGEST-MD5; {SAME_METHOD}")
        parsed = parse_directives(token, MAX_CHALLENGE)
        # Each of several realms is a directive.
        offered = [value for name, value in parsed if name == "realm"]
        challenge = _checked(
            [item for item in parsed if item[0] != "realm"],
            _CHALLENGE_ONCE,
            _CHALLENGE_AT_MOST_ONCE,
        )
        utf8 = _has_utf8(challenge)
        if challenge["algorithm"].lower() != b"md5-sess":
            raise AuthenticationError("algorithm must be md5-sess")
        qops = {qop.strip().lower() for qop in challenge.get("qop", b"auth").split(b",")}
        if b"auth" not in qops:
            raise AuthenticationError("the server does not offer the qop auth")
        if not challenge["nonce"]:
            raise AuthenticationError("nonce is empty")
        if offered and self._realm not in (_decoded(r, "realm", utf8=utf8) for r in offered):
            raise AuthenticationError(f"the server does not offer the realm {self._realm!r}")
        cnonce, nonce = self._new_cnonce(), challenge["nonce"]
        key = _session_key(self._user, self._realm, nonce, cnonce, utf8=utf8)
        response = _digest(key, nonce, cnonce, b"AUTHENTICATE:" + self._digest_uri)
        self._rspauth = _digest(key, nonce, cnonce, b":" + self._digest_uri)
        charset = "utf-8" if utf8 else "latin-1"
        answer = [
            ("username", _encoded(self._user.username, charset), True),
            ("realm", _encoded(self._realm, charset), True),
            ("nonce", nonce, True),
            ("nc", _NONCE_COUNT, False),
            ("cnonce", cnonce, True),
            ("digest-uri", self._digest_uri, True),
            ("maxbuf", _MAXBUF, False),
            ("response", response, False),
            ("qop", b"auth", False),
        ]
        if utf8:
            answer.insert(0, ("charset", b"utf-8", False))
        return write_directives(answer)


def _checked(
    parsed: list[tuple[str, bytes]], once: tuple[str, ...], at_most_once: tuple[str, ...]
) -> dict[str, bytes]:
    """Return the known directives by name; others are ignored (RFC 2831 §2.1.1)."""
    counts = Counter(name for name, _ in parsed)
    for name in once:
        if not counts[name]:
            raise AuthenticationError(f"{name} is missing")
    for name in (*once, *at_most_once):
        if counts[name] > 1:
            raise AuthenticationError(f"{name} is there {counts[name]} times")
    return {name: value for name, value in parsed if name in once or name in at_most_once}


def _has_utf8(terms: Mapping[str, bytes]) -> bool:
    """Return whether names are in UTF-8, not ISO 8859-1 (RFC 2831 §2.1.1)."""
    if terms.get("charset", b"utf-8").lower() != b"utf-8":
        raise AuthenticationError("charset must be utf-8")
    return "charset" in terms


def _decoded(value: bytes, name: str, *, utf8: bool) -> str:
    return _text(value, name) if utf8 else value.decode("latin-1")


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationError(f"{name} is not in UTF-8") from None


def _encoded(value: str, charset: str) -> bytes:
    try:
        return value.encode(charset)
    except UnicodeEncodeError:
        raise AuthenticationError(
            "the user's name, password or realm cannot be written in ISO 8859-1, and the other"
            " side takes no UTF-8"
        ) from None


def _session_key(
    user: UserPassword,
    realm: str,
    nonce: bytes,
    cnonce: bytes,
    *,
    authzid: str | None = None,
    utf8: bool,
) -> bytes:
    """Return H(A1) in hex (RFC 2831 §2.1.2.1)."""
    secret = b":".join(_hashed_form(x, utf8=utf8) for x in (user.username, realm, user.password))
    parts = [hashlib.md5(secret).digest(), nonce, cnonce]
    if authzid is not None:
        parts.append(authzid.encode())
    return hashlib.md5(b":".join(parts)).hexdigest().encode()


def _hashed_form(value: str, *, utf8: bool) -> bytes:
    """Return the bytes to hash: ISO 8859-1 where possible (RFC 2831 §2.1.2.1)."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        if utf8:
            return value.encode()
        return _encoded(value, "latin-1")


def _digest(key: bytes, nonce: bytes, cnonce: bytes, a2: bytes) -> bytes:
    """Return a response's or proof's digest in hex (RFC 2831 §2.1.2.1, §2.1.3)."""
    hashed = hashlib.md5(a2).hexdigest().encode()
    text = b":".join((key, nonce, _NONCE_COUNT, cnonce, b"auth", hashed))
    return hashlib.md5(text).hexdigest().encode()


# RFC 2831 §7.1: a token is ASCII without controls and these separators.
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


def parse_directives(token: bytes, most: int) -> list[tuple[str, bytes]]:
    """Return a token's directives ``name=value, name="value"`` (RFC 2831 §2.1.1, §7.1).

    Names are in lower case. Raises `AuthenticationError` for a malformed or long token.
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


def write_directives(directives: Iterable[tuple[str, bytes, bool]]) -> bytes:
    """Return a token of names, values, and whether to quote each; no spaces, as in the JDK."""
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
