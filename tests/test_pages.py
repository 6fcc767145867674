"""What the pages name is there: other pages and their sections, files, modules, commands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import stormkeeper
from stormkeeper.cli.commands import storm
from stormkeeper.conf.schema import SCHEMA

ROOT = Path(__file__).parents[1]
PACKAGE = Path(stormkeeper.__file__).parent
PAGES = [page for place in (".", "docs", "bench/results") for page in (ROOT / place).glob("*.md")]

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
#: Paths of ours: in the checkout, and modules and folders in the package.
FOLDERS = "|".join(["src", "tests", "bench", "docs", "deploy", "examples", "scripts", r"\.ci"])
ROOMS = "|".join(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
PATH = re.compile(rf"(?:{FOLDERS})/[\w./-]*|(?:{ROOMS})/(?:[\w/]+\.pyx?|[\w/]*/)?")

every_page = pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.stem)


def prose(page):
    return FENCED.sub("", page.read_text())


def code(page):
    """Return the pieces of code of a page: what stands in a line of prose, and whole lines."""
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose(page))
    lines = [line for block in FENCED.findall(page.read_text()) for line in block.splitlines()]
    return [*spans, *lines]


def sections(page):
    """Return what a link to each section of a page ends with."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@every_page
def test_every_link_leads_to_a_page_and_its_section(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not link.startswith("https://"):
            file, _, section = link.partition("#")
            target = page.parent / file if file else page
            assert target.exists(), link
            assert not section or section in sections(target), link


@every_page
def test_every_file_that_is_named_is_there(page):
    for word in " ".join(code(page)).split():
        path, _, test = word.partition("::")
        if re.fullmatch(r"test_\w+\.py", path):
            assert [*(ROOT / "tests").rglob(path)], word
        elif re.fullmatch(r"stormkeeper-\w+\.(?:service|socket)", word):
            assert (ROOT / "deploy" / word).exists(), word
        elif PATH.fullmatch(path):
            files = [file for file in (ROOT / path, PACKAGE / path) if file.exists()]
            assert files, word
            assert not test or f"def {test}(" in files[0].read_text(), word


@every_page
def test_every_module_that_is_named_is_there(page):
    for name in set(re.findall(r"\bstormkeeper(?:\.\w+)+", page.read_text())) - SCHEMA.keys():
        place, rest = PACKAGE, name.split(".")[1:]
        while rest and (place / rest[0]).is_dir():
            place /= rest.pop(0)
        file = place / (f"{rest.pop(0)}.py" if rest else "__init__.py")
        assert file.exists(), name
        assert not rest or re.search(rf"^(def|class) {rest[0]}\b", file.read_text(), re.MULTILINE)


@every_page
def test_every_target_of_make_is_one(page):
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for piece in code(page):
        if named := re.match(r"make ([a-z-]+)", piece):
            assert named[1] in targets, piece


@every_page
def test_every_command_and_its_options_are_there(page):
    for piece in code(page):
        line = re.match(r"(?:\$ )?(?:\S+/)?(storm [a-z].*)", piece)
        if line is None:
            continue
        words = shlex.split(line[1].partition(" -- ")[0], comments=True)[1:]
        command, options = storm, {*storm.params}
        while isinstance(command, click.Group) and words:
            name = words.pop(0)
            command = command.get_command(click.Context(command), name)
            assert command is not None, piece
            options |= {*command.params}
        known = {text for option in options for text in option.opts}
        given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
        assert given <= known, piece


def test_pictures_are_those_that_the_script_draws(tmp_path):
    subprocess.run([ROOT / "scripts/draw-pictures", tmp_path], timeout=60, check=True)
    drawn = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert drawn == {file.name: file.read_text() for file in (ROOT / "docs/pictures").iterdir()}


def test_pages_build_into_a_site(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", tmp_path]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    assert (tmp_path / "index.html").exists()
