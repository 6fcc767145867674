"""The analyses in a real pipeline: a silent node of a simulated cluster is an alert, and ends."""

import json
import signal
import subprocess
import urllib.request

import pytest

from stormkeeper.pipeline import tables
from support.command import STORM
from support.daemon import DaemonProcess
from support.pipelines import START_SECS
from support.tables import present
from support.waiting import DEADLINE_SECS, until


class Simulated:
    """Workers of one simulated node, or of some, until the block ends."""

    def __init__(self, address, nodes, seed):
        options = {"pacemaker.servers": [address], "task.heartbeat.frequency.secs": 1}
        self._command = [
            *(STORM, "simulate", "--beside", "--nodes", str(nodes), "--workers-per-node", "4"),
            *("--topologies", "2", "--seed", str(seed)),
            *(f"-c{key}={json.dumps(value)}" for key, value in options.items()),
        ]

    def __enter__(self):
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return self

    def suspend(self):
        self._process.send_signal(signal.SIGSTOP)

    def resume(self):
        self._process.send_signal(signal.SIGCONT)

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait(DEADLINE_SECS)


class Pipeline(DaemonProcess):
    """Runs ``storm pipeline`` with analyses every two seconds."""

    def __init__(self, address, directory):
        conf = {
            "storm.local.dir": str(directory),
            "pacemaker.servers": [address],
            "pipeline.trigger.secs": 1,
            "pipeline.statistics.secs": 5,
            "pipeline.analyses.secs": 2,
            "pipeline.late.secs": 6,
            "pipeline.metrics.port": 0,
            "spark.master": "local[2]",
        }
        super().__init__("pipeline", "pipeline writing to ", conf, ready_secs=START_SECS)
        self.tables = directory / "tables"

    def alerts(self, name=tables.ALERTS):
        return present(self.tables / tables.ALERTS, name)

    def metric(self, name):
        (*_, address) = [
            line.split()[-1] for line in self.log.splitlines() if "metrics on http" in line
        ]
        with urllib.request.urlopen(address, timeout=DEADLINE_SECS) as answer:
            lines = answer.read().decode().splitlines()
        return [float(line.split()[-1]) for line in lines if line.startswith(name)]


def until_spark(condition):
    return until(condition, START_SECS)


def printed(pipeline, *options):
    ran = subprocess.run(
        [STORM, "alerts", "-c", f"pipeline.tables.dir={pipeline.tables}", *options],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECS,
        check=True,
    )
    return ran.stdout


@pytest.mark.slow
@pytest.mark.spark
def test_a_silent_node_is_an_alert_until_it_is_heard_again(start_pacemaker, tmp_path):
    address = start_pacemaker().address

    def of_node(row):
        return (row["rule"], row["subject"]) == ("node_late", node)

    with (
        Simulated(address, nodes=5, seed=1),
        Simulated(address, nodes=1, seed=2) as silent,
        Pipeline(address, tmp_path) as pipeline,
    ):

        def liveness():
            return present(pipeline.tables / tables.LIVENESS, tables.WORKER_LIVENESS)

        until_spark(lambda: [row["status"] for row in liveness()].count("alive") == 24)
        (node,) = {row["node"] for row in liveness() if row["storm_id"].startswith("simulated-2-")}
        until_spark(lambda: pipeline.metric("stormkeeper_pipeline_last_analyses_timestamp_seconds"))
        gauge = 'stormkeeper_pipeline_alerts{rule="node_late",severity="critical"}'
        assert pipeline.metric(gauge) == [0.0]

        silent.suspend()
        critical = {"severity": "critical", "until": None}
        (alert,) = until_spark(
            lambda: [
                row for row in pipeline.alerts() if of_node(row) and row.items() >= critical.items()
            ]
        )
        assert alert["evidence"].startswith("4 of the node's 4 workers are late or dead")
        until_spark(lambda: pipeline.metric(gauge) == [1.0])
        assert "critical  node_late  " in printed(pipeline)
        assert node.rpartition("-")[2] in printed(pipeline, "--severity", "critical")

        # Another process goes on with the alert.
        pipeline.kill()
        silent.resume()
        pipeline.start()
        (ended,) = until_spark(
            lambda: [row for row in pipeline.alerts() if of_node(row) and row["until"] is not None]
        )
        assert ended["since"] == alert["since"]
        assert ended["until"] >= alert["seen_at"]
        until_spark(lambda: pipeline.metric(gauge) == [0.0])
        assert "node_late" not in printed(pipeline)
        assert "found last" in printed(pipeline, "--ended")
        history = [row for row in pipeline.alerts(tables.ALERT_HISTORY) if of_node(row)]
        history.sort(key=lambda row: row["at"])
        assert [row["change"] for row in history if row["change"] != "severity"] == [
            "began",
            "ended",
        ]
        assert pipeline.metric("stormkeeper_pipeline_analysis_failures_total")
        assert set(pipeline.metric("stormkeeper_pipeline_analysis_failures_total")) == {0.0}
        assert pipeline.stop() == 0
        assert " WARNING stormkeeper.pipeline.analyses" not in pipeline.log
