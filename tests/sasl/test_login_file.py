from pathlib import Path

import pytest

from stormkeeper.conf import defaults
from stormkeeper.errors import ConfigError
from stormkeeper.sasl.login_file import ignored_childopts, login, login_file


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
        ({"file": "/a", "childopts": "-Djava.security.auth.login.config=/b"}, "/a"),
        ({"childopts": "-Djava.security.auth.login.config="}, None),
    ],
)
def test_where_the_file_is_named(values, path):
    assert login_file(conf(**values)) == (None if path is None else Path(path))


def test_the_options_without_effect():
    assert ignored_childopts(defaults()) == []
    assert ignored_childopts(conf(childopts=None)) == []
    options = "-Xmx2g -Djava.security.auth.login.config=/b -Dsecret=HUSH -XX:+UseG1GC"
    assert ignored_childopts(conf(childopts=options)) == ["-Xmx2g", "-Dsecret", "-XX:+UseG1GC"]


def test_an_open_quote_in_the_options():
    with pytest.raises(ConfigError, match=r"pacemaker\.childopts has a quote"):
        login_file(conf(childopts="-Da='b"))


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
