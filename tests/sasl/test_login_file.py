from pathlib import Path

import pytest

from stormkeeper.conf import defaults, load
from stormkeeper.errors import ConfigError
from stormkeeper.sasl.login_file import (
    CHILDOPTS,
    KEY,
    LoginFile,
    ignored_childopts,
    in_one_layer,
    login,
    login_file,
)


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
