import pytest

from stormkeeper.blobs import keys
from stormkeeper.errors import InvalidBlobKeyError
from stormkeeper.names import MAX_KEY_BYTES


@pytest.mark.parametrize("key", ["a", "wc-1-1700000000-stormjar.jar", "größe 1_2.x", "..a", "é"])
def test_keys_that_storm_takes(key):
    assert keys.check(key) == key
    assert keys.is_key(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "a/b",
        "../a",
        "/etc/passwd",
        ".",
        "..",
        "a\0",
        "a\n",
        "a\tb",
        "a@b",
        "a:b",
        "\ud800",
        "a\\b",
    ],
)
def test_keys_that_would_leave_the_folder_or_are_no_names(key):
    with pytest.raises(InvalidBlobKeyError, match="is no key of a blob"):
        keys.check(key)
    assert not keys.is_key(key)


def test_what_is_no_text_is_no_key():
    with pytest.raises(InvalidBlobKeyError):
        keys.check(None)


@pytest.mark.parametrize("letter", ["a", "é"])
def test_the_longest_key_is_the_name_of_a_file(letter, tmp_path):
    longest = letter * (MAX_KEY_BYTES // len(letter.encode()))
    (tmp_path / f"{keys.check(longest)}.json").touch()
    with pytest.raises(InvalidBlobKeyError, match="too long"):
        keys.check(longest + "a")


def test_which_topology_a_blob_belongs_to():
    for key in keys.of_topology("wc-1-1700000000"):
        assert keys.topology_of(key) == "wc-1-1700000000"
    for key in ("wc-1-1700000000", "stormjar.jar", "-stormjar.jar", "my-data"):
        assert keys.topology_of(key) is None
