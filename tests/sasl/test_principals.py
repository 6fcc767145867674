import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import AuthenticationError
from stormkeeper.sasl.principals import Principal, admits


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
def test_what_is_no_principal(text):
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
def test_who_is_admitted(users, principal, admitted):
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
