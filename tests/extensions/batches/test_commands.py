"""What commands have of batches: options, files, price, and what they say."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from harness.cli import main
from harness.defaults import SAMPLE_FOLDER
from harness.store.files import RunFiles
from harness.store.log import encode_line
from harness.store.manifest import load
from harness.store.submissions import NAME, submissions
from harness.store.tally import tally_of
from tests.support.embedded import served
from tests.support.endpoint_double.app import Options

DEMO = ("run", "--demo", "--platform", "weibo", "--limit", "8", "--no-html", "--name", "run")
PROVIDERS = """
[providers.mine]
base_url = "https://models.example/v1"
key_env = "MINE_KEY"
[providers.mine.prices."m-1"]
currency = "USD"
prompt = 2
completion = 8
batch = 0.5
"""


def intended(files: RunFiles, *requests: tuple[str, int, str, int]) -> None:
    """Leave a journal that says that a batch was about to be submitted."""
    line = {"what": "intend", "label": "harness-1", "wave": 1, "requests": requests, "sent": 700}
    files.batches.write_bytes(encode_line(line) + b"\n")


def parts(results: Path) -> None:
    for number in ("1/2", "2/2"):
        assert main([*DEMO, "--part", number, "--results-dir", str(results)]) == 0


def merged(results: Path) -> int:
    return main(["merge", "run", "--tasks-dir", str(SAMPLE_FOLDER), "--results-dir", str(results)])


def test_part_with_a_batch_at_the_provider_is_not_merged(tmp_path):
    parts(tmp_path)
    files = RunFiles(tmp_path / "run.part2of2", "weibo")
    intended(files)
    made = load(files.manifest)
    assert made is not None
    made.state, made.results_sha256 = "stopped", None
    made.save(files.manifest)
    assert merged(tmp_path) == 2
    assert not (tmp_path / "run").exists()


def test_batches_keep_who_answered(tmp_path, capsys):
    """As replies to single requests do."""
    two = (
        {"model": "baseline/recency"},
        {"model": "another", "provider": "P", "system_fingerprint": "f"},
    )
    with served(Options(answerers=two)) as endpoint:
        for name, how in (("single", "--no-batch"), ("batches", "--batch")):
            words = ["--model", "baseline/recency", "--api-url", endpoint.url, "--name", name, how]
            assert main([*DEMO[:-2], *words, "--results-dir", str(tmp_path)]) == 0
            assert capsys.readouterr().out.count("several models answered: ") >= 1
    found = [
        orjson.loads((tmp_path / name / "eval_report_weibo.json").read_bytes())
        for name in ("single", "batches")
    ]
    assert (
        found[0]["replies"] == found[1]["replies"] and len(found[0]["replies"]["answered_by"]) == 2
    )


def test_batches_that_were_given_up_stay_in_the_upper_bound(tmp_path):
    """They may be billed, whichever part submitted them."""
    parts(tmp_path)
    intended(RunFiles(tmp_path / "run.part2of2", "weibo"), ("u1", 1, "d", 0), ("u2", 1, "d", 0))
    assert merged(tmp_path) == 0
    total = tally_of(RunFiles(tmp_path / "run", "weibo")).bill.total
    assert (total.lost, total.lost_bytes) == (2, 700)


def test_dry_run_has_half_the_cost_and_a_day_for_each_step_of_the_longest_user(tmp_path, capsys):
    (tmp_path / "p.toml").write_text(PROVIDERS)
    words = [
        "run",
        "--demo",
        "--platform",
        "weibo",
        "--limit",
        "8",
        "--results-dir",
        str(tmp_path / "r"),
        "--dry-run",
    ]
    words += ["--providers", str(tmp_path / "p.toml"), "--model", "mine:m-1"]
    seen = []
    for more in ([], ["--batch"]):
        assert main([*words, *more]) == 0
        out = capsys.readouterr().out
        seen.append((float(re.findall(r"([\d.]+) USD", out)[0]), re.findall(r"(\d+) days?", out)))
        longest = max(int(steps) for steps in re.findall(r"user \S+, (\d+) steps?", out))
    (usual, no_days), (deferred, days) = seen
    assert deferred == pytest.approx(usual / 2, rel=0.01) and (no_days, days) == (
        [],
        [str(longest)],
    )


def interrupted(results: Path, url: str) -> RunFiles:
    """A run by batches that has ended before a batch was submitted, as earlier versions left it
    too."""
    files = RunFiles(results / "run", "weibo")
    words = (*DEMO, "--model", "baseline/recency", "--results-dir", str(results), "--api-url", url)
    assert main([*words, "--batch", "--limit", "2"]) == 0
    made = load(files.manifest)
    assert made is not None
    assert made.tuning["batch"] is True  # type: ignore[typeddict-item]
    for path in (files.results, files.responses, files.batches):
        path.write_bytes(b"")
    files.batches.unlink()
    made.state, made.results_sha256 = "stopped", None
    made.save(files.manifest)
    return files


@pytest.mark.parametrize(("word", "batched"), [((), True), (("--no-batch",), False)])
def test_resume_goes_on_as_the_manifest_says(tmp_path, word, batched):
    """By the member of `tuning` that earlier versions wrote, and without a journal."""
    from tests.support.endpoint_double.app import Options

    with served(Options()) as endpoint:
        files = interrupted(tmp_path, endpoint.url)
        before = endpoint.stats()["batches"]
        assert main(["resume", "--no-html", "--results-dir", str(tmp_path), *word]) == 0
        assert (endpoint.stats()["batches"] > before) is batched
    assert bool(submissions(files.batches)) is batched
    made = load(files.manifest)
    assert (
        made is not None and made.state == "complete" and made.tuning.get("batch", False) is batched
    )


@pytest.mark.slow
@pytest.mark.parametrize(("word", "code"), [((), 2), (("--allow", NAME), 0), (("--batch",), 0)])
def test_run_with_a_batch_at_the_provider_goes_on_without_it_only_if_that_is_allowed(
    tmp_path, word, code
):
    """The same command again, without `--batch`, would pay twice."""
    from tests.support.endpoint_double.app import Options

    with served(Options()) as endpoint:
        files = interrupted(tmp_path, endpoint.url)
        intended(files, ("u1", 1, "d", 0))
        words = (
            *DEMO,
            "--model",
            "baseline/recency",
            "--results-dir",
            str(tmp_path),
            "--api-url",
            endpoint.url,
        )
        assert main([*words, "--limit", "2", *word]) == code


@pytest.mark.parametrize(
    "more", [("--engine", "ray"), ("--estimate",), ("--api-url", "http://127.0.0.1:8/v1")]
)
def test_batches_are_refused_with_what_sends_in_another_way(tmp_path, more):
    """Before any file is written."""
    words = (
        *DEMO,
        "--model",
        "m",
        "--results-dir",
        str(tmp_path / "r"),
        "--api-url",
        "http://127.0.0.1:9/v1",
    )
    assert main([*words, "--batch", *more]) == 2
    assert not (tmp_path / "r").exists()


def test_status_and_restart_know_the_journal(tmp_path, capsys):
    from tests.support.endpoint_double.app import Options

    with served(Options()) as endpoint:
        words = (
            *DEMO,
            "--model",
            "baseline/recency",
            "--results-dir",
            str(tmp_path),
            "--api-url",
            endpoint.url,
        )
        assert main([*words, "--batch", "--limit", "2"]) == 0
        capsys.readouterr()
        assert main(["status", "--json", "--results-dir", str(tmp_path)]) == 0
        [row] = orjson.loads(capsys.readouterr().out)
        number = row["waves"]["number"]
        assert number > 0 and row["waves"] == {
            "number": number,
            "batches": 0,
            "requests": 0,
            "completed": 0,
        }
        assert main(["status", "--results-dir", str(tmp_path)]) == 0
        head = capsys.readouterr().out.splitlines()[0].split()
        assert head[-2:] == ["waves", "updated"]
        assert main([*words, "--restart", "--limit", "2"]) == 0
    assert not RunFiles(tmp_path / "run", "weibo").batches.exists()
    assert list((tmp_path / "run").glob("batches_weibo.jsonl.before-*"))


def test_removed_run_takes_its_journal_along(tmp_path):
    """A new run of the same name owes no batch."""
    results = ("--results-dir", str(tmp_path))
    assert main([*DEMO, *results]) == 0
    files = RunFiles(tmp_path / "run", "weibo")
    intended(files, ("甲", 1, "d", 0))
    assert main(["remove", "run", *results]) == 0
    assert not files.batches.exists()
    assert main([*DEMO, *results]) == 0
