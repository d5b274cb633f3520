"""Pages of runs: what stands on them, who can be picked, and when they are made (docs/design.md,
section 5)."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from harness.benchmark import Metric
from harness.benchmarks.dailymobility.synth import files
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.document import Card, Chart, Heading, Quote, Tags
from harness.errors import MachineError
from harness.model import Completion, Record
from harness.reporting import pages, report_files
from harness.reporting.cards import ReportCards
from harness.reporting.pages import PageOptions, write_all, write_page
from harness.reporting.report import page
from harness.reporting.reported import Reported
from harness.scoring import reports
from harness.scoring.intervals import interval, moments
from harness.scoring.scorer import BINS, _spread
from harness.store import log
from harness.store.disk import DISK, Disk
from harness.store.files import RunFiles
from harness.store.log import decode_line, encode_line
from harness.store.run import replace_results
from tests.benchmarks.streamprofile.test_scorer import a_step, facts, report, unscored, user
from tests.reporting.documents.test_html import Parsed, Users
from tests.support import first_quick
from tests.support.commands import execute
from tests.support.disks import CHANGING, WRITES, Death, FaultyDisk, QuickDisk
from tests.support.scripted import baseline, by_turns, completion, serving

USERS = 12
CARDS = ReportCards(report([user(a_step(1))]), StreamProfile(), posts=False)
PAGE = "recency/eval_report_weibo.html"


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tasks folder with twelve users of weibo and twelve residents; nobody changes it."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "weibo_inference_tasks.jsonl").write_bytes(b"".join(generate("weibo", USERS, 5, 3.0)))
    for name, content in files(USERS, 5).items():
        (folder / "dailymobility" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "dailymobility" / name).write_bytes(content)
    return folder


@pytest.fixture(scope="module")
def made(tasks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A results folder with a complete run of each benchmark; nobody changes it."""
    results = tmp_path_factory.mktemp("results")
    where = ["--tasks-dir", str(tasks), "--results-dir", str(results)]
    assert main(["run", "--model", "baseline/recency", "--platform", "weibo", *where]) == 0
    assert (
        main(["run", "dailymobility", "--model", "baseline/commuter", "--name", "commuter", *where])
        == 0
    )
    return results


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    """The run of weibo in a results folder of the test's own."""
    (tmp_path / "own/recency").mkdir(parents=True)
    for path in (made / "recency").iterdir():
        (tmp_path / "own/recency" / path.name).write_bytes(path.read_bytes())
    return tmp_path / "own"


def again(results: Path, *options: str) -> int:
    return main(["report", "--results-dir", str(results), *options])


def read(path: Path) -> Parsed:
    return Parsed(path.read_text(encoding="utf-8"))


def users_of(path: Path) -> Users:
    return Users(path.read_text(encoding="utf-8"))


def keys(path: Path) -> list[str]:
    """Of the users that a page lets pick."""
    return [line[0] for line in users_of(path).lines]


# What is added up for pages


def test_bands_are_the_intervals_of_the_users_values():
    """As of the values themselves, over those that are defined at each step."""
    rng = np.random.default_rng(1)
    values = [float(value) for value in rng.random(45)]
    users = [
        user(a_step(1, Precision=value), *([a_step(2, 0.5, Precision=value)] * (i < 2)))
        for i, value in enumerate(values)
    ]
    first, second = report(users).details["learning_curve"]
    expected = interval(float(np.mean(values)), [moments(np.array(values))])
    assert expected and first["ci95"]["Precision"] == pytest.approx(expected)
    assert first["ci95"]["Recall_Novelty"] is None
    assert second["ci95"]["Precision"] is None


@pytest.mark.parametrize("value", [0.0, 1.0, 0.3])
def test_step_where_all_users_are_alike_has_no_band(value):
    """A band of width zero would say that the next users are certain to have the same."""
    curve = report([user(a_step(1, Precision=value)) for _ in range(50)]).details["learning_curve"]
    assert curve[0]["metrics"]["Precision"] == pytest.approx(value)
    assert curve[0]["ci95"]["Precision"] is None


def test_bands_stay_within_what_a_share_can_be():
    """Users near 0 have an interval that ends there."""
    users = [
        user(a_step(1, Precision=value)) for value in (*[0.001] * 21, 0.002, *[0.003] * 21, 0.9)
    ]
    low, high = report(users).details["learning_curve"][0]["ci95"]["Precision"]
    assert low == 0.0 and 0.05 < high <= 1.0


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 1.0), (1.0, 5.0), (0.0, 3.0)])
def test_a_value_on_the_edge_of_a_bin_is_in_the_bin_above(bounds):
    """Also where its float is a little below the edge, as -0.9 - -1; values are given to one or two
    digits."""
    low, high = bounds
    edges = np.array([round(low + (high - low) * at / BINS, 6) for at in range(BINS + 1)])
    assert _spread([Metric("value", bounds=bounds)], edges[:, None]).tolist() == [
        [1] * (BINS - 1) + [2]
    ]


def test_distribution_counts_every_user_with_a_value_once():
    """The last bin holds its upper end; a user without a value is in none."""
    users = [user(a_step(1, Recall=value)) for value in (0.0, 0.049, 0.05, 1.0)] + [
        user(unscored(1))
    ]
    found = report(users).distribution
    assert found["Recall"] == (2, 1, *[0] * 16, 0, 1)
    assert sum(found["F1^NS"]) == 0


# Pages of reports


def test_page_is_made_of_the_json_report_alone():
    """What was written and read again gives the same page."""
    data = report([user(a_step(1, 0.5, 0.5), a_step(2, 0.1, 0.9))], facts(2, failed=1))
    found = page(data)
    assert found == page(report_files.read(reports.encoded(data)))
    assert found.warning == "INCOMPLETE: 1 of 2 users are scored, 1 failed"
    assert [tile.name for tile in found.tiles] == ["Recall", "F1^NS", "users scored"]
    assert {block.kind for block in found.blocks if isinstance(block, Chart)} == {
        "curve",
        "intervals",
        "histogram",
    }


def test_page_of_nobody_is_a_page():
    """A run that was stopped before anybody was done has a report too."""
    assert page(report([], facts(3))).warning.startswith("INCOMPLETE: 0 of 3")


def test_every_series_of_a_picture_is_as_long_as_its_axis(made):
    """Histograms have one edge more than values; bounds are as many as values, or none."""
    for name in ("recency/eval_report_weibo", "commuter/eval_report_beijing"):
        found = page(report_files.read((made / f"{name}.json").read_bytes()))
        charts = [block for block in found.blocks if isinstance(block, Chart)]
        assert len(charts) >= 6
        for chart in charts:
            for series in chart.series:
                assert len(series.values) == len(chart.x) - (chart.kind == "histogram"), chart.title
                assert {len(series.low), len(series.high)} <= {0, len(series.values)}


def test_shares_of_both_sides_add_up_in_every_picture_of_a_day(made):
    """Generated and real: each slot of a ribbon and each histogram is whole."""
    data = report_files.read((made / "commuter/eval_report_beijing.json").read_bytes())
    for chart in (block for block in page(data).blocks if isinstance(block, Chart)):
        if chart.kind == "ribbon":
            assert [
                sum(shares) for shares in zip(*(one.values for one in chart.series), strict=True)
            ] == [pytest.approx(1)] * 48
        if chart.kind == "histogram":
            assert [sum(value or 0.0 for value in one.values) for one in chart.series] == [
                pytest.approx(1)
            ] * 2


# Cards


Tagged = list[tuple[str, str]]


def tags_of(card: str) -> list[Tagged]:
    """Return the rows of tags of a card, each tag with its kind."""
    rows = re.findall(r'<p class="tags">(.*?)</p>', card)
    return [re.findall(r"<bdi>(.*?)</bdi> <i>(.*?)</i>", row) for row in rows]


def test_cards_tell_each_prediction_by_kind_as_the_task_has_it(made, tasks):
    """Every predicted tag is a hit of a kind or an error of a kind; every true tag that is not
    predicted is missed."""
    lines = [
        orjson.loads(line)
        for line in (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()
    ]
    by_key = {line["user_id"]: line["prediction_tasks"] for line in lines}
    seen, found = set(), users_of(made / PAGE)
    for [key, *_], card in zip(found.lines, found.cards, strict=True):
        rows = tags_of(card)
        for task, predicted, missed in zip(by_key[key], rows[::2], rows[1::2], strict=True):
            meta = task["meta"]
            lists = {
                "hit, new": "T_new",
                "hit, kept": "T_keep",
                "wrong, decayed": "D_decay",
                "wrong, peer": "D_cluster",
            }
            for tag, kind in predicted:
                seen.add(kind)
                assert kind not in lists or tag in meta[lists[kind]]
            true = {*meta["T_new"], *meta["T_keep"]}
            assert {tag for tag, _ in missed} == true - {tag for tag, _ in predicted}
    assert {"hit, kept", "wrong, decayed"} <= seen


def test_cards_name_nobody_and_show_no_posts(made, tasks):
    """A report is shared, and posts and names are people's; the key alone is there."""
    text = (made / PAGE).read_text(encoding="utf-8")
    for line in (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines():
        data = orjson.loads(line)
        assert f">{data['username']}<" not in text and f'"{data["username"]}"' not in text
        assert all(
            line not in text
            for step in data["prediction_tasks"]
            for line in step["posts_text"].splitlines()[1:]
        )
    assert "Posts are left out, but other texts may quote them." in text


def test_posts_are_there_where_they_are_asked_for(own):
    """And only then."""
    assert again(own, "--name", "recency", "--with-posts") == 0
    labels = set(
        re.findall(r"<summary>([\w ]+?)(?: \(.*?)?</summary>", users_of(own / PAGE).cards[0])
    )
    assert labels == {"Persona summary after this step", "Reasoning", "Reply", "Posts"}


def test_a_model_that_says_the_users_name_does_not_put_it_on_the_page(tasks, tmp_path):
    """In personas, thoughts, replies and examples of invalid answers the key stands for it, however
    it is spelt."""
    lines = [
        orjson.loads(line)
        for line in (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()
    ]
    names = [line["username"] for line in lines]
    calls = iter(range(1000))

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        said = "".join(message["content"] for message in body["messages"])
        name = next((name for name in names if name in said), "没有名字")
        answer = {
            "predicted_tags": [name],
            "persona_summary": f"{name}喜欢猫",
            "reasoning": f"@{name}",
        }
        if (number := next(calls)) < 3:
            return 200, completion(f"{name}你好")
        return 200, completion(json.dumps(answer, ensure_ascii=number % 2 == 0))

    with serving(script) as server:
        options = ["--api-url", server.url, "--concurrency", "1", "--results-dir", str(tmp_path)]
        tuned = ["--tasks-dir", str(tasks), "--platform", "weibo", "--parse-retries", "2"]
        assert main(["run", "--model", "m", *options, *tuned]) == 0
    text = (tmp_path / "m/eval_report_weibo.html").read_text(encoding="utf-8")
    assert "喜欢猫" in text and "你好" in text
    for name in names:
        assert name not in text
        assert json.dumps(name)[1:-1].replace("\\", "\\\\") not in text


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("小猫酱", "小猫酱和小猫", "u和小猫"),
        ("Li", "Li likes li, LI_2 and Li's", "u likes u, LI_2 and u's"),
        ("Li", '"\\nLi\\u732bLi"', '"\\nu\\u732bu"'),
        ("小a", '"\\u5c0fa" "\\u5C0FA"', '"u" "u"'),
        ('a"b', '{"x": "a\\"b"}', '{"x": "u"}'),
        ("猫", "喜欢猫", "喜欢猫"),
        (" ", "a b", "a b"),
        (None, "None", "None"),
        (7, "7", "7"),
    ],
)
def test_a_name_is_replaced_where_it_is_one(name, text, shown):
    """Not within longer words of Latin letters; one character names nobody, and is a word like any
    other."""
    data = {**a_user("valid"), "username": name}
    data["steps"][0]["reasoning"] = text
    card = CARDS.card(data, None, [])
    assert [
        block.text
        for block in card.blocks
        if isinstance(block, Quote) and block.label == "Reasoning"
    ] == [shown]


def valid(tag: str) -> Completion:
    return Completion(f'{{"predicted_tags": ["{tag}"], "persona_summary": "", "reasoning": ""}}')


def replies_shown(card: Card) -> list[list[str]]:
    """Texts of the replies, by heading."""
    found: list[list[str]] = []
    for block in card.blocks:
        if isinstance(block, Heading):
            found.append([])
        elif isinstance(block, Quote) and block.label.startswith("Reply"):
            found[-1].append(block.text)
    return found


def a_user(*outcomes: str) -> dict[str, Any]:
    steps = [
        {
            **a_step(number),
            "outcome": outcome,
            "ground_truth": ["猫"],
            "persona_summary": "",
            "reasoning": "",
        }
        for number, outcome in enumerate(outcomes, 1)
    ]
    return {"user_id": "u", "steps": steps}


def test_replies_that_were_asked_for_again_stand_with_their_step():
    """Three that cannot be read are one invalid answer of a run that asks twice again; a cut one is
    final."""
    bad, cut = Completion("好的"), Completion("{", finish_reason="length")
    card = CARDS
    replies = [bad, bad, bad, bad, valid("猫"), cut, valid("狗")]
    shown = replies_shown(card.card(a_user("no_json", "valid", "length", "valid"), None, replies))
    assert shown == [["好的"] * 3, ["好的", valid("猫").text], ["{"], [valid("狗").text]]
    assert card.example(a_user("no_json", "valid", "length", "valid"), replies, "length") == "{"


def test_replies_whose_steps_cannot_be_told_stand_together():
    """After other settings were allowed there may be replies that nothing asked for in the end."""
    card = CARDS.card(a_user("valid"), None, [valid("猫"), valid("狗")])
    assert replies_shown(card) == [[], [valid("猫").text, valid("狗").text]]


def test_card_without_its_task_tells_hits_from_errors():
    """Finer kinds need the tasks file."""
    card = CARDS.card(a_user("valid"), None, [])
    tags = [block.tags for block in card.blocks if isinstance(block, Tags)]
    assert tags == [(("猫", "hit"),), ()]


def test_day_of_a_resident_is_drawn_with_places_and_path(made):
    """A ribbon of the day and a sketch whose path goes over its places."""
    card, *_ = users_of(made / "commuter/eval_report_beijing.html").cards
    assert card.count('class="bar ') > 1 and "<table>" in card and "<details" in card
    [path] = re.findall(r'class="line way" points="([^"]+)"', card)
    places = {(float(x), float(y)) for x, y in re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', card)}
    assert {tuple(map(float, point.split(","))) for point in path.split()} <= places
    text = (made / "commuter/eval_report_beijing.html").read_text(encoding="utf-8")
    assert (
        "Places, by what is done there</figcaption><svg"
        in text.partition('<script type="text/plain"')[0]
    )


# Who is shown


def records(folder: Path, number: int, text: str = "近") -> RunFiles:
    """A results file of so many users, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    found = RunFiles(folder, "weibo")
    lines = [{**a_user("valid"), "user_id": f"u{at}", "task": f"{at:032x}"} for at in range(number)]
    for line in lines:
        line["steps"][0]["persona_summary"] = text
    found.results.write_bytes(b"".join(map(encode_line, lines)))
    return found


def source(files: RunFiles, number: int) -> Reported:
    users = [Record(f"u{at}", a_user("valid")) for at in range(number)]
    return Reported(files, report(users, facts(number)), seed=7)


def test_users_of_a_page_are_a_seeded_sample_and_the_page_says_so(tmp_path):
    """The same seed draws the same users, whatever they are; another draws others."""
    found = source(records(tmp_path / "a", 300), 300)
    first = keys(write_page(found, PageOptions()))
    assert len(first) == 50
    assert first == keys(write_page(found, PageOptions()))
    assert first == sorted(first, key=lambda key: int(key[1:]))
    assert (
        "A sample of 50 of the 300 users, drawn with seed 7"
        in found.files.report("html").read_text()
    )
    other = Reported(found.files, found.report, seed=8)
    assert keys(write_page(other, PageOptions())) != first


def test_page_stays_below_two_megabytes_by_showing_fewer_users(tmp_path):
    """Users with long personas are left out as far as it takes, and counted."""
    found = source(records(tmp_path / "a", 200, "长" * 15_000), 200)
    path = write_page(found, PageOptions())
    shown = len(keys(path))
    assert path.stat().st_size < pages.MAX_PAGE_BYTES
    assert 20 < shown < 50
    text = path.read_text(encoding="utf-8")
    assert (
        f"{50 - shown} more were drawn, and left out to keep this page below 2 MB: mostly those"
        in text
    )


def test_one_text_is_cut_where_it_is_very_long_and_says_so(tmp_path):
    """A persona of 100,000 characters does not take a page for itself."""
    found = source(records(tmp_path / "a", 1, "长" * 100_000), 1)
    assert (
        "80000 more characters: the run&#39;s files have them"
        in write_page(found, PageOptions()).read_text()
    )


def test_a_damaged_line_is_left_out(tmp_path):
    """A page is made of what is sound."""
    found = records(tmp_path / "a", 3)
    found.results.write_bytes(
        found.results.read_bytes().replace(b'"u1"', b'"u9"') + b'{"user_id":"torn'
    )
    assert keys(write_page(source(found, 3), PageOptions())) == ["u0", "u2"]


def test_page_of_all_users_counts_the_users_that_it_has(tmp_path):
    """Lines that are left out are reported, and nobody is promised who is not there."""
    found = records(tmp_path / "a", 4)
    whole = write_all(source(found, 4), PageOptions()).read_text(encoding="utf-8")
    assert "All 4 users." in whole and "left out:" not in whole
    found.results.write_bytes(found.results.read_bytes().replace(b'"u1"', b'"u9"'))
    torn = write_all(source(found, 4), PageOptions()).read_text(encoding="utf-8")
    told = (
        "3 users; the report scores 4. 1 line of the results is left out: damaged, not scored, or"
        " of a task that has "
    )
    told += "changed."
    assert told in torn and "All " not in torn.split("<script>")[0]


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("become", [a_folder, a_pipe])
def test_results_that_cannot_be_read_are_told_in_a_sentence(own, become, capsys):
    """It is the machine's doing, exit code 4, and no defect; a pipe is not waited for."""
    become(own / "recency/inference_results_weibo.jsonl")
    assert again(own, "--name", "recency") == 4
    assert "inference_results_weibo.jsonl: " in (told := capsys.readouterr().err)
    assert told.count("cannot read") == 1


def test_a_disk_that_fails_under_a_page_is_told_in_a_sentence(tmp_path, monkeypatch):
    """At the first read of results or responses, the second, and so on."""
    found = source(records(tmp_path / "a", 3), 3)
    lines = [{"user_id": f"u{at}", "request": "r", "completion": {"text": "好"}} for at in range(3)]
    found.files.responses.write_bytes(b"".join(map(encode_line, lines)))
    found.files.failures.write_bytes(b"")
    opened, left = os.open, 1_000

    def failing(path: Any, *how: Any, **more: Any) -> int:
        nonlocal left
        left -= str(path).endswith(".jsonl")
        if not left:
            raise OSError(5, "Input/output error")
        return opened(path, *how, **more)

    monkeypatch.setattr(os, "open", failing)
    write_page(found, PageOptions())
    opens = 1_000 - left
    assert (
        opens == 4 + 3
    )  # results, found and read; responses and failures; the replies of each user
    for number in range(1, opens + 1):
        left = number
        with pytest.raises(MachineError, match=r"cannot read .*jsonl: Input/output error"):
            write_page(found, PageOptions())


def test_a_record_of_a_task_that_has_changed_is_nobody_to_look_at(own):
    """It is not scored either."""
    results = own / "recency/inference_results_weibo.jsonl"
    first, *others = results.read_bytes().splitlines(keepends=True)
    stale = {**decode_line(first.rstrip()), "task": "0" * 32}
    results.write_bytes(encode_line(stale) + b"".join(others))
    assert again(own, "--name", "recency") == 0
    assert stale["user_id"] not in keys(own / PAGE)
    assert len(keys(own / PAGE)) == USERS - 1


def test_lines_are_found_whatever_blocks_the_file_is_read_in(tmp_path, monkeypatch):
    """Line ends and marks at the edge of a block are seen too."""
    files = records(tmp_path / "a", 20)
    content = files.results.read_bytes()
    expected = [0, *(found.end() for found in re.finditer(b"\n", content))][:-1]
    mark = content.index(b'"outcome":"valid"')
    for block in (1, 7, 64, len(content)):
        monkeypatch.setattr(pages, "READ_BYTES", block)
        starts, first = pages._scan(files.results, {"valid": b'"outcome":"valid"', "none": b"?"})
        assert starts.tolist() == expected
        assert first == {"valid": mark}


def test_failures_and_invalid_answers_have_an_example_of_each_kind(tasks, tmp_path):
    """Kinds with how often, and what was said; examples of users that are not in the sample too."""
    calls = iter(range(1000))

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        number = next(calls)
        if number < 3:
            return 200, completion("我不知道<b>")
        return (
            (422, b'{"error": {"message": "odd words"}}')
            if number == 6
            else (200, completion(valid("猫").text))
        )

    with serving(script) as server:
        options = ["--api-url", server.url, "--concurrency", "1", "--results-dir", str(tmp_path)]
        tuned = ["--tasks-dir", str(tasks), "--platform", "weibo", "--parse-retries", "2"]
        assert main(["run", "--model", "m", *options, *tuned]) == 1
    text = " ".join(read(tmp_path / "m/eval_report_weibo.html").texts)
    assert "endpoint: http_422" in text and "odd words" in text
    assert "Invalid answers of the kind no_json: 1." in text and "我不知道<b>" in text
    assert "INCOMPLETE" in text


def test_kinds_on_a_page_have_a_bound(own):
    """A folder from somebody else can hold a million, each of which was looked for in all of the
    results."""
    report = (own / PAGE).with_suffix(".json")
    data = orjson.loads(report.read_bytes())
    data["diagnostics"]["invalid"] = {f"odd{number}": 1 for number in range(pages.MAX_KINDS + 7)}
    report.write_bytes(orjson.dumps(data))
    lines = [
        {"boundary": "x", "kind": f"bad{number}", "detail": "d"}
        for number in range(pages.MAX_KINDS + 9)
    ]
    (own / "recency/failures_weibo.jsonl").write_bytes(b"".join(map(log.encode_line, lines)))
    assert again(own, "--name", "recency") == 0
    text = " ".join(read(own / PAGE).texts)
    assert "x: bad49" in text and "x: bad50" not in text and "9 more kinds of failures" in text
    assert "of the kind odd49:" in text and "of the kind odd50:" not in text
    assert "7 more kinds of invalid answers" in text


# When pages are made


def test_run_makes_a_page_unless_it_is_told_not_to(tasks, made, tmp_path):
    """It stands beside the other reports."""
    assert (made / PAGE).exists()
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path), "--platform", "weibo"]
    assert main(["run", "--model", "baseline/recency", "--no-html", *where]) == 0
    assert (tmp_path / "recency/eval_report_weibo.json").exists()
    assert not (tmp_path / PAGE).exists()


@pytest.mark.parametrize(
    ("error", "code", "state", "said"),
    [
        (
            MachineError("cannot write it"),
            0,
            "complete",
            "recency, weibo: the page could not be made: cannot write it",
        ),
        (
            ZeroDivisionError("odd"),
            70,
            "running",
            "a defect of the harness itself (ZeroDivisionError: odd)",
        ),
    ],
    ids=["this machine", "a defect"],
)
def test_page_that_cannot_be_made_harms_nothing_of_the_run(
    error,
    code,
    state,
    said,
    tasks,
    tmp_path,
    monkeypatch,
    capsys,
):
    """It is reported in a sentence, and results and report are those of the run; only a defect has
    an exit code of its own, and leaves the page to the next command, which can do without."""

    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(pages, "write_page", broken)
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path), "--platform", "weibo"]
    assert main(["run", "--model", "baseline/recency", *where]) == code
    told = capsys.readouterr()
    assert said in told.out + told.err
    manifest = tmp_path / "recency/run_weibo.json"
    assert orjson.loads(manifest.read_bytes())["state"] == state
    assert (tmp_path / PAGE).with_suffix(".json").exists() and not (tmp_path / PAGE).exists()
    execute(tmp_path, "resume", "--no-html")
    assert orjson.loads(manifest.read_bytes())["state"] == "complete"


@pytest.mark.slow
def test_run_that_is_done_has_its_page_while_others_go_on(tasks, tmp_path):
    """Requests of the slow model are answered only once the quick one's manifest says that its run
    is complete."""
    quick, pages_seen = RunFiles(tmp_path / "quick", "weibo"), list[bool]()

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        deadline = time.monotonic() + 60
        while (
            body["model"] == "slow"
            and orjson.loads(quick.manifest.read_bytes())["state"] != "complete"
        ):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        if body["model"] == "slow":
            pages_seen.append(quick.report("html").exists())
        return baseline(body)

    where = [
        "--tasks-dir",
        str(tasks),
        "--results-dir",
        str(tmp_path),
        "--platform",
        "weibo",
        "--concurrency",
        "32",
    ]
    with serving(script) as server:
        assert (
            main(["run", "--model", "quick", "--model", "slow", "--api-url", server.url, *where])
            == 0
        )
    assert pages_seen and all(pages_seen)


@pytest.fixture(scope="module")
def played(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of weibo as its last reply left it: every record is saved, and nothing is
    finished."""
    folder = tmp_path_factory.mktemp("played") / "recency"
    shutil.copytree(made / "recency", folder)
    files = RunFiles(folder, "weibo")
    for path in files.reports:
        path.unlink(missing_ok=True)
    manifest = orjson.loads(files.manifest.read_bytes())
    files.manifest.write_bytes(
        orjson.dumps({**manifest, "state": "running", "counts": {}, "results_sha256": None})
    )
    return folder.parent


@pytest.mark.parametrize("how", first_quick(["death midway", "death before"]))
@pytest.mark.parametrize(
    "command",
    first_quick(
        ["resume --tasks-dir", "run --model baseline/recency --platform weibo --tasks-dir"]
    ),
)
def test_run_that_dies_at_any_write_after_its_last_reply_is_finished_by_the_next_command(
    command, how, tasks, played, made, tmp_path
):
    """Results, report and page are those of an undisturbed run. Nothing else is left but the new
    content of a page, which goes by its age."""

    def finished(name: str, disk: FaultyDisk | None = None) -> Path:
        with pytest.MonkeyPatch.context() as patch:
            for kind in CHANGING if disk else ():
                patch.setattr(DISK, kind, getattr(disk, kind))
            execute(tmp_path / name, *command.split(), str(tasks))
        return tmp_path / name / "recency"

    def content(folder: Path) -> dict[str, bytes]:
        changing = ("run_weibo.json", "run_weibo.log", "run_weibo.lock")
        left = set(folder.glob(f"*.html.{'[0-9a-f]' * 16}.new"))
        files = [
            path for path in folder.iterdir() if path.name not in changing and path not in left
        ]
        return {path.name: path.read_bytes() for path in files}

    expected = content(made / "recency")
    for nth in count(1):
        name, disk = (
            str(nth),
            FaultyDisk(nth, how, WRITES if how == "death midway" else CHANGING, QuickDisk()),
        )
        shutil.copytree(played, tmp_path / name)
        try:
            finished(name, disk)
        except Death:
            disk.bury()
        files = RunFiles(finished(name), "weibo")
        assert content(files.folder) == expected, f"operation {nth}, {disk.struck}"
        assert orjson.loads(files.manifest.read_bytes())["state"] == "complete"
        if disk.struck is None:
            return


@pytest.mark.slow
def test_merge_that_dies_in_a_page_is_made_by_the_next_one(tasks, made, tmp_path, monkeypatch):
    """There is the whole run with its page, or none of it."""
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path)]
    for part in ("1/2", "2/2"):
        words = [
            "run",
            "--model",
            "baseline/recency",
            "--platform",
            "weibo",
            "--part",
            part,
            *where,
        ]
        assert main(words) == 0

    def dying(*_: object) -> None:
        raise Death

    with monkeypatch.context() as patch:
        patch.setattr(pages, "write_page", dying)
        with pytest.raises(Death):
            main(["merge", "recency", *where])
    assert not (tmp_path / "recency").exists()
    assert main(["merge", "recency", *where]) == 0
    assert keys(tmp_path / PAGE) == keys(made / PAGE)


def test_page_is_set_aside_when_its_run_goes_on(own, tasks):
    """It is no longer true of it, as the other reports are not."""
    results = own / "recency/inference_results_weibo.jsonl"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:-1]))
    where = ["--tasks-dir", str(tasks), "--results-dir", str(own), "--platform", "weibo"]
    assert main(["run", "--model", "baseline/recency", "--no-html", *where]) == 0
    assert not (own / PAGE).exists()
    assert len(list((own / "recency").glob("eval_report_weibo.html.before-*"))) == 1


@pytest.mark.parametrize("command", ["reeval", "report"])
def test_page_is_the_same_when_it_is_made_again(own, command):
    """From the folder alone, whatever has become of the page."""
    before = (own / PAGE).read_bytes()
    (own / PAGE).unlink()
    execute(own, command, "--name", "recency")
    assert (own / PAGE).read_bytes() == before


def other_report(folder: Path) -> None:
    """As an earlier version made it."""
    path = folder / "eval_report_weibo.json"
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), "odd": 1}))


def other_records(folder: Path) -> None:
    """A text that no figure depends on."""
    path = folder / "inference_results_weibo.jsonl"
    first, *others = path.read_bytes().splitlines(keepends=True)
    data = decode_line(first.rstrip())
    data["steps"][0]["metrics"] |= {"Odd": 1.0}
    path.write_bytes(encode_line(data) + b"".join(others))


@pytest.mark.parametrize("change", [other_report, other_records])
def test_reeval_that_changes_a_report_or_records_leaves_no_page_of_the_old(own, change):
    """With `--no-html` neither page stands there any more; both are kept under other names."""
    folder = own / "recency"
    (folder / "users_weibo.html").write_bytes(b"all")
    change(folder)
    old = (own / PAGE).read_bytes()
    execute(own, "reeval", "--no-html")
    assert not (own / PAGE).exists() and not (folder / "users_weibo.html").exists()
    assert [path.read_bytes() for path in folder.glob("eval_report_weibo.html.before-*")] == [old]
    assert [path.read_bytes() for path in folder.glob("users_weibo.html.before-*")] == [b"all"]


def test_old_pages_are_gone_before_the_new_results_stand(tmp_path):
    """A death in between leaves results without a page, never with one of others; the same results
    keep theirs."""

    class FullDisk(Disk):
        def replace(self, path: Path, taken: Path) -> None:
            if taken == found.results:
                raise OSError(28, "No space left on device")
            super().replace(path, taken)

    found = records(tmp_path / "a", 1)
    old, page = found.results.read_bytes(), found.report("html")
    page.write_bytes(b"old")
    replace_results(found.results, iter([log.decode_line(old.rstrip())]), "s", shown_by=found.pages)
    assert page.exists()
    with pytest.raises(MachineError, match="No space"):
        replace_results(found.results, iter([{"n": 1}]), "s", FullDisk(), shown_by=found.pages)
    assert not page.exists() and found.results.read_bytes() == old
    assert page.with_name(f"{page.name}.before-s").read_bytes() == b"old"


def test_old_pages_are_gone_before_the_new_report_stands(own, monkeypatch):
    """Whatever ends `reeval` in between, and also where the new page cannot be made."""

    def broken(*_: object) -> None:
        raise MachineError("cannot write it")

    monkeypatch.setattr(pages, "write_page", broken)
    (own / "recency/users_weibo.html").write_bytes(b"all")
    other_report(own / "recency")
    execute(own, "reeval")
    assert not (own / PAGE).exists() and not (own / "recency/users_weibo.html").exists()


# report


def test_report_writes_every_user_to_a_second_page(own):
    """In the order of the results; the first page stays a sample."""
    assert again(own, "--name", "recency", "--users", "all") == 0
    results = (own / "recency/inference_results_weibo.jsonl").read_bytes().splitlines()
    expected = [orjson.loads(line)["user_id"] for line in results]
    assert keys(own / "recency/users_weibo.html") == expected
    assert "All 12 users." in (own / "recency/users_weibo.html").read_text(encoding="utf-8")
    assert again(own, "--name", "recency", "--users", "3") == 0
    assert len(keys(own / PAGE)) == 3


def test_report_does_without_tasks_that_have_gone(own, tmp_path, capsys):
    """Errors are then not reported by their kind, which page and terminal say."""
    assert again(own, "--name", "recency", "--tasks-dir", str(tmp_path / "nowhere")) == 0
    assert "without its tasks" in "".join(capsys.readouterr())
    found = read(own / PAGE)
    assert "The tasks were not at hand" in " ".join(found.texts)
    kinds = {
        kind for card in users_of(own / PAGE).cards for row in tags_of(card) for _, kind in row
    }
    assert kinds <= {"hit", "wrong", "missed"}


def test_report_over_all_runs_links_to_each(made, tmp_path):
    """A table and pictures a benchmark, an address a page; nothing else is touched."""
    place = made / "index.html"
    assert again(made) == 0
    text = place.read_text(encoding="utf-8")
    place.unlink()
    assert (
        'href="recency/eval_report_weibo.html"' in text
        and 'href="commuter/eval_report_beijing.html"' in text
    )
    titles = re.findall(r"<figcaption[^>]*>(.*?)</figcaption><svg", text)
    assert titles[0] == "Score, with 95 % intervals" and "F1^NS, with 95 % intervals" in titles
    out = tmp_path / "elsewhere.html"
    assert again(made, "--out", str(out)) == 0
    assert "eval_report" not in out.read_text(encoding="utf-8")


def test_report_over_all_runs_links_to_a_folder_whose_name_is_no_text(own):
    """Its bytes are the address, and its label is readable; other runs are there too."""
    odd = own / os.fsdecode(b"bad\xff")
    odd.mkdir()
    (odd / "eval_report_weibo.json").write_bytes(
        (own / "recency/eval_report_weibo.json").read_bytes()
    )
    assert again(own) == 0
    text = (own / "index.html").read_text(encoding="utf-8")
    assert '<a href="bad%FF/eval_report_weibo.json">bad\\xff</a>' in text
    assert 'href="recency/eval_report_weibo.html"' in text
    assert again(own, "--platform", "weibo") == 0


def test_page_over_all_runs_has_a_row_a_run_with_its_average(own):
    """In a table of each metric by subset, whose figures lead to the pages; complete on all
    subsets, it has a mean."""
    data = orjson.loads((own / "recency/eval_report_weibo.json").read_bytes())
    for number, subset in enumerate(data["subsets"]):
        for run in ("recency", "half")[: 1 if subset == "douban" else 2]:
            (own / run).mkdir(exist_ok=True)
            data["metrics"]["Recall"]["value"] = data["secondary"]["Recall (cut)"]["value"] = (
                0.1 + 0.2 * number
            )
            (own / run / f"eval_report_{subset}.json").write_bytes(
                orjson.dumps(data | {"subset": subset})
            )
    assert again(own) == 0
    text = (own / "index.html").read_text(encoding="utf-8")
    heads, whole, half, _ = re.findall(
        r"<tr[^>]*>(.*?)</tr>", re.findall(r"<table>(.*?)</table>", text, re.S)[0], re.S
    )
    assert "Recall, %" in text and all(f">{name}<" in heads for name in (*data["subsets"], "Avg."))
    assert ">50.00<" in whole and ">recency<" in whole and ">half<" in half and ">n/a<" not in half
    for subset in data["subsets"]:
        assert f'href="recency/eval_report_{subset}.' in whole


def test_page_over_all_runs_has_the_best_run_first(own):
    """By the metric of the table."""
    data = orjson.loads((own / "recency/eval_report_weibo.json").read_bytes())
    for run, value in (("a", 0.25), ("b", 0.75), ("c", 0.5)):
        (own / run).mkdir()
        data["metrics"]["Recall"]["value"] = data["secondary"]["Recall (cut)"]["value"] = value
        (own / run / "eval_report_weibo.json").write_bytes(orjson.dumps(data))
    (own / "recency/eval_report_weibo.json").unlink()
    assert again(own) == 0
    text = (own / "index.html").read_text(encoding="utf-8")
    _, *rows = re.findall(
        r"<tr[^>]*>(.*?)</tr>", re.findall(r"<table>(.*?)</table>", text, re.S)[0], re.S
    )
    names = [re.sub("<.*?>", "", re.findall(r"<th.*?</th>", row)[0]) for row in rows]
    assert names == ["b", "c", "a", "chance"]
    assert [
        value in row for value, row in zip((">75.00", ">50.00", ">25.00"), rows, strict=False)
    ] == [True] * 3


def test_runs_without_a_report_are_named_on_the_page_over_all_runs(own, capsys):
    """A reader would take the rest for all; where there is nothing else, that is what is
    reported."""
    shutil.copytree(own / "recency", own / "killed")
    (own / "killed/eval_report_weibo.json").unlink()
    assert again(own) == 0
    told = (
        "Left out: killed on weibo (unfinished: no report yet; resume continues, report --name NAME"
        " scores "
    )
    told += "what exists)."
    assert told in " ".join(read(own / "index.html").texts)
    (own / "recency/eval_report_weibo.json").unlink()
    assert again(own) == 2
    assert "but 2 unfinished runs: resume continues" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--users", "all"], ["--users", "50"], ["--with-posts"]])
def test_what_is_for_the_page_of_a_run_is_refused_without_one(own, options, capsys):
    """The page over all runs shows no users: nothing is written, where nobody would see what they
    asked for."""
    assert again(own, *options) == 2
    assert "--name" in capsys.readouterr().err
    assert not (own / "index.html").exists()


@pytest.mark.parametrize("options", [[], ["--name", "recency"], ["--model", "baseline/recency"]])
@pytest.mark.parametrize(
    "damage", [b"[1", b'{"benchmark": "streamprofile", "model": "baseline/recency"}']
)
def test_a_report_that_is_none_is_named_once(own, options, damage, capsys):
    """By its path, in a user's words."""
    (own / "recency/eval_report_weibo.json").write_bytes(damage)
    assert again(own, *options) == 2
    told = capsys.readouterr().err
    assert told.count("recency/eval_report_weibo.json") == 1
    assert "is not a report that this version reads: regenerate it with `reeval`" in told
    assert "Error" not in told


@pytest.mark.parametrize(
    ("options", "damage", "expected_text"),
    [
        (["--name", "nobody"], None, "no run nobody"),
        (["--name", "recency"], b"[1", "not a report that this version reads"),
        (["--name", "recency"], b'{"benchmark": "streamprofile"}', "regenerate it with `reeval`"),
        ([], b'{"benchmark": "streamprofile"}', "not a report that this version reads"),
        (["--users", "many"], None, "whole number"),
    ],
)
def test_report_says_in_a_sentence_what_is_wrong(
    own,
    options,
    damage,
    expected_text,
    capsys,
):
    """A folder without such a run, or with a report that is none."""
    if damage is not None:
        (own / "recency/eval_report_weibo.json").write_bytes(damage)
    assert again(own, *options) == 2
    assert expected_text in "".join(capsys.readouterr())


def test_report_of_another_version_is_refused_by_name(own, capsys):
    """It lacks what pages are drawn from."""
    path = own / "recency/eval_report_weibo.json"
    data = orjson.loads(path.read_bytes())
    del data["coverage"]
    path.write_bytes(orjson.dumps(data))
    assert again(own, "--name", "recency") == 2
    assert (
        "eval_report_weibo.json is not a report that this version reads" in capsys.readouterr().err
    )


def test_results_of_the_authors_runner_have_a_page_too(own, tasks, tmp_path):
    """They have no manifest, replies or outcomes; `reeval` scores them, and draws them."""
    folder = tmp_path / "theirs/them"
    folder.mkdir(parents=True)
    lines = []
    for line in (own / "recency/inference_results_weibo.jsonl").read_bytes().splitlines():
        data = orjson.loads(line)
        named = ("step_id", "prediction", "ground_truth", "metrics", "reasoning", "persona_summary")
        steps = [{name: step[name] for name in named} for step in data["steps"]]
        lines.append(
            orjson.dumps(
                {
                    **{name: data[name] for name in ("user_id", "platform", "username")},
                    "steps": steps,
                }
            )
        )
    (folder / "inference_results_weibo.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    where = ["--tasks-dir", str(tasks), "--results-dir", str(folder.parent)]
    assert main(["reeval", *where]) == 0
    assert len(keys(folder / "eval_report_weibo.html")) == USERS
    assert main(["report", "--name", "them", *where]) == 0


@pytest.mark.parametrize(("name", "lost"), [("recency", "steps"), ("commuter", "intentions")])
def test_a_sound_record_of_another_shape_is_named(made, tmp_path, capfd, name, lost):
    """Its checksum says that nobody else changed it; the page of before stays."""
    run = Path(shutil.copytree(made / name, tmp_path / name))
    (path,) = run.glob("inference_results_*.jsonl")
    (page,) = run.glob("eval_report_*.html")
    before = page.read_bytes()
    first, *others = path.read_bytes().splitlines(keepends=True)
    data = decode_line(first.rstrip())
    del data[lost]
    path.write_bytes(encode_line(data) + b"".join(others))
    execute(tmp_path, "report", "--name", name, code=2)
    told = capfd.readouterr().err
    assert f"user {data['user_id']}: the saved record has another shape" in told
    assert page.read_bytes() == before


def test_page_names_the_models_that_answered(tasks, tmp_path):
    """As the text report does; a name that is markup stays text."""
    with serving(by_turns({"model": "m"}, {"model": "<b>n</b>", "provider": "P"})) as server:
        options = [
            "--api-url",
            server.url,
            "--results-dir",
            str(tmp_path),
            "--tasks-dir",
            str(tasks),
        ]
        assert main(["run", "--model", "m", "--platform", "weibo", *options]) == 0
    page = (tmp_path / "m/eval_report_weibo.html").read_text(encoding="utf-8")
    assert (
        "Answered by: " in page
        and "&lt;b&gt;n&lt;/b&gt; (provider P)" in page
        and "<b>n</b>" not in page
    )
