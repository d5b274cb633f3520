"""`completion`: the scripts, loaded by the shells themselves; and the examples in the help of
commands."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from harness.cli import main
from harness.commands.parser import COMMANDS, built, parsed
from tests.support.keyboard import shell

SHELLS = ("bash", "zsh", "fish")
WITH_EXAMPLES = ("run", "resume", "compare", "stats", "merge", "fetch", "config", "completion")
ASK = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
function_of=$(complete -p harness); function_of=${function_of#*-F }
${function_of%% *} harness "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

MARK = "PWNED"
HARMLESS = (
    "模型-a", "plain", "c d", " e", "f ", "it's", 'say "x"', "a;b", "a&b", "a|b", "a>b", "a<b", "*", "g*", "h?", "[ab]",
    "{a,b}", "~", "~root", "#x", "a!b", "!!", "a:b", "a=b", "$HOME", "${HOME}", "$((1+1))", "^a^b", "%1", "@x", "x,y",
    "(x)",
)  # fmt: skip
"""Names that would be expanded, split or read as syntax."""
RUNNING = tuple(
    text.replace("touch", f"touch${{IFS}}{MARK}")
    for text in (
        "$(touch)",
        "`touch`",
        "run$(touch)",
        'a"$(touch)"',
        "a'$(touch)'",
        "<(touch)",
        ";touch;",
        "|touch",
        "${a[$(touch)]}",
        "$((a[$(touch)]))",
    )
)
"""Names that would run a command."""
OFFERED = (*HARMLESS, *RUNNING)
FILE = f"file $(touch ${{IFS}}{MARK})"
LEFT_OUT = (
    "-x",
    "--trust",
    ".hidden",
    "two\nlines",
    f"two\n$(touch {MARK})",
    "tab\tname",
    "bell\a",
    "\x1b]0;x\x07",
    "back\\slash",
)
"""Names that no run has, or that would be options."""

LOADED = {
    "bash": "source ./_bash; bind 'set page-completions off'; bind 'set completion-query-items 0'",
    "zsh": "LISTMAX=9999; fpath=($PWD/functions $fpath); autoload -Uz compinit; compinit -u -D",
}
"""How the scripts are loaded, without questions before a long list."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts, in a folder with results of hostile names: as they are, and each after a number
    of its own."""
    folder = tmp_path_factory.mktemp("hostile")
    numbered = [f"n{number:02}{name}" for number, name in enumerate(OFFERED)]
    for name in (*OFFERED, *LEFT_OUT, *numbered):
        (folder / "results" / name).mkdir(parents=True)
    for name in SHELLS:
        with (
            pytest.MonkeyPatch.context() as patch,
            (folder / f"_{name}").open("w", encoding="utf-8") as output,
        ):
            patch.setattr("sys.stdout", output)
            assert main(["completion", name]) == 0
    (folder / FILE).touch()
    (folder / "said").mkdir()
    (folder / "functions").mkdir()
    (folder / "_zsh").rename(folder / "functions/_harness")
    return folder


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of a shell that knows UTF-8 and no settings of the user's."""
    plain = {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "TERM": "xterm",
        "LC_ALL": "C.UTF-8",
    }
    return {"PATH": os.environ["PATH"], "INPUTRC": os.devnull, "HISTFILE": os.devnull, **plain}


def needed(name: str) -> str:
    """Return the path of a shell. Skip the test where it is not installed."""
    return shutil.which(name) or pytest.skip(f"{name} is not installed")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script for bash, in a folder with two runs."""
    folder = tmp_path_factory.mktemp("completion")
    for run in ("模型-a", "other"):
        (folder / "results" / run).mkdir(parents=True)
    with (
        pytest.MonkeyPatch.context() as patch,
        (folder / "script").open("w", encoding="utf-8") as output,
    ):
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
def test_bash_completes_commands_options_values_and_runs(words, completed, script):
    """As after a press of the tab key: commands, options of any benchmark, choices, folders of
    runs."""
    call = ["bash", "--norc", "-c", ASK, "bash", str(script), *words.split(" ")]
    done = subprocess.run(call, cwd=script.parent, capture_output=True, text=True, timeout=60)
    assert set(done.stdout.split()) == completed, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("'n34", "n34run$(touch${IFS}PWNED)"),
        ('"n02', "n02c d"),
        ('"n34', ""),  # what cannot be quoted so
        ("n34run\\$\\(", "n34run\\$\\(touch\\$\\{IFS\\}PWNED\\)"),
        ("n34run$(touch PWNED)", ""),
        ("$(touch PWNED)", ""),
    ],
)
def test_bash_completes_a_word_that_is_quoted(typed, offered, hostile):
    """The rest of the name is quoted in the same way."""
    call = ["bash", "--norc", "-c", ASK, "bash", "./_bash", "harness", "resume", "--name", typed]
    done = subprocess.run(
        call, cwd=hostile, env=environment(hostile), capture_output=True, text=True, timeout=60
    )
    assert done.stdout.removesuffix("\n") == offered, done.stderr
    assert not (hostile / MARK).exists()


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_one_of_its_shell(shell, capsys):
    """A shell that is installed here finds no mistake in its script; every script names every
    command."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=script, text=True, timeout=60).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_name_of_a_run_is_inserted_quoted_and_nothing_of_it_runs(name, hostile):
    """At a real terminal: the first characters, the tab key, and the line is executed with the name
    as one word."""
    start = {"bash": "--norc --noprofile -i", "zsh": "-f -i"}[name].split()
    made = hostile / "said" / name
    made.mkdir()
    setup = f"{LOADED[name]}; harness() {{ shift; printf '%s\\0' \"$@\" > said/{name}/new; "
    setup += f"mv said/{name}/new said/{name}/$((count++)); }}; count=0; : > said/{name}/ready\r"
    with shell([needed(name), *start], hostile, environment(hostile)) as typed:
        typed.type(setup, made / "ready")
        for number in range(len(OFFERED)):
            typed.type(f"harness resume --name n{number:02}\t\r", made / str(number))
        typed.type("harness run --config file\t\r", made / str(len(OFFERED)))
        typed.type(f"harness resume --name \t\t\x15: > said/{name}/end\r", made / "end")
    for number, run in enumerate(OFFERED):
        words = (made / str(number)).read_bytes().decode().split("\0")
        assert words == ["--name", f"n{number:02}{run}", ""]
    assert (made / str(len(OFFERED))).read_bytes().decode().split("\0") == ["--config", FILE, ""]
    assert not (hostile / MARK).exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ask"),
    [
        ("bash", f'{ASK} for word in "${{COMPREPLY[@]}}"; do echo "$word"; done'),
        ("fish", "source $argv[1]; complete -C (string join ' ' -- $argv[2..]) --escape"),
    ],
)
@pytest.mark.parametrize("command", ["resume --name ", "compare ", "merge plain ", "remove "])
def test_all_names_are_offered_as_one_candidate_each(name, ask, command, hostile):
    """Each is quoted: split as the shell splits words, it is the name; names that cannot be runs
    are left out."""
    path = needed(name)
    words = ["harness", *command.split(" ")]
    place = ["bash"] if name == "bash" else []
    call = [
        path,
        *(["--norc"] if name == "bash" else ["--no-config"]),
        "-c",
        ask,
        *place,
        f"./_{name}",
        *words,
    ]
    done = subprocess.run(
        call, cwd=hostile, env=environment(hostile), capture_output=True, text=True, timeout=60
    )
    lines = {line.partition("\t")[0] for line in done.stdout.splitlines()}
    found = {shlex.split(line)[0] for line in lines if line and not line.startswith("--")}
    numbered = {f"n{number:02}{run}" for number, run in enumerate(OFFERED)}
    assert {*OFFERED, *numbered} <= found, (found, done.stderr)
    assert not found & {*LEFT_OUT}
    assert not (hostile / MARK).exists()


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples_in_the_help_can_be_parsed(name, capsys):
    """Each is shown by `--help`, and is a command line that this version takes."""
    examples = built(name, ()).cls.examples
    assert main([name, "--help"]) == 0
    shown = capsys.readouterr().out
    for line in examples:
        assert f"  {line}\n" in shown
        words = shlex.split(line.partition(">")[0])
        assert words[:2] == ["harness", name]
        parsed(words[1:])
    assert 2 <= len(examples) <= 3
