"""What a requirements.txt may ask for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stormkeeper.errors import TopologyError
from stormkeeper.topology.package.environment import MAX_REQUIREMENTS, parse, pins_fault

BASE = {"pyspark": "4.3.0", "stormkeeper": "0.1.0"}
HASH = "--hash=sha256:" + "a" * 64
OTHER = "--hash=sha256:" + "b" * 64
COMMIT = "0123456789abcdef" * 2 + "01234567"

PINNED = st.from_regex(r"[a-z](-?[a-z0-9]){0,5}==[0-9]\.[0-9]", fullmatch=True)


def texts(text):
    return [requirement.text for requirement in parse(text, "requirements.txt", BASE)]


@pytest.mark.parametrize(
    ("line", "text", "pinned"),
    [
        ("requests==2.32.5", "requests==2.32.5", True),
        ("  Requests == 2.32.5   # HTTP", "requests==2.32.5", True),
        ("ruamel.yaml===0.18", "ruamel-yaml===0.18", True),
        ("requests[socks]==2.32.5", "requests[socks]==2.32.5", True),
        ("requests", "requests", False),
        ("requests>=2,<3", "requests<3,>=2", False),
        ("requests==2.*", "requests==2.*", False),
        ("requests==2.0,!=2.1", "requests!=2.1,==2.0", False),
        ("six==1.0; python_version<'3'", 'six==1.0; python_version < "3"', True),
        (f"six==1.0 {OTHER} {HASH} {HASH}", f"six==1.0 {HASH} {OTHER}", True),
        (f"six==1.0 \\\n    {HASH} \\\n  {OTHER}", f"six==1.0 {HASH} {OTHER}", True),
        (f"six==1.0 --hash sha256:{'a' * 64}", f"six==1.0 {HASH}", True),
        (
            f"six @ https://host/six.whl#sha256={'c' * 64}",
            f"six @ https://host/six.whl#sha256={'c' * 64}",
            True,
        ),
        (f"six@git+https://host/six@{COMMIT}", f"six @ git+https://host/six@{COMMIT}", True),
        ("stormkeeper[kerberos]", "stormkeeper[kerberos]==0.1.0", True),
        ("pyspark==3.5; python_version<'3'", 'pyspark==3.5; python_version < "3"', True),
    ],
)
def test_a_line(line, text, pinned):
    (requirement,) = parse(line, "requirements.txt", BASE)
    assert requirement.text == text
    assert requirement.is_pinned is pinned


def test_lines_that_ask_for_nothing():
    assert texts("\ufeff\n# a comment\n   # another\n\npyspark\nPySpark>=4,<5\nstormkeeper\n") == []


def test_the_number_of_a_line_is_where_it_begins():
    text = f"# one\n\nsix==1.0 \\\n  {HASH}\nrequests\n"
    assert [r.line for r in parse(text, "requirements.txt", {})] == [3, 5]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("requests=2", "'requests=2' is no requirement: "),
        ("requests_", "no package can be called 'requests_'"),
        ("-r more.txt", "pip's option -r cannot be sent: write what stands in that file here"),
        ("-rmore.txt", "pip's option -r cannot be sent"),
        ("--constraint=c.txt", "pip's option --constraint cannot be sent: write what stands"),
        ("-e ../mine", "pip's option -e cannot be sent: put the code into the folder"),
        ("--index https://u:secret@host/", "pip's option --index .*: where packages come"),
        ("--extra-index=https://secret@host", "pip's option --extra-index cannot"),
        ("-i https://secret@host", "pip's option -i cannot be sent: where packages come from is"),
        ("--trusted-host secret", "is set on each machine of the cluster"),
        ("--pre", "pip's option --pre cannot be sent: write packages and their versions only"),
        ("six==1.0 --global-option=secret", "behind a requirement may stand only hashes"),
        ("six==1.0 --hash=md5:abc", "behind a requirement may stand only hashes"),
        ("./mine", "a path is none on the machines of the cluster: put the code"),
        ("/home/me/mine", "a path is none"),
        ("~/mine", "a path is none"),
        ("mine-1.0-py3-none-any.whl", "a path is none"),
        ("mine-1.0.tar.gz", "a path is none"),
        ("file:///home/me/mine", "a path is none"),
        ("mine @ file:///home/me/mine", "a path is none"),
        ("mine @ ./mine", "a path is none"),
        ("https://secret@host/six.whl", "write the package's name before an address"),
        ("git+https://secret@host/six", "write the package's name before an address"),
        ("six @ https://u:secret@host/six.whl", "the address has a user, a password"),
        ("six @ git+ssh://git@host/secret", "the address has a user, a password"),
        ("six @ https://${secret}/six.whl", "the address has a user, a password or a variable"),
        ("six @ https://host/secret.whl", "may change: use https://… with #sha256="),
        ("six @ git+https://host/secret@main", "may change"),
        (f"six @ git+https://host/secret@{COMMIT[:7]}", "may change"),
        (f"six @ http://host/secret#sha256={'a' * 64}", "may change"),
        ("six @ https://[secret/six.whl", "address"),
        ("pyspark==3.5.0", "the cluster has pyspark 4.3.0, which no topology can replace"),
        ("pyspark[connect]<4", "the cluster has pyspark 4.3.0"),
        ("Stormkeeper>1", "the cluster has stormkeeper 0.1.0"),
        (f"pyspark @ git+https://host/p@{COMMIT}", "the cluster has pyspark 4.3.0"),
        ("x" * 20_000, "it has 20,000 characters, and may have 16,384"),
    ],
)
def test_a_line_that_cannot_be_sent(line, said):
    with pytest.raises(TopologyError, match=rf"^requirements.txt, line 2: .*{said}") as error:
        texts(f"requests==2.32.5\n{line}\n")
    assert "secret" not in str(error.value)


def test_two_lines_for_one_package():
    with pytest.raises(TopologyError, match="line 3: my-six stands in line 1 already"):
        texts("my.six==1.0\nrequests\nMy_Six==1.0")
    with pytest.raises(TopologyError, match="line 2: six stands in line 1 already"):
        texts("six==1; python_version<'3'\nsix==2; python_version<'3'")
    assert len(texts("six==1; python_version<'3'\nsix==2; python_version>='3'")) == 2


def test_too_many():
    with pytest.raises(TopologyError, match="has 2,001 requirements, and may have 2,000"):
        texts("\n".join(f"p{n}==1" for n in range(MAX_REQUIREMENTS + 1)))


@given(st.text(max_size=60) | st.text("six=<>~!.*1;@#-h/:\\ \n'\"[]()", max_size=40))
def test_accepted_requirements_read_back(text):
    try:
        first = parse(text, "requirements.txt", {})
    except TopologyError:
        return
    again = parse("\n".join(r.text for r in first), "requirements.txt", {})
    assert [(r.text, r.is_pinned) for r in again] == [(r.text, r.is_pinned) for r in first]


@given(st.lists(PINNED, max_size=5, unique_by=lambda pin: pin.partition("==")[0]))
def test_pins(pins):
    assert pins_fault(pins) is None


@pytest.mark.parametrize(
    ("pins", "said"),
    [
        (["requests>=2"], "'requests>=2' allows several versions"),
        (["Requests==2.0"], "not written as they should be"),
        (["a--b==2.0"], "not written as they should be"),
        (["requests==2.0\n--index=x"], "pip's option --index"),
        (["requests==2.0\nsix==1.0"], "not written as they should be"),
        (["requests==2.0\\", "six==1.0"], ""),
        (["requests==2.0 "], "not written as they should be"),
        ([""], "not written as they should be"),
        (["-r /etc/passwd"], "pip's option -r"),
        (["six==1.0", "six==1.0"], "stands in line 1 already"),
    ],
)
def test_what_is_no_list_of_pins(pins, said):
    assert said in pins_fault(pins)
