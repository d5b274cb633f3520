"""DailyMobility processes of agents that are killed or asked to stop, and what is left of them."""

from __future__ import annotations

import shlex
import signal
import subprocess

import orjson
import pytest

from bench.kill_and_resume import campaign
from bench.processes import HARNESS, endpoint, run_command, stats, synthesise
from harness.cli import main
from tests.support import DATA
from tests.support.processes import wait_for_responses

pytestmark = pytest.mark.slow

AGENTS = DATA / "mobility_agents"
ASKING, CATCHING = AGENTS / "asks_each_step.py", AGENTS / "catches_everything.py"


def test_killed_run_of_an_agent_ends_byte_identical_and_pays_for_nothing_twice(
    tmp_path,
):
    """SIGKILL at random moments: the same results file, and no reply that was saved is asked for
    again."""
    found = campaign(
        kills=2,
        users=32,
        steps=0,
        concurrency=32,
        seed=3,
        folder=tmp_path,
        durability="process",
        benchmark="dailymobility",
        agent=ASKING,
        life=3.0,
    )
    assert (found.kills, found.identical, found.twice) == (2, found.runs, 0)
    assert found.extra <= found.allowed


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_is_no_failure_that_an_agent_could_catch(tmp_path, number, code):
    """Residents under way are owed, not scored as what the agent falls back to; resume ends as an
    undisturbed run."""
    tasks, results = tmp_path / "tasks", tmp_path / "results"
    synthesise(tasks, "dailymobility", "--users", "8")
    with endpoint("--latency", "0.06", "--jitter", "0.5") as url:

        def command(name: str) -> list[str]:
            options = (
                "dailymobility",
                "--agent",
                str(CATCHING),
                "--concurrency",
                "4",
                "--name",
                name,
            )
            return run_command(url, tasks, results, *options, model="baseline/commuter")

        subprocess.run(command("whole"), check=True, stdout=subprocess.DEVNULL)
        asked = stats(url)["requests"]
        process = subprocess.Popen(command("run"), stdout=subprocess.PIPE, text=True)
        wait_for_responses(results / "run/responses_beijing.jsonl", 60)
        process.send_signal(number)
        shown, _ = process.communicate(timeout=60)
        assert process.returncode == code
        (resume,) = [line for line in shown.splitlines() if line.startswith("resume with: ")]
        made = orjson.loads((results / "run/run_beijing.json").read_bytes())
        assert (made["state"], made["counts"]["failed"]) == ("stopped", 0)
        again = [*HARNESS, *shlex.split(resume.removeprefix("resume with: "))[1:]]
        subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
        seen = stats(url)
        assert seen["requests"] == seen["completed"] == 2 * asked
    names = ("whole", "run")
    whole, stopped = (
        (results / name / "inference_results_beijing.jsonl").read_bytes() for name in names
    )
    assert stopped == whole
    assert main(["verify", "--results-dir", str(results)]) == 0
