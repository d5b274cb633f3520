"""One line of a tasks file: every field, what it must be, and what is said otherwise
(docs/design.md, section 8)."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any, ClassVar

import orjson
import pytest

from harness.benchmark import Benchmark, Metric, Task, TaskFiles
from harness.benchmarks import tasks
from harness.benchmarks.streamprofile import task as own
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.errors import BadInput, BenchmarkError, FieldError
from harness.model import JSON, Where

WHERE = Where("数据/weibo_inference_tasks.jsonl", 7)
STEP = "prediction_tasks[0]"
NOTHING = "got nothing (missing or null)"
LINE: dict[str, Any] = {
    "user_id": "we_1",
    "platform": "weibo",
    "username": "小明",
    "bio": "爱猫",
    "total_steps": 2,
    "prediction_tasks": [
        {
            "step_id": number,
            "total_steps": 2,
            "date_input": "2025-06-12",
            "date_target": "2025-06-17",
            "posts_text": "[1] Content: 早\nTags: 猫",
            "candidate_pool": ["猫", "狗", "茶", "书"],
            "ground_truth": {"all_tags": ["狗", "猫"], "new_tags": ["狗"], "keep_tags": ["猫"]},
            "meta": {
                "T_keep": ["猫"],
                "T_new": ["狗"],
                "D_decay": ["茶"],
                "D_cluster": ["书"],
                "D_viral": [],
                "D_random": [],
            },
        }
        for number in (1, 2)
    ],
}


def changed(path: str, value: Any) -> bytes:
    """The good line with one field set: `a.b` goes down, and a number picks a step. `...` removes
    the field."""
    line = deepcopy(LINE)
    *above, last = (int(name) if name.isdigit() else name for name in path.split("."))
    holder: Any = line
    for name in above:
        holder = holder[name]
    if value is ...:
        del holder[last]
    else:
        holder[last] = value
    return orjson.dumps(line)


def complaint(line: bytes) -> str:
    """The same of the task and of what the index needs of it."""
    with pytest.raises(BadInput) as caught:
        tasks.parse(StreamProfile(), line, WHERE, "weibo")
    with pytest.raises(BadInput) as of_index:
        tasks.outline(StreamProfile(), line, WHERE, "weibo")
    assert str(of_index.value) == str(caught.value)
    return str(caught.value)


def good(line: bytes) -> Task:
    task = tasks.parse(StreamProfile(), line, WHERE, "weibo")
    assert tasks.outline(StreamProfile(), line, WHERE, "weibo") == (task.key, task.steps)
    return task


def test_a_good_line_becomes_a_task():
    """Given and truth hold what the line says, steps in its order."""
    task = good(orjson.dumps(LINE))
    assert (task.key, task.given.subset, task.given.platform) == ("we_1", "weibo", "weibo")
    assert (task.given.user_id, task.given.username, task.given.bio) == ("we_1", "小明", "爱猫")
    assert [(step.step_id, step.total_steps) for step in task.given.steps] == [(1, 2), (2, 2)]
    assert task.given.steps[0].posts_text == "[1] Content: 早\nTags: 猫"
    assert task.given.steps[0].pool == ("猫", "狗", "茶", "书")
    truth = task.truth[0]
    assert (set(truth.kept_tags), set(truth.new_tags), truth.listed) == (
        {"猫"},
        {"狗"},
        ["狗", "猫"],
    )
    assert {name: set(tags) for name, tags in truth.distractors.items()} == {
        "Error_Decay": {"茶"},
        "Error_Peer": {"书"},
        "Error_Viral": set(),
        "Error_Random": set(),
    }


FIELDS: dict[str, tuple[str, list[Any]]] = {
    "user_id": ("user_id", [..., None, "", 1.5, True, [], {}]),
    "platform": ("platform", [..., None, "", 5, True, ["weibo"], "zhihu", "微博", "twitter"]),
    "username": ("username", [5, False, ["小明"], {}]),
    "bio": ("bio", [5, False, ["爱猫"], {}]),
    "total_steps": ("total_steps", [..., None, 0, -1, 2.0, "2", True, 10**30]),
    "prediction_tasks": ("prediction_tasks", [..., None, [], {}, "x", 3]),
    "prediction_tasks.1": ("prediction_tasks[1]", [None, [], "x", 3]),
    "prediction_tasks.0.step_id": (f"{STEP}.step_id", [..., None, 0, -1, 1.0, "1", True]),
    "prediction_tasks.1.step_id": ("prediction_tasks[1].step_id", [1, 0, "2", True]),
    "prediction_tasks.0.total_steps": (f"{STEP}.total_steps", [0, -2, 2.0, "2", True, []]),
    "prediction_tasks.0.posts_text": (f"{STEP}.posts_text", [..., None, 1, ["早"], True]),
    "prediction_tasks.0.candidate_pool": (
        f"{STEP}.candidate_pool",
        [..., None, "猫", {}, [1], [["猫"]], [None]],
    ),
    "prediction_tasks.0.ground_truth": (f"{STEP}.ground_truth", [..., None, ["狗"], "狗"]),
    "prediction_tasks.0.meta": (f"{STEP}.meta", [["猫"], "猫", 0, False]),
    "prediction_tasks.0.meta.T_keep": (f"{STEP}.meta.T_keep", ["猫", {}, [1], [True]]),
    "prediction_tasks.0.meta.T_new": (f"{STEP}.meta.T_new", ["狗", 0, ["狗", None]]),
    "prediction_tasks.0.meta.D_decay": (f"{STEP}.meta.D_decay", ["茶", False, [{}]]),
    "prediction_tasks.0.meta.D_cluster": (f"{STEP}.meta.D_cluster", ["书", 1, [2.5]]),
    "prediction_tasks.0.meta.D_viral": (f"{STEP}.meta.D_viral", ["", {}, [[]]]),
    "prediction_tasks.0.meta.D_random": (f"{STEP}.meta.D_random", ["x", 3, [None]]),
}


@pytest.mark.parametrize("path", FIELDS)
def test_a_wrong_value_is_refused_by_file_line_field_and_expectation(path):
    """Missing, null, of another type (true is no number here), out of order, or of another
    platform."""
    line = orjson.dumps(LINE).replace(b'"total_steps":2', b'"total_steps":%d' % 10**30, 1)
    name, values = FIELDS[path]
    for value in values:
        message = complaint(line if value == 10**30 else changed(path, value))
        assert re.fullmatch(
            rf"{re.escape(f'{WHERE}: field {name}')}(\[\d\])?: expected .+, got [^\n]+", message
        )
        assert len(message) < 200


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("user_id", True, "field user_id: expected a whole number or a string, got True"),
        ("total_steps", 0, "field total_steps: expected a whole number >= 1, got 0"),
        (
            "prediction_tasks",
            [],
            "field prediction_tasks: expected a list of length >= 1, got an empty list",
        ),
        (
            "prediction_tasks.1.step_id",
            ...,
            f"field prediction_tasks[1].step_id: expected a value, {NOTHING}",
        ),
        (
            "prediction_tasks.1.step_id",
            1,
            "field prediction_tasks[1].step_id: expected a whole number above 1, got 1",
        ),
        (
            "prediction_tasks.0.candidate_pool",
            ["猫", 7],
            f"field {STEP}.candidate_pool[1]: expected a string, got 7",
        ),
        (
            "prediction_tasks.0.meta.T_new",
            "狗",
            f"field {STEP}.meta.T_new: expected a list or null, got '狗'",
        ),
    ],
)
def test_each_kind_of_message_for_a_wrong_value(path, value, message):
    """The path of the field to the entry, what it may be, and what it is."""
    assert complaint(changed(path, value)) == f"{WHERE}: {message}"


def test_without_a_subset_any_platform_is_taken_and_others_are_listed():
    """Tools that read files of any platform still refuse what is none."""
    assert own.parse(orjson.loads(changed("platform", "douban"))).given.subset == "douban"
    with pytest.raises(FieldError, match="one of weibo, xiaohongshu, toutiao, zhihu, douban"):
        own.parse(orjson.loads(changed("platform", "x")))


def test_platform_is_read_in_any_case_and_kept_as_written():
    """The subset is the lower-case name, the record shows the file's spelling."""
    task = good(changed("platform", "Weibo"))
    assert (task.given.subset, task.given.platform) == ("weibo", "Weibo")


def test_step_ids_may_leave_gaps_but_not_go_back():
    """A sampled chain such as 2, 5 is a chain; 5, 2 is not."""
    line = deepcopy(LINE)
    line["prediction_tasks"][0]["step_id"], line["prediction_tasks"][1]["step_id"] = 2, 5
    assert [step.step_id for step in good(orjson.dumps(line)).given.steps] == [2, 5]
    line["prediction_tasks"].reverse()
    assert "field prediction_tasks[1].step_id: expected a whole number above 5, got 2" in complaint(
        orjson.dumps(line)
    )


@pytest.mark.parametrize("value", [..., None])
def test_bio_and_username_may_be_missing_or_null(value):
    """Both become an empty text."""
    assert good(changed("bio", value)).given.bio == ""
    assert good(changed("username", value)).given.username == ""


@pytest.mark.parametrize("value", [..., None])
def test_a_step_without_a_total_takes_the_users(value):
    """`total_steps` of the user stands for all of the user's steps."""
    assert good(changed("prediction_tasks.0.total_steps", value)).given.steps[0].total_steps == 2


@pytest.mark.parametrize("value", [..., None, {}])
def test_without_meta_the_truth_is_the_ground_truths(value):
    """Kept and new tags come from `ground_truth`; there are no distractors to know of."""
    line = deepcopy(LINE)
    line["prediction_tasks"][0]["ground_truth"] = {"new_tags": ["书"], "keep_tags": ["茶"]}
    if value is ...:
        del line["prediction_tasks"][0]["meta"]
    else:
        line["prediction_tasks"][0]["meta"] = value
    truth = good(orjson.dumps(line)).truth[0]
    assert (set(truth.kept_tags), set(truth.new_tags), truth.listed, truth.distractors) == (
        {"茶"},
        {"书"},
        ["书", "茶"],
        {},
    )


@pytest.mark.parametrize("value", [..., None])
def test_each_set_missing_from_meta_is_looked_up_alone(value):
    """T_new from `ground_truth`, T_keep still from `meta`; a missing distractor list is just not
    there."""
    line = deepcopy(LINE)
    step = line["prediction_tasks"][0]
    step["ground_truth"] = {"new_tags": ["书"], "keep_tags": ["茶"]}
    for name in ("T_new", "D_viral"):
        if value is ...:
            del step["meta"][name]
        else:
            step["meta"][name] = value
    truth = good(orjson.dumps(line)).truth[0]
    assert (set(truth.kept_tags), set(truth.new_tags)) == ({"猫"}, {"书"})
    assert set(truth.distractors) == {"Error_Decay", "Error_Peer", "Error_Random"}


@pytest.mark.parametrize(
    ("meta", "expected_text"), [("T_keep", "keep_tags"), ("T_new", "new_tags")]
)
def test_truth_that_stands_nowhere_is_refused(meta, expected_text):
    """The message names the field of `ground_truth`, the last place looked at."""
    line = deepcopy(LINE)
    del line["prediction_tasks"][1]["meta"][meta]
    del line["prediction_tasks"][1]["ground_truth"][expected_text]
    assert (
        f"field prediction_tasks[1].ground_truth.{expected_text}: expected a list, {NOTHING}"
        in complaint(orjson.dumps(line))
    )


def test_meta_wins_over_the_ground_truth():
    """Where both tell, `meta` is the one that scores and that records show."""
    truth = good(
        changed("prediction_tasks.0.ground_truth", {"new_tags": ["茶"], "keep_tags": []})
    ).truth[0]
    assert (set(truth.new_tags), set(truth.kept_tags), truth.listed) == (
        {"狗"},
        {"猫"},
        ["狗", "猫"],
    )


def test_unknown_fields_are_ignored_wherever_they_stand():
    """Extra fields of any type change nothing, nested to any depth that JSON readers take."""
    line = deepcopy(LINE)
    deep: Any = "底"
    for _ in range(200):
        deep = [deep]
    for holder in (
        line,
        line["prediction_tasks"][0],
        *(line["prediction_tasks"][0][n] for n in ("ground_truth", "meta")),
    ):
        holder["额外"] = deep
        holder["raw"] = None
    assert good(orjson.dumps(line)) == good(orjson.dumps(LINE))


def test_only_a_true_mark_makes_a_task_synthetic():
    """`synthetic` is an extra field of ours; anything but true leaves a task real."""
    assert good(orjson.dumps(LINE | {"synthetic": True})).synthetic
    assert not any(
        good(orjson.dumps(LINE | {"synthetic": value})).synthetic
        for value in (False, 1, "true", None)
    )


def test_a_number_is_a_user_id_too():
    """Its key is the number's digits; the record keeps the number."""
    task = good(changed("user_id", 0))
    assert (task.key, task.given.user_id) == ("0", 0)


def test_a_megabyte_of_text_is_taken_and_never_printed():
    """Long posts are a user's; a long text in the wrong place is named, not shown."""
    text = "很长" * 200_000
    assert good(changed("prediction_tasks.0.posts_text", text)).given.steps[0].posts_text == text
    assert complaint(changed("platform", text)).endswith("got a long string")


def test_an_empty_pool_asks_for_one_tag():
    """Nothing can be hit there, but a line is not refused for it."""
    assert good(changed("prediction_tasks.0.candidate_pool", [])).given.steps[0].asked == 1


class Stars(Benchmark):
    """As somebody else may write one."""

    name = "stars"
    task_files = TaskFiles(key_field="name")
    subsets: ClassVar = {"yelp": "stars.jsonl"}
    metrics = (Metric("Exact"),)

    def parse(self, line: JSON, subset: str) -> Task:
        name = line.pop("name")
        if line["stars"] == 5:
            line["why"]["text"]
        if line["stars"] > 5:
            raise ValueError("expected 5 at most")
        return Task(name, truth=line["stars"]) if name != "none" else None  # type: ignore[return-value]


READERS = pytest.mark.parametrize("read", [tasks.parse, tasks.outline])


@READERS
@pytest.mark.parametrize(
    ("line", "expected_text"),
    [
        (b'{"name": "a"}', f"{WHERE}: field stars: expected a value, got nothing (missing)"),
        (b'{"name": "a", "stars": 6}', f"{WHERE}: field stars: expected 5 at most"),
        (b'{"stars": 1}', f"{WHERE}: field name: expected a value, got nothing (missing)"),
        (
            b'{"name": "a", "stars": 5, "why": {}}',
            f"{WHERE}: field why: 'text' is missing or unknown",
        ),
        (
            b'{"name": "", "stars": 1}',
            f"{WHERE}: field name: expected text or a whole number, got an empty one",
        ),
    ],
)
def test_what_another_benchmark_refuses_names_the_field_read_last(read, line, expected_text):
    """Also where its `parse` takes a line apart: what fails is read from the bytes again."""
    with pytest.raises(BadInput) as caught:
        read(Stars(), line, WHERE, "yelp")
    assert str(caught.value) == expected_text


@READERS
def test_a_parse_that_returns_no_task_is_the_benchmarks_mistake(read):
    """And none of the line's."""
    with pytest.raises(BenchmarkError, match=r"stars: parse returned None for .*, expected a Task"):
        read(Stars(), b'{"name": "none", "stars": 1}', WHERE, "yelp")


def test_without_a_faster_way_the_index_parses():
    """Keys as text, and the steps of the task."""
    assert tasks.outline(Stars(), b'{"name": 7, "stars": 1}', WHERE, "yelp") == ("7", 1)
