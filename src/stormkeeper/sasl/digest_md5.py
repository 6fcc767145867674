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
from stormkeeper.sasl import SAME_METHOD, Mechanism
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


class DigestServer(Mechanism):
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
        super().__init__(self._verify)
        self._password_of = password_of
        self._realm = realm
        self._digest_uri = digest_uri.encode()
        self._nonce = nonce()

    def start(self) -> bytes:
        """Return the challenge."""
        return write_directives(
            [
                ("realm", self._realm.encode(), True),
                ("nonce", self._nonce, True),
                ("charset", b"utf-8", False),
                ("algorithm", b"md5-sess", False),
            ]
        )

    def _verify(self, token: bytes) -> bytes:
        """Return the proof for a correct response."""
        response = _checked(
            parse_directives(token, MAX_RESPONSE), _RESPONSE_ONCE, _RESPONSE_AT_MOST_ONCE
        )
        self._check_terms(response)
        username = _text(response["username"], "username")
        authzid = _text(response["authzid"], "authzid") if "authzid" in response else None
        if authzid is not None and authzid != username:
            raise AuthenticationError("authzid differs from username: no client may act as another")
        password = self._password_of(username)
        user = UserPassword(username, password or "")
        key = _session_key(user, self._realm, self._nonce, response["cnonce"], authzid)
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
        if not hmac.compare_digest(response["nonce"], self._nonce):
            raise AuthenticationError(
                "nonce is not this challenge's: a response is being used again, or was damaged"
            )
        if response["nc"] != _NONCE_COUNT:
            raise AuthenticationError("nc must be 00000001: this is the nonce's first use")
        if _text(response.get("realm", b""), "realm") != self._realm:
            raise AuthenticationError(f"realm must be {self._realm!r}")
        if response["digest-uri"].lower() != self._digest_uri.lower():
            raise AuthenticationError(f"digest-uri must be {self._digest_uri.decode()!r}")
        if response.get("qop", b"auth") != b"auth" or "cipher" in response:
            raise AuthenticationError("qop must be auth, without a cipher: no other was offered")
        if not response["cnonce"]:
            raise AuthenticationError("cnonce is empty")
        if not _HEX.fullmatch(response["response"]):
            raise AuthenticationError("response must be 32 digits of lower-case hex")


class DigestClient(Mechanism):
    """The client's half: answers a challenge, and checks the server's proof.

    For Storm `user` has `credentials.storm_username` and `credentials.storm_password`.
    """

    name = "DIGEST-MD5"

    def __init__(
        self,
        user: UserPassword,
        *,
        realm: str = STORM_REALM,
        digest_uri: str = STORM_DIGEST_URI,
        cnonce: Callable[[], bytes] = random_nonce,
    ) -> None:
        super().__init__(self._respond)
        self._user = user
        self._realm = realm
        self._digest_uri = digest_uri.encode()
        self._new_cnonce = cnonce

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
        if challenge["algorithm"].lower() != b"md5-sess":
            raise AuthenticationError("algorithm must be md5-sess")
        qops = {qop.strip().lower() for qop in challenge.get("qop", b"auth").split(b",")}
        if b"auth" not in qops:
            raise AuthenticationError("the server does not offer the qop auth")
        if not challenge["nonce"]:
            raise AuthenticationError("nonce is empty")
        if offered and self._realm not in (_text(r, "realm") for r in offered):
            raise AuthenticationError(f"the server does not offer the realm {self._realm!r}")
        cnonce, nonce = self._new_cnonce(), challenge["nonce"]
        key = _session_key(self._user, self._realm, nonce, cnonce)
        response = _digest(key, nonce, cnonce, b"AUTHENTICATE:" + self._digest_uri)
        self._rspauth = _digest(key, nonce, cnonce, b":" + self._digest_uri)
        self._next = self._check_proof
        answer = [
            ("username", self._user.username.encode(), True),
            ("realm", self._realm.encode(), True),
            ("nonce", nonce, True),
            ("nc", _NONCE_COUNT, False),
            ("cnonce", cnonce, True),
            ("digest-uri", self._digest_uri, True),
            ("maxbuf", _MAXBUF, False),
            ("response", response, False),
            ("qop", b"auth", False),
        ]
        if "charset" in challenge:
            answer.insert(0, ("charset", b"utf-8", False))
        return write_directives(answer)

    def _check_proof(self, token: bytes) -> None:
        proof = _checked(parse_directives(token, MAX_CHALLENGE), ("rspauth",), ())
        if not hmac.compare_digest(self._rspauth, proof["rspauth"]):
            raise AuthenticationError("the server does not know the password: rspauth is wrong")
        self.complete = True


def _checked(
    parsed: list[tuple[str, bytes]], once: tuple[str, ...], at_most_once: tuple[str, ...]
) -> dict[str, bytes]:
    """Return the known directives by name; others are ignored (RFC 2831 §2.1.1).

    Names must be in UTF-8, as with every JDK; RFC 2831 also knows ISO 8859-1.
    """
    counts = Counter(name for name, _ in parsed)
    for name in once:
        if not counts[name]:
            raise AuthenticationError(f"{name} is missing")
    for name in (*once, *at_most_once):
        if counts[name] > 1:
            raise AuthenticationError(f"{name} is there {counts[name]} times")
    found = {name: value for name, value in parsed if name in once or name in at_most_once}
    if found.get("charset", b"utf-8").lower() != b"utf-8":
        raise AuthenticationError("charset must be utf-8")
    return found


def _text(value: bytes, name: str) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationError(f"{name} is not in UTF-8") from None


def _session_key(
    user: UserPassword, realm: str, nonce: bytes, cnonce: bytes, authzid: str | None = None
) -> bytes:
    """Return H(A1) in hex (RFC 2831 §2.1.2.1)."""
    secret = b":".join(map(_hashed_form, (user.username, realm, user.password)))
    parts = [hashlib.md5(secret).digest(), nonce, cnonce]
    if authzid is not None:
        parts.append(authzid.encode())
    return hashlib.md5(b":".join(parts)).hexdigest().encode()


def _hashed_form(value: str) -> bytes:
    """Return the bytes to hash: ISO 8859-1 where possible (RFC 2831 §2.1.2.1)."""
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()


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
    [ \t\r\n]* (?: , [ \t\r\n,]* | \Z )
    """,
    re.VERBOSE,
)
_SEPARATORS = b" \t\r\n,"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)


def parse_directives(token: bytes, most: int) -> list[tuple[str, bytes]]:
    """Return a token's directives ``name=value, name="value"`` (RFC 2831 §2.1.1, §7.1).

    Names are in lower case. Raises `AuthenticationError` for a malformed or long token.
    """
    if len(token) > most:
        raise AuthenticationError(f"the token has {len(token)} bytes, more than {most}")
    directives = []
    position = len(token) - len(token.lstrip(_SEPARATORS))
    while position < len(token):
        match = _ITEM.match(token, position)
        if match is None:
            raise AuthenticationError(f"the token is malformed at its byte {position}")
        name, quoted, plain = match.group("name", "quoted", "token")
        value = plain if quoted is None else _ESCAPE.sub(rb"\1", quoted)
        directives.append((name.decode("ascii").lower(), value))
        position = match.end()
    return directives


def write_directives(directives: Iterable[tuple[str, bytes, bool]]) -> bytes:
    """Return a token of names, values, and whether to quote each; no spaces, as in the JDK."""
    return b",".join(
        name.encode("ascii") + b"=" + (_quote(value) if quoted else value)
        for name, value, quoted in directives
    )


def _quote(value: bytes) -> bytes:
    return b'"' + re.sub(rb'(["\\])', rb"\\\1", value) + b'"'
