"""Errors of a benchmark's own code: which one, for which user, in which line of its file, and what
goes on."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import orjson
import pytest

from harness import Benchmark, Chat, Metric, Task
from harness.cli import main
from harness.document import Chart, Paragraph, Series, Sketch, Table, Tags
from harness.engine.play import play
from harness.errors import BenchmarkError
from harness.model import Completion, Request
from harness.scoring.reports import checked
from harness.store.log import decode_line, encode_line, valid_lines
from tests.support.plugins import having
from tests.support.scripted import Server, completion, serving

Told = pytest.CaptureFixture[str]

SOURCE = """
from harness import Benchmark, Metric, Task


class Faulty(Benchmark):
    name = "faulty"
    subsets = {"a": "a.jsonl"}
    metrics = (Metric("Points", unit="points", bounds=(0, 9)), Metric("Right"))

    def parse(self, line, subset):
        return Task(line["user_id"], given=line["user_id"])

    async def play(self, given, chat):
        return int(await chat.text(given))

    def measure(self, task, answer):
        return {"Points": answer or 0, "Right": 1.0}
"""
PLAYED, MEASURED = (
    "return int(await chat.text(given))",
    'return {"Points": answer or 0, "Right": 1.0}',
)
PLAY_LINE, MEASURE_LINE = (
    1 + SOURCE.splitlines().index(f"        {line}") for line in (PLAYED, MEASURED)
)
USERS = ["甲", "乙", "丙", "丁", "戊"]


class Folder:
    """A tasks file, and a benchmark's file with parts of its source replaced."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "faulty.py"
        (root / "tasks").mkdir()
        lines = [orjson.dumps({"user_id": user}) for user in USERS]
        (root / "tasks" / "a.jsonl").write_bytes(b"\n".join(lines))
        self.write()

    def write(self, *replaced: tuple[str, str]) -> None:
        source = SOURCE
        for old, new in replaced:
            assert old in source
            source = source.replace(old, new)
        self.file.write_text(source, encoding="utf-8")

    def run(self, server: Server, *models: str) -> int:
        words = [word for model in models or ("m",) for word in ("--model", model)]
        where = [
            "--tasks-dir",
            str(self.root / "tasks"),
            "--results-dir",
            str(self.root / "results"),
        ]
        limit = ["--concurrency", "1", "--no-html", "--api-url", server.url]
        return main(["run", str(self.file), *words, *where, *limit])

    def lines(self, name: str, run: str = "m") -> list[dict[str, Any]]:
        path = self.root / "results" / f"faulty-{run}" / name
        return [decode_line(line.text) for line in valid_lines(path)] if path.exists() else []

    def failures(self, run: str = "m") -> list[dict[str, Any]]:
        return self.lines("failures_a.jsonl", run)

    def recorded(self, run: str = "m") -> list[str]:
        return sorted(record["user_id"] for record in self.lines("inference_results_a.jsonl", run))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    for name in ("LLM_API_KEY", "LLM_API_BASE", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    return Folder(tmp_path)


def answering(reply: Callable[[str, str], str]) -> Any:
    """A server whose reply depends on model and user."""
    return serving(
        lambda body: (200, completion(reply(body["model"], body["messages"][0]["content"])))
    )


# Playing


def test_a_user_whose_play_fails_becomes_a_failure_and_the_others_go_on(folder, capsys):
    """The failure's boundary is the benchmark; its words name benchmark, user, and the line of the
    file."""
    with answering(lambda model, user: "none" if user == "丙" else "1") as server:
        assert folder.run(server) == 1
    (failure,) = folder.failures()
    assert (failure["user_id"], failure["boundary"], failure["kind"]) == (
        "丙",
        "benchmark",
        "benchmark_error",
    )
    assert failure["detail"].startswith("benchmark faulty, user 丙, play: ValueError: ")
    assert failure["detail"].endswith(f"(faulty.py, line {PLAY_LINE})")
    assert folder.recorded() == sorted(set(USERS) - {"丙"})
    assert len(server.bodies) == 5
    assert "1 user failed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["model", "messages", "n", "stream", "stream_options"])
def test_member_of_the_body_that_is_the_harness_s_is_refused(name, folder, capsys):
    """Nothing is sent, so that no other model or prompt is scored as the run's; the sentence names
    the member."""
    request = f"Request((Message('user', given),), False, {{'top_k': 1, {name!r}: 1}})"
    folder.write(
        (PLAYED, f"return int((await chat.ask({request})).text)"),
        ("from harness import", "from harness.model import Message, Request\nfrom harness import"),
    )
    with answering(lambda model, user: "1") as server:
        assert folder.run(server) == 2
    assert server.bodies == []
    words = (
        f"play: ValueError: Request.parameters cannot set {name}: the run and `messages` decide"
        " that (faulty.py, "
    )
    assert words in folder.failures()[0]["detail"]
    assert words in capsys.readouterr().out


def test_three_users_whose_play_fails_before_any_is_complete_stop_the_run(folder, capsys):
    """A benchmark that cannot play is not paid for user by user; once one is complete, all are
    played."""
    with answering(lambda model, user: "none") as server:
        assert folder.run(server) == 2
    assert len(server.bodies) == 3 and len(folder.failures()) == 3
    out = capsys.readouterr().out
    assert (
        "stopped: benchmark faulty, user " in out
        and f"(faulty.py, line {PLAY_LINE}); 5 users remaining" in out
    )


def test_failures_of_play_after_a_complete_user_stop_nothing(folder):
    """Each of them is the failure of one user."""
    first: list[str] = []

    def reply(model: str, user: str) -> str:
        first.append(user)
        return "1" if user == first[0] else "none"

    with answering(reply) as server:
        assert folder.run(server) == 1
    assert (
        len(server.bodies) == 5 and len(folder.failures()) == 4 and folder.recorded() == first[:1]
    )


def test_a_run_that_its_benchmark_stops_takes_no_other_with_it(folder):
    """One model's replies break the benchmark; the other model's run is complete."""
    with answering(lambda model, user: "none" if model == "odd" else "1") as server:
        assert folder.run(server, "odd", "good") == 2
    assert len(folder.failures("odd")) == 3 and folder.recorded("odd") == []
    assert folder.failures("good") == [] and folder.recorded("good") == sorted(USERS)
    assert (folder.root / "results" / "faulty-good" / "eval_report_a.json").exists()


def test_a_request_that_fails_is_not_the_benchmarks_error_though_its_code_catches_it(
    folder,
):
    """Neither as an answer that it makes of nothing, nor as an error that follows from it."""
    for name, then in (("answer", "return 0"), ("error", "raise OSError")):
        folder.write(
            (PLAYED, f"try:\n            {PLAYED}\n        except Exception:\n            {then}")
        )

        def script(body: dict[str, Any]) -> tuple[int, bytes]:
            refused = body["messages"][0]["content"] == "丙"
            return (400, b'{"error":{"message":"no"}}') if refused else (200, completion("1"))

        with serving(script) as server:
            folder.run(server, name)
        (failure,) = folder.failures(name)
        assert (failure["user_id"], failure["boundary"], failure["kind"]) == (
            "丙",
            "endpoint",
            "http_400",
        )


# Measuring

ANSWERED = 'if answer is None: return {"Points": 0, "Right": 0.0}\n        '
EACH = "expected a value of each metric (Points, Right)"
BOUNDS = "expected a number within its bounds, or None"
WRONG = [
    (
        "{'Points': answer / 0}",
        f"ZeroDivisionError: division by zero (faulty.py, line {1 + MEASURE_LINE})",
    ),
    ("{'Points': float('nan'), 'Right': 1.0}", f"Points is nan: {BOUNDS}"),
    ("{'Points': 10, 'Right': 1.0}", f"Points is 10: {BOUNDS}"),
    ("{'Points': 1}", f"{EACH}, got Points"),
    ("None", f"{EACH}, got None"),
]


@pytest.mark.parametrize(("value", "said"), WRONG)
def test_wrong_values_stop_the_run_before_another_user_is_paid_for(value, said, folder, capsys):
    """Whatever the next users cost, they would be measured by the same code. The reply that came is
    saved."""
    folder.write((MEASURED, f"{ANSWERED}return {value}"))
    with answering(lambda model, user: "1") as server:
        assert folder.run(server) == 2
    assert len(server.bodies) == 1 and len(folder.lines("responses_a.jsonl")) == 1
    assert folder.failures() == [] and folder.recorded() == []
    user = orjson.loads(server.bodies[0])["messages"][0]["content"]
    assert (
        f"stopped: benchmark faulty, user {user}, measure: {said}; 5 users remaining"
        in capsys.readouterr().out
    )


def test_wrong_values_stop_their_own_run_alone(folder):
    """The replies of one model lead to values out of bounds; the other model's run is complete."""
    with answering(lambda model, user: "10" if model == "odd" else "1") as server:
        assert folder.run(server, "odd", "good") == 2
    assert folder.recorded("odd") == [] and len(folder.lines("responses_a.jsonl", "odd")) == 1
    assert folder.recorded("good") == sorted(USERS)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            "{'Points': answer + 1}",
            (
                "measure without an answer: TypeError: unsupported operand type(s) for +:"
                f" 'NoneType' and 'int' (faulty.py, line {MEASURE_LINE})"
            ),
        ),
        ("{'Points': 0.0}", f"measure without an answer: {EACH}, got Points"),
    ],
)
def test_a_measure_that_cannot_do_without_an_answer_is_refused_before_the_first_request(
    value, said, folder, capsys
):
    """An unusable reply is sure to come, and would come after everything before it was paid for."""
    folder.write((MEASURED, f"return {value}"))
    with answering(lambda model, user: "1") as server:
        assert folder.run(server) == 2
        assert folder.run(server, "one", "two") == 2
    assert server.bodies == [] and not [*(folder.root / "results").glob("*/run_*.json")]
    first, *others = capsys.readouterr().err.splitlines()
    assert first == f"harness: benchmark faulty, user 甲, {said}"
    assert others == [
        f"harness: {name}: benchmark faulty, user 甲, {said}"
        for name in ("faulty-one", "faulty-two")
    ]


# Scoring

SCORING = {
    "statistics": (
        """def values(self, records):
    assert max(record['answer'] for record in records) < 9, 'too much'
"""
    ),
    "figures": (
        """def figures(self, totals):
    assert (totals[:, 0] < 9).all(), 'too much'
    return super().figures(totals)
"""
    ),
}


@pytest.mark.parametrize("method", SCORING)
def test_a_benchmark_that_cannot_score_stops_its_own_run_alone(method, folder, capsys):
    """Also at the end, over the whole file: one sentence, and the other run has its report."""
    folder.write(
        ("    def measure(", f"{having('scoring', 'Means', SCORING[method])}    def measure(")
    )
    with answering(lambda model, user: "9" if model == "odd" else "0") as server:
        assert folder.run(server, "odd", "good") == 2
    shown = capsys.readouterr()
    assert (
        f"benchmark faulty, {method}: AssertionError: too much (faulty.py, line "
        in shown.out + shown.err
    )
    assert "defect of the harness" not in shown.err
    assert folder.recorded("odd") == folder.recorded("good") == sorted(USERS)
    assert (folder.root / "results" / "faulty-good" / "eval_report_a.json").exists()


# Warnings


def test_what_a_benchmark_warns_of_is_in_the_log_and_on_the_display(folder, capsys):
    """From play and from measure; each once."""
    folder.write(
        (PLAYED, f"self.warn(f'{{given}} is odd')\n        {PLAYED}"),
        (MEASURED, f"if answer: self.warn(f'{{task.key}} is measured')\n        {MEASURED}"),
    )
    with answering(lambda model, user: "1") as server:
        assert folder.run(server) == 0
    noted = [event["detail"] for event in folder.lines("run_a.log") if event["what"] == "warning"]
    assert sorted(noted) == sorted(
        f"{user} is {what}" for user in USERS for what in ("odd", "measured")
    )
    out = capsys.readouterr().out
    assert out.count("\nwarning: ") == 5 and f"warning: {noted[0]}\n" in out


# Verifying


def test_a_record_that_the_benchmark_cannot_measure_is_a_finding(folder, capsys):
    """A line that somebody sealed again keeps `verify` from no other line."""
    folder.write((MEASURED, MEASURED.replace("answer or 0", "(answer or 0) + 1")))
    with answering(lambda model, user: "1") as server:
        assert folder.run(server) == 0
    path = folder.root / "results" / "faulty-m" / "inference_results_a.jsonl"
    records = folder.lines(path.name)
    for record in (records[1], records[3]):
        record["answer"] = "text"
    path.write_bytes(b"".join(map(encode_line, records)))
    capsys.readouterr()
    assert main(["verify", "--results-dir", str(folder.root / "results")]) == 1
    out = capsys.readouterr().out
    for number, user in ((2, "乙"), (4, "丁")):
        assert (
            f"line {number}: the record of user {user} cannot be scored again (benchmark faulty,"
            f" user {user}," in out
        )


# What a benchmark catches, and what misses a bound by rounding


def test_cancelled_user_of_a_benchmark_that_catches_everything_has_no_answer():
    """A bare `except` makes no answer of a request that was cancelled on its way."""

    class Catches(Benchmark):
        name = "catches"
        subsets: ClassVar = {"a": "a.jsonl"}
        metrics = (Metric("Right"),)

        async def play(self, given: Any, chat: Chat) -> Any:
            try:
                return await chat.text("?")
            except BaseException:
                return "right"

    async def ask(request: Request) -> Completion:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(play(Catches(), Task("甲"), ask))


def test_sys_exit_of_a_benchmark_is_its_error_and_no_end_of_the_command(folder):
    """The command would end with 0, or with a code of the author's."""
    folder.write((PLAYED, "raise SystemExit(0)"))
    with serving(lambda body: (200, completion("1"))) as server:
        assert folder.run(server) == 2
    assert {failure["boundary"] for failure in folder.failures()} == {"benchmark"}


def test_value_that_misses_a_bound_by_rounding_is_at_it(folder):
    """A cosine of 1.0000000000000002 stops nobody."""
    folder.write((MEASURED, 'return {"Points": answer or 0, "Right": 1.0000000000000002}'))
    with serving(lambda body: (200, completion("1"))) as server:
        assert folder.run(server) == 0
    assert {record["metrics"]["Right"] for record in folder.lines("inference_results_a.jsonl")} == {
        1.0
    }


def test_benchmark_that_cannot_measure_a_later_user_gives_that_one_up(folder):
    """One odd answer keeps no other user from its record."""
    folder.write((MEASURED, 'return {"Points": answer or 0, "Right": 1 / (task.key != "丁")}'))
    with serving(lambda body: (200, completion("1"))) as server:
        assert folder.run(server) == 1
    [failure] = folder.failures()
    assert (failure["user_id"], failure["boundary"]) == ("丁", "benchmark")
    assert folder.recorded() == sorted({*USERS} - {"丁"})


def test_mistake_in_a_reader_is_shown_with_its_line(folder, capsys):
    """Replies that no reader can read are invalid answers, and the first cause is a warning."""
    folder.write((PLAYED, "return await chat.text(given, read=lambda text: text.stripp())"))
    with serving(lambda body: (200, completion("1"))) as server:
        assert folder.run(server) == 0
    assert "AttributeError" in capsys.readouterr().out


@pytest.mark.parametrize(
    "code",
    [
        'columns = ("Points",)',
        'columns = ("Points",)\ndef figures(self, record):\n    return 1 / 0',
        "def together(self, records):\n    return 1 / 0",
    ],
    ids=["no figures", "figures", "together"],
)
def test_failing_hook_of_a_page_names_the_benchmark(folder, capsys, code):
    """`report` ends with the code of an error of the benchmark, not as a defect of the harness."""
    folder.write(("    def parse(", f"{having('cards', 'Cards', code)}    def parse("))
    with serving(lambda body: (200, completion("1"))) as server:
        assert folder.run(server) == 0
    where = [
        "--tasks-dir",
        str(folder.root / "tasks"),
        "--results-dir",
        str(folder.root / "results"),
    ]
    assert main(["report", "--name", "faulty-m", *where]) == BenchmarkError.exit_code
    assert "benchmark faulty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (
            Tags("b", (("a", "hit"), (1, "hit"))),
            r"^Tags: Expected `str`, got `int` - at `\$\.tags\[1\]\[0\]`$",
        ),  # type: ignore[arg-type]
        ("b", "^expected a block of a report, got str$"),
    ],
)
def test_wrong_block_is_named_as_if_it_were_alone(block, said):
    """Blocks are validated together; the place in the one that is wrong is its own."""
    with pytest.raises(TypeError, match=said):
        checked([Paragraph("a"), block, Paragraph("b")])


def test_block_whose_values_do_not_fit_together_cannot_be_made():
    """No renderer meets a picture that cannot be drawn, or a row that is too short."""
    with pytest.raises(ValueError, match=r"^c: nan is not a finite number$"):
        Chart("curve", "c", (1, 2), "x", "y", (Series("s", (0.1, math.nan)),))
    with pytest.raises(ValueError, match=r"^s: inf is not a finite number$"):
        Sketch("s", {"a": ((math.inf, 0.0),)})
    with pytest.raises(ValueError, match=r"^Chart c: the series s has not 2 values$"):
        Chart("curve", "c", (1, 2), "x", "y", (Series("s", (0.1,)),))
    with pytest.raises(ValueError, match=r"^a Table of 2 columns has a row of another length$"):
        Table(("a", "b"), (("1",),))


def test_blocks_are_kept_as_they_are_declared():
    """Lists become tuples, also where another block has none."""
    rows: Any = [["b"]]
    assert checked([Table(("a",), rows), Paragraph("c")]) == (
        Table(("a",), (("b",),)),
        Paragraph("c"),
    )
