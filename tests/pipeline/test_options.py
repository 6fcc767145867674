import pickle
import re

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.client.client_settings import ClientSettings
from stormkeeper.pipeline.source import Options


def test_servers_alone_are_enough():
    options = Options.parse({"servers": "a:7000, b ,[::1]:7001"})
    assert options.servers == (Address("a", 7000), Address("b", 6699), Address("::1", 7001))
    assert (options.path, options.page_size, options.timeout_secs) == ("/workerbeats", 0, 2.0)


def test_option_names_have_no_case_and_a_server_counts_once():
    options = Options.parse(
        {"SERVERS": "a,a:6699", "pagesize": "7", "TimeoutSecs": "0.5", "path": "/x/"}
    )
    assert options == Options((Address("a", 6699),), "/x", 7, 0.5)


def test_values_are_read_unless_it_says_otherwise():
    assert Options.parse({"servers": "a"}).values
    assert not Options.parse({"servers": "a", "VALUES": "False"}).values


def test_the_root_may_be_read():
    assert Options.parse({"servers": "a", "path": "/"}).path == "/"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "'servers'"),
        ({"servers": " , "}, "'servers'"),
        ({"servers": "a:b:c"}, "'servers'"),
        ({"servers": "a", "path": "workerbeats"}, "'path'"),
        ({"servers": "a", "pageSize": "1.5"}, "'pageSize'"),
        ({"servers": "a", "pageSize": "-1"}, "'pageSize'"),
        ({"servers": "a", "timeoutSecs": "0"}, "'timeoutSecs'"),
        ({"servers": "a", "timeoutSecs": "inf"}, "'timeoutSecs'"),
        ({"servers": "a", "timeoutSecs": "nan"}, "'timeoutSecs'"),
        ({"servers": "a", "timeoutSecs": "soon"}, "'timeoutSecs'"),
        ({"servers": "a", "values": "no"}, "'values'"),
    ],
)
def test_a_wrong_option_is_named(given, named):
    with pytest.raises(ConfigError, match=named):
        Options.parse(given)


def test_access_options_are_named_as_in_the_configuration():
    given = {"servers": "a", "PACEMAKER.TLS.Enable": "true", "pacemaker.auth.method": "DIGEST"}
    options = Options.parse(given)
    assert dict(options.access) == {
        "pacemaker.auth.method": "DIGEST",
        "pacemaker.tls.enable": "true",
    }
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("unknown", "remedy"),
    [
        ("pacemaker.auth.methods", "is 'pacemaker.auth.method' meant?"),
        ("timeoutSec", "is 'timeoutSecs' meant?"),
        ("page_size", "is 'pageSize' meant?"),
        ("paths", "is 'path' meant?"),  # Spark's name for more than one
        (
            "nonsense",
            "it has servers, path, pageSize, timeoutSecs, values, parts, packed, aside, ",
        ),
    ],
)
def test_unknown_option_is_refused_with_the_nearest_name(unknown, remedy):
    with pytest.raises(ConfigError, match=re.escape(remedy)) as raised:
        Options.parse({"servers": "a", unknown: "1"})
    assert f"has no option '{unknown.lower()}'" in str(raised.value)


def test_catalog_tables_options_count_without_properties():
    table = {"provider": "pacemaker", "owner": "root", "servers": "a", "timeoutsecs": "3"}
    options = Options.parse(table | {"option.servers": "a", "option.timeoutsecs": "3"})
    assert options == Options((Address("a", 6699),), timeout_secs=3.0)
    with pytest.raises(ConfigError, match="has no option 'timeout'"):
        Options.parse(table | {"option.servers": "a", "option.timeout": "3"})


def test_without_any_the_settings_are_plain():
    assert Options.parse({"servers": "a"}).settings() == ClientSettings()
