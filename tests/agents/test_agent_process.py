"""An agent's code that ends, copies or changes the process: its resident fails, and the run ends with the truth."""

from __future__ import annotations

import asyncio
import gc
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from bench.processes import HARNESS, endpoint, run_command, synthesise
from harness.agents.loader import load_agent
from harness.errors import AgentFailed, BadInput
from harness.store.log import sound_lines
from tests.support import DATA
from tests.support.agent_town import played, runner, written
from tests.support.processes import descendants, wait_for, wait_for_responses

AGENTS = DATA / "mobility_agents"
BREAKING, ASKING = AGENTS / "breaks_the_process.py", AGENTS / "asks_each_step.py"
REFUSED, RAISING, USERS = 15, 4, 33
RESULTS = "inference_results_beijing.jsonl"


def command(folder: Path, name: str, agent: Path = BREAKING) -> list[str]:
    words = f"run dailymobility --model baseline/commuter --no-html --name {name} --agent {agent}"
    return [*HARNESS, *words.split(), "--tasks-dir", "tasks", "--results-dir", "results"]


def run(folder: Path, name: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, with relative paths. It returns only once all that writes to its output has ended."""
    if not (folder / "tasks").exists():
        synthesise(folder / "tasks", "dailymobility", "--users", str(USERS))
    python = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        command(folder, name),
        cwd=folder,
        env=os.environ | {"PYTHONPATH": python} | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )


def failures(folder: Path, name: str) -> dict[int, str]:
    lines = sound_lines(folder / "results" / name / "failures_beijing.jsonl")
    return {int(each["user_id"]): each["kind"] for each in map(orjson.loads, (line.text for line in lines))}


@pytest.mark.slow
def test_what_breaks_the_process_fails_its_resident_alone(tmp_path: Path) -> None:
    """The others' results are as with plain failures. One line names threads that stay, which hold up nothing."""
    broken, plain = run(tmp_path, "broken"), run(tmp_path, "plain", PLAIN_FAILURES="yes")
    assert (broken.returncode, plain.returncode) == (1, 1)
    expected = dict.fromkeys(range(1, REFUSED + 1), "agent_process")
    raising = dict.fromkeys(range(REFUSED + 1, REFUSED + RAISING + 1), "agent_error")
    assert failures(tmp_path, "broken") == expected | raising
    assert failures(tmp_path, "plain").keys() == (expected | raising).keys()
    written_lines = [
        sorted((tmp_path / "results" / name / RESULTS).read_bytes().splitlines()) for name in ("broken", "plain")
    ]
    assert written_lines[0] == written_lines[1] and len(written_lines[0]) == USERS - REFUSED - RAISING
    [said] = broken.stderr.splitlines()
    assert BREAKING.name in said
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "results/broken").iterdir()}
    assert modes == {file.stat().st_mode & 0o777 for file in (tmp_path / "results/plain").iterdir()}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is supervised elsewhere")
def test_a_process_that_its_agent_has_ended_is_never_a_success(tmp_path: Path) -> None:
    """However the guard was passed by: one line names the file, and `resume` finds the run. A copy does not survive."""
    for passes in ("exit", "signal"):
        ended = run(tmp_path, passes, PASSES=passes)
        assert ended.returncode == 4
        [said] = ended.stderr.splitlines()
        assert BREAKING.name in said and "resume" in said
    assert run(tmp_path, "exit").returncode == 1
    ended = run(tmp_path, "fork", PASSES="fork")
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="nothing is supervised elsewhere")
def test_terminal_s_keys_work_on_a_supervised_command(tmp_path: Path) -> None:
    """Ctrl-Z stops all of it, SIGCONT continues it, one Ctrl-C ends it as ever, and SIGKILL leaves nobody."""
    synthesise(tmp_path / "tasks", "dailymobility", "--users", "8")
    with endpoint("--latency", "0.06") as url:
        options = ("dailymobility", "--agent", str(ASKING), "--concurrency", "4")
        words = run_command(url, tmp_path / "tasks", tmp_path / "results", *options, model="baseline/commuter")
        for name, key in (("keys", b"\x03"), ("killed", b"")):
            process, terminal = pty.fork()
            if not process:
                os.execvp(words[0], [*words, "--name", name])
            wait_for_responses(tmp_path / "results" / name / "responses_beijing.jsonl", 20)
            [player] = descendants(process)
            if key:
                os.write(terminal, b"\x1a")
                assert os.WIFSTOPPED(os.waitpid(process, os.WUNTRACED)[1])
                wait_for(lambda player=player: state(player) == "T")
                os.kill(process, signal.SIGCONT)
                os.write(terminal, key)
            else:
                os.kill(process, signal.SIGKILL)
            code = os.waitstatus_to_exitcode(drained(process, terminal))
            os.close(terminal)
            assert code == (130 if key else -signal.SIGKILL)
            wait_for(lambda player=player: state(player) in ("", "Z", "X"))


def drained(process: int, terminal: int) -> int:
    """Return the status of a process whose terminal is read until its end."""
    while True:
        try:
            if not os.read(terminal, 65536):
                break
        except OSError:
            break
    return os.waitpid(process, 0)[1]


def state(process: int) -> str:
    """Return the letter of a process's state, empty if it is gone."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@pytest.mark.parametrize(
    "deed",
    ["os._exit(0)", "os.fork()", "os.closerange(3, 99)", "os.close(2)", "os.kill(os.getpid(), 15)", "os.abort()",
     "subprocess.Popen(['true'])", "signal.signal(2, signal.SIG_IGN)", "exit_now(0)",
     "await asyncio.to_thread(os._exit, 0)"],
)  # fmt: skip
def test_what_is_refused_names_the_line_whatever_the_agent_catches(tmp_path: Path, deed: str) -> None:
    """By whichever name the file has the function; and all is put back afterwards."""
    before = os._exit, os.fork, os.close, signal.signal, subprocess.Popen.__init__
    top = "import os, signal, subprocess\nfrom os import _exit as exit_now"
    body = f"async def forward(self):\n    try: {deed}\n    except Exception: pass"
    with pytest.raises(AgentFailed) as failed:
        played(runner(written(tmp_path, body, top=top)))
    assert failed.value.kind == "agent_process" and ", step 1, line " in failed.value.detail
    assert before == (os._exit, os.fork, os.close, signal.signal, subprocess.Popen.__init__)


def test_process_of_an_agent_file_that_ends_it_is_bad_input(tmp_path: Path) -> None:
    """By file and line, as any error in loading; what packages do as they are imported is not refused."""
    path = written(tmp_path, "async def forward(self): pass", top="import os, subprocess\nsubprocess.run(['true'])")
    load_agent(path)
    with pytest.raises(BadInput, match=r"agent\.py, line \d+: "):
        load_agent(written(tmp_path, "async def forward(self): pass", top="import os\nos._exit(0)"))


def test_calls_of_others_pass_while_residents_play(tmp_path: Path) -> None:
    """The harness's own, while agents wait; what an agent has opened it may close."""
    body = """
    async def forward(self):
        for number in (*os.pipe(), os.open(os.devnull, os.O_RDONLY)):
            os.close(number)
        os.kill(os.getpid(), 0)
        await self.llm.atext_request([{"role": "user", "content": "?"}])
    """
    closed: list[Any] = []

    async def ask(request: Any) -> Any:
        closed.append(await asyncio.to_thread(os.close, os.open(os.devnull, os.O_RDONLY)))
        raise AgentFailed("enough", "")

    with pytest.raises(AgentFailed, match="enough"):
        played(runner(written(tmp_path, body, top="import os")), ask)
    assert closed == [None]


def test_state_of_the_process_is_put_back_after_each_slice(tmp_path: Path) -> None:
    """Umask, recursion limit and garbage collection, with a warning each; the environment after the last resident."""
    told: list[str] = []
    body = """
    async def forward(self):
        os.umask(0o777)
        sys.setrecursionlimit(5000)
        gc.disable()
        os.environ["OF_AN_AGENT"] = "1"
    """
    running = runner(written(tmp_path, body, top="import gc, os"), told.append)
    umask, limit = os.umask(0o027), sys.getrecursionlimit()
    try:
        played(running)
        assert os.umask(umask) == 0o027
    finally:
        os.umask(umask)
    assert sys.getrecursionlimit() == limit and gc.isenabled() and "OF_AN_AGENT" not in os.environ
    assert len(told) == 3
