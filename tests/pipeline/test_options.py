import pickle

import pytest

from stormkeeper.conf import Address
from stormkeeper.errors import ConfigError
from stormkeeper.pacemaker.client.settings import ClientSettings
from stormkeeper.pipeline.options import Options


def test_servers_alone_are_enough():
    options = Options.parse({"servers": "a:7000, b ,[::1]:7001"})
    assert options.servers == (Address("a", 7000), Address("b", 6699), Address("::1", 7001))
    assert (options.path, options.page_size, options.timeout_secs) == ("/workerbeats", 0, 2.0)


def test_option_names_have_no_case_and_a_server_counts_once():
    options = Options.parse(
        {"SERVERS": "a,a:6699", "pagesize": "7", "TimeoutSecs": "0.5", "path": "/x/"}
    )
    assert options == Options((Address("a", 6699),), "/x", 7, 0.5)


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
    ],
)
def test_a_wrong_option_is_named(given, named):
    with pytest.raises(ConfigError, match=named):
        Options.parse(given)


def test_how_to_come_to_a_secured_pacemaker_is_said_in_the_configurations_own_words():
    given = {"servers": "a", "PACEMAKER.TLS.Enable": "true", "pacemaker.auth.method": "DIGEST"}
    options = Options.parse(given)
    assert dict(options.access) == {
        "pacemaker.auth.method": "DIGEST",
        "pacemaker.tls.enable": "true",
    }
    assert pickle.loads(pickle.dumps(options)) == options


def test_an_option_that_only_looks_like_one_of_them_is_named():
    with pytest.raises(ConfigError, match=r"pacemaker\.auth\.methods.* is none of "):
        Options.parse({"servers": "a", "pacemaker.auth.methods": "DIGEST"})


def test_without_any_the_settings_are_plain():
    assert Options.parse({"servers": "a"}).settings() == ClientSettings()
