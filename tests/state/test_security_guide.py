"""What docs/security.md says of ZooKeeper is so."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kazoo.security import Permissions

from stormkeeper import paths
from stormkeeper.conf import defaults, yaml_text
from stormkeeper.conf.schema import SCHEMA
from stormkeeper.state.storage import digest_id
from stormkeeper.state.zookeeper.ensemble_settings import AccessRules

GUIDE = (
    (Path(__file__).parents[2] / "docs" / "security.md").read_text().partition("\n## ZooKeeper")[2]
)

RIGHTS = {"read": {Permissions.READ}, "everything": {Permissions.ALL}, "nothing": set()}


def test_workers_may_what_the_table_says():
    rows = re.findall(r"^\| ((?:`/\w+`(?:, )?)+) \| (\w+) \| (\w+) \|$", GUIDE, re.MULTILINE)
    rules = AccessRules(authenticated=True, topology_digest="wc:x")
    for column, below in enumerate(("", "/1"), start=1):
        said = {name: RIGHTS[row[column]] for row in rows for name in re.findall(r"/\w+", row[0])}
        granted = {
            directory: {
                grant.perms
                for grant in rules.acl(f"{directory}/wc-1{below}")
                if grant.id.scheme == "digest"
            }
            for directory in paths.FIRST_LEVEL
        }
        assert {name: rights for name, rights in granted.items() if rights or name in said} == said
        assert len(said) == 10


def test_every_key_that_is_named_exists():
    named = set(re.findall(r"\b(?:storm|java)\.[a-zA-Z.]+[a-zA-Z]", GUIDE))
    assert named - set(SCHEMA) == set()
    about = {key for key in SCHEMA if re.search(r"zookeeper\.(.*auth|ssl|superACL)", key)}
    assert about - named == set()


def test_the_example_of_certificates_is_a_configuration():
    example = re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)[1]
    assert defaults().with_values(yaml_text.read(example.encode()))["storm.zookeeper.ssl.enable"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")
def test_the_command_gives_the_digest_of_the_example():
    command = re.search(r"```sh\n(.*?)```", GUIDE, re.DOTALL)[1]
    shown = subprocess.run(
        ["sh", "-c", command], check=True, capture_output=True, text=True, timeout=60
    ).stdout.strip()
    assert digest_id("storm:secret") == f"storm:{shown}"
    assert f"`digest:storm:{shown}`" in GUIDE
