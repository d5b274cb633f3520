"""What make hands on: every setting of a target becomes its flag, and nothing is left out without a
word."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import ROOT


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Says what make would run, taking its environment as made; settings of this shell's are kept
    out."""
    environment = {"PATH": "/usr/bin:/bin", "QUEUE": "of-the-shell", "MODEL": "of-the-shell"}
    command = ["make", "-n", "-o", ".venv/run.made", "-o", ".venv/data.made", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("words", "expected_text"),
    [
        (["run"], "run --model baseline/recency --demo --subset weibo"),
        (["run", "BENCHMARK=DailyMobility"], "run DailyMobility --model baseline/commuter --demo"),
        (
            ["run", "MODEL=a b", "PLATFORM=weibo zhihu"],
            "run --model 'a' --model 'b' --subset 'weibo' --subset 'zhihu'",
        ),
        (["run", "BENCHMARK=my/stars.py"], "run my/stars.py"),
        (
            ["run", "BENCHMARK=my.stars:Stars", "ARGS=--tasks-dir d"],
            "run my.stars:Stars --tasks-dir d",
        ),
        (
            ["run", "BENCHMARK=my/stars.py", "MODEL=a", "PLATFORM=p"],
            "run my/stars.py --model 'a' --subset 'p'",
        ),
        (
            ["check-benchmark", "BENCHMARK=stars.py", "ARGS=--tasks-dir d"],
            "check-benchmark stars.py --tasks-dir d",
        ),
        (["run", "QUEUE=week", "CONCURRENCY=auto"], "run --queue 'week' --concurrency 'auto'"),
        (["run", "PROVIDER=deepseek"], "run --provider 'deepseek'"),
        (
            ["run", "MODEL=a", "PROVIDER=deepseek", "NAME=n"],
            "run --name 'n' --model 'a' --provider 'deepseek'",
        ),
        (["run", "ARGS=--queue week"], "run --queue week"),
        (["run", "ARGS=--config=f.yml"], "run --config=f.yml"),
        (["run", "MODEL=deepseek:x", "DEEPSEEK_API_KEY=sk-test"], "run --model 'deepseek:x'"),
        (["compare", "RUNS=a b", "PLATFORM=weibo"], "compare 'a' 'b' --subset 'weibo'"),
        (["fetch"], "fetch"),
        (
            ["fetch", "BENCHMARK=dailymobility", "ARGS=--revision v1"],
            "fetch dailymobility --revision v1",
        ),
        (["fetch", "PLATFORM=weibo zhihu"], "fetch --subset 'weibo' --subset 'zhihu'"),
        (["report", "NAME=n"], "report --name 'n'"),
        (["merge", "RUNS=n"], "merge 'n'"),
        (["export", "RUNS=a b", "ARGS=--format inspect"], "export 'a' 'b' --format inspect"),
        (
            ["compare", "RUNS=a", "NAME=b", "SUBSET=weibo"],
            "compare 'a' --name 'b' --subset 'weibo'",
        ),
        (["status", "RUNS=a b"], "status 'a' 'b'"),
        (["remove", "NAME=a b"], "remove --name 'a b'"),
        (["resume", "NAME=n", "PROVIDER=relay"], "resume --name 'n' --provider 'relay'"),
        (
            ["show", "NAME=a b", "SUBSET=weibo", "ARGS=u1 --full"],
            "show 'a b' --subset 'weibo' u1 --full",
        ),
        (["stats"], "stats --excel"),
        (["stats", "RUNS=a b"], "stats 'a' 'b'"),
        (["view", "ARGS=--port 8080"], "view --port 8080"),
    ],
)
def test_settings_become_flags_and_only_a_run_of_no_model_is_the_demo(words, expected_text):
    """A model, a queue, a provider or a configuration file, wherever it is named, is what runs."""
    done = make(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f".venv/bin/python -P -m harness {expected_text}"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "QUEU=week"],
        ["resume", "QUEUE=week"],
        ["status", "PROVIDER=relay"],
        ["view", "NAME=n"],
    ],
)
def test_a_setting_that_a_target_does_not_have_is_refused(words):
    """It is named, with those that there are, and nothing runs."""
    done = make(*words)
    assert done.returncode == 2
    assert "has no setting" in done.stderr and words[1].partition("=")[0] in done.stderr


def test_help_shows_the_settings_of_each_command():
    """Those that it takes, from the list by which others are refused."""
    done = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert lines["status"].endswith(" [RUNS NAME MODEL SUBSET]")
    assert lines["merge"].endswith(" [RUNS NAME]")
    assert "[" not in lines["view"]


@pytest.mark.parametrize("smaller", ["run", "data"])
def test_the_environment_of_tests_holds_those_of_commands(smaller):
    """In the same versions; and no file of pins names an index."""
    texts = [(ROOT / "requirements" / f"{name}.txt").read_text() for name in (smaller, "dev")]
    pins = [
        {line.split()[0] for line in text.splitlines() if "==" in line and line[0] != " "}
        for text in texts
    ]
    assert pins[0] < pins[1] and not any("://" in text or "--index" in text for text in texts)
