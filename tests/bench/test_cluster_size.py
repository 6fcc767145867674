"""What docs/scaling.md calculates is what the program makes of the committed results."""

import sys
from pathlib import Path

import cluster_size

GUIDE = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text()
CALCULATED = GUIDE.partition("## Larger ones, by calculation")[2]


def cells(text):
    """Return the cells of all tables in a text, without the rules below their heads."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows if set(row[0].strip()) != {"-"}]


def test_the_page_has_what_the_program_prints(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["cluster_size.py"])
    cluster_size.main()
    printed = cells(capsys.readouterr().out)
    assert len(printed) > 25
    assert cells(CALCULATED.replace("\N{MULTIPLICATION SIGN}", "x")) == printed, (
        "python bench/cluster_size.py"
    )
