"""The Python interface: typed signatures, the same bytes as the command, errors that say what the
command says."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import harness
from harness import (
    BadInput,
    EndpointStopped,
    HarnessError,
    LoadedRun,
    RunStopped,
    aresume,
    arun,
    load_run,
    reeval,
    resume,
    run,
)
from harness.cli import main
from harness.commands import reeval as reeval_command
from harness.commands.parser import keyword, parsed
from harness.model import Snapshots
from harness.option import options_of
from harness.options import options
from harness.store.run import RunFiles
from tests.support import ROOT, SHIPPED
from tests.support.scripted import baseline, completion, serving

EVERY = Path(__file__).with_name("every_function.py")
THREE: dict[str, Any] = {"subset": "weibo", "tasks_dir": SHIPPED[1], "limit": 3, "concurrency": 1}
WORDS = ["--subset", "weibo", *SHIPPED, "--limit", "3", "--concurrency", "1"]


# Signatures


@pytest.mark.parametrize(
    "name",
    ["run", "arun", "resume", "aresume", "reeval", "compare", "leaderboard", "export", "verify"],
)
def test_signature_has_a_type_for_each_argument(name):
    """No `**` and no `Any`: an editor completes and checks a call."""
    found = inspect.signature(getattr(harness, name))
    assert inspect.getdoc(getattr(harness, name)) and "Any" not in str(found.return_annotation)
    for one in found.parameters.values():
        assert (
            one.kind is not one.VAR_KEYWORD
            and one.annotation is not one.empty
            and "Any" not in one.annotation
        ), one


@pytest.mark.parametrize(
    ("function", "cls", "beside"),
    [
        (run, options.RunOptions, {"settings", "extensions", "progress"}),
        (resume, options.ResumeOptions, {"extensions", "progress"}),
        (reeval, reeval_command.Options, {"extensions"}),
    ],
)
def test_every_option_of_the_core_is_a_keyword(function, cls, beside):
    """None means that it is not given. What plays nothing is left to the command."""
    parameters = dict(inspect.signature(function).parameters)
    assert {keyword(one) for one in options_of(cls) if one.rivals != "instead"} - {
        "json",
        "detach",
    } == parameters.keys() - beside
    given = {
        name: one.default for name, one in parameters.items() if name not in (*beside, "benchmark")
    }
    assert set(given.values()) == {None}


def test_error_of_several_sentences_is_text(tmp_path):
    """Neither an endpoint nor tasks: both are missing, a line each."""
    with pytest.raises(harness.BadInput) as raised:
        harness.run(model="m", tasks_dir=tmp_path, results_dir=tmp_path)
    assert len(raised.value.args) == 2 and str(raised.value).split("\n") == [*raised.value.args]


def test_error_about_a_key_does_not_show_it():
    """Whatever its type."""
    for wrong in ({"api_key": 1234567890}, {"extra_header": {"X-A": "line\nbreak-1234567890"}}):
        assert "1234567890" not in str(failed(model="m", **wrong))


@pytest.mark.slow
def test_file_that_uses_every_function_is_typed_and_runs(tmp_path):
    """By mypy's strict rules, and from beginning to end."""
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(EVERY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout
    done = subprocess.run(
        [sys.executable, str(EVERY)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


# The same bytes


def contents(results: Path) -> dict[str, bytes]:
    files = RunFiles(results / "recency", "weibo")
    return {
        path.name: path.read_bytes()
        for path in (files.results, files.report("txt"))
        if path.exists()
    }


def test_command_function_and_coroutine_write_the_same_bytes(tmp_path):
    """`arun` plays in the loop that runs, whose other tasks go on."""
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    async def notebook() -> list[LoadedRun]:
        others = asyncio.ensure_future(beat())
        made = await arun(
            model="baseline/recency", results_dir=tmp_path / "c", progress=in_loop, **THREE
        )
        others.cancel()
        return made

    loops: set[asyncio.AbstractEventLoop] = set()

    def in_loop(snapshots: Snapshots) -> None:
        loops.add(asyncio.get_running_loop())

    assert (
        main(["run", "--model", "baseline/recency", "--results-dir", str(tmp_path / "a"), *WORDS])
        == 0
    )
    run(model="baseline/recency", results_dir=tmp_path / "b", **THREE)
    [made] = asyncio.run(notebook())
    assert made == load_run(tmp_path / "c/recency") and beats > 1 and len(loops) == 1
    kept = [
        {name: data for name, data in contents(tmp_path / name).items() if name[-4:] != ".txt"}
        for name in "abc"
    ]
    assert kept[0] and kept[0] == kept[1] == kept[2]


def test_values_of_python_are_those_of_the_command(tmp_path):
    """Numbers, texts, mappings and settings of the benchmark end in the same identity and
    tuning."""
    with serving(baseline) as server:
        more = [
            "--model",
            "m",
            "--api-url",
            server.url,
            "--temperature",
            "0.5",
            "--extra-body",
            '{"top_k": 2}',
        ]
        more += ["--no-persona", "--rpm", "90000", "--extra-header", "X-Team:blue"]
        assert main(["run", "--results-dir", str(tmp_path / "a"), *WORDS, *more]) == 0
        [made] = run(
            model="m",
            api_url=server.url,
            temperature=0.5,
            extra_body={"top_k": 2},
            settings={"persona": False},
            rpm=90_000,
            extra_header={"X-Team": "blue"},
            results_dir=str(tmp_path / "b"),
            **THREE,
        )
    manifest, other = made.manifest, load_run(tmp_path / "a/m").manifest
    assert (manifest.identity, manifest.tuning, manifest.selection) == (
        other.identity,
        other.tuning,
        other.selection,
    )
    assert manifest.provenance["headers"] == ["X-Team"]


# Errors


@contextmanager
def both(
    results: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> Iterator[list[HarnessError]]:
    """Yield a list for the error of the function; the command must end with its exit code and print
    its sentence."""
    raised: list[HarnessError] = []
    capsys.readouterr()
    yield raised
    code = main(["run", "--results-dir", str(results / "command"), *WORDS, *words])
    said = " ".join(" ".join(capsys.readouterr()).split())
    assert code == raised[0].exit_code and " ".join(str(raised[0]).split())[-60:] in said


def failed(**keywords: Any) -> HarnessError:
    with pytest.raises(HarnessError) as raised:
        run(**{**THREE, **keywords})
    return raised.value


BROKEN = """
from harness import Benchmark, Metric, Task

class Broken(Benchmark):
    name = "broken"
    subsets = {"one": "one.jsonl"}
    metrics = (Metric("Score"),)

    def parse(self, line, subset):
        raise ZeroDivisionError("a mistake")

    async def play(self, given, chat):
        return {"answer": await chat.ask("?")}

    def measure(self, given, answer):
        return {"Score": 1.0}
"""


def test_error_of_each_kind_has_the_commands_sentence_and_exit_code(tmp_path, capsys):
    """A bad option, missing tasks, a refused key, and an endpoint that is down."""
    results = tmp_path / "results"
    refused = failed(model="baseline/recency", parse_retries=-1, results_dir=results)
    assert (
        type(refused) is BadInput
        and str(refused).startswith("parse_retries: ")
        and refused.runs == ()
    )
    with pytest.raises(SystemExit) as left:
        parsed(["run", "--parse-retries", "-1"])
    expected = str(refused).removeprefix("parse_retries: ").partition(", got")[0]
    assert left.value.code == refused.exit_code and expected in capsys.readouterr().err
    tasks = ["--tasks-dir", str(tmp_path)]
    assert (
        main(
            [
                "run",
                "--model",
                "baseline/recency",
                "--results-dir",
                str(results),
                "--subset",
                "weibo",
                *tasks,
            ]
        )
        == 2
    )
    missing = failed(model="baseline/recency", demo=False, tasks_dir=tmp_path, results_dir=results)
    assert type(missing) is BadInput and "no tasks" in str(missing)
    with serving(lambda _: (401, b'{"error": {"message": "no such key"}}')) as server:
        to_it = ["--model", "m", "--api-url", server.url]
        with both(results, capsys, *to_it) as raised:
            raised.append(failed(model="m", api_url=server.url, results_dir=results))
    assert isinstance(raised[0], EndpointStopped) and not raised[0].runs
    with both(results, capsys, *to_it, "--max-outage", "0.1", "--name", "down") as raised:
        raised.append(
            failed(model="m", api_url=server.url, name="down", max_outage=0.1, results_dir=results)
        )
    assert isinstance(raised[0], EndpointStopped)


def test_budget_that_is_reached_is_an_error_with_the_runs_so_far(tmp_path):
    """Exit code 5; the run goes on with a larger one."""
    budget = pytest.importorskip("harness.extensions.budget")
    long = completion('{"choice": 1}').replace(b'"prompt_tokens":10', b'"prompt_tokens":3000')
    with serving(lambda _: (200, long)) as server:
        keywords: dict[str, Any] = {
            "model": "m",
            "api_url": server.url,
            "results_dir": tmp_path,
            "parse_retries": 0,
        }
        reached = failed(**keywords, max_tokens=5, extensions=[budget.Budget("4ktok")])
    assert type(reached) is budget.BudgetReached is harness.BudgetReached and reached.exit_code == 5
    assert [made.complete for made in reached.runs] == [False]


def test_mistake_of_a_plug_in_is_its_error(tmp_path):
    """With its file and line; the interpreter goes on."""
    plugin = tmp_path / "broken.py"
    plugin.write_text(BROKEN, encoding="utf-8")
    (tmp_path / "one.jsonl").write_text('{"user": "a"}\n', encoding="utf-8")
    with pytest.raises(HarnessError) as raised:
        run(plugin, model="baseline/recency", tasks_dir=tmp_path, results_dir=tmp_path / "results")
    assert raised.value.exit_code == 2 and "one.jsonl, line 1" in str(raised.value)


# Callbacks and cancellation


@pytest.mark.parametrize("awaits", [False, True])
def test_error_of_the_progress_function_is_raised_and_the_run_can_be_resumed(tmp_path, awaits):
    """As itself, not within another."""

    def fails(snapshots: Snapshots) -> None:
        raise ZeroDivisionError("mine")

    keywords: dict[str, Any] = {"model": "baseline/recency", "results_dir": tmp_path, **THREE}
    with pytest.raises(ZeroDivisionError, match="mine"):
        asyncio.run(arun(progress=fails, **keywords)) if awaits else run(progress=fails, **keywords)
    [made] = asyncio.run(arun(**keywords)) if awaits else run(**keywords)
    assert made.complete


def test_cancelled_play_keeps_its_replies_and_can_be_resumed(tmp_path):
    """The locks are free once the task has ended."""
    with serving(baseline) as server:

        async def cancelled() -> list[LoadedRun]:
            begun = asyncio.Event()

            def script(body: dict[str, Any]) -> tuple[int, bytes]:
                if len(server.bodies) > 5:
                    loop.call_soon_threadsafe(begun.set)
                return baseline(body)

            loop, server.script = asyncio.get_running_loop(), script
            keywords: dict[str, Any] = {**THREE, "limit": 12}
            task = asyncio.ensure_future(
                arun(model="m", api_url=server.url, results_dir=tmp_path, **keywords)
            )
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return await aresume(results_dir=tmp_path)

        asked = len(server.bodies)
        [made] = asyncio.run(cancelled())
        assert made.complete and asked < len(server.bodies)
        assert len(server.bodies) <= made.report.usage["requests"] + 1


def test_signal_stops_a_play_in_the_users_loop_and_handlers_are_as_before(tmp_path):
    """As the command does: requests in flight are awaited, the error has the run, and the loop goes
    on."""

    def interrupts(body: dict[str, Any]) -> tuple[int, bytes]:
        if len(server.bodies) == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return baseline(body)

    async def cell() -> RunStopped:
        inside = signal.getsignal(signal.SIGINT)
        with pytest.raises(RunStopped) as raised:
            await arun(
                model="m", api_url=server.url, results_dir=tmp_path, **{**THREE, "limit": 30}
            )
        assert signal.getsignal(signal.SIGINT) == inside
        return raised.value

    with serving(interrupts) as server:
        stopped = asyncio.run(cell())
    assert stopped.exit_code == 130 and [made.manifest.state for made in stopped.runs] == [
        "stopped"
    ]


def test_play_that_is_cancelled_while_files_are_opened_does_not_begin(tmp_path):
    """No request is sent."""
    with serving(baseline) as server:

        async def cancelled() -> None:
            task = asyncio.ensure_future(
                arun(model="m", api_url=server.url, results_dir=tmp_path, **THREE)
            )
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(cancelled())
        assert not server.bodies


def test_file_of_a_benchmark_may_change_while_it_runs(tmp_path):
    """The runs that are returned are those of the class that was run."""
    plugin = tmp_path / "stars.py"
    plugin.write_bytes((ROOT / "examples/star_rating/star_rating.py").read_bytes())

    def edited(snapshots: Snapshots) -> None:
        plugin.write_text("not Python", encoding="utf-8")

    where = {"tasks_dir": ROOT / "examples/star_rating", "results_dir": tmp_path / "results"}
    [made] = run(plugin, model="baseline/four-stars", progress=edited, **where)
    assert made.complete


# Notebooks


def test_run_is_a_table_in_a_notebook(tmp_path):
    """With its scores; nothing in a name is markup."""
    [made] = run(model="baseline/recency", name="<b>", results_dir=tmp_path, **THREE)
    shown = made._repr_html_()
    assert "Recall" in shown and "3 of 3 users" in shown and "<b>" not in shown
    made.files.report("json").unlink()
    assert "Recall" not in made._repr_html_()
