"""Where runs go that nobody has named, and which runs may not share a folder."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from harness.cli import main
from tests.commands.test_commands import write_tasks
from tests.support.scripted import baseline, serving

DEMO = ("run", "--demo", "--subset", "weibo", "--limit", "3", "--no-html")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in an empty working folder, with 12 users of weibo in `tasks`."""
    monkeypatch.chdir(tmp_path)
    write_tasks(tmp_path / "tasks", 12)


def runs() -> set[str]:
    return {path.parent.name for path in Path("results").glob("*/run_*.json")}


def users(name: str) -> int:
    return len(Path("results", name, "inference_results_weibo.jsonl").read_bytes().splitlines())


def test_same_model_has_a_run_for_each_benchmark_and_kind_of_tasks():
    """A second benchmark with the same model is another run, and so are the synthetic tasks that
    ship."""
    with serving(baseline) as server:
        endpoint = ("--model", "org/big-model", "--api-url", server.url, "--max-retries", "0")
        assert main([*DEMO, *endpoint]) == 0
        assert main(["run", "--subset", "weibo", "--limit", "3", "--no-html", *endpoint]) == 0
        main(["run", "dailymobility", "--demo", "--limit", "3", "--no-html", *endpoint])
    assert runs() == {"demo-big-model", "big-model", "demo-dailymobility-big-model"}


def test_run_under_the_name_of_earlier_versions_is_continued():
    """Nothing is paid for again where a run of the same benchmark, model and tasks is under the
    model's name alone."""
    with serving(baseline) as server:
        endpoint = ("--model", "m", "--api-url", server.url)
        assert main([*DEMO, *endpoint, "--name", "m"]) == 0
        requests = len(server.bodies)
        assert main([*DEMO, *endpoint]) == 0
        assert len(server.bodies) == requests
    assert runs() == {"m"}


@pytest.mark.parametrize("demo_first", [True, False])
def test_synthetic_tasks_that_ship_and_a_users_own_never_share_a_folder(demo_first, capsys):
    """The same name is refused with the one thing to type, and nothing is changed."""
    own = ("run", "--subset", "weibo", "--limit", "3", "--no-html", "--model", "baseline/recency")
    first, second = (DEMO, own) if demo_first else (own, DEMO)
    assert main([*first, "--name", "x"]) == 0
    saved = Path("results/x/inference_results_weibo.jsonl").read_bytes()
    assert main([*second, "--name", "x"]) == 2
    assert "--name" in capsys.readouterr().err
    assert Path("results/x/inference_results_weibo.jsonl").read_bytes() == saved


@pytest.mark.parametrize(
    ("first", "fewer", "said"),
    [
        (("--limit", "9"), ("--limit", "3"), "--limit 9"),
        ((), ("--limit", "3"), "all users"),
        (("--ratio", "0.5"), ("--ratio", "0.25"), "--ratio 0.5"),
    ],
)
def test_fewer_users_than_a_run_has_are_refused(first, fewer, said, capsys):
    """A report is never over more users than were asked for."""
    words = ("run", "--model", "baseline/recency", "--subset", "weibo", "--no-html")
    assert main([*words, *first]) == 0
    before = users("recency")
    assert main([*words, *fewer]) == 2
    assert said in capsys.readouterr().err
    assert main([*words, *first]) == 0
    assert users("recency") == before


def test_refusal_names_what_to_type_and_every_difference_that_can_be_allowed(
    capsys,
):
    """Few differences are spelled out; the flags that accept them are all there."""
    words = ("run", "--model", "baseline/recency", "--subset", "weibo", "--no-html", "--limit", "3")
    assert main([*words]) == 0
    assert (
        main([*words, "--temperature", "0.5", "--top-p", "0.9", "--seed", "7", "--max-tokens", "9"])
        == 2
    )
    said = capsys.readouterr().err
    for name in ("temperature", "top_p", "seed", "max_tokens"):
        assert f"--allow sampling.{name}" in said
    assert "another name with --name" in said and "1 more" in said


def test_another_benchmark_is_never_accepted_in_a_folder(
    capsys,
):
    """Two benchmarks are two runs, whatever is allowed."""
    assert main([*DEMO, "--name", "both"]) == 0
    saved = Path("results/both/prompt_own.txt").read_bytes()
    words = ("run", "dailymobility", "--demo", "--limit", "3", "--no-html", "--name", "both")
    assert main([*words, "--allow", "benchmark", "--allow", "model"]) == 2
    assert "run of the benchmark streamprofile" in capsys.readouterr().err
    assert Path("results/both/prompt_own.txt").read_bytes() == saved


def test_folder_without_runs_is_named_by_its_whole_path(tmp_path, capsys):
    """`status` and `resume` in the wrong folder are mistakes; nothing left to resume is none."""
    for command in ("status", "resume"):
        assert main([command]) == 2
        said = capsys.readouterr().err
        assert str(tmp_path / "results") in said and "--results-dir" in said
    assert main([*DEMO]) == 0
    assert main(["resume"]) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_price_of_the_command_is_that_of_its_run(capsys):
    """Without a price one line says so, after the run; `--price` gives one, which the run keeps
    when it is resumed."""
    with serving(baseline) as server:
        words = [*DEMO, "--api-url", server.url, "--api-key", "k", "--model"]
        assert main([*words, "a", "--model", "b"]) == 0
        *_, last = capsys.readouterr().out.splitlines()
        assert last.startswith("no price is known for a, b; give --price")
        assert main([*words, "c", "--price", "CNY:1/2"]) == 0
        assert "no price" not in capsys.readouterr().out
    report = orjson.loads(Path("results/demo-c/eval_report_weibo.json").read_bytes())
    requests = report["usage"]["requests"]
    assert float(report["cost"]["amount"]) == pytest.approx(requests * (10 * 1 + 5 * 2) / 1e6)
    assert report["cost"]["price"]["currency"] == "CNY"


@pytest.mark.parametrize("price", ["1", "1/", "x/2", "usd:1/2", "1/-2", "1/2/3"])
def test_price_that_is_none_is_refused(price, capsys):
    """One sentence says how a price is written."""
    assert main([*DEMO, "--price", price]) == 2
    assert "PROMPT/COMPLETION" in capsys.readouterr().err


def test_key_of_another_address_is_said_not_to_be_sent(monkeypatch, capsys):
    """`OPENAI_API_KEY` goes to OpenAI alone: at an address of one's own the command says so, and
    what to do."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-0123456789")
    with serving(baseline) as server:
        assert main([*DEMO, "--api-url", server.url, "--model", "m"]) == 0
        assert set(server.keys) == {None}
    said = capsys.readouterr().out
    assert "OPENAI_API_KEY is for OpenAI, so it is not sent" in said and "LLM_API_KEY" in said


def test_blanks_around_a_models_name_are_not_part_of_it(tmp_path):
    """A name that was pasted with them is the same model, and the same run."""
    assert main([*DEMO, "--model", " baseline/random "]) == 0
    assert runs() == {"demo-random"}
