"""`run --dry-run`: what would be sent, without an endpoint, a key or a file written."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest

from harness.cli import main
from tests.support.commands import execute

EXAMPLE = Path(__file__).parents[3] / "examples" / "star_rating"


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLM_API_BASE", "LLM_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


def numbers(out: str) -> list[int]:
    """Return users, steps and requests of the first subset."""
    [line] = [line for line in out.splitlines() if " users, " in line][:1]
    return [
        int(number.replace(",", ""))
        for number in re.findall(r"(\d[\d,]*) (?:user|step|request)", line)
    ]


@pytest.mark.parametrize(
    "which",
    [["--platform", "weibo", "--limit", "8"], ["dailymobility", "--limit", "8"]],
    ids=["streamprofile", "mobility"],
)
def test_counts_are_those_of_a_real_run(which, tmp_path, capsys):
    """With few users all are rehearsed, and a baseline's run sends exactly so many requests; no run
    is written."""
    words = ["run", *which, "--demo", "--results-dir", str(tmp_path / "r")]
    assert main([*words, "--model", "gpt-x", "--dry-run"]) == 0
    previewed = numbers(capsys.readouterr().out)
    assert not list(tmp_path.glob("r/gpt-x*"))
    baseline = "baseline/commuter" if which[0] == "dailymobility" else "baseline/recency"
    assert main([*words, "--model", baseline, "--no-html"]) == 0
    capsys.readouterr()
    execute(tmp_path / "r", "status", "--json")
    [row] = orjson.loads(capsys.readouterr().out)
    assert [previewed[0], previewed[2]] == [row["done"], row["requests"]]


PROVIDERS = """
[providers.mine]
base_url = "https://models.example/v1"
key_env = "MINE_KEY"
[providers.mine.prices."m-1"]
currency = "USD"
prompt = 2
completion = 8
"""


def test_address_parameters_tokens_and_cost_are_shown(tmp_path, capsys):
    """Without the provider's key."""
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
    words += ["--providers", str(tmp_path / "p.toml"), "--model", "mine:m-1", "--max-tokens", "777"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "https://models.example/v1" in out and "max_tokens 777" in out
    assert float(re.findall(r"([\d.]+) USD", out)[0]) > 0


def test_benchmark_without_a_baseline_shows_first_requests(tmp_path, capsys):
    """Nobody can answer them, so the others are counted by the users' steps."""
    code = (
        (EXAMPLE / "star_rating.py")
        .read_text(encoding="utf-8")
        .replace('    baselines = {"four-stars": four_stars}\n', "")
    )
    (tmp_path / "stars.py").write_text(code, encoding="utf-8")
    words = [
        "run",
        str(tmp_path / "stars.py"),
        "--tasks-dir",
        str(EXAMPLE),
        "--results-dir",
        str(tmp_path / "r"),
    ]
    assert main([*words, "--model", "gpt-x", "--dry-run"]) == 0
    out = capsys.readouterr().out
    users, steps, requests = numbers(out)
    assert requests == steps == 2 * users and "at least" in out


def test_input_that_a_run_refuses_is_refused(tmp_path, capsys):
    """Every line is validated: file, line and field."""
    (tmp_path / "weibo_inference_tasks.jsonl").write_text('{"user_id": 3}\n')
    words = [
        "run",
        "--model",
        "gpt-x",
        "--platform",
        "weibo",
        "--dry-run",
        "--tasks-dir",
        str(tmp_path),
    ]
    execute(tmp_path / "r", *words, code=2)
    assert "line 1" in capsys.readouterr().err


def test_baseline_stays_one_where_nothing_names_an_endpoint(tmp_path, capsys):
    """The other model needs an endpoint, the baseline none."""
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
    assert main([*words, "--model", "gpt-x", "--model", "baseline/recency"]) == 0
    [line] = [
        line for line in capsys.readouterr().out.splitlines() if ": baseline/recency, at " in line
    ]
    assert line.endswith("at embedded")


def test_endpoint_of_another_programs_file_is_shown(tmp_path, capsys):
    """Its key is not shown."""
    path = tmp_path / "config.yml"
    path.write_text(
        "llm:\n  - base_url: http://127.0.0.1:9/v1\n    api_key: sk-0123\n    model: m-1\n"
    )
    words = ["run", "--demo", "--platform", "weibo", "--limit", "2", "--config", str(path)]
    execute(tmp_path / "r", *words, "--dry-run")
    out = "".join(capsys.readouterr())
    assert "m-1, at http://127.0.0.1:9/v1" in out and "sk-0123" not in out
