import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.conf import defaults
from stormkeeper.errors import AuthenticationError, ConfigError
from stormkeeper.sasl import credentials, methods
from stormkeeper.sasl.methods import Principal, admits

JAAS = """
PacemakerDigest {
    username="pmuser"
    password="HUSH";
};
"""


@pytest.fixture
def conf_of(tmp_path):
    """Return a function from a method and the text of a JAAS file to a configuration."""

    def make(method, text=JAAS, **values):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.conf"
        path.write_text(text)
        return defaults().with_values(
            {"pacemaker.auth.method": method, "java.security.auth.login.config": str(path)} | values
        )

    return make


def converse(client, server):
    """Let the two halves speak until neither has anything to say."""
    said_by_server, said_by_client = server.start(), client.start()
    while said_by_server is not None or said_by_client is not None:
        if said_by_server is not None:
            token, said_by_server = said_by_server, None
            said_by_client = client.step(token)
        else:
            token, said_by_client = said_by_client, None
            said_by_server = server.step(token)


def test_none_has_no_mechanism():
    assert methods.server_mechanism(defaults()) is None
    assert methods.client_mechanism(defaults(), "localhost") is None


@pytest.mark.parametrize("method", ["DIGEST", "SCRAM"])
def test_both_ends_with_one_jaas_file_agree(conf_of, method):
    conf = conf_of(method)
    make_server = methods.server_mechanism(conf)
    make_client = methods.client_mechanism(conf, "localhost")
    for _ in range(2):
        client, server = make_client(), make_server()
        assert not server.complete
        converse(client, server)
        assert client.complete
        assert server.complete
        assert methods.authorised(conf, server.authorization_id)


@pytest.mark.parametrize("method", ["DIGEST", "SCRAM"])
def test_two_ends_with_different_passwords(conf_of, method):
    client = methods.client_mechanism(conf_of(method, JAAS.replace("HUSH", "OTHER")), "localhost")()
    server = methods.server_mechanism(conf_of(method))()
    with pytest.raises(AuthenticationError) as caught:
        converse(client, server)
    assert not server.complete
    assert "HUSH" not in str(caught.value)
    assert "OTHER" not in str(caught.value)


def test_digest_client_has_the_name_of_its_topology(conf_of):
    for values, name in ({}, "pacemaker-client"), ({"topology.name": "wörds"}, "wörds"):
        conf = conf_of("DIGEST", **values)
        client = methods.client_mechanism(conf, "localhost")()
        server = methods.server_mechanism(conf)()
        assert credentials.shown(server) == "nobody"
        converse(client, server)
        assert credentials.shown(server) == name


@pytest.mark.parametrize("method", ["DIGEST", "SCRAM"])
@pytest.mark.parametrize(
    "make", [methods.server_mechanism, lambda c: methods.client_mechanism(c, "h")]
)
def test_a_file_without_the_section(conf_of, method, make):
    with pytest.raises(ConfigError, match=f"has no section .* {method} needs"):
        make(conf_of(method, "Other { x=1; };"))


@pytest.mark.parametrize("method", ["DIGEST", "SCRAM"])
def test_no_half_shows_a_secret(conf_of, method):
    conf = conf_of(method)
    for half in methods.server_mechanism(conf)(), methods.client_mechanism(conf, "localhost")():
        assert "HUSH" not in repr(half)


def test_scram_has_a_section_of_its_own_with_several_users(conf_of):
    server_conf = conf_of(
        "SCRAM", JAAS + 'PacemakerScram { user_ui="FIRST" user_nimbus="SECOND"; };'
    )
    server = methods.server_mechanism(server_conf)()
    client_conf = conf_of("SCRAM", 'PacemakerScram { username=nimbus password="SECOND"; };')
    converse(methods.client_mechanism(client_conf, "localhost")(), server)
    assert credentials.shown(server) == "nimbus"
    with pytest.raises(AuthenticationError, match="wrong password or user"):
        converse(
            methods.client_mechanism(conf_of("SCRAM"), "localhost")(),
            methods.server_mechanism(server_conf)(),
        )


def test_empty_identity_is_not_authorised(conf_of):
    assert not methods.authorised(conf_of("DIGEST"), "")


def named(file, **values):
    return defaults().with_values({"java.security.auth.login.config": str(file)} | values)


@pytest.mark.parametrize(
    ("section", "method"),
    [
        ("PacemakerDigest", "DIGEST or SCRAM"),
        ("PacemakerScram", "SCRAM"),
        ("PacemakerServer", "KERBEROS"),
    ],
)
def test_unused_login_file_is_reported(tmp_path, section, method):
    file = tmp_path / "jaas.conf"
    file.write_text(f'Client {{ username="zk"; }};\n{section} {{ username="u" password="HUSH"; }};')
    assert methods.unused_login(named(file)) == (
        f"the section {section} of {file} (java.security.auth.login.config) has no effect, and"
        f" every client may read: set pacemaker.auth.method to {method} to have readers"
        " authenticate"
    )
    for used in "DIGEST", "SCRAM", "KERBEROS":
        assert methods.unused_login(named(file, **{"pacemaker.auth.method": used})) is None


def test_missing_unused_login_file_is_reported(tmp_path):
    missing = methods.unused_login(named(tmp_path / "none.conf"))
    assert missing.startswith(
        f"the JAAS file {tmp_path / 'none.conf'} cannot be read: No such file"
    )
    assert missing.endswith("with pacemaker.auth.method NONE a Pacemaker does without it")
    (tmp_path / "half.conf").write_text('PacemakerDigest { password="HUSH')
    assert "HUSH" not in methods.unused_login(named(tmp_path / "half.conf"))


def test_a_login_file_for_zookeeper_alone_is_not(tmp_path):
    file = tmp_path / "jaas.conf"
    file.write_text('Client { username="zk" password="p"; };\nPacemakerClient { useKeyTab=true; };')
    assert methods.unused_login(named(file)) is None
    assert methods.unused_login(defaults()) is None


@pytest.mark.parametrize(
    ("text", "components", "realm"),
    [
        ("nimbus@R", ("nimbus",), "R"),
        ("nimbus/host.example@EXAMPLE.COM", ("nimbus", "host.example"), "EXAMPLE.COM"),
        ("a/b/c@R", ("a", "b", "c"), "R"),
        (r"a\/b@R", ("a/b",), "R"),
        (r"nimbus\@R@OTHER", ("nimbus@R",), "OTHER"),
        (r"a\\/b@R", ("a\\", "b"), "R"),
    ],
)
def test_the_parts_of_a_principal(text, components, realm):
    assert Principal.parse(text) == Principal(components, realm)


@pytest.mark.parametrize("text", ["", "nimbus", "nimbus@", "@R", "/b@R", "a@b@R", "a@R/b", "a@R\\"])
def test_bad_principals_are_refused(text):
    with pytest.raises(AuthenticationError, match="is not a principal with its realm"):
        Principal.parse(text)


@pytest.mark.parametrize(
    ("principal", "short"),
    [
        ("nimbus@R", "nimbus"),
        ("nimbus/host@R", "nimbus"),
        ("nimbus/host/more@R", None),
        ("nimbus@OTHER", None),
        ("nimbus@r", None),
        (r"nimbus\@R@OTHER", None),
        (r"nimbus\/x@R", "nimbus/x"),
    ],
)
def test_a_short_name_is_of_the_default_realm(principal, short):
    assert Principal.parse(principal).short_name("R") == short


@pytest.mark.parametrize(
    ("users", "principal", "admitted"),
    [
        ({"nimbus"}, "nimbus@R", True),
        ({"nimbus"}, "nimbus/host@R", True),
        ({"nimbus"}, "nimbus@OTHER", False),
        ({"nimbus"}, "nimbus2@R", False),
        ({"nimbus"}, "Nimbus@R", False),
        ({"nimbus@R"}, "nimbus@R", True),
        ({"nimbus@R"}, "nimbus/host@R", False),
        ({"nimbus@OTHER"}, "nimbus@OTHER", True),
        ({"nimbus/host"}, "nimbus/host@R", True),
        ({"nimbus/host"}, "nimbus/host@OTHER", False),
        ({"nimbus/host"}, "nimbus/other@R", False),
        ({"ui", "nimbus"}, "nimbus@R", True),
        (set(), "nimbus@R", False),
    ],
)
def test_admitted_principals(users, principal, admitted):
    assert admits(users, principal, "R") is admitted


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab\\/@") | st.characters(), max_size=20))
def test_any_text_is_read_or_refused(text):
    try:
        principal = Principal.parse(text)
    except AuthenticationError:
        return
    assert principal.realm
    assert principal.components[0]
