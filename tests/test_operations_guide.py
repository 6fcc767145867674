"""The guides for operators and the alerts name the metrics that there are, and all of them."""

import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from stormkeeper.pacemaker.server.server_status import CLOSED, PREFIX, REFUSED, TURNED_AWAY, pages
from support.snapshots import SNAPSHOT

ROOT = Path(__file__).parents[1]
OBSERVABILITY = (ROOT / "docs" / "observability.md").read_text()
OPERATIONS = (ROOT / "docs" / "pacemakers.md").read_text()
RULES = (ROOT / "deploy" / "prometheus-rules.yml").read_text()


@pytest.fixture(scope="module")
def families():
    text = pages(lambda: SNAPSHOT)["/metrics"]("").body.decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


@pytest.fixture(scope="module")
def samples(families):
    """Names of all samples, with the values of each label."""
    found = {}
    for family in families.values():
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for name, value in sample.labels.items():
                labels.setdefault(name, set()).add(value)
    return found


def selectors(text):
    """Yield each metric of ours that a text selects, with the labels it asks for."""
    pattern = r"\b((?:stormkeeper_pacemaker|process)_\w+)(?:\{([^}]*)\})?"
    for name, matchers in re.findall(pattern, text):
        yield name, re.findall(r'(\w+)(=~|!=|=)"([^"]*)"', matchers)


@pytest.mark.parametrize(
    "text", [OBSERVABILITY, OPERATIONS, RULES], ids=["metrics", "guide", "rules"]
)
def test_selected_metrics_exist(text, samples):
    selected = list(selectors(text))
    assert len(selected) > 5
    for name, matchers in selected:
        assert name in samples, name
        for label, operator, value in matchers:
            if label == "job":  # the scrape's
                continue
            assert label in samples[name], (name, label)
            wanted = value.split("|") if operator == "=~" else [value]
            assert set(wanted) <= samples[name][label], (name, value)


def test_the_table_has_every_metric(families):
    table = OBSERVABILITY.partition("### The metrics")[2].partition("### Storm's names")[0]
    written = {
        name
        for row in table.splitlines()
        if row.startswith("| `")
        for name in re.findall(r"`([a-z_]+)`", row.split("|")[1])
    }
    there = {
        (f"{name}_total" if family.type == "counter" else name).removeprefix(PREFIX)
        for name, family in families.items()
    }
    assert written == there


def test_the_table_has_every_cause():
    for name, causes in {
        "connections_ended_total": CLOSED,
        "requests_refused_total": {cause for cause, _ in REFUSED},
        "connections_refused_total": TURNED_AWAY,
    }.items():
        [row] = re.findall(rf"^\| `{name}` .*", OBSERVABILITY, re.MULTILINE)
        for cause in causes:
            assert f"`{cause}`" in row, (name, cause)


def test_every_cause_of_refusal_has_its_remedy():
    [row] = re.findall(r"^\| `PacemakerRefusesConnections` .*", OPERATIONS, re.MULTILINE)
    for cause in TURNED_AWAY:
        assert f"`{cause}`:" in row, cause


def test_every_alert_has_its_remedy():
    [group] = yaml.safe_load(RULES)["groups"]
    alerts = {rule["alert"] for rule in group["rules"]}
    table = OPERATIONS.partition("## What to watch")[2].partition("Some questions")[0]
    assert (
        set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE))))
        == alerts
    )
    for rule in group["rules"]:
        assert rule["expr"]
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


def test_a_refused_read_is_no_refused_pulse():
    [group] = yaml.safe_load(RULES)["groups"]
    [rule] = [rule for rule in group["rules"] if rule["alert"] == "PacemakerRefusesPulses"]
    [(name, matchers)] = selectors(rule["expr"])
    assert name == f"{PREFIX}requests_refused_total"
    assert ("kind", "=", "write") in matchers


def test_pip_commands_name_the_pins_and_no_foreign_package():
    told = re.compile(r"[^`\n]*\bpip (?P<rest>install[^`\n]*)")
    pages = (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    found = [found for page in pages for found in told.finditer(page.read_text())]
    # But what a command prints is for the Python that it runs in, where this name is ours.
    commands = [command for command in found if not command[0].startswith("storm: ")]
    pinned = "install --constraint constraints.txt"
    rests = [command["rest"] for command in commands]
    assert f"{pinned} ." in rests
    for extra in ("kerberos", "spark"):
        assert any(rest.startswith(f'{pinned} ".[{extra}]"') for rest in rests), extra
    for command in commands:
        assert "stormkeeper" not in command["rest"], command[0]
        # It would reach what builds gssapi, too, which names its own version of Cython.
        assert "PIP_CONSTRAINT" not in command[0]


def test_the_settings_of_the_unit_are_the_ones_explained():
    service = (ROOT / "deploy" / "stormkeeper-pacemaker.service").read_text().splitlines()
    for setting in (
        "Type=notify",
        "WatchdogSec=15",
        "LimitNOFILE=262144",
        "MemoryMax=4G",
        "User=stormkeeper",
        "ProtectSystem=strict",
    ):
        assert setting in service
        assert f"`{setting}`" in OPERATIONS
    for name in (
        "stormkeeper-pacemaker.service",
        "stormkeeper-pacemaker.socket",
        "prometheus-rules.yml",
    ):
        assert (ROOT / "deploy" / name).exists()
        assert f"deploy/{name}" in OPERATIONS
