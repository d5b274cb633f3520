"""Pages of runs: what stands on them, who can be picked, and when they are made (docs/design.md, section 5)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from scipy import stats

from harness.benchmarks.dailymobility import page as mobility
from harness.benchmarks.dailymobility.synth import files
from harness.benchmarks.streamprofile import page as profile
from harness.benchmarks.streamprofile import scores
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.commands import pages
from harness.commands.pages import Source, Wish, write_page
from harness.errors import BadInput
from harness.model import Card, Chart, Completion, Heading, Quote, Record, Tags
from harness.store import log
from harness.store.files import RunFiles
from harness.store.log import seal, unseal
from tests.scripted import completion, serving
from tests.test_html import Parsed
from tests.test_scorer import a_step, facts, report, unscored, user

USERS = 12
PAGE = "recency/eval_report_weibo.html"


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LLM_API_KEY", "LLM_API_BASE", "OPENAI_API_KEY", "OPENAI_BASE_URL", "BENCH_MAX_WORKERS"):
        monkeypatch.delenv(name, raising=False)


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
    assert main(["run", "dailymobility", "--model", "baseline/commuter", *where]) == 0
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


def keys(path: Path) -> list[str]:
    """Of the users that a page lets pick."""
    return [row[0] for row in read(path).data(id="listed")[0]]


# What is added up for pages


def test_bands_are_the_t_intervals_of_the_users_values() -> None:
    """Against scipy's own, over the values that are defined at each step."""
    rng = np.random.default_rng(1)
    values = [float(value) for value in rng.random(9)]
    users = [
        user(a_step(1, Precision=value), *([a_step(2, 0.5, Precision=value)] * (i < 2)))
        for i, value in enumerate(values)
    ]
    first, second = report(users).data["learning_curve"]
    expected = stats.t.interval(0.95, 8, np.mean(values), stats.sem(values))
    assert first["ci95"]["Precision"] == pytest.approx(expected)
    assert first["ci95"]["Recall_Novelty"] is None
    assert second["ci95"]["Recall_Novelty"] == [0.5, 0.5]


def test_bands_stay_within_what_a_share_can_be() -> None:
    """Two users at 0 and 1 have an interval wider than that."""
    curve = report([user(a_step(1, Precision=0.0)), user(a_step(1, Precision=1.0))]).data["learning_curve"]
    assert curve[0]["ci95"]["Precision"] == [0.0, 1.0]


def test_bands_and_distributions_do_not_depend_on_how_users_were_grouped() -> None:
    """Merged one by one, or in any tree, they are the same to the last bit."""
    rng = np.random.default_rng(2)
    shards = [scores.score([user(a_step(1, *map(float, rng.random(2)), Recall=float(rng.random())))]) for _ in range(7)]
    one = reduce(scores.merge, shards)
    other = scores.merge(reduce(scores.merge, shards[:3]), reduce(scores.merge, shards[3:]))
    assert one.spread == other.spread
    assert one.curves == other.curves
    assert [point.intervals() for point in one.curves.values()] == [
        point.intervals() for point in other.curves.values()
    ]


def test_distribution_counts_every_user_with_a_value_once() -> None:
    """The last bin holds its upper end; a user without a value is in none."""
    users = [user(a_step(1, Recall=value)) for value in (0.0, 0.049, 0.05, 1.0)] + [user(unscored(1))]
    found = report(users).data["distribution"]
    assert found["Recall"] == [2, 1, *[0] * 16, 0, 1]
    assert sum(found["F1^NS"]) == 0


def test_a_condensed_score_keeps_its_distribution_and_its_size() -> None:
    """The live display's scores do not grow with users."""
    shard = scores.score([user(a_step(1, Recall=0.5)), user(a_step(1, Recall=0.5))])
    assert shard.condensed().spread == {("Recall", 10): 2}


# Pages of reports


def test_page_is_made_of_the_json_report_alone() -> None:
    """What was written and read again gives the same page."""
    data = report([user(a_step(1, 0.5, 0.5), a_step(2, 0.1, 0.9))], facts(2, failed=1)).data
    found = profile.page(data)
    assert found == profile.page(orjson.loads(orjson.dumps(data)))
    assert found.warning == "INCOMPLETE: 1 of 2 users are scored, 1 failed"
    assert found.tiles[0].name == "F1^NS"
    assert {block.kind for block in found.blocks if isinstance(block, Chart)} == {"curve", "intervals", "histogram"}


def test_page_of_nobody_is_a_page() -> None:
    """A run that was stopped before anybody was done has a report too."""
    assert profile.page(report([], facts(3)).data).warning.startswith("INCOMPLETE: 0 of 3")


def test_every_series_of_a_picture_is_as_long_as_its_axis(made: Path) -> None:
    """Histograms have one edge more than values; bounds are as many as values, or none."""
    for name, module in (("recency/eval_report_weibo", profile), ("commuter/eval_report_beijing", mobility)):
        found = module.page(orjson.loads((made / f"{name}.json").read_bytes()))
        charts = [block for block in found.blocks if isinstance(block, Chart)]
        assert len(charts) >= 6
        for chart in charts:
            for series in chart.series:
                assert len(series.values) == len(chart.x) - (chart.kind == "histogram"), chart.title
                assert {len(series.low), len(series.high)} <= {0, len(series.values)}


def test_shares_of_both_sides_add_up_in_every_picture_of_a_day(made: Path) -> None:
    """Generated and real: each slot of a ribbon and each histogram is whole."""
    data = orjson.loads((made / "commuter/eval_report_beijing.json").read_bytes())
    for chart in (block for block in mobility.page(data).blocks if isinstance(block, Chart)):
        if chart.kind == "ribbon":
            assert [sum(shares) for shares in zip(*(one.values for one in chart.series), strict=True)] == [
                pytest.approx(1)
            ] * 48
        if chart.kind == "histogram":
            assert [sum(value or 0.0 for value in one.values) for one in chart.series] == [pytest.approx(1)] * 2


# Cards


def cards_of(made: Path, name: str, subset: str) -> Iterator[tuple[str, list[Any]]]:
    """Users of a page and their blocks."""
    found = read(made / name / f"eval_report_{subset}.html")
    return zip((row[0] for row in found.data(id="listed")[0]), found.data(class_="card"), strict=True)


def test_cards_tell_each_prediction_by_kind_as_the_task_has_it(made: Path, tasks: Path) -> None:
    """Every predicted tag is a hit of a kind or an error of a kind; every true tag that is not predicted is missed."""
    lines = [orjson.loads(line) for line in (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines()]
    by_key = {line["user_id"]: line["prediction_tasks"] for line in lines}
    seen = set()
    for key, blocks in cards_of(made, "recency", "weibo"):
        rows = [block for kind, block in blocks if kind == "Tags"]
        for task, predicted, missed in zip(by_key[key], rows[::2], rows[1::2], strict=True):
            meta = task["meta"]
            lists = {
                "hit, new": "T_new",
                "hit, kept": "T_keep",
                "wrong, decayed": "D_decay",
                "wrong, peer": "D_cluster",
            }
            for tag, kind in predicted["tags"]:
                seen.add(kind)
                assert kind not in lists or tag in meta[lists[kind]]
            true = {*meta["T_new"], *meta["T_keep"]}
            assert {tag for tag, _ in missed["tags"]} == true - {tag for tag, _ in predicted["tags"]}
    assert {"hit, kept", "wrong, decayed"} <= seen


def test_cards_name_nobody_and_show_no_posts(made: Path, tasks: Path) -> None:
    """A report is shared, and posts and names are people's; the key alone is there."""
    text = (made / PAGE).read_text(encoding="utf-8")
    for line in (tasks / "weibo_inference_tasks.jsonl").read_bytes().splitlines():
        data = orjson.loads(line)
        assert f'"{data["username"]}"' not in text
        assert all(orjson.dumps(step["posts_text"]).decode() not in text for step in data["prediction_tasks"])
    assert "Posts are left out." in text


def test_posts_are_there_where_they_are_asked_for(own: Path) -> None:
    """And only then."""
    assert again(own, "--name", "recency", "--with-posts") == 0
    labels = {block["label"] for kind, block in read(own / PAGE).data(class_="card")[0] if kind == "Quote"}
    assert labels == {"Persona summary after this step", "Reasoning", "Reply", "Posts"}


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
        {**a_step(number), "outcome": outcome, "ground_truth": ["猫"], "persona_summary": "", "reasoning": ""}
        for number, outcome in enumerate(outcomes, 1)
    ]
    return {"user_id": "u", "steps": steps}


def test_replies_that_were_asked_for_again_stand_with_their_step() -> None:
    """Three that cannot be read are one invalid answer of a run that asks twice again; a cut one is final."""
    bad, cut = Completion("好的"), Completion("{", finish_reason="length")
    card = profile.UserCards(None, {"parse_retries": 2}, posts=False)
    replies = [bad, bad, bad, bad, valid("猫"), cut, valid("狗")]
    shown = replies_shown(card.card(a_user("no_json", "valid", "length", "valid"), None, replies))
    assert shown == [["好的"] * 3, ["好的", valid("猫").text], ["{"], [valid("狗").text]]
    assert card.example(a_user("no_json", "valid", "length", "valid"), replies, "length") == "{"


def test_replies_whose_steps_cannot_be_told_stand_together() -> None:
    """After other settings were allowed there may be replies that nothing asked for in the end."""
    card = profile.UserCards(None, {"parse_retries": 2}, posts=False).card(
        a_user("valid"), None, [valid("猫"), valid("狗")]
    )
    assert replies_shown(card) == [[], [valid("猫").text, valid("狗").text]]


def test_card_without_its_task_tells_hits_from_errors() -> None:
    """Finer kinds need the tasks file."""
    card = profile.UserCards(None, {}, posts=True).card(a_user("valid"), None, [])
    tags = [block.tags for block in card.blocks if isinstance(block, Tags)]
    assert tags == [(("猫", "hit"),), ()]


def test_day_of_a_resident_is_drawn_with_places_and_path(made: Path) -> None:
    """A ribbon of the day and a sketch whose path goes over its places."""
    _, blocks = next(cards_of(made, "commuter", "beijing"))
    kinds = [kind for kind, _ in blocks]
    assert {"Chart", "Sketch", "Table", "Quote"} <= set(kinds)
    sketch = blocks[kinds.index("Sketch")][1]
    places = [at for group in sketch["places"].values() for at in group]
    assert sketch["paths"][0] and all(at in places for at in sketch["paths"][0])
    together = read(made / "commuter/eval_report_beijing.html").data(id="pictures")[0]
    assert "Sketch" in [kind for kind, _ in together]


# Who is shown


def records(folder: Path, number: int, text: str = "近") -> RunFiles:
    """A results file of so many users, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    found = RunFiles(folder, "weibo")
    lines = [{**a_user("valid"), "user_id": f"u{at}"} for at in range(number)]
    for line in lines:
        line["steps"][0]["persona_summary"] = text
    found.results.write_bytes(b"".join(map(seal, lines)))
    return found


def source(files: RunFiles, number: int) -> Source:
    users = [Record(f"u{at}", a_user("valid")) for at in range(number)]
    return Source(files, report(users, facts(number)).data, seed=7)


def test_users_of_a_page_are_a_seeded_sample_and_the_page_says_so(tmp_path: Path) -> None:
    """The same seed draws the same users, whatever they are; another draws others."""
    found = source(records(tmp_path / "a", 300), 300)
    first = keys(write_page(found, Wish()))
    assert len(first) == 50
    assert first == keys(write_page(found, Wish()))
    assert first == sorted(first, key=lambda key: int(key[1:]))
    assert "A sample of 50 of the 300 users, drawn with seed 7" in found.files.report("html").read_text()
    other = Source(found.files, found.data, seed=8)
    assert keys(write_page(other, Wish())) != first


def test_page_stays_below_two_megabytes_by_showing_fewer_users(tmp_path: Path) -> None:
    """Users with long personas are left out as far as it takes, and counted."""
    found = source(records(tmp_path / "a", 200, "长" * 15_000), 200)
    path = write_page(found, Wish())
    shown = len(keys(path))
    assert path.stat().st_size < pages.LIMIT
    assert 20 < shown < 50
    assert f"{50 - shown} more were drawn, and left out to keep this page below 2 MB." in path.read_text()


def test_one_text_is_cut_where_it_is_very_long_and_says_so(tmp_path: Path) -> None:
    """A persona of 100,000 characters does not take a page for itself."""
    found = source(records(tmp_path / "a", 1, "长" * 100_000), 1)
    assert "80000 more characters stand in the run's files" in write_page(found, Wish()).read_text()


def test_only_lines_of_users_that_are_shown_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page of very many users costs no more than a look for line ends."""
    found, decoded = source(records(tmp_path / "a", 400), 400), list[bytes]()
    told = log.told

    def counted(line: bytes) -> Any:
        decoded.append(line)
        return told(line)

    monkeypatch.setattr(log, "told", counted)
    write_page(found, Wish(users=5))
    assert len(decoded) == 5


def test_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    """A page is made of what is sound."""
    found = records(tmp_path / "a", 3)
    found.results.write_bytes(found.results.read_bytes().replace(b'"u1"', b'"u9"') + b'{"user_id":"torn')
    assert keys(write_page(source(found, 3), Wish())) == ["u0", "u2"]


def test_a_record_of_a_task_that_has_changed_is_nobody_to_look_at(own: Path) -> None:
    """It is not scored either."""
    results = own / "recency/inference_results_weibo.jsonl"
    first, *others = results.read_bytes().splitlines(keepends=True)
    stale = {**unseal(first.rstrip()), "task": "0" * 32}
    results.write_bytes(seal(stale) + b"".join(others))
    assert again(own, "--name", "recency") == 0
    assert stale["user_id"] not in keys(own / PAGE)
    assert len(keys(own / PAGE)) == USERS - 1


def test_lines_are_found_whatever_blocks_the_file_is_read_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Line ends and marks at the edge of a block are seen too."""
    files = records(tmp_path / "a", 20)
    content = files.results.read_bytes()
    expected = [0, *(found.end() for found in re.finditer(b"\n", content))][:-1]
    mark = content.index(b'"outcome":"valid"')
    for block in (1, 7, 64, len(content)):
        monkeypatch.setattr(pages, "BLOCK", block)
        starts, first = pages._scanned(files.results, {"valid": b'"outcome":"valid"', "none": b"?"})
        assert starts.tolist() == expected
        assert first == {"valid": mark}


def test_failures_and_invalid_answers_have_an_example_of_each_kind(tasks: Path, tmp_path: Path) -> None:
    """Kinds with how often, and what was said; examples of users that are not in the sample too."""
    calls = iter(range(1000))

    def script(body: dict[str, Any]) -> tuple[int, bytes]:
        number = next(calls)
        if number < 3:
            return 200, completion("我不知道<b>")
        return (422, b'{"error": {"message": "odd words"}}') if number == 6 else (200, completion(valid("猫").text))

    with serving(script) as server:
        options = ["--api-url", server.url, "--concurrency", "1", "--results-dir", str(tmp_path)]
        tuned = ["--tasks-dir", str(tasks), "--platform", "weibo", "--parse-retries", "2"]
        assert main(["run", "--model", "m", *options, *tuned]) == 1
    text = " ".join(read(tmp_path / "m/eval_report_weibo.html").texts)
    assert "endpoint: http_422" in text and "odd words" in text
    assert "Invalid answers of the kind no_json: 1." in text and "我不知道<b>" in text
    assert "INCOMPLETE" in text


# When pages are made


def test_run_makes_a_page_unless_it_is_told_not_to(tasks: Path, made: Path, tmp_path: Path) -> None:
    """It stands beside the other reports."""
    assert (made / PAGE).exists()
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path), "--platform", "weibo"]
    assert main(["run", "--model", "baseline/recency", "--no-html", *where]) == 0
    assert (tmp_path / "recency/eval_report_weibo.json").exists()
    assert not (tmp_path / PAGE).exists()


def test_page_that_cannot_be_made_changes_nothing_of_how_a_run_ends(
    tasks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is told in a sentence; exit code, report and manifest are those of the run."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr(pages, "write_page", broken)
    where = ["--tasks-dir", str(tasks), "--results-dir", str(tmp_path), "--platform", "weibo"]
    assert main(["run", "--model", "baseline/recency", *where]) == 0
    told = capsys.readouterr()
    assert "recency, weibo: the page could not be made (ZeroDivisionError: odd)" in told.out + told.err
    assert orjson.loads((tmp_path / "recency/run_weibo.json").read_bytes())["state"] == "complete"
    assert not (tmp_path / PAGE).exists()


def test_page_is_set_aside_when_its_run_goes_on(own: Path, tasks: Path) -> None:
    """It is no longer true of it, as the other reports are not."""
    results = own / "recency/inference_results_weibo.jsonl"
    results.write_bytes(b"".join(results.read_bytes().splitlines(keepends=True)[:-1]))
    where = ["--tasks-dir", str(tasks), "--results-dir", str(own), "--platform", "weibo"]
    assert main(["run", "--model", "baseline/recency", "--no-html", *where]) == 0
    assert not (own / PAGE).exists()
    assert len(list((own / "recency").glob("eval_report_weibo.html.before-*"))) == 1


@pytest.mark.parametrize("command", ["reeval", "report"])
def test_page_is_the_same_when_it_is_made_again(own: Path, command: str) -> None:
    """From the folder alone, whatever has become of the page."""
    before = (own / PAGE).read_bytes()
    (own / PAGE).unlink()
    assert main([command, "--results-dir", str(own), "--name", "recency"]) == 0
    assert (own / PAGE).read_bytes() == before


def test_reeval_makes_no_page_where_it_is_told_not_to(own: Path) -> None:
    """The old one stays."""
    (own / PAGE).write_bytes(b"old")
    assert main(["reeval", "--results-dir", str(own), "--no-html"]) == 0
    assert (own / PAGE).read_bytes() == b"old"


# report


def test_report_writes_every_user_to_a_second_page(own: Path) -> None:
    """In the order of the results; the first page stays a sample."""
    assert again(own, "--name", "recency", "--users", "all") == 0
    results = (own / "recency/inference_results_weibo.jsonl").read_bytes().splitlines()
    expected = [orjson.loads(line)["user_id"] for line in results]
    assert keys(own / "recency/users_weibo.html") == expected
    assert "All 12 users." in (own / "recency/users_weibo.html").read_text(encoding="utf-8")
    assert again(own, "--name", "recency", "--users", "3") == 0
    assert len(keys(own / PAGE)) == 3


def test_report_does_without_tasks_that_have_gone(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors are then not told by their kind, which page and terminal say."""
    assert again(own, "--name", "recency", "--tasks-dir", str(tmp_path / "nowhere")) == 0
    assert "without its tasks" in "".join(capsys.readouterr())
    found = read(own / PAGE)
    assert "not told by its kind" in " ".join(found.texts)
    kinds = {
        kind
        for card in found.data(class_="card")
        for name, block in card
        if name == "Tags"
        for _, kind in block["tags"]
    }
    assert kinds <= {"hit", "wrong", "missed"}


def test_report_over_all_runs_links_to_each(made: Path, tmp_path: Path) -> None:
    """A table and pictures a benchmark, an address a page; nothing else is touched."""
    place = made / "index.html"
    assert again(made) == 0
    text = place.read_text(encoding="utf-8")
    place.unlink()
    assert 'href="recency/eval_report_weibo.html"' in text and 'href="commuter/eval_report_beijing.html"' in text
    titles = [block["title"] for _, block in Parsed(text).data(id="pictures")[0]]
    assert titles[0] == "Score, with 95 % intervals" and "F1^NS, with 95 % intervals" in titles
    out = tmp_path / "elsewhere.html"
    assert again(made, "--out", str(out)) == 0
    assert "eval_report" not in out.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("options", "damage", "told"),
    [
        (["--name", "nobody"], None, "no run under"),
        (["--name", "recency"], b"[1", "not a report as this version makes it"),
        (["--name", "recency"], b'{"benchmark": "streamprofile"}', "`reeval` makes it anew"),
        ([], b'{"benchmark": "streamprofile"}', "not a report as this version makes it"),
        (["--users", "many"], None, "whole number"),
    ],
)
def test_report_says_in_a_sentence_what_is_wrong(
    own: Path, options: list[str], damage: bytes | None, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder without such a run, or with a report that is none."""
    if damage is not None:
        (own / "recency/eval_report_weibo.json").write_bytes(damage)
    assert again(own, *options) == 2
    assert told in "".join(capsys.readouterr())


def test_report_of_an_earlier_version_is_refused_by_name(tmp_path: Path) -> None:
    """It lacks what pages are drawn from."""
    data = report([user(a_step(1, 0.5, 0.5))]).data
    del data["distribution"]
    with pytest.raises(BadInput, match=r"eval_report_weibo\.json is not a report as this version makes it.*reeval"):
        write_page(Source(RunFiles(tmp_path, "weibo"), data, 1), Wish())


def test_results_of_the_authors_runner_have_a_page_too(own: Path, tasks: Path, tmp_path: Path) -> None:
    """They have no manifest, replies or outcomes; `reeval` scores them, and draws them."""
    folder = tmp_path / "theirs/them"
    folder.mkdir(parents=True)
    lines = []
    for line in (own / "recency/inference_results_weibo.jsonl").read_bytes().splitlines():
        data = orjson.loads(line)
        named = ("step_id", "prediction", "ground_truth", "metrics", "reasoning", "persona_summary")
        steps = [{name: step[name] for name in named} for step in data["steps"]]
        lines.append(
            orjson.dumps({**{name: data[name] for name in ("user_id", "platform", "username")}, "steps": steps})
        )
    (folder / "inference_results_weibo.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    where = ["--tasks-dir", str(tasks), "--results-dir", str(folder.parent)]
    assert main(["reeval", *where]) == 0
    assert len(keys(folder / "eval_report_weibo.html")) == USERS
    assert main(["report", "--name", "them", *where]) == 0
