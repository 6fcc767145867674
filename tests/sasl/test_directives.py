import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stormkeeper.errors import AuthenticationError
from stormkeeper.sasl import directives

NAMES = st.text(st.sampled_from("abcxyz-0189"), min_size=1)


def test_a_list_as_the_jdk_writes_it():
    token = b'realm="default",nonce="a+b/c=",charset=utf-8'
    assert directives.parse(token, 100) == [
        ("realm", b"default"),
        ("nonce", b"a+b/c="),
        ("charset", b"utf-8"),
    ]


def test_spaces_empty_items_and_upper_case_are_allowed():
    token = b' , Realm = "a" ,, \r\n\tNC=1 , '
    assert directives.parse(token, 100) == [("realm", b"a"), ("nc", b"1")]


def test_escapes_and_commas_in_quotes():
    assert directives.parse(rb'a="x\"y\\z,b=c"', 100) == [("a", b'x"y\\z,b=c')]


def test_nothing_is_an_empty_list():
    assert directives.parse(b"", 0) == []


@pytest.mark.parametrize(
    ("token", "position"),
    [
        (b"a", 0),
        (b"a=", 0),
        (b'a="b', 0),
        (b'a="b\\', 0),
        (b"a=b c=d", 0),
        (b'a="b"c', 0),
        (b"a=b,=c", 4),
        (b"a=b,c=\xff", 4),
        (b"a=b,c=d=e", 4),
        (b"\x00", 0),
    ],
)
def test_what_is_no_list_is_refused(token, position):
    with pytest.raises(AuthenticationError, match=f"malformed at its byte {position}$"):
        directives.parse(token, 100)


def test_a_long_token_is_refused():
    assert directives.parse(b"a=" + b"x" * 98, 100)
    with pytest.raises(AuthenticationError, match="has 101 bytes, more than 100"):
        directives.parse(b"a=" + b"x" * 99, 100)


@settings(deadline=None)
@given(token=st.binary(max_size=60) | st.text(st.sampled_from('ab,="\\ ')).map(str.encode))
def test_any_bytes_are_read_or_refused(token):
    try:
        read = directives.parse(token, 50)
    except AuthenticationError:
        return
    assert all(name.isascii() and name == name.lower() for name, _ in read)


@settings(deadline=None)
@given(items=st.lists(st.tuples(NAMES, st.binary(max_size=20), st.just(True))))
def test_what_is_written_is_read_back(items):
    written = directives.write(items)
    assert directives.parse(written, len(written)) == [(name, value) for name, value, _ in items]
