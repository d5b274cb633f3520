"""Commands on copies of the folder that version 0.1.0 wrote (`tests/data/folder-0.1.0`), and what
they end with.

`expected/` in that folder holds what version 0.1.0 itself made of it: `python -m
tests.support.earlier` with its package.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path

import orjson

from tests.support import DATA
from tests.support.before import RESAMPLES, command, keep, kept, run_files, spoilt_by
from tests.support.scripted import Server, answer, serving

FOLDER = DATA / "folder-0.1.0"
EXPECTED = FOLDER / "expected"

WITHOUT_RESULTS = ("score-mobility", "sample")
COMMANDS = f"""
status
status --json
status --name none
verify --name whole --tasks-dir TASKS
verify --name day --tasks-dir TASKS
verify --name failed --tasks-dir TASKS
verify --name killed --tasks-dir TASKS
verify --name whole
verify --name whole --without-tasks
verify --name agent --without-tasks
reeval --name whole --no-html --tasks-dir TASKS
reeval --name day --no-html --tasks-dir TASKS
reeval --name agent --no-html --tasks-dir TASKS
reeval --name failed --no-html --tasks-dir TASKS
reeval --name killed --no-html --tasks-dir TASKS
reeval --name whole --reparse --no-html --tasks-dir TASKS
reeval --name day --reparse --no-html --tasks-dir TASKS
reeval --name failed --reparse --no-html --tasks-dir TASKS
reeval --name whole --no-html
reeval --name none --tasks-dir TASKS
report
report --name whole --tasks-dir TASKS
report --name day --users all --tasks-dir TASKS
report --name killed --tasks-dir TASKS
stats
stats --format csv
stats --format csv --metric Error_Decay --metric F1^NS
stats --json
stats none
compare whole failed --json --resamples {RESAMPLES} --tasks-dir TASKS
compare day agent --json --resamples {RESAMPLES} --tasks-dir TASKS
compare whole killed --resamples {RESAMPLES} --tasks-dir TASKS
compare whole day --tasks-dir TASKS
compare whole none --tasks-dir TASKS
resume --name killed --no-html --tasks-dir TASKS
resume --name failed --api-url URL --no-html --tasks-dir TASKS
resume --name whole --tasks-dir TASKS
resume --name killed
run --model baseline/recency --platform weibo --name whole --tasks-dir TASKS
run --model baseline/recency --platform weibo --name whole --temperature 0.5 --tasks-dir TASKS
run --model baseline/random --platform weibo --name whole --tasks-dir TASKS
sample --platform weibo --ratio 0.5 --tasks-dir TASKS
score-mobility RESULTS/day/generated_beijing.json --data TASKS/dailymobility --json
""".strip().splitlines()
"""TASKS, RESULTS and URL are those of the copy, and of an endpoint that refuses nobody."""

SHOWN = ("--json", "--format csv")
"""Words of commands whose output is compared."""
CHANGED = {"resume --name failed": "failed", "reeval --name killed": "killed"}
"""Commands whose files are compared, with the run. Those of others are in the folder itself."""
MADE_SINCE = {"report --name killed --tasks-dir TASKS": 0}
"""Exit codes of commands that were refused: `report` makes the report of a run that ended without
one."""


class Copy:
    """A copy of the folder, and an endpoint that answers as the one of the run `failed`, but
    refuses nobody."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.results, self.tasks = folder / "results", folder / "tasks"
        self.server = server

    def command(self, line: str) -> tuple[int, bytes]:
        """Return a command's exit code and its output."""
        places = {"TASKS": str(self.tasks), "RESULTS": str(self.results), "URL": self.server.url}
        words = shlex.split(line)
        for name, place in places.items():
            words = [word.replace(name, place) if word.startswith(name) else word for word in words]
        where = () if words[0] in WITHOUT_RESULTS else ("--results-dir", str(self.results))
        return command(*words, *where)


@contextmanager
def copied(folder: Path) -> Iterator[Copy]:
    for name in ("results", "tasks"):
        shutil.copytree(FOLDER / name, folder / name)
    script = spoilt_by(answer, "baseline/recency", ())
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    with (
        serving(script) as server,
        chdir(elsewhere),  # the tasks of the manifests are not there
    ):
        yield Copy(folder, server)


def outcome(line: str, folder: Path) -> tuple[int, dict[str, bytes]]:
    """Return a command's exit code on a new copy, and what is compared of it: its output, or its
    run's files."""
    with copied(folder) as copy:
        code, shown = copy.command(line)
        found: dict[str, bytes] = {}
        if any(words in line for words in SHOWN):
            found[f"{slug(line)}.{'csv' if 'csv' in line else 'json'}"] = shown.replace(
                str(folder).encode(), b""
            )
        for words, run in CHANGED.items():
            if line.startswith(words):
                found |= {
                    f"{slug(line)}/{name}": content
                    for name, content in run_files(copy.results / run).items()
                }
        return code, found


def slug(line: str) -> str:
    """Return a name for files of a command."""
    words = re.sub(r"--(no-html|tasks-dir TASKS|api-url URL|name)", "", line)
    return "-".join(re.findall(r"\w+", words))


def expected() -> dict[str, bytes]:
    return kept(EXPECTED)


def exit_codes() -> dict[str, int]:
    """Return the exit codes of version 0.1.0 by command, but for what no version since refuses."""
    found: dict[str, int] = orjson.loads(expected()["exit_codes.json"])
    return found | MADE_SINCE


def write() -> None:
    codes: dict[str, int] = {}
    contents: dict[str, bytes] = {}
    for line in COMMANDS:
        with tempfile.TemporaryDirectory() as folder:
            codes[line], files = outcome(line, Path(folder))
        contents |= files
    contents["exit_codes.json"] = orjson.dumps(codes, option=orjson.OPT_INDENT_2)
    shutil.rmtree(EXPECTED, ignore_errors=True)
    keep(contents, EXPECTED)


if __name__ == "__main__":
    write()
