"""The example of docs/simulation.md, run as it stands."""

import re
from pathlib import Path

from support.simulations import BEGIN, simulation, write_truth

PAGE = Path(__file__).parents[2] / "docs" / "simulation.md"


def test_the_example_prints_the_dead(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made, told = simulation(nodes=4, round_secs=60.0)
    for step in range(60):
        for beat in made.due(BEGIN + step):
            made.acknowledged(beat, "a:6699", BEGIN + step)
    made.finish(BEGIN + 60)
    write_truth(Path("truth.jsonl"), told)
    (code,) = re.findall(r"^```python\n(.+?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(code, "docs/simulation.md", "exec"), {})
    (dead,) = [event for event in told if event.get("kind") == "worker_died"]
    storm_id, node, port, heard = capsys.readouterr().out.split()
    assert (storm_id, node, int(port)) == (dead["storm_id"], dead["node"], dead["port"])
    assert BEGIN < float(heard) <= dead["since"]
