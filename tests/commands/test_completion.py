"""`completion`: the script for bash, loaded by bash itself; and the examples in the help of commands."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pytest

from harness.cli import main
from harness.commands.completion import SHELLS
from harness.commands.parser import COMMANDS, parsed

WITH_EXAMPLES = ("run", "resume", "compare", "stats", "merge", "fetch", "config", "completion")
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
function_of=$(complete -p harness); function_of=${function_of#*-F }
${function_of%% *} harness "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash, in a folder with two runs."""
    folder = tmp_path_factory.mktemp("completion")
    for run in ("模型-a", "other"):
        (folder / "results" / run).mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch, (folder / "script").open("w", encoding="utf-8") as output:
        patch.setattr("sys.stdout", output)
        assert main(["completion", "bash"]) == 0
    return folder / "script"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("harness rep", {"report"}),
        ("harness run --conc", {"--concurrency"}),
        ("harness run --agent-s", {"--agent-seed"}),
        ("harness run --stream ", {"auto", "on", "off"}),
        ("harness resume --name 模", {"模型-a"}),
        ("harness compare ", {"模型-a", "other"}),
    ],
)
def test_bash_completes_commands_options_values_and_runs(words: str, completed: set[str], script: Path) -> None:
    """As after a press of the tab key: commands, options of any benchmark, choices, folders of runs."""
    call = ["bash", "--norc", "-c", ASK, "bash", str(script), *words.split(" ")]
    done = subprocess.run(call, cwd=script.parent, capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == completed, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_one_of_its_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A shell that is installed here finds no mistake in its script; every script names every command."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, timeout=60).returncode == 0


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_the_help_can_be_parsed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is shown by `--help`, and is a command line that this version takes."""
    examples = import_module(f"harness.commands.{name}").EXAMPLES
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    for line in examples:
        assert f"  {line}\n" in shown
        words = shlex.split(line.partition(">")[0])
        assert words[:2] == ["harness", name]
        parsed(words[1:])
    assert 2 <= len(examples) <= 3
