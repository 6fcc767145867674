"""``storm checkpoint``, with a small Nimbus."""

import json

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from support.small_nimbus import SmallNimbus, serving


@pytest.fixture
def nimbus():
    return SmallNimbus()


@pytest.fixture
def run(environ, nimbus, tmp_path):
    with serving(nimbus) as seed:

        def invoke(*arguments, given=None):
            options = [f"nimbus.seeds=[{seed}]", f"storm.local.dir={tmp_path}"]
            return CliRunner(env=environ).invoke(
                command,
                ["checkpoint", *arguments, *(part for each in options for part in ("-c", each))],
                input=given,
            )

        yield invoke


@pytest.fixture
def broken(tmp_path):
    """The offsets of batch 1 of a topology, which are empty."""
    for name in ("wc-2-16", "wc-1-17"):
        place = tmp_path / "checkpoints" / name / "out"
        for log in ("offsets", "commits"):
            (place / log).mkdir(parents=True)
            (place / log / "0").write_text("v1\n{}\n0")
    file = place / "offsets" / "1"
    file.touch()
    return file


@pytest.mark.parametrize("name", ["wc", "wc-1-17", "DIR"])
def test_what_is_wrong_is_said_and_mended_after_asking(run, broken, name):
    name = str(broken.parent.parent) if name == "DIR" else name
    said = run("check", name)
    assert said.exit_code == 1
    assert f"{broken} is empty\n  a repair loses: what batch 1 was to read" in said.output
    [found] = json.loads(run("check", name, "--json").output)
    assert [defect["mendable"] for defect in found["defects"]] == [True]
    assert run("repair", name, given="n\n").exit_code == 1
    assert broken.exists()
    mended = run("repair", name, given="y\n")
    assert mended.exit_code == 0, mended.output
    assert not broken.exists()
    assert "no faults" in run("check", name).output


def test_nothing_is_mended_while_a_worker_may_run(run, nimbus, broken):
    nimbus.has("wc")
    for name in ("wc", str(broken.parent.parent)):
        refused = run("repair", name, "--yes")
        assert refused.exit_code == 1
        assert "a worker may run on" in refused.output
        assert "wc is ACTIVE. End its queries with `storm deactivate`" in refused.output
    assert broken.exists()
    nimbus.topologies["wc"].status = "INACTIVE"
    assert run("repair", "wc", "--yes").exit_code == 0
    assert not broken.exists()


def test_completed_topology_has_no_worker_on_its_checkpoint(run, nimbus, broken):
    nimbus.has("wc")
    nimbus.topologies["wc"].sched_status = "Completed"
    assert run("repair", "wc", "--yes").exit_code == 0
    assert not broken.exists()


def test_a_claim_says_which_topology_runs_on_a_checkpoint(run, nimbus, broken):
    nimbus.has("job")
    claim = broken.parent.parent / "claims" / "1-2-3"
    claim.parent.mkdir()
    claim.write_text(json.dumps({"topology": nimbus.topologies["job"].id}))
    assert "job is ACTIVE" in run("repair", str(broken.parent.parent), "--yes").output


def test_a_checkpoint_that_is_not_here(run, tmp_path):
    assert "no checkpoint of far in" in run("check", "far").output
    assert "there is no " in run("check", str(tmp_path / "none")).output
    assert "no checkpoint of far in" in run("check", "far", "--offline").output
