from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.conf import defaults, load
from stormkeeper.errors import ConfigError
from stormkeeper.sasl import jaas
from stormkeeper.sasl.jaas import (
    CHILDOPTS,
    KEY,
    LoginFile,
    ignored_childopts,
    in_one_layer,
    login,
    login_file,
)

#: As Storm's documentation has them: a section without a login module, which Java refuses.
DOCUMENTED = """
PacemakerDigest {
    username="some username"
    password="some password";
};
"""

KERBEROS = """
/* Both ends of
   a connection. */
PacemakerServer {
   com.sun.security.auth.module.Krb5LoginModule required
   useKeyTab=true
   keyTab="/etc/keytabs/pacemaker.keytab"
   storeKey=true
   useTicketCache=false
   principal="pacemaker/my.pacemaker.host"; // the host's own name
};

PacemakerClient {
    com.sun.security.auth.module.Krb5LoginModule REQUIRED
    useKeyTab=false
    useTicketCache=true
    serviceName="pacemaker";
};
"""


def test_a_section_without_a_login_module():
    login = jaas.parse(DOCUMENTED)["PacemakerDigest"]
    assert login.module is None
    assert login.options == {"username": "some username", "password": "some password"}
    assert login.line == 2


def test_section_with_a_module():
    text = 'PacemakerDigest { org.apache.zookeeper.DigestLoginModule required username="u" p=q ; };'
    login = jaas.parse(text)["PacemakerDigest"]
    assert login.module == "org.apache.zookeeper.DigestLoginModule"
    assert login.options == {"username": "u", "p": "q"}


def test_several_sections_with_comments():
    sections = jaas.parse(KERBEROS)
    assert list(sections) == ["PacemakerServer", "PacemakerClient"]
    server, client = sections.values()
    assert server.options["keyTab"] == "/etc/keytabs/pacemaker.keytab"
    assert server.switch("useKeyTab")
    assert not server.switch("useTicketCache", default=True)
    assert client.option("serviceName") == "pacemaker"
    assert client.line == 13


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ('"a\\"b"', 'a"b'),
        ('"a\\\\b"', "a\\b"),
        ('"a\\tb\\101\\0"', "a\tbA\0"),
        ('"\\8\\q"', "8q"),
        ('"// no comment /* here */ {};="', "// no comment /* here */ {};="),
        ('"pässwörd"', "pässwörd"),
        ("/etc//keytab-1.x", "/etc//keytab-1.x"),
        ('""', ""),
    ],
)
def test_values(written, meant):
    assert jaas.parse(f"A {{ x={written}; }};")["A"].options == {"x": meant}


@settings(deadline=None)
@given(value=st.text(st.characters(codec="utf-8", exclude_characters="\n$"), max_size=30))
def test_whatever_is_quoted_comes_back(value):
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    assert jaas.parse(f'A {{ x="{quoted}"; }};')["A"].options == {"x": value}


def test_the_first_of_several_modules_gives_an_option():
    text = 'A { m.One optional x="1"; m.Two required x="2" y="3"; };'
    login = jaas.parse(text)["A"]
    assert login.module == "m.One"
    assert login.options == {"x": "1", "y": "3"}


def test_semicolon_before_the_closing_brace_is_optional():
    assert jaas.parse('A { x="1" };')["A"].options == {"x": "1"}


def test_an_empty_file_has_no_sections():
    assert jaas.parse(" // nothing\n") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('A {\n  x="1;\n};', r"F:2: a quoted value has no closing quote"),
        ("A { /* x=1; };", r"F:1: a comment has no \*/"),
        ("A\nx=1;", r'F:2: expected "{" after the name of a section'),
        ("A {\n x=1;\n}\n", r'F:4: expected ";" after the } of a section before the file ends'),
        ("A { x=1;", "F:1: expected a login module, an option or } before the file ends"),
        ("A { x=1; };\nA { x=2; };", "F:2: a second section with the name of line 1"),
        ("A { x=1\n x=2; };", "F:2: the option x stands there twice"),
        ("A { x=; };", "F:1: expected a value after ="),
        ("A { m.Module x=1; };", "F:1: expected a login module with one of required, requisite"),
        ("A { m.Module; };", "F:1: expected one of required, .* after a login module"),
        ('A { keyTab="${user.home}/k"; };', "F:1: keyTab names a property of Java's"),
        ('A { "quoted"="1"; };', "F:1"),
        ("= ;", "F:1: expected the name of a section"),
    ],
)
def test_errors_name_the_line(text, message):
    with pytest.raises(ConfigError, match=message):
        jaas.parse(text, "F")


@pytest.mark.parametrize(
    "text",
    [
        'A { password="HUSH" HUSH; };',
        "A { password=HUSH HUSH; };",
        'A { password="a"HUSH"; };',
        'A { password="HUSH" password="HUSH"; };',
        "A { password=HUSH",
        'A { password="HUSH${x}"; };',
        'A { password "HUSH"; };',
        "A { HUSH HUSH HUSH };",
    ],
)
def test_errors_show_no_secret(text):
    with pytest.raises(ConfigError) as caught:
        jaas.parse(text, "F")
    assert "HUSH" not in f"{caught.value!r} {caught.value.__cause__!r}"


def test_no_repr_shows_a_secret():
    sections = jaas.parse(DOCUMENTED, "F")
    assert "some password" not in f"{sections!r} {sections}"
    assert repr(sections["PacemakerDigest"]) == (
        "<Login PacemakerDigest of F:2 with username, password>"
    )


@settings(deadline=None)
@given(text=st.text(st.sampled_from('Ax ={};"\\/*\n$') | st.characters(), max_size=40))
def test_any_text_is_read_or_refused(text):
    try:
        sections = jaas.parse(text)
    except ConfigError:
        return
    assert all(name == login.section for name, login in sections.items())


def test_an_option_that_must_be_there():
    login = jaas.parse('A { x=""; };', "F")["A"]
    for name in "x", "y":
        with pytest.raises(ConfigError, match=f'F:1: section A has no {name}="…"; add it'):
            login.option(name)
    with pytest.raises(ConfigError, match="F:1: x of A must be true or false"):
        login.switch("x")


def test_a_file(tmp_path):
    path = tmp_path / "jaas.conf"
    path.write_text(DOCUMENTED)
    login = jaas.read(path)["PacemakerDigest"]
    assert login.place == f"{path}:2"


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"missing cannot be read: No such file.*auth\.login"):
        jaas.read(tmp_path / "missing")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        jaas.read(tmp_path)
    (tmp_path / "latin").write_bytes(b'A {\n x="HUSH\xe4"; };')
    with pytest.raises(ConfigError, match="latin:2: a JAAS file must be UTF-8") as caught:
        jaas.read(tmp_path / "latin")
    assert caught.value.__suppress_context__
    assert b"HUSH" not in repr(caught.value).encode()
    (tmp_path / "huge").write_bytes(b" " * (jaas.MAX_FILE_SIZE + 1))
    with pytest.raises(ConfigError, match="so no JAAS file"):
        jaas.read(tmp_path / "huge")


def conf(**values):
    keys = {"file": "java.security.auth.login.config", "childopts": "pacemaker.childopts"}
    return defaults().with_values(
        {"pacemaker.auth.method": "DIGEST"} | {keys[name]: value for name, value in values.items()}
    )


@pytest.mark.parametrize(
    ("values", "path"),
    [
        ({}, None),
        ({"childopts": None}, None),
        ({"file": "/a/jaas.conf"}, "/a/jaas.conf"),
        ({"childopts": "-Xmx1g -Djava.security.auth.login.config=/b/j.conf -Da=b"}, "/b/j.conf"),
        ({"childopts": ["-Xmx1g", "-Djava.security.auth.login.config=/b/j.conf"]}, "/b/j.conf"),
        ({"childopts": '"-Djava.security.auth.login.config=/b c/j.conf"'}, "/b c/j.conf"),
        (
            {
                "childopts": "-Djava.security.auth.login.config=/1"
                " -Djava.security.auth.login.config=/2"
            },
            "/2",
        ),
        ({"file": "/a", "childopts": "-Djava.security.auth.login.config=/b"}, "/b"),
        ({"file": "/a", "childopts": "-Djava.security.auth.login.config="}, "/a"),
        ({"file": "/a", "childopts": "-Xmx1g"}, "/a"),
        ({"childopts": "-Djava.security.auth.login.config="}, None),
    ],
)
def test_where_the_file_is_named(values, path):
    found = login_file(conf(**values))
    assert (None if found is None else found.path) == (None if path is None else Path(path))


FILE_KEY = f"{KEY}: /key"
FILE_OPTION = f"{CHILDOPTS}: -Xmx1g '-D{KEY}=/opt ion'"
FILE = {"key": [FILE_KEY], "option": [FILE_OPTION], "both": [FILE_KEY, FILE_OPTION], "": []}
COMMANDED_KEY = f"{KEY}=/c"
COMMANDED_OPTION = f"{CHILDOPTS}=-D{KEY}=/d"


@pytest.mark.parametrize(
    ("file", "overrides", "path", "named_by"),
    [
        ("key", [], "/key", KEY),
        ("option", [], "/opt ion", CHILDOPTS),
        ("both", [], "/opt ion", CHILDOPTS),
        ("both", [COMMANDED_KEY], "/c", KEY),
        ("option", [COMMANDED_KEY], "/c", KEY),
        ("both", [f"{KEY}=/key"], "/key", KEY),
        ("key", [COMMANDED_OPTION], "/d", CHILDOPTS),
        ("both", [COMMANDED_OPTION], "/d", CHILDOPTS),
        ("", [COMMANDED_OPTION, COMMANDED_KEY], "/c", KEY),
        ("", [COMMANDED_KEY, COMMANDED_OPTION], "/c", KEY),
        ("both", [f"{KEY}="], "/opt ion", CHILDOPTS),
        ("both", [f"{CHILDOPTS}=-Xmx1g"], "/key", KEY),
    ],
)
def test_the_command_line_wins_then_the_jvms_option_then_the_key(
    tmp_path, file, overrides, path, named_by
):
    storm_yaml = tmp_path / "storm.yaml"
    storm_yaml.write_text("\n".join(FILE[file]))
    given = load(files=[storm_yaml], overrides=overrides)
    found = LoginFile(Path(path), named_by)
    assert login_file(given) == found
    assert str(found) == f"{path} ({named_by})"
    # As it is changed by the way, and in a file for another process.
    for derived in given.with_values({"ui.port": 1}), given.without_unknown([KEY, CHILDOPTS]):
        assert login_file(derived) == found
    in_one_layer(given).write(storm_yaml)
    again = load(files=[storm_yaml])
    assert login_file(again) == found
    assert ignored_childopts(again) == ignored_childopts(given)


def test_the_options_without_effect():
    assert ignored_childopts(defaults()) == []
    assert ignored_childopts(conf(childopts=None)) == []
    options = "-Xmx2g -Djava.security.auth.login.config=/b -Dsecret=HUSH -XX:+UseG1GC"
    assert ignored_childopts(conf(childopts=options)) == ["-Xmx2g", "-Dsecret", "-XX:+UseG1GC"]


def test_an_open_quote_in_the_options():
    with pytest.raises(ConfigError, match=r"pacemaker\.childopts has a quote"):
        login_file(conf(childopts="-Da='b"))


@pytest.mark.parametrize("named_by", [KEY, CHILDOPTS])
def test_an_error_says_which_key_names_the_file(tmp_path, named_by):
    path = tmp_path / "jaas.conf"
    values = {"file": str(path)} if named_by == KEY else {"childopts": f"-D{KEY}={path}"}
    other = {KEY: CHILDOPTS, CHILDOPTS: KEY}[named_by]
    for text, words in (None, "cannot be read"), ("A { x=1; };", "has no section B"):
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=words) as caught:
            login(conf(**values), "B")
        assert named_by in str(caught.value)
        assert other not in str(caught.value)


def test_the_first_section_that_is_there(tmp_path):
    path = tmp_path / "jaas.conf"
    path.write_text("A { x=1; }; B { x=2; };")
    assert login(conf(file=str(path)), "B", "A").section == "B"
    assert login(conf(file=str(path)), "C", "A").section == "A"
    with pytest.raises(ConfigError, match=r"has no section C or D, which .* DIGEST needs"):
        login(conf(file=str(path)), "C", "D")


def test_no_file():
    with pytest.raises(ConfigError, match=r"DIGEST, which needs a JAAS file: set java\.security"):
        login(conf(), "A")
