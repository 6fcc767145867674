import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from stormkeeper.cli.config import SHELLS

#: Asks bash what it would offer for the words of a line, of which the last is being written.
ASK_BASH = """
source <(storm completion bash)
COMP_WORDS=({words})
COMP_CWORD=$(({count} - 1))
_storm_completion storm
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def bash(environ):
    program = shutil.which("bash")
    if program is None:
        pytest.skip("there is no bash here")

    def offered(*words):
        script = ASK_BASH.format(words=" ".join(f"'{word}'" for word in words), count=len(words))
        beside = Path(sys.executable).parent
        told = subprocess.run(
            [program, "--norc", "-c", script],
            env=environ | {"PATH": f"{beside}:{os.environ['PATH']}"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert told.stderr == ""
        return told.stdout.split()

    return offered


def test_bash_completes_commands_and_options(bash):
    assert bash("storm", "heart") == ["heartbeats"]
    assert bash("storm", "heartbeats", "") == ["get", "list", "top"]
    assert "--json" in bash("storm", "heartbeats", "list", "--")
    assert bash("storm", "completion", "") == list(SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_every_shell_has_a_script_that_asks_the_command(storm, shell):
    told = storm("completion", shell)
    assert (told.returncode, told.stderr) == (0, "")
    assert f"_STORM_COMPLETE={shell}_complete" in told.stdout


def test_another_shell_is_wrong_usage(storm):
    told = storm("completion", "tcsh")
    assert told.returncode == 2
    assert "'bash', 'zsh', 'fish'" in told.stderr
