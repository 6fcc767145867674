"""SCRAM-SHA-256 (RFC 5802, RFC 7677), on scramp.

The server sends the mechanism's name; then follow client-first, server-first, client-final and
server-final. Without channel binding, only TLS prevents a man in the middle.
"""

import hmac
import secrets
from collections.abc import Callable, Mapping

from scramp import ScramClient as _Client
from scramp import ScramException, ScramMechanism
from scramp.utils import ServerError, saslprep

from stormkeeper.errors import AuthenticationError, ConfigError
from stormkeeper.sasl import SAME_METHOD, Mechanism
from stormkeeper.sasl.credentials import UserPassword, printable

NAME = "SCRAM-SHA-256"

#: The server's first token tells other clients the mechanism.
GREETING = NAME.encode()

#: Rounds of hashing per password, a few milliseconds, to slow a listener's guesses. RFC 7677 §4
#: asks for at least 4096.
ITERATIONS = 16_384

#: Most rounds for a server, about half a second.
MAX_ITERATIONS = 1_000_000

MAX_MESSAGE = 4096

_SALT_LENGTH = 16

_Verifier = tuple[bytes, bytes, bytes, int]  # salt, stored key, server key, iterations


class ScramUsers:
    """A server's verifiers, without passwords.

    An unknown name gets a constant salt and fails as a wrong password does, to hide the names.
    Raises `ConfigError` for a character that SCRAM forbids (RFC 4013).
    """

    def __init__(self, users: Mapping[str, UserPassword], salt_key: bytes | None = None) -> None:
        self._salt_key = secrets.token_bytes(32) if salt_key is None else salt_key
        mechanism = ScramMechanism(NAME)
        self._verifiers: dict[str, _Verifier] = {}
        for user in users.values():
            try:
                name = saslprep(user.username)
                self._verifiers[name] = mechanism.make_auth_info(
                    user.password, iteration_count=ITERATIONS, salt=self._derived("salt", name)
                )
            except ScramException as error:
                raise ConfigError(
                    f"the user {printable(user.username)!r} has a character in its name or password"
                    " that SCRAM allows in none, such as a control character; choose others"
                ) from error

    def verifier(self, name: str) -> _Verifier:
        """Return salt, stored key, server key and rounds; invented for an unknown user."""
        invented = (
            self._derived("salt", name),
            self._derived("stored key", name, 32),
            self._derived("server key", name, 32),
            ITERATIONS,
        )
        return self._verifiers.get(name, invented)

    def _derived(self, purpose: str, name: str, length: int = _SALT_LENGTH) -> bytes:
        message = f"{purpose}\0{name}".encode()
        return hmac.digest(self._salt_key, message, "sha256")[:length]


class _Scram(Mechanism):
    name = NAME
    _user: str | None = None

    def step(self, token: bytes) -> bytes | None:
        try:
            return super().step(token)
        except (ScramException, ValueError) as error:
            raise _refusal(error, self._user) from error


class ScramServer(_Scram):
    """The server's half, which refuses malformed messages and wrong passwords."""

    def __init__(self, users: ScramUsers, *, nonce: Callable[[], str] | None = None) -> None:
        super().__init__(self._challenge)
        self._users = users
        self._server = ScramMechanism(NAME).make_server(
            self._look_up, s_nonce=None if nonce is None else nonce()
        )

    def start(self) -> bytes:
        return GREETING

    def _challenge(self, token: bytes) -> bytes:
        self._server.set_client_first(_text(token))
        self._next = self._verify
        return str(self._server.get_server_first()).encode()

    def _verify(self, token: bytes) -> bytes:
        self._server.set_client_final(_text(token))
        final = str(self._server.get_server_final()).encode()
        self.complete, self.authorization_id = True, self._user
        return final

    def _look_up(self, name: str) -> _Verifier:
        self._user = name
        return self._users.verifier(name)


class ScramClient(_Scram):
    """The client's half; refuses too many rounds, and a server without the password.

    Raises `ConfigError` for characters that SCRAM forbids (RFC 4013).
    """

    def __init__(self, user: UserPassword, *, nonce: Callable[[], str] | None = None) -> None:
        super().__init__(self._greet)
        try:
            self._client = _Client(
                [NAME], user.username, user.password, c_nonce=None if nonce is None else nonce()
            )
        except ScramException as error:
            raise ConfigError(
                f"the user {printable(user.username)!r} has no name, or a character in its name or"
                " password that SCRAM allows in none, such as a control character; choose others"
            ) from error

    def _greet(self, token: bytes) -> bytes:
        if token != GREETING:
            raise AuthenticationError(f"the server does not speak {NAME}; {SAME_METHOD}")
        self._next = self._prove
        return str(self._client.get_client_first()).encode()

    def _prove(self, token: bytes) -> bytes:
        self._client.set_server_first(_text(token))
        rounds = int(self._client.iterations)
        if rounds > MAX_ITERATIONS:
            raise AuthenticationError(
                f"the server asks for {rounds} rounds of hashing, more than {MAX_ITERATIONS}"
            )
        self._next = self._verify
        return str(self._client.get_client_final()).encode()

    def _verify(self, token: bytes) -> None:
        self._client.set_server_final(_text(token))
        self.complete = True


def _text(token: bytes) -> str:
    if len(token) > MAX_MESSAGE:
        raise AuthenticationError(f"the message has {len(token)} bytes, more than {MAX_MESSAGE}")
    try:
        return token.decode("utf-8")
    except UnicodeDecodeError:
        raise AuthenticationError("the message is not in UTF-8") from None


def _refusal(error: Exception, user: str | None) -> AuthenticationError:
    """Convert an error of scramp, which quotes nothing of the peer."""
    if isinstance(error, ScramException) and error.server_error is ServerError.INVALID_PROOF:
        whose = "" if user is None else f" of {printable(user)!r}"
        return AuthenticationError(f"wrong password or user: the proof{whose} does not match")
    return AuthenticationError(printable(str(error)))
