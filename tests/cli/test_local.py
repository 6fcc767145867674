import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from stormkeeper.cli.commands import storm as command
from stormkeeper.errors import LocalClusterError
from stormkeeper.local import local_cluster
from stormkeeper.local.run_plan import RunRequest
from support.packages import STREAMING


@pytest.fixture
def asked(monkeypatch):
    """What the command asks of the cluster, which here does nothing."""
    seen = []

    def run(conf, request):
        seen.append((conf, request))
        return 0

    monkeypatch.setattr(local_cluster, "run", run)
    return seen


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "job.py"
    path.write_text(STREAMING)
    return str(path)


@pytest.fixture
def local(environ, script):
    def run(*arguments, before=()):
        return CliRunner(env=environ).invoke(command, [*before, "local", script, *arguments])

    return run


def test_it_asks_for_what_was_said(asked, local, script, tmp_path):
    report = tmp_path / "r.json"
    told = local(
        *("--seconds", "60", "--report", str(report), "-c", "spark.master=local[2]"),
        before=["-c", "ui.port=1", "--strict"],
    )
    assert told.exit_code == 0, told.output
    conf, request = asked[0]
    assert conf["ui.port"] == 1
    assert request == RunRequest(
        topology=Path(script),
        overrides=["ui.port=1", "spark.master=local[2]"],
        seconds=60.0,
        report=report,
        strict=True,
    )


def test_what_stands_behind_two_dashes_is_the_scripts(asked, local):
    told = local("--seconds", "5", "--", "--seconds", "-c", "a=1")
    assert told.exit_code == 0, told.output
    assert asked[0][1].arguments == ("--seconds", "-c", "a=1")
    assert asked[0][1].seconds == 5.0
    assert asked[0][1].overrides == []


def test_an_option_of_the_scripts_is_told_where_it_stands(asked, local):
    told = local("--day", "3")
    assert told.exit_code == 2
    assert "'--day'. Options of the script follow --, as in: -- --day\n" in told.output
    assert asked == []
    misspelt = local("--second", "3")
    assert "'--seconds'" in misspelt.output


def test_a_report_into_no_folder_is_wrong_usage(asked, local, tmp_path):
    told = local("--report", str(tmp_path / "no" / "r.json"))
    assert told.exit_code == 2
    assert f"the folder {tmp_path / 'no'} does not exist" in " ".join(told.output.split())
    assert asked == []


def test_files_that_the_script_can_import(asked, local, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.py", "b.zip", "c.egg", "d.txt"):
        (tmp_path / name).touch()
    assert local("--py-files", "a.py,b.zip", "--py-files", "c.egg").exit_code == 0
    assert asked[0][1].py_files == tuple(tmp_path / name for name in ("a.py", "b.zip", "c.egg"))
    for wrong, said in (("d.txt", "is no .py, .zip or .egg"), ("e.py", "there is no file e.py")):
        told = local("--py-files", wrong)
        assert told.exit_code == 2
        assert said in told.output


def test_the_tables_are_kept_where_it_is_said(asked, local, tmp_path):
    folder = tmp_path / "of: [tables] #1"
    assert local("-c", f"pipeline.tables.dir={json.dumps(str(folder))}").exit_code == 0
    conf, request = asked[0]
    assert conf["pipeline.tables.dir"] == str(folder)
    assert conf.is_override("pipeline.tables.dir")
    assert request.pipeline


def test_the_pipeline_may_be_left_out(asked, local):
    assert local("--no-pipeline").exit_code == 0
    assert not asked[0][1].pipeline


def test_the_help_says_what_starts_when(storm):
    said = " ".join(storm("local", "--help").stdout.split())
    assert "pipeline starts when the worker has counted its first rows" in said


@pytest.mark.parametrize("strict", [[], ["--strict"]])
def test_unknown_keys_are_the_topologys_own(asked, local, strict):
    told = local("-c", "input=/data", "-c", "pacemaker.prot=1", *strict)
    assert (told.exit_code, told.stderr) == (0, "")
    conf, request = asked[0]
    assert conf["input"] == "/data"
    assert request.overrides == ["input=/data", "pacemaker.prot=1"]
    assert (request.seconds, request.report, request.strict) == (None, None, bool(strict))


@pytest.mark.parametrize("arguments", [["--seconds", "0"], ["--seconds", "x"], ["--report"]])
def test_wrong_usage(asked, local, arguments):
    assert local(*arguments).exit_code == 2
    assert not asked


def test_the_script_must_be_there(asked, environ, tmp_path):
    for arguments in ([], [str(tmp_path / "none.py")], [str(tmp_path)]):
        told = CliRunner(env=environ).invoke(command, ["local", *arguments])
        assert told.exit_code == 2
    assert not asked


def test_a_cluster_that_fails_is_one_line_and_exit_code_1(monkeypatch, local):
    def run(*_):
        raise LocalClusterError("the worker ended with 3")

    monkeypatch.setattr(local_cluster, "run", run)
    told = local()
    assert (told.exit_code, told.stderr) == (1, "storm: the worker ended with 3\n")
    monkeypatch.setattr(local_cluster, "run", lambda *_: 3)
    assert local().exit_code == 3


def test_a_fault_in_the_source_is_said_before_anything_starts(tmp_path):
    """As one line, by a command that has loaded neither PySpark nor anything else that is slow."""
    script = tmp_path / "job.py"
    script.write_text("import os\nimport no_such_module\n")
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "stormkeeper", "local", str(script)],
        capture_output=True, text=True, check=False, timeout=60,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )  # fmt: skip
    imports = {line.rpartition("|")[2].strip() for line in told.stderr.splitlines()}
    said = [line for line in told.stderr.splitlines() if not line.startswith("import time:")]
    assert told.returncode == 1
    assert said == [
        f"storm: {script}, line 2: No module named 'no_such_module': name the package that has it "
        "in the requirements.txt beside the code, and install that file in the Python that runs "
        f"the storm command ({sys.executable} -m pip install -r requirements.txt), or bring the "
        "module with --py-files"
    ]
    assert "stormkeeper.topology.script_source" in imports
    assert not imports & {
        "pyspark",
        "pyarrow",
        "numpy",
        "kazoo.client",
        "stormkeeper.local.local_cluster",
    }
    assert list(tmp_path.iterdir()) == [script]
