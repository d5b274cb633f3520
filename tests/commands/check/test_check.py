"""The contract of a benchmark, proved on the example, on a second one and on both that ship; and
what it finds."""

from __future__ import annotations

import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from harness.benchmarks import registry
from harness.cli import main
from harness.commands.check import checking
from harness.commands.check.command import models_of, subject_of
from tests.support import ROOT
from tests.support.plugins import STARS, VISITS, changed, having, made_of, write_visits

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
    assert checking.without_valid_answer(subject) is None or cls.name == "nothing"
    found = {one.check: one.wrong for one in checking.results(subject)}
    assert list(found) == list(checking.CHECKS) or list(found)[-1] in checking.REQUIRED_CHECKS
    return {name: words for name, words in found.items() if words}


@pytest.mark.parametrize("subset", ["north"])
def test_the_second_benchmark_keeps_the_contract(tasks, subset):
    assert wrong_with(VISITS, subset, tasks) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "subset"), [("streamprofile", "weibo"), ("dailymobility", "beijing")]
)
def test_benchmarks_that_ship_keep_the_contract(name, subset):
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
            "Scoring",
            "def statistics(self, records):\n    return [[len(records), 1] for _ in records]\n\n"
            "def figures(self, totals):\n    return totals",
        )
        + "    def measure(",
        "depends on the other users",
    ),
    "figures that depend on others": (
        "statistics",
        "    def measure(",
        having(
            "scoring",
            "Means",
            "def figures(self, totals):\n    return super().figures(totals) + len(totals)",
        )
        + "    def measure(",
        "depends on the other rows",
    ),
    "figures that are said to be means": (
        "statistics",
        "    def measure(",
        having("scoring", "Means", "def figures(self, totals):\n    return totals[:, :2]")
        + "    def measure(",
        "other than means",
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
        having("records", "Records", "def outcomes(self, record):\n    assert False, 'none'")
        + "    def measure(",
        "outcomes and repairs: AssertionError: none",
    ),
    "state of one user that play keeps": (
        "users",
        'profile = await chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)',
        (
            "self.item = given['item']\n        profile = await"
            ' chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)\n        given ='
            " given | {'item': self.item}"
        ),
        (
            "users share state: user synthetic-01 has another record when others are played at the"
            " same time"
        ),
    ),
    "an answer that is kept for measure": (
        "users",
        'return {"profile": profile, "stars": stars}\n\n    def measure(self, task, answer):\n',
        (
            'self.given = given\n        return {"profile": profile, "stars": stars}\n\n'
            "    def measure(self, task, answer):\n"
            "        if answer is not None and len(self.given['item']) % 2:\n"
            "            return {'MAE': 4, 'Exact': 0.0}\n"
        ),
        "users share state: user synthetic-",
    ),
    "state that others take away": (
        "users",
        'profile = await chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)',
        (
            "self.item = given['item']\n        profile = await"
            ' chat.json(PROFILE.format(reviews=given["reviews"]), read=_profile)\n        del'
            " self.item"
        ),
        "users share state: played at the same time, benchmark stars, user synthetic-",
    ),
    "a card that needs its task": (
        "reports",
        "    def measure(",
        having(
            "cards",
            "Cards",
            "def card(self, record, task, replies):\n    task.truth\n    return ()",
        )
        + "    def measure(",
        "card: AttributeError",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_breaks_the_contract_is_found(tmp_path, what, monkeypatch):
    """By its own check, whatever others say."""
    check, before, after, words = BROKEN[what]
    needed = {
        name: checking.CHECKS[name]
        for name in checking.CHECKS
        if name in (*checking.REQUIRED_CHECKS, check)
    }
    monkeypatch.setattr(checking, "CHECKS", needed)
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(file, before, after)
    if what == "the truth by another way":
        changed(
            file,
            'PROFILE.format(reviews=given["reviews"])',
            "PROFILE.format(reviews=str(self.seen))",
        )
    found = wrong_with(file, "yelp", STARS.parent, users=5)
    assert words in found[check], found


def test_a_setting_that_is_not_part_of_a_run_is_found(tmp_path, tasks):
    file = Path(shutil.copy(VISITS, tmp_path / "visits.py"))
    changed(
        file,
        "    def prepare(self):",
        "    def prepare(self):\n        from dataclasses import replace\n"
        "        identity = {'scale': self.settings.scale}\n"
        "        self.configuration = replace(self.configuration, identity=identity)\n",
    )
    assert (
        "history_length: 4 leaves the identity of a run as it was"
        in wrong_with(file, "north", tasks)["settings"]
    )


def checked(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    """Return the exit code of `check-benchmark` and its lines that are not OK."""
    code = main(["check-benchmark", str(file), "--tasks-dir", str(folder)])
    return code, [
        line for line in capsys.readouterr().out.splitlines() if not line.endswith(": OK")
    ]


@pytest.mark.slow
def test_waived_check_is_shown_with_its_reason_and_is_no_breach(capsys, tmp_path):
    """Code that fails is a breach all the same, and a waiver needs a reason and a check."""
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(file, '"Exact": float(error == 0)', '"Exact": None')
    about = made_of("about", "About", 'waived={"values": "nobody is exact here"}')
    changed(file, "    baselines =", f"{about}    baselines =")
    waived = "stars, yelp: values: waived (nobody is exact here): Exact is None for every user"
    assert checked(file, STARS.parent, capsys) == (0, [waived])
    changed(file, "error = worst if", "error = 9 if")
    assert checked(file, STARS.parent, capsys)[0] == 1
    for wrong in ('{"valeus": "x"}', '{"values": ""}', '{"tasks": "x"}'):
        file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
        changed(
            file,
            "    baselines =",
            f"{made_of('about', 'About', f'waived={wrong}')}    baselines =",
        )
        code, [line] = checked(file, STARS.parent, capsys)
        assert (code, line[:33]) == (1, "stars, yelp: declaration: waived:")


def test_error_is_shown_once_and_other_checks_refer_to_it(capsys, tmp_path):
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(
        file,
        "        profile = await chat.json(",
        "        assert given is None, 'odd'\n        profile = await chat.json(",
    )
    code, lines = checked(file, STARS.parent, capsys)
    assert code == 1 and len(lines) > 3
    assert (
        sum("AssertionError: odd" in line for line in lines) <= 2
    )  # of a changed line, and of a line as it is


def own(folder: Path, play: str, measure: str) -> Path:
    """Write a benchmark, with a line of tasks that has the fields a and b."""
    (folder / "a.jsonl").write_text('{"user_id": "u", "a": 1, "b": 2}\n')
    (folder / "own.py").write_text(
        "from harness import Benchmark, Metric, Task\n\n\n"
        "class Own(Benchmark):\n"
        '    name = "nothing"\n    subsets = {"a": "a.jsonl"}\n    metrics = (Metric("X"),)\n\n'
        "    def parse(self, line, subset):\n"
        '        return Task(line["user_id"], given="x", truth=(line["a"], line["b"]))\n\n'
        f"    async def play(self, given, chat):\n        {play}\n\n"
        f"    def measure(self, task, answer):\n        {measure}\n"
    )
    return folder / "own.py"


def test_bad_lines_of_several_fields_are_shown_at_once(tmp_path):
    """Each field once, however many of its values and lines there are."""
    file = own(tmp_path, "return 1", 'return {"X": 1 / (1 + abs(task.truth[0] + task.truth[1]))}')
    found = wrong_with(file, "a", tmp_path)["bad lines"].split("; ")
    assert len(found) == 2 and all("TypeError" in one for one in found)


@pytest.mark.parametrize("play", ["return chat.json(given)", "return len(chat.json(given))"])
def test_forgotten_await_has_a_sentence_of_its_own(play, tmp_path):
    """Whether the coroutine is the answer, or is used for it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # that it was never awaited
        found = wrong_with(own(tmp_path, play, 'return {"X": 1.0}'), "a", tmp_path)
    assert any("an `await` is missing" in words for words in found.values())


@pytest.mark.filterwarnings("default")
def test_warning_of_the_code_is_shown_once_and_none_for_what_a_check_reports(tmp_path, capsys):
    """However many users, models and checks there are."""
    file = own(
        tmp_path,
        "return chat.json(given)",
        "import warnings; warnings.warn('odd'); return {'X': 1.0}",
    )
    with warnings.catch_warnings(record=True) as caught:
        checked(file, tmp_path, capsys)
    assert [str(one.message) for one in caught] == ["odd"]


@pytest.mark.slow
def test_note_is_shown_once_for_all_subsets(capsys, tmp_path):
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(file, '    baselines = {"four-stars": four_stars}\n', "")
    changed(
        file, '    subsets = {"yelp": ', '    subsets = {"again": "yelp_star_tasks.jsonl", "yelp": '
    )
    code, lines = checked(file, STARS.parent, capsys)
    assert code == 0 and [line.partition(": no reply")[0] for line in lines] == [
        "stars, again, yelp: note"
    ]


@pytest.mark.slow
def test_without_baselines_it_says_what_was_not_possible(capsys, tmp_path):
    file = Path(shutil.copy(STARS, tmp_path / "stars.py"))
    changed(file, '    baselines = {"four-stars": four_stars}\n', "")
    words = ["check-benchmark", str(file), "--tasks-dir", str(STARS.parent)]
    assert main(words) == 0
    assert "note: no reply made a valid answer" in capsys.readouterr().out
    replies = tmp_path / "replies.jsonl"
    replies.write_bytes(
        b"\n".join(
            orjson.dumps(orjson.dumps(one).decode()) for one in ({"profile": "x"}, {"stars": 2})
        )
    )
    assert main([*words, "--replies", str(replies)]) == 0
    assert "note" not in capsys.readouterr().out
    replies.write_text('{"profile": "喜欢猫"}\n\n{"stars": 2}\n', encoding="utf-8")
    assert main([*words, "--replies", str(replies)]) == 0
    assert "note" not in capsys.readouterr().out
    for content, where in (
        (b"\n", "replies.jsonl: "),
        (b'{"stars": 2}\n4 stars\n', "replies.jsonl, line 2: "),
    ):
        replies.write_bytes(content)
        assert main([*words, "--replies", str(replies)]) == 2
        assert where in capsys.readouterr().err


def test_tasks_that_are_not_there_or_cannot_be_read_are_named(capsys, tmp_path):
    assert main(["check-benchmark", str(STARS), "--tasks-dir", str(tmp_path)]) == 2
    assert "yelp_star_tasks.jsonl" in capsys.readouterr().err
    (tmp_path / "yelp_star_tasks.jsonl").write_text('{"user_id": "a", "stars": 7}\n')
    assert main(["check-benchmark", str(STARS), "--tasks-dir", str(tmp_path)]) == 2
    assert "line 1: field stars: expected stars from 1 to 5" in capsys.readouterr().err
