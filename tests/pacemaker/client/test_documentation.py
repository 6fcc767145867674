"""The examples in docs/pacemaker-clients.md run."""

import re
from pathlib import Path

from stormkeeper.pacemaker.client import pacemaker_client
from stormkeeper.thrift.records import ClusterWorkerHeartbeat
from stormkeeper.thrift.serialization import deserialize
from support.messages import rows_of
from support.pacemaker import PacemakerProcess

PAGE = (Path(__file__).parents[3] / "docs" / "pacemaker-clients.md").read_text()

EXAMPLES = re.findall(
    r"^```python\n(.*?)^```",
    PAGE.partition("## From Python")[2].partition("\n## ")[0],
    re.DOTALL | re.MULTILINE,
)


def test_the_example_runs(capsys):
    example, _ = EXAMPLES
    with PacemakerProcess() as one, PacemakerProcess() as other:
        code = example.replace("pacemaker-1", one.address).replace("pacemaker-2", other.address)
        with pacemaker_client.PacemakerClient(one.address) as worker:
            worker.send_pulse("/workerbeats/wc-1-1/node-6700", b"12345")
        exec(compile(code, "docs/pacemaker-clients.md", "exec"), {})
    pulse, changes = capsys.readouterr().out.splitlines()
    path, size, age_secs, server = pulse.split()
    assert (path, size) == ("/workerbeats/wc-1-1/node-6700", "5")
    assert 0 <= float(age_secs) < 60  # often so small that it is printed with an exponent
    assert server in (one.address, other.address)
    assert re.fullmatch("1 changes of [0-9a-f]{32}", changes)


def test_the_example_of_a_program_that_beats_runs():
    _, example = EXAMPLES
    with PacemakerProcess() as one, PacemakerProcess() as other:
        code = example.replace("pacemaker-1", one.address).replace("pacemaker-2", other.address)
        exec(compile(code, "docs/pacemaker-clients.md", "exec"), {})
        found = []
        for server in (one, other):
            with pacemaker_client.PacemakerClient(server.address) as reader:
                found += rows_of(reader.changes("/workerbeats").columns)
    (pulse,) = found
    assert f"storm heartbeats get {pulse.path}`" in PAGE
    heartbeat = deserialize(ClusterWorkerHeartbeat, pulse.details)
    (stats,) = heartbeat.executor_stats.values()
    assert stats.emitted == {":all-time": {"default": 200}}
