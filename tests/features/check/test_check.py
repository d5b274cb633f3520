"""The contract of a benchmark, proved on the example, on a second one and on both that ship; and what it finds."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from harness.benchmarks import registry
from harness.cli import main
from harness.features.check import checking
from harness.features.check.command import models_of, subject_of
from tests.support import ROOT
from tests.support.plugins import STARS, VISITS, changed, having, write_visits

SAMPLE = ROOT / "harness" / "sample"


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return the tasks folder of `tests/data/visits`."""
    return write_visits(tmp_path)


def wrong_with(spec: Path | str, subset: str, folder: Path, users: int = 20) -> dict[str, str]:
    """What is wrong, by check."""
    cls = registry.find(str(spec))
    whole = subject_of(cls, subset, folder, models_of(cls, []))
    subject = replace(whole, lines=whole.lines[:users])
    assert checking.unmade(subject) is None or cls.name == "nothing"
    found = dict(checking.results(subject))
    assert list(found) == list(checking.CHECKS) or list(found)[-1] in checking.FIRST
    return {name: words for name, words in found.items() if words}


def test_the_example_keeps_the_contract() -> None:
    assert wrong_with(STARS, "yelp", STARS.parent) == {}


@pytest.mark.parametrize("subset", ["north"])
def test_the_second_benchmark_keeps_the_contract(tasks: Path, subset: str) -> None:
    assert wrong_with(VISITS, subset, tasks) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "subset"), [("streamprofile", "weibo"), ("dailymobility", "beijing")])
def test_benchmarks_that_ship_keep_the_contract(name: str, subset: str) -> None:
    assert wrong_with(name, subset, SAMPLE, users=3) == {}


BROKEN = {
    "the truth in what play is given": (
        "ground truth",
        '"item": line["item"]}',
        '"item": line["item"] + "!" * line["stars"]}',
        "line 1: stars changes the truth and, with four-stars, a request",
    ),
    "the truth by another way": (
        "ground truth",
        "        return Task(",
        '        self.seen = line["stars"]\n        return Task(',
        "line 1: stars changes the truth",
    ),
    "a play that is another one each time": (
        "replay",
        "profile = await chat.json(PROFILE",
        'global PROFILE\n        PROFILE += "!"\n        profile = await chat.json(PROFILE',
        "asks something else when its saved replies are read again",
    ),
    "an answer that measure changes": (
        "saved answers",
        "        worst = max(",
        '        answer = answer and {"stars": answer.pop("stars", 5)}\n        worst = max(',
        "",
    ),
    "a value that nobody has": (
        "values",
        '"Exact": float(error == 0)',
        '"Exact": None',
        "Exact is None for every user",
    ),
    "a value out of bounds": ("no answer", "error = worst if", "error = 9 if", "MAE is 9"),
    "measure without an answer": (
        "no answer",
        "worst if answer is None else abs(",
        "abs(",
        "measure without an answer: TypeError",
    ),
    "a line that is taken and cannot be measured": (
        "bad lines",
        'if line["stars"] not in range(1, 6):',
        "if False:",
        "parse takes line 1 once it is",
    ),
    "statistics that depend on others": (
        "statistics",
        "    def measure(",
        having(
            "scoring",
            "Sums",
            "def statistics(self, records):\n    return [[len(records), 1] for _ in records]\n\n"
            "def figures(self, totals):\n    return totals",
        )
        + "    def measure(",
        "depends on the other users",
    ),
    "figures that depend on others": (
        "statistics",
        "    def measure(",
        having("scoring", "Means", "def figures(self, totals):\n    return super().figures(totals) + len(totals)")
        + "    def measure(",
        "depends on the other rows",
    ),
    "sections that need two users": (
        "reports",
        "    def measure(",
        having("scoring", "Means", "def sections(self, scored):\n    scored.rows[1]\n    return ()")
        + "    def measure(",
        "sections: IndexError",
    ),
    "outcomes that fail": (
        "statistics",
        "    def measure(",
        having("records", "Records", "def outcomes(self, record):\n    assert False, 'none'") + "    def measure(",
        "outcomes and repairs: AssertionError: none",
    ),
    "state of one user that play keeps": (
        "users",
        'profile = await chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)',
        "self.item = given['item']\n"
        '        profile = await chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)\n'
        "        given = given | {'item': self.item}",
        "users share state: user synthetic-01 has another record when others are played at the same time",
    ),
    "an answer that is kept for measure": (
        "users",
        'return {"profile": profile, "stars": stars}\n\n    def measure(self, task, answer):\n',
        'self.given = given\n        return {"profile": profile, "stars": stars}\n\n'
        "    def measure(self, task, answer):\n"
        "        if answer is not None and len(self.given['item']) % 2:\n"
        "            return {'MAE': 4, 'Exact': 0.0}\n",
        "users share state: user synthetic-",
    ),
    "state that others take away": (
        "users",
        'profile = await chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)',
        "self.item = given['item']\n"
        '        profile = await chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)\n'
        "        del self.item",
        "users share state: played at the same time, benchmark stars, user synthetic-",
    ),
    "a remark that fails": (
        "reports",
        "    def measure(",
        "    def remark(self, task):\n        assert False, 'none'\n\n    def measure(",
        "benchmark stars, remark: AssertionError: none",
    ),
    "a remark that is no text": (
        "reports",
        "    def measure(",
        "    def remark(self, task):\n        return 5\n\n    def measure(",
        "remark: expected text, got 5",
    ),
    "a card that needs its task": (
        "reports",
        "    def measure(",
        having("cards", "Cards", "def card(self, record, task, replies):\n    task.truth\n    return ()")
        + "    def measure(",
        "card: AttributeError",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_the_contract_is_found(tmp_path: Path, what: str) -> None:
    check, before, after, words = BROKEN[what]
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(file, before, after)
    if what == "the truth by another way":
        changed(file, 'PROFILE.format(reviews=given["reviews"])', "PROFILE.format(reviews=str(self.seen))")
    found = wrong_with(file, "yelp", STARS.parent, users=5)
    assert words in found[check], found


def test_a_setting_that_is_not_part_of_a_run_is_found(tmp_path: Path, tasks: Path) -> None:
    file = Path(shutil.copy(VISITS, tmp_path / "visits.py"))
    changed(
        file,
        "    def prepare(self):",
        '    def identity(self):\n        return {"scale": self.settings.scale}\n\n    def prepare(self):',
    )
    assert "history_length: 4 leaves the identity of a run as it was" in wrong_with(file, "north", tasks)["settings"]


def test_the_command_prints_a_line_a_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["check-benchmark", str(STARS), "--tasks-dir", str(STARS.parent)]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"stars, yelp: {name}: OK" for name in checking.CHECKS]
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(file, "error = worst if", "error = 9 if")
    assert main(["check-benchmark", str(file), *words[2:]]) == 1
    assert (
        "stars, yelp: no answer: benchmark stars, user synthetic-01, measure without an answer"
        in capsys.readouterr().out
    )


def test_without_baselines_it_says_what_was_not_possible(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(file, '    baselines = {"four-stars": four_stars}\n', "")
    words = ["check-benchmark", str(file), "--tasks-dir", str(STARS.parent)]
    assert main(words) == 0
    assert "note: no reply made a valid answer" in capsys.readouterr().out
    replies = tmp_path / "replies.jsonl"
    replies.write_bytes(
        b"\n".join(orjson.dumps(orjson.dumps(one).decode()) for one in ({"profile": "x"}, {"stars": 2}))
    )
    assert main([*words, "--replies", str(replies)]) == 0
    assert "note" not in capsys.readouterr().out
    replies.write_text('{"profile": "喜欢猫"}\n\n{"stars": 2}\n', encoding="utf-8")
    assert main([*words, "--replies", str(replies)]) == 0
    assert "note" not in capsys.readouterr().out
    for content, where in ((b"\n", "replies.jsonl: "), (b'{"stars": 2}\n4 stars\n', "replies.jsonl, line 2: ")):
        replies.write_bytes(content)
        assert main([*words, "--replies", str(replies)]) == 2
        assert where in capsys.readouterr().err


def test_tasks_that_are_not_there_or_cannot_be_read_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["check-benchmark", str(STARS), "--tasks-dir", str(tmp_path)]) == 2
    assert "yelp_star_tasks.jsonl" in capsys.readouterr().err
    (tmp_path / "yelp_star_tasks.jsonl").write_text('{"user_id": "a", "stars": 7}\n')
    assert main(["check-benchmark", str(STARS), "--tasks-dir", str(tmp_path)]) == 2
    assert "line 1: field stars: expected stars from 1 to 5" in capsys.readouterr().err
