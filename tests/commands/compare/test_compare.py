"""`compare` as a user calls it: verdicts on baselines, what is shown before any number, folders of
every kind."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import orjson
import pytest

from harness.benchmark import Metric
from harness.benchmarks.streamprofile.synth import generate
from harness.cli import main
from harness.document import Chart, Heading, Paragraph, Table
from harness.model import JSON
from harness.reporting import comparison as compare
from harness.scoring import differences as figures
from harness.store.log import decode_line, encode_line
from tests.commands.conftest import PLATFORMS, USERS, play, seeded

Told = pytest.CaptureFixture[str]
Edit = Callable[[JSON], None]


def call(root: Path, *words: str) -> int:
    return main(["compare", *words, "--results-dir", str(root / "results"), "--resamples", "1000"])


def told(root: Path, capsys: Told, *words: str) -> JSON:
    """What the command prints as JSON."""
    assert call(root, *words, "--json") == 0
    found: JSON = orjson.loads(capsys.readouterr().out)
    return found


def entry(pair: JSON, metric: str, platform: str = figures.ALL) -> JSON:
    found: JSON = next(
        of for of in pair["figures"] if (of["metric"], of["subset"]) == (metric, platform)
    )
    return found


def refused(root: Path, capsys: Told, *words: str) -> str:
    """The one sentence of a command that ends with exit 2."""
    capsys.readouterr()
    assert call(root, *words) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("harness: ") and output.err.count("\n") == 1
    return output.err


def edit(path: Path, change: Edit, keep: slice = slice(None)) -> None:
    """Records as another run would have them: each changed, some left out."""
    records = [decode_line(line) for line in path.read_bytes().splitlines()[keep]]
    for record in records:
        change(record)
    path.write_bytes(b"".join(map(encode_line, records)))


def nothing(record: JSON) -> None:
    """No change."""


def results(root: Path, run: str, subset: str = "weibo") -> Path:
    return root / "results" / run / f"inference_results_{subset}.jsonl"


# Verdicts


def test_recency_is_told_from_random_with_the_figures_of_the_reports(played, capsys):
    """Better in Recall, which is beyond chance; A and B are the averages of the platforms'
    reports."""
    pair = told(played, capsys, "recency", "random-1")["pairs"][0]
    recall = entry(pair, "Recall")
    reports = [
        orjson.loads((played / f"results/recency/eval_report_{platform}.json").read_bytes())
        for platform in PLATFORMS
    ]
    assert recall["a"] == pytest.approx(
        sum(report["metrics"]["Recall"]["value"] for report in reports) / 2
    )
    assert recall["difference"] == pytest.approx(recall["a"] - recall["b"])
    assert recall["ci95"][0] > 0.1 and recall["p_adjusted"] < 0.05
    assert any(
        words.startswith("recency is better than random-1 in Recall by ")
        for words in pair["verdicts"]
    )
    assert recall["users"] == recall["a_better"] + recall["equal"] + recall["b_better"] == 2 * USERS


def test_two_seeds_of_random_show_no_difference(played, capsys):
    """No figure of them differs beyond chance once corrected."""
    pair = told(played, capsys, "random-1", "random-2")["pairs"][0]
    assert all(of["p_adjusted"] >= 0.05 for of in pair["figures"] if not of["exploratory"])
    assert all(
        words.startswith("random-1 and random-2: no difference shown in ")
        for words in pair["verdicts"]
    )


@pytest.mark.slow
def test_commuter_is_told_from_random_days_and_their_seeds_are_not(lived, capsys):
    """The score of a side is that of its report; a lower divergence counts as better."""
    first, _, last = told(lived, capsys, "commuter", "day-1", "day-2")["pairs"]
    report = orjson.loads((lived / "results/commuter/eval_report_beijing.json").read_bytes())
    score = entry(first, "Score", "beijing")
    assert score["a"] == pytest.approx(report["metrics"]["Score"]["value"], abs=1e-12)
    assert first["verdicts"][0].startswith("commuter is better than day-1 in Score by ")
    sequences = entry(first, "JSD_intention_sequences", "beijing")
    assert sequences["difference"] < 0 and sequences["a_better"] > sequences["b_better"]
    assert last["verdicts"][0].startswith("day-1 and day-2: no difference shown in Score")


def test_a_copy_of_a_run_is_the_same(own, capsys):
    """Every user equal."""
    shutil.copytree(own / "results/recency", own / "results/副本")
    pair = told(own, capsys, "recency", "副本")["pairs"][0]
    assert all("are the same in" in words for words in pair["verdicts"])
    assert pair["most_different"] == []


def test_primary_figures_of_all_pairs_are_one_family(played, capsys):
    """Only the main figures over all platforms have an adjusted p and a simultaneous interval; with
    more runs neither is smaller than for one pair, and both are at least those of the figure
    alone."""
    one, more = (told(played, capsys, "recency", "random-1", *runs) for runs in ((), ("random-2",)))
    pair, same = one["pairs"][0], more["pairs"][0]
    primary = [of for of in pair["figures"] if not of["exploratory"]]
    assert [(of["subset"], of["metric"]) for of in primary] == [
        (figures.ALL, name) for name in ("Recall", "F1^NS")
    ]
    for of in (of for of in pair["figures"] if of["exploratory"]):
        assert (of["p_adjusted"], of["ci95_simultaneous"], of["missing"]) == (None, None, None)
    for of in primary:
        family = entry(same, of["metric"])
        assert (
            of["p"] <= of["p_adjusted"] and of["p"] == family["p"] and of["ci95"] == family["ci95"]
        )
        widths = [
            high - low
            for low, high in (of["ci95"], of["ci95_simultaneous"], family["ci95_simultaneous"])
        ]
        assert widths[0] < widths[1] < widths[2]


def test_a_verdict_turns_with_the_order_of_the_runs(played, capsys):
    """The other way round, the same run is the better one, by the same points."""
    one, other = (
        told(played, capsys, *runs)["pairs"][0]
        for runs in (("recency", "random-1"), ("random-1", "recency"))
    )
    a, b = entry(one, "Recall"), entry(other, "Recall")
    assert a["difference"] == pytest.approx(-b["difference"]) and a["p"] == b["p"]
    assert other["verdicts"][-1].startswith("recency is better than random-1 in Recall")


# What is told first


def test_verdicts_come_first_and_then_who_has_which_users_and_what_else_differs(own, capsys):
    """Missing users, users of one run alone with their means, a share of other settings: before the
    tables."""
    edit(results(own, "random-1"), nothing, slice(5, None))
    path = own / "results/random-1/run_weibo.json"
    manifest = orjson.loads(path.read_bytes())
    manifest["identity"]["settings"]["persona"] = False
    path.write_bytes(orjson.dumps(manifest))
    assert call(own, "recency", "random-1", "--full") == 0
    said = " ".join(capsys.readouterr().out.split())
    marks = (
        "is better than",
        "random-1 is INCOMPLETE",
        "not alike: settings.persona",
        "synthetic tasks",
        "Runs compared",
        "Both runs: The tasks are synthetic",
        "weibo: Not alike: settings.persona is true in recency, false in random-1",
        "weibo: 5 users of recency not in random-1",
        "Precision",
    )
    places = [said.index(mark) for mark in marks]
    assert places == sorted(places)
    assert f"n {2 * USERS - 5}" in said


@pytest.mark.slow
def test_synthetic_tasks_and_shares_are_told_before_the_figures(played, tmp_path, capsys):
    """Two runs of an eighth of 48 users each: "6 of 6" alone would pass for all of them."""
    root = Path(shutil.copytree(played / "tasks", tmp_path / "tasks")).parent
    for name, script in (("some", None), ("few", seeded(1))):
        play(root, name, script, "--platform", "weibo", "--ratio", "0.125")
    capsys.readouterr()
    pair = told(root, capsys, "some", "few")["pairs"][0]
    assert [pair["coverage"][0]["a"][name] for name in ("expected", "ratio", "users_in_tasks")] == [
        6,
        0.125,
        USERS,
    ]
    assert call(root, "some", "few", "--full") == 0
    said = " ".join(capsys.readouterr().out.split())
    shares = [f"{run} was run on a share of its tasks (0.125)" for run in ("some", "few")]
    for words in (*shares, "synthetic tasks"):
        assert said.index(words) < said.index("A minus B")


def test_a_report_that_only_one_run_has_tells_of_that_run(own, capsys):
    """Without its report nobody knows whether a run's tasks are synthetic, and it says so, naming
    the platform."""
    (own / "results/random-1/eval_report_weibo.json").unlink()
    found = told(own, capsys, "recency", "random-1")["pairs"][0]["warnings"]
    assert "weibo: random-1: no report, so whether the tasks are synthetic is unknown." in found
    assert any(words.startswith("weibo: recency: The tasks are synthetic") for words in found)
    assert any(words.startswith("zhihu: Both runs: The tasks are synthetic") for words in found)


def test_invalid_answers_of_both_sides_are_told_by_kind(own, capsys):
    """A content filter can be the whole difference: of users that both have, before any figure."""

    def filtered(record: JSON) -> None:
        if record["user_id"].endswith("1"):
            record["steps"][0] |= {"outcome": "content_filter", "prediction": []}

    edit(results(own, "random-1"), filtered)
    edit(results(own, "recency"), nothing, slice(1, None))
    data = told(own, capsys, "recency", "random-1")
    pair = data["pairs"][0]
    on_common = pair["coverage"][0]["b"]["answers_on_common"]
    assert on_common["content_filter"] == 4 and pair["coverage"][0]["a"][
        "answers_on_common"
    ].keys() == {"valid"}
    answers = sum(on_common.values())
    words = (
        "weibo, invalid answers of users that both have, scored as empty: of recency none of"
        f" {answers}; of random-1 4 of {answers} answers are invalid (content_filter 4)."
    )
    assert words in pair["warnings"] and not any(
        "zhihu, invalid" in other for other in pair["warnings"]
    )


@pytest.mark.slow
def test_invalid_days_are_told(lived, tmp_path, capsys):
    """A resident has one answer, the day."""
    root = Path(shutil.copytree(lived, tmp_path / "own"))

    def refused_day(record: JSON) -> None:
        record["invalid"] = "refusal" if record["user_id"] == 1 else None

    edit(root / "results/day-1/inference_results_beijing.jsonl", refused_day)
    found = told(root, capsys, "commuter", "day-1")["pairs"][0]["warnings"]
    assert any(
        "of commuter none of 48; of day-1 1 of 48 answers is invalid (refusal 1)." in words
        for words in found
    )


def test_a_platform_of_few_users_widens_the_interval_and_is_named(own, capsys):
    """Ten users say little of how users of their platform differ, however many the other platform
    has."""
    for run in ("recency", "random-1"):
        edit(results(own, run, "zhihu"), nothing, slice(10))
    pair = told(own, capsys, "recency", "random-1")["pairs"][0]
    recall, alone = entry(pair, "Recall"), entry(pair, "Recall", "weibo")["ci95"]
    assert recall["ci95"][1] - recall["ci95"][0] > 0.7 * (alone[1] - alone[0])
    assert recall["few_untied"].keys() == {"zhihu"} and recall["few_untied"]["zhihu"] <= 10
    assert "The interval of Recall rests on few users that differ" in pair["verdicts"][-1]


def test_a_platform_of_one_user_leaves_no_interval(own, capsys):
    """Over platforms: the test decides, and that user alone decides the test. The other platform
    has its own."""
    edit(results(own, "random-1", "zhihu"), nothing, slice(1))
    pair = told(own, capsys, "recency", "random-1")["pairs"][0]
    recall = entry(pair, "Recall")
    assert (recall["outcome"], recall["ci95"], recall["few_untied"]["zhihu"]) == (
        "no_difference",
        None,
        0,
    )
    assert entry(pair, "Recall", "weibo")["ci95"] is not None
    assert pair["verdicts"][-1].startswith("recency and random-1: no difference shown in Recall")


def test_the_same_values_in_another_order_are_equal(own, capsys):
    """Steps turned round add up otherwise in the last bit: that makes no user better on either
    side."""
    shutil.copytree(own / "results/random-1", own / "results/turned")
    kinds = ("metrics", "metrics_at_asked")

    def turned(record: JSON) -> None:
        swapped = [{kind: step.get(kind) for kind in kinds} for step in reversed(record["steps"])]
        for step, values in zip(record["steps"], swapped, strict=True):
            step |= {kind: value for kind, value in values.items() if value is not None}

    for platform in PLATFORMS:
        edit(results(own, "turned", platform), turned)
    pair = told(own, capsys, "random-1", "turned")["pairs"][0]
    for of in pair["figures"]:
        assert (of["equal"], of["a_better"], of["b_better"]) == (of["users"], 0, 0)
    assert (
        all("are the same in" in words for words in pair["verdicts"])
        and pair["most_different"] == []
    )


def test_users_of_other_tasks_are_left_out_and_counted(own, capsys):
    """The content hash of the task decides, not the user's name."""

    def other_task(record: JSON) -> None:
        if record["user_id"].endswith(("1", "2")):
            record["task"] = "0" * 16

    edit(results(own, "random-1"), other_task)
    pair = told(own, capsys, "recency", "random-1", "--platform", "weibo")["pairs"][0]
    changed = sum(1 for number in range(1, USERS + 1) if number % 10 in (1, 2))
    assert pair["coverage"][0]["other_tasks"] == changed
    assert entry(pair, "Recall", "weibo")["users"] == USERS - changed


def test_a_failed_user_is_never_a_zero(own, capsys):
    """Without its record a user is in no figure: the means are those of the others."""
    path = results(own, "random-1")
    scores = {}
    for line in path.read_bytes().splitlines()[1:]:
        record = decode_line(line)
        steps = [step["metrics"]["Recall"] for step in record["steps"] if step["metrics"]]
        scores[record["user_id"]] = sum(steps) / len(steps)
    edit(path, nothing, slice(1, None))
    pair = told(own, capsys, "recency", "random-1", "--platform", "weibo")["pairs"][0]
    assert entry(pair, "Recall", "weibo")["b"] == pytest.approx(sum(scores.values()) / len(scores))


# Folders of every kind


def test_unknown_repeated_and_single_runs_are_refused(own, capsys):
    """Each in one sentence; of an unknown name those that are there are named."""
    assert "there are random-1, random-2, recency" in refused(own, capsys, "recency", "nobody")
    assert "named twice" in refused(own, capsys, "recency", "recency")
    assert "at least two" in refused(own, capsys, "recency")
    assert "holds no run for douban" in refused(
        own, capsys, "recency", "random-1", "--platform", "douban"
    )
    assert "no run" in refused(own, capsys, "recency", "x" * 5000)


def test_a_folder_may_stand_for_a_name(own, tmp_path, capsys):
    """Results that lie elsewhere, under a name that the results folder has too."""
    elsewhere = tmp_path / "elsewhere" / "recency"
    shutil.copytree(own / "results/random-1", elsewhere)
    pair = told(own, capsys, "recency", str(elsewhere))["pairs"][0]
    assert (pair["a"], pair["b"]) == ("recency", str(elsewhere))


def test_runs_without_common_users_are_refused(own, capsys):
    """No results yet, other users, other tasks: each is reported as what it is."""
    weibo = ("recency", "random-1", "--platform", "weibo")

    def renamed(record: JSON) -> None:
        record["user_id"] += "-other"

    def changed(record: JSON) -> None:
        record["task"] = "0" * 16

    shutil.copy(results(own, "random-1"), own / "kept")
    edit(results(own, "random-1"), renamed)
    assert "no user in common" in refused(own, capsys, *weibo)
    shutil.copy(own / "kept", results(own, "random-1"))
    edit(results(own, "random-1"), changed)
    assert "no user with the same task" in refused(own, capsys, *weibo)
    results(own, "random-1").unlink()
    assert "random-1 has no scored user" in refused(own, capsys, *weibo)


def test_why_nothing_compares_is_said_first_and_in_sentences(own, capsys):
    """What only one of them has comes after it."""

    def changed(record: JSON) -> None:
        record["task"] = "0" * 16

    edit(results(own, "random-1"), changed)
    (own / "results/random-1/run_zhihu.json").unlink()
    results(own, "random-1", "zhihu").unlink()
    assert (
        refused(own, capsys, "recency", "random-1")
        == "harness: On weibo recency and random-1 have no user with the same task. Only recency"
        " has zhihu: left out.\n"
    )
    for run in ("recency", "random-1"):
        results(own, run).unlink()
    said = refused(own, capsys, "recency", "random-1", "--platform", "weibo")
    assert said == "harness: On weibo recency and random-1 have no scored user.\n"


def test_one_common_user_gives_no_interval_and_no_verdict(own, capsys):
    """Its difference is shown, p is 1, and nothing is said to be better."""
    edit(results(own, "random-1"), nothing, slice(1))
    pair = told(own, capsys, "recency", "random-1", "--platform", "weibo")["pairs"][0]
    recall = entry(pair, "Recall", "weibo")
    assert (recall["users"], recall["ci95"], recall["p"]) == (1, None, 1.0)
    assert all(
        "Nothing can be concluded" in words or "not defined" in words for words in pair["verdicts"]
    )


def test_a_metric_that_nobody_has_is_n_a(own, capsys):
    """Its row stays, its numbers are not 0."""

    def without(record: JSON) -> None:
        for step in record["steps"]:
            for values in (step["metrics"], step.get("metrics_at_asked")):
                if values:
                    values["Error_Viral"] = None

    for run in ("recency", "random-1"):
        edit(results(own, run), without)
    capsys.readouterr()
    pair = told(own, capsys, "recency", "random-1", "--platform", "weibo")["pairs"][0]
    viral = entry(pair, "Error_Viral", "weibo")
    assert all(viral[name] is None for name in ("a", "b", "difference", "ci95", "p"))
    assert call(own, "recency", "random-1", "--platform", "weibo", "--full") == 0
    row = next(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("Error_Viral")
    )
    assert row.split() == ["Error_Viral", "n/a", "n/a", "n/a", "n/a", "n/a"]


def test_runs_of_different_benchmarks_do_not_compare(own, lived, capsys):
    """Platforms and benchmarks of each are named."""
    said = refused(own, capsys, "recency", str(lived / "results/commuter"))
    assert "no subset in common" in said and "beijing (dailymobility)" in said


def test_days_scored_with_another_ground_truth_do_not_compare(lived, tmp_path, capsys):
    """A divergence from something else is another figure."""
    root = Path(shutil.copytree(lived, tmp_path / "own"))
    path = root / "results/day-1/run_beijing.json"
    manifest = orjson.loads(path.read_bytes())
    manifest["tasks"]["truth"] = "0" * 64
    path.write_bytes(orjson.dumps(manifest))
    assert "day-1 was scored with another ground truth" in refused(
        root, capsys, "commuter", "day-1"
    )


def test_a_record_that_is_odd_beside_others_is_told(lived, tmp_path, capsys):
    """A list in place of a number passes alone and not in an array: the file is named all the
    same."""
    root = Path(shutil.copytree(lived, tmp_path / "own"))
    path = root / "results/day-1/inference_results_beijing.jsonl"
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        encode_line({**decode_line(first.rstrip()), "gyration_radius_m": [None]}) + b"".join(rest)
    )
    assert path.name in refused(root, capsys, "commuter", "day-1")


def test_damage_is_told_and_no_traceback(own, capsys):
    """A torn line is left out and counted; a record of another shape and a manifest that is none
    are named."""
    path = results(own, "random-1")
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    pair = told(own, capsys, "recency", "random-1", "--platform", "weibo")["pairs"][0]
    assert pair["coverage"][0]["b"]["unsound"] == 1
    odd: list[Any] = [3, None, [{}]]
    for steps in odd:
        path.write_bytes(encode_line({**decode_line(whole.splitlines()[0]), "steps": steps}))
        assert "another shape" in refused(own, capsys, "recency", "random-1", "--platform", "weibo")
    path.write_bytes(encode_line({**decode_line(whole.splitlines()[0]), "format": 99}))
    assert "field format" in refused(own, capsys, "recency", "random-1")
    (own / "results/random-1/run_weibo.json").write_bytes(b"[]")
    assert "run_weibo.json" in refused(own, capsys, "recency", "random-1")


def test_results_that_this_harness_has_not_scored_are_sent_to_reeval(own, capsys):
    """Lines of the authors' runner have no checksum and no task."""
    folder = own / "results/theirs"
    folder.mkdir()
    (folder / "inference_results_weibo.jsonl").write_bytes(b'{"user_id": "1", "steps": []}\n')
    assert "reeval" in refused(own, capsys, "recency", "theirs")


def test_runs_without_a_manifest_compare_with_a_warning(own, capsys):
    """Results of another runner, once scored here: what was run is not known, and it says so."""
    (own / "results/random-1/run_weibo.json").unlink()
    pair = told(own, capsys, "recency", "random-1", "--platform", "weibo")["pairs"][0]
    assert any("no manifest" in words for words in pair["warnings"])
    assert pair["coverage"][0]["b"]["expected"] == USERS, "as its report says"


# Formats


def test_text_fits_80_columns_with_chinese_names(own, capsys):
    """Users and runs with Chinese names: two columns a character, and no line is longer than the
    terminal."""
    from rich.cells import cell_len

    def named(record: JSON) -> None:
        record["user_id"] = f"用户甲乙丙丁{record['user_id']}"

    for run in ("recency", "random-1"):
        edit(results(own, run), named)
    shutil.move(own / "results/random-1", own / "results/随机基线")
    capsys.readouterr()
    assert call(own, "recency", "随机基线", "--platform", "weibo") == 0
    assert max(map(cell_len, capsys.readouterr().out.splitlines())) <= 80
    assert call(own, "recency", "随机基线", "--platform", "weibo", "--full") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    assert any("用户甲乙丙丁" in line for line in lines)


def test_excel_reads_back_with_the_same_numbers(played, tmp_path, capsys):
    """The differences of the JSON, in percentage points, stand as numbers in the sheet of
    figures."""
    out = tmp_path / "new" / "compared.xlsx"
    data = told(played, capsys, "recency", "random-1", "--out", str(out))
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(out) as file:
        sheet = ElementTree.fromstring(file.read("xl/worksheets/sheet2.xml"))
    values = {cell.get("r"): cell.findtext(f"{space}v") for cell in sheet.iter(f"{space}c")}
    expected = [100 * of["difference"] for of in data["pairs"][0]["figures"]]
    assert [float(values[f"G{row}"] or "") for row in range(2, 2 + len(expected))] == pytest.approx(
        expected
    )


def test_a_page_holds_verdict_and_figures(played, tmp_path, capsys):
    """One file with the same words as the terminal; a name that is markup stays text."""
    out = tmp_path / "new" / "compared.html"
    shutil.copytree(played / "results/random-1", tmp_path / "<b>随机<b>")
    pair = told(played, capsys, "recency", str(tmp_path / "<b>随机<b>"), "--html", str(out))[
        "pairs"
    ][0]
    page = out.read_text()
    assert "is better than &lt;b&gt;随机&lt;b&gt; in Recall" in page and "<b>随机<b>" not in page
    assert pair["verdicts"][-1].startswith("recency is better than <b>随机<b> in Recall")


def test_models_that_answered_are_named_for_each_run(played, tmp_path, capsys):
    """Over all its subsets, in text, page and JSON; a run of the harness's own baseline has
    none."""
    out = tmp_path / "compared.html"
    data = told(played, capsys, "recency", "random-1", "--html", str(out))
    baseline, random = data["runs"]
    (answerer,) = random["replies"]["answered_by"]
    assert "replies" not in baseline and answerer["model"] == "scripted"
    words = (
        f"random-1: answered by: scripted 100 % ({answerer['replies']}) of {answerer['replies']}"
        " replies."
    )
    assert words in out.read_text()
    assert call(played, "recency", "random-1", "--full") == 0
    assert words in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_files_that_were_written_are_named(more, played, tmp_path, capsys):
    """On stderr, so that JSON stays JSON."""
    files = [str(tmp_path / name) for name in ("both.xlsx", "both.html")]
    words = [
        "recency",
        "random-1",
        "--out",
        files[0],
        "--html",
        files[1],
        "--resamples",
        "1000",
        *more,
    ]
    assert main(["compare", *words, "--results-dir", str(played / "results")]) == 0
    assert [line.split()[-1] for line in capsys.readouterr().err.splitlines()] == files


def test_the_same_command_prints_the_same_bytes(played, capsys):
    """Seeds are fixed."""
    first, again = (told(played, capsys, "recency", "random-1") for _ in range(2))
    assert first == again and first["seed"] == figures.SEED


def test_charts_have_a_row_for_each_figure(played, capsys):
    """Of the primary ones first, then of all over all subsets and on each: differences with their
    bounds, and zero."""
    data = told(played, capsys, "recency", "random-1")
    charts = [block for block in compare.blocks(data) if isinstance(block, Chart)]
    names = tuple(dict.fromkeys(of["metric"] for of in data["pairs"][0]["figures"]))
    assert [chart.x for chart in charts] == [("Recall", "F1^NS"), names, names, names]
    recall, place = entry(data["pairs"][0], "Recall"), names.index("Recall")
    assert charts[0].reference == 0.0
    for chart, row in ((charts[0], 0), (charts[1], place)):
        assert chart.series[0].values[row] == recall["difference"]
        assert (chart.series[0].low[row], chart.series[0].high[row]) == tuple(
            recall["ci95_simultaneous"]
        )
    alone = entry(data["pairs"][0], "Recall", "weibo")
    assert charts[2].series[0].values[place] == alone["difference"]


def test_words_and_table_have_the_same_interval(played, capsys):
    """The simultaneous one, next to the adjusted p; the primary row has the chance level, as the
    JSON does."""
    data = told(played, capsys, "recency", "random-1")
    recall, metric = entry(data["pairs"][0], "Recall"), Metric("Recall")
    assert recall["ci95"] != recall["ci95_simultaneous"]
    ends = [metric.text(end) for end in recall["ci95_simultaneous"]]
    (verdict,) = (words for words in data["pairs"][0]["verdicts"] if " in Recall " in words)
    assert set(ends) <= {number.strip("(),") for number in verdict.split()}
    row = next(
        row
        for block in compare.blocks(data)
        if isinstance(block, Table) and "primary" in block.columns
        for row in block.rows
        if row[0] == "Recall"
    )
    assert row[5] == " to ".join(f"+{end}" for end in ends) and row[3] == metric.text(
        recall["chance"]
    )


@pytest.mark.slow
def test_the_primary_metric_of_a_run_is_chosen_when_it_begins(tmp_path, capsys):
    """`compare` is about it alone, so its p is not corrected for another; a later session cannot
    change it."""
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "weibo_inference_tasks.jsonl").write_bytes(
        b"".join(generate("weibo", 20, 5, 2.0))
    )
    chosen = ("--platform", "weibo", "--primary", "Recall_Novelty")
    play(tmp_path, "a", None, *chosen)
    play(tmp_path, "b", seeded(1), *chosen)
    play(tmp_path, "c", seeded(2), "--platform", "weibo")
    capsys.readouterr()
    pair = told(tmp_path, capsys, "a", "b")["pairs"][0]
    primary = [of for of in pair["figures"] if not of["exploratory"]]
    assert [of["metric"] for of in primary] == ["Recall_Novelty"] == pair["main"] and len(
        pair["verdicts"]
    ) == 1
    assert primary[0]["p_adjusted"] == pytest.approx(primary[0]["p"])
    other = told(tmp_path, capsys, "a", "c")["pairs"][0]
    assert other["main"] == ["Recall", "F1^NS"] and any(
        "primary" in words for words in other["warnings"]
    )
    where = (
        "--tasks-dir",
        str(tmp_path / "tasks"),
        "--results-dir",
        str(tmp_path / "results"),
        "--name",
        "a",
    )
    again = ("run", "--model", "baseline/recency", "--platform", "weibo", *where)
    assert (
        main([*again, "--primary", "Recall"]) == 2 and main([*again, "--primary", "no metric"]) == 2
    )
    assert main([*again]) == 0
    manifest = orjson.loads((tmp_path / "results" / "a" / "run_weibo.json").read_bytes())
    assert manifest["provenance"]["primary"] == "Recall_Novelty"


# The few lines that are shown first


def test_a_comparison_is_six_lines_on_a_wide_terminal(own, capsys, monkeypatch):
    """A verdict for each primary metric with all its numbers, a row of the chart for each and its
    scale, and notes; `--full` begins with the same lines and has all figures."""
    monkeypatch.setenv("COLUMNS", "120")
    shutil.move(own / "results/random-1", own / "results/chance")
    capsys.readouterr()
    assert call(own, "recency", "chance") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    recall = entry(told(own, capsys, "recency", "chance")["pairs"][0], "Recall")
    text = Metric("Recall").text
    values = f"{text(recall['a'])} vs {text(recall['b'])} %"
    assert lines[0].startswith(
        f"recency is better than chance in Recall by {text(recall['difference'])} points (95 % "
    )
    assert recall["p_adjusted"] < 0.001
    assert lines[0].endswith(f"), {values}, p < 0.001, n {recall['users']}.")
    assert "●" in lines[2] and lines[4].startswith("recency minus chance, points")
    assert (
        lines[5] == "n: users that both have, p: adjusted; synthetic tasks. --full shows the rest."
    )
    assert call(own, "recency", "chance", "--full") == 0
    whole = capsys.readouterr().out
    assert whole.startswith(lines[0]) and "--full" not in whole
    assert "How this is computed" not in "".join(lines) and "How this is computed" in whole


def test_notes_name_what_a_reader_must_not_miss(own, capsys):
    """Users of one run alone, who could change it, invalid answers, other settings: in at most two
    lines."""

    def filtered(record: JSON) -> None:
        record["steps"][0] |= {"outcome": "content_filter", "prediction": []}

    edit(results(own, "random-1"), filtered, slice(20, None))
    path = own / "results/random-1/run_weibo.json"
    manifest = orjson.loads(path.read_bytes())
    manifest["identity"]["settings"]["persona"] = False
    path.write_bytes(orjson.dumps(manifest))
    capsys.readouterr()
    assert call(own, "recency", "random-1", "--platform", "weibo") == 0
    notes = " ".join(capsys.readouterr().out.split())
    for words in (
        "20 users of recency not in random-1",
        "missing users could change Recall",
        "invalid answers: recency 0.0 %, random-1 ",
        "not alike: settings.persona",
        "synthetic tasks",
    ):
        assert words in notes


def test_costs_of_the_runs_are_named_where_they_are_known(own, capsys):
    """Of all subsets together, after the notes; a run without a price has none."""
    for subset in PLATFORMS:
        path = own / f"results/random-1/eval_report_{subset}.json"
        report = orjson.loads(path.read_bytes())
        price = {"currency": "USD", "prompt": "1", "completion": "2"}
        report["cost"] = {"requests": 1, "prompt_tokens": 100, "amount": "0.25", "price": price}
        path.write_bytes(orjson.dumps(report))
    capsys.readouterr()
    assert [run.get("cost") for run in told(own, capsys, "recency", "random-1")["runs"]] == [
        None,
        "0.5000 USD",
    ]
    assert call(own, "recency", "random-1") == 0
    assert "Cost: random-1 0.5000 USD. --full" in " ".join(capsys.readouterr().out.split())


def test_the_page_has_verdicts_first_and_the_rest_folded(played, capsys):
    """All headings are folded where two runs are compared; of three each pair has one that is
    open."""
    blocks = list(compare.blocks(told(played, capsys, "recency", "random-1")))
    first = next(place for place, block in enumerate(blocks) if isinstance(block, Heading))
    assert [type(block) for block in blocks[:first]] == [Paragraph, Paragraph, Chart, Paragraph]
    assert all(block.folded for block in blocks if isinstance(block, Heading))
    more = list(compare.blocks(told(played, capsys, "recency", "random-1", "random-2")))
    opened = [block.text for block in more if isinstance(block, Heading) and not block.folded]
    assert opened == ["recency and random-1", "recency and random-2", "random-1 and random-2"]
