"""Both halves of DIGEST-MD5 and GSSAPI against those of a JDK, which are what Storm uses."""

from contextlib import contextmanager
from pathlib import Path

import py4j.java_gateway
import py4j.protocol
import pytest
from py4j.java_gateway import CallbackServerParameters, GatewayParameters, JavaGateway
from py4j.protocol import Py4JJavaError

from stormkeeper.conf import defaults
from stormkeeper.daemon.spark_environment import find_java
from stormkeeper.errors import AuthenticationError
from stormkeeper.sasl import methods
from stormkeeper.sasl.credentials import UserPassword, storm_password, storm_username
from support.waiting import DEADLINE_SECS

USER = UserPassword(storm_username("nimbus"), storm_password(UserPassword("pmuser", "HUSH")))
JAR = next(Path(py4j.java_gateway.find_jar_path()).parent.glob("py4j*.jar"))


class Answers:
    """A ``CallbackHandler``: gives name and password, and lets everybody act as itself."""

    def __init__(self, gateway, password):
        self.gateway = gateway
        self.password = password

    def handle(self, callbacks):
        for callback in callbacks:
            match callback.getClass().getSimpleName():
                case "NameCallback":
                    callback.setName(USER.username)
                case "PasswordCallback":
                    characters = self.gateway.new_array(self.gateway.jvm.char, len(self.password))
                    for i, character in enumerate(self.password):
                        characters[i] = character
                    callback.setPassword(characters)
                case "RealmCallback":
                    callback.setText(callback.getDefaultText())
                case "AuthorizeCallback":
                    if callback.getAuthenticationID() == callback.getAuthorizationID():
                        callback.setAuthorized(True)

    class Java:
        implements = ("javax.security.auth.callback.CallbackHandler",)


@contextmanager
def a_jvm(**properties):
    """Start a JVM that this process can call, and that can call this process."""
    options = [f"-D{name}={value}" for name, value in properties.items()]
    port, token, process = py4j.java_gateway.launch_gateway(
        jarpath=str(JAR),
        javaopts=["-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *options],
        java_path=str(find_java()),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(port=port, auth_token=token),
        callback_server_parameters=CallbackServerParameters(
            port=0, daemonize=True, daemonize_connections=True
        ),
    )
    callback_port = gateway.get_callback_server().get_listening_port()
    client = gateway.java_gateway_server.getCallbackClient()
    gateway.java_gateway_server.resetCallbackClient(client.getAddress(), callback_port)
    try:
        yield gateway
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.kill()
        process.wait(timeout=DEADLINE_SECS)


@pytest.fixture(autouse=True)
def errors_as_py4j_has_them(monkeypatch):
    """Undo what PySpark does to py4j in a process that has run it: it asks every JVM for Spark."""
    monkeypatch.setattr(py4j.java_gateway, "get_return_value", py4j.protocol.get_return_value)


@pytest.fixture(scope="module")
def jvm():
    with a_jvm() as gateway:
        yield gateway


@pytest.fixture(scope="module")
def kerberos_jvm(kerberos_realm, tmp_path_factory):
    """A JVM that is the client nimbus and the server pacemaker/localhost, as it likes."""
    path = tmp_path_factory.mktemp("jdk") / "jaas.conf"
    module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true"
    path.write_text(
        "".join(
            f"com.sun.security.jgss.krb5.{role} {{ {module} storeKey=true doNotPrompt=true"
            f' keyTab="{kerberos_realm.keytab(principal)}" principal="{principal}"'
            f" isInitiator={'true' if role == 'initiate' else 'false'}; }};\n"
            for role, principal in (("initiate", "nimbus"), ("accept", "pacemaker/localhost"))
        )
    )
    properties = {
        "java.security.krb5.conf": kerberos_realm.env["KRB5_CONFIG"],
        "java.security.auth.login.config": path,
        "javax.security.auth.useSubjectCredsOnly": "false",
    }
    with a_jvm(**properties) as gateway:
        yield gateway


def storm_client(jvm, password=USER.password):
    """Return the client's half as Storm makes it."""
    return new_client(
        jvm, "DIGEST-MD5", None, None, "default", storm_properties(jvm), Answers(jvm, password)
    )


def new_client(jvm, mechanism, *arguments):
    mechanisms = jvm.new_array(jvm.jvm.String, 1)
    mechanisms[0] = mechanism
    return jvm.jvm.javax.security.sasl.Sasl.createSaslClient(mechanisms, *arguments)


def storm_server(jvm, password=USER.password):
    """Return the server's half as Storm makes it."""
    return jvm.jvm.javax.security.sasl.Sasl.createSaslServer(
        "DIGEST-MD5", None, "default", storm_properties(jvm), Answers(jvm, password)
    )


def storm_properties(jvm):
    properties = jvm.jvm.java.util.HashMap()
    properties["javax.security.sasl.policy.noplaintext"] = "true"
    return properties


def digest_conf(tmp_path, password="HUSH"):
    path = tmp_path / "jaas.conf"
    path.write_text(f'PacemakerDigest {{ username=pmuser password="{password}"; }};')
    return defaults().with_values(
        {"pacemaker.auth.method": "DIGEST", "java.security.auth.login.config": str(path)}
    )


def test_storms_digest_client_and_our_server(jvm, tmp_path):
    client, server = storm_client(jvm), methods.server_mechanism(digest_conf(tmp_path))()
    proof = server.step(client.evaluateChallenge(server.start()))
    assert client.evaluateChallenge(proof) is None
    assert client.isComplete()
    assert server.authorization_id == USER.username


def test_our_digest_client_and_storms_server(jvm, tmp_path):
    client, server = (
        methods.client_mechanism(digest_conf(tmp_path), "localhost")(),
        storm_server(jvm),
    )
    assert client.start() is None
    response = client.step(server.evaluateResponse(b""))
    assert client.step(server.evaluateResponse(response)) is None
    assert client.complete
    assert server.isComplete()


def test_a_wrong_password_at_either_end(jvm, tmp_path):
    client, server = storm_client(jvm), methods.server_mechanism(digest_conf(tmp_path, "OTHER"))()
    with pytest.raises(AuthenticationError, match="wrong password"):
        server.step(client.evaluateChallenge(server.start()))
    client, server = (
        methods.client_mechanism(digest_conf(tmp_path, "OTHER"), "localhost")(),
        storm_server(jvm),
    )
    response = client.step(server.evaluateResponse(b""))
    with pytest.raises(Py4JJavaError, match="digest response format violation"):
        server.evaluateResponse(response)


def gssapi_properties(jvm, *, mutual):
    properties = jvm.jvm.java.util.HashMap()
    properties["javax.security.sasl.qop"] = "auth"
    properties["javax.security.sasl.server.authentication"] = "true" if mutual else "false"
    return properties


@pytest.fixture
def kerberos_conf(kerberos_realm, tmp_path):
    return defaults().with_values(
        {
            "pacemaker.auth.method": "KERBEROS",
            "java.security.auth.login.config": str(kerberos_realm.jaas(tmp_path)),
            "nimbus.daemon.user": "nimbus",
        }
    )


@pytest.mark.parametrize("mutual", [False, True])
def test_storms_kerberos_client_and_our_server(kerberos_jvm, kerberos_conf, mutual):
    client = new_client(
        kerberos_jvm,
        "GSSAPI",
        "nimbus@PM.TEST",
        "pacemaker",
        "localhost",
        gssapi_properties(kerberos_jvm, mutual=mutual),
        Answers(kerberos_jvm, ""),
    )
    server = methods.server_mechanism(kerberos_conf)()
    assert client.hasInitialResponse()
    token = client.evaluateChallenge(b"")
    steps = 0
    while not server.complete:
        answer = server.step(token)
        steps += 1
        if answer is not None:
            token = client.evaluateChallenge(answer)
    assert client.isComplete()
    assert steps == (3 if mutual else 2)
    assert server.authorization_id == "nimbus@PM.TEST"


def test_our_kerberos_client_and_storms_server(kerberos_jvm, kerberos_conf):
    server = kerberos_jvm.jvm.javax.security.sasl.Sasl.createSaslServer(
        "GSSAPI",
        "pacemaker",
        "localhost",
        gssapi_properties(kerberos_jvm, mutual=False),
        Answers(kerberos_jvm, ""),
    )
    client = methods.client_mechanism(kerberos_conf, "localhost")()
    choice = client.step(server.evaluateResponse(client.start()))
    assert server.evaluateResponse(choice) is None
    assert client.complete
    assert server.isComplete()
    assert server.getAuthorizationID() == "nimbus@PM.TEST"
