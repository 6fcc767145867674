"""How many may come in."""

import pytest

from stormkeeper.pacemaker.server.connections.accepting import Admission, plain_address


def test_the_one_too_many_is_told_why():
    admission = Admission(3, 2)
    assert admission.refuses("10.0.0.1", 2) is None
    cause, reason = admission.refuses("10.0.0.1", 3)
    assert (cause, "pacemaker.max.connections)" in reason) == ("connections", True)


def test_each_address_has_its_own_limit():
    admission = Admission(100, 2)
    for _ in range(2):
        assert admission.refuses("10.0.0.1", 0) is None
        admission.entered("10.0.0.1")
    cause, reason = admission.refuses("10.0.0.1", 2)
    assert (cause, "per.address" in reason) == ("address", True)
    assert admission.refuses("10.0.0.2", 2) is None
    admission.left("10.0.0.1")
    assert admission.refuses("10.0.0.1", 1) is None


def test_zero_is_no_limit_per_address():
    admission = Admission(10_000, 0)
    for _ in range(1_000):
        admission.entered("10.0.0.1")
    assert admission.refuses("10.0.0.1", 1_000) is None


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("2001:db8::1", "2001:db8::ffff:0:0:2", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::1", "10.0.0.1", False),
    ],
)
def test_a_network_of_ipv6_counts_as_one(one, other, is_same):
    admission = Admission(100, 1)
    admission.entered(one)
    assert (admission.refuses(other, 1) is not None) is is_same


def test_who_left_is_forgotten():
    admission = Admission(100, 1)
    for n in range(100):
        admission.entered(f"10.0.0.{n}")
        admission.left(f"10.0.0.{n}")
    assert not admission._by_network


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::1"),
        ("::1", "::1"),
    ],
)
def test_addresses_are_written_plainly(given, plain):
    assert plain_address(given) == plain
