"""One user's conversation, its record, and the record measured again (docs/design.md, sections 2, 6
and 8)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import orjson
import pytest

from harness.benchmark import Asking, Task
from harness.benchmarks import tasks
from harness.benchmarks.streamprofile import authors
from harness.benchmarks.streamprofile import prompt as prompts
from harness.benchmarks.streamprofile.authors import outcome as authors_outcome
from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.reply import StepAnswer, schema
from harness.chat import Structured
from harness.engine.play import Played, recorded, rescored
from harness.engine.play import play as play_user
from harness.errors import BadInput
from harness.model import JSON, Completion, Request, Usage, Where

POOL = [f"标签{number}" for number in range(12)]  # 3 are asked for
TASK: JSON = {
    "user_id": "we_1",
    "platform": "Weibo",
    "username": "小明",
    "bio": None,
    "total_steps": 3,
    "prediction_tasks": [
        {
            "step_id": number,
            "total_steps": 3,
            "posts_text": f"[1] Content: 第{number}批\nTags: 标签0",
            "candidate_pool": POOL,
            "ground_truth": {"all_tags": POOL[:3], "new_tags": POOL[1:3], "keep_tags": POOL[:1]},
            "meta": {
                "T_keep": POOL[:1],
                "T_new": POOL[1:3],
                "D_cluster": POOL[3:6],
                "D_viral": POOL[6:8],
            },
        }
        for number in (1, 2, 3)
    ],
}
BROKEN = Completion("没有")


def configure(
    *, structured: Structured = "json_object", parse_retries: int = 2, **settings: Any
) -> StreamProfile:
    return StreamProfile(
        StreamProfile.Settings(**settings), asking=Asking(structured, parse_retries)
    )


def parsed(data: JSON) -> Task:
    return tasks.parse(StreamProfile(), orjson.dumps(data), Where("tasks", 1), "weibo")


def reply(persona: Any = "画像", tags: Sequence[str] = POOL[:3], **more: Any) -> Completion:
    text = orjson.dumps(
        {"persona_summary": persona, "predicted_tags": list(tags), "reasoning": "依据"}
    ).decode()
    return Completion(text, **more)


class Script:
    """Answers from a queue, and remembers what was asked."""

    def __init__(self, *completions: Completion) -> None:
        self.left = list(completions)
        self.asked: list[Request] = []

    async def ask(self, request: Request) -> Completion:
        self.asked.append(request)
        return self.left.pop(0)

    @property
    def prompts(self) -> list[str]:
        return [request.messages[-1].content for request in self.asked]

    def personas(self) -> list[str]:
        """What stands in each prompt as the persona so far."""
        return [
            text.partition("## 此前的画像\n")[2].partition("\n\n## ")[0] for text in self.prompts
        ]


def played(script: Script, data: JSON = TASK, **settings: Any) -> Played:
    found = asyncio.run(play_user(configure(**settings), parsed(data), script.ask))
    assert not script.left, "not all of the script was asked for"
    return found


def play(script: Script, data: JSON = TASK, **settings: Any) -> tuple[StepAnswer, ...]:
    answer: tuple[StepAnswer, ...] = played(script, data, **settings).answer
    return answer


def one_step(script: Script, **settings: Any) -> tuple[StepAnswer, ...]:
    return play(script, TASK | {"prediction_tasks": TASK["prediction_tasks"][:1]}, **settings)


# The chain


def test_the_persona_of_a_step_goes_into_the_next_prompt():
    """The first prompt says that there is none; the last persona is asked of nobody."""
    script = Script(reply("一"), reply("二"), reply("三"))
    answer = play(script)
    assert script.personas() == [prompts.NOTHING_YET, "一", "二"]
    assert [step.persona for step in answer] == ["一", "二", "三"]
    assert [
        "第1批" in script.prompts[0],
        "第2批" in script.prompts[1],
        "第3批" in script.prompts[2],
    ] == [True] * 3


@pytest.mark.parametrize(
    "second",
    [
        reply(""),
        reply(" \n"),
        reply(None),
        Completion("", "length"),
        Completion("{}", "content_filter"),
    ],
    ids=["empty", "blank", "null", "length", "content_filter"],
)
def test_an_empty_persona_or_an_invalid_answer_keeps_the_previous_one(second):
    """Step 3 receives what step 1 made, and the record of step 2 shows it."""
    script = Script(reply("一"), second, reply("三"))
    answer = play(script)
    assert script.personas()[2] == "一"
    assert [step.persona for step in answer] == ["一", "一", "三"]


def test_an_invalid_first_answer_leaves_no_persona():
    """There is no previous one to keep."""
    script = Script(Completion("", "context_length"), reply("二"), reply("三"))
    answer = play(script)
    assert script.personas() == [prompts.NOTHING_YET, prompts.NOTHING_YET, "二"]
    assert (answer[0].persona, answer[0].outcome) == ("", "context_length")


def test_without_persona_none_is_ever_sent():
    """The ablation: each prompt is that of a first step, while records still show what the model
    wrote."""
    script = Script(reply("一"), Completion("", "length"), reply("三"))
    answer = play(script, persona=False)
    assert script.personas() == [prompts.NOTHING_YET] * 3
    assert [step.persona for step in answer] == ["一", "", "三"]


# Asked again


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (BROKEN, "回答里没有可用的 JSON"),
        (Completion(""), "回答是空的"),
        (Completion("[]"), "最外层不是一个 JSON 对象"),
        (Completion("{}"), "缺少 predicted_tags"),
        (Completion("", refusal="不"), "没有给出回答"),
    ],
)
def test_a_second_try_says_what_was_wrong(bad, why):
    """The same messages, and after the last one the reason; the answer then counts as any other."""
    script = Script(bad, reply("画像"))
    answer = one_step(script)
    first, second = script.asked
    assert second.messages[:-1] == first.messages[:-1]
    assert second.messages[-1].content.startswith(first.messages[-1].content + "\n\n注意：")
    assert why in second.messages[-1].content.removeprefix(first.messages[-1].content)
    assert second.messages[-1].role == "user"
    assert (answer[0].outcome, answer[0].tags) == ("valid", tuple(POOL[:3]))


@pytest.mark.parametrize("retries", [0, 1, 2, 5])
def test_tries_end_after_as_many_as_were_allowed(retries):
    """Then the step is invalid, under the kind of the last reply, and the user goes on."""
    script = Script(*[BROKEN] * retries, Completion("[]"), reply("二"), reply("三"))
    answer = play(script, parse_retries=retries)
    invalid = answer[0]
    assert (invalid.outcome, invalid.tags, invalid.reasoning, invalid.repairs) == (
        "not_object",
        (),
        "",
        (),
    )
    assert [step.outcome for step in answer[1:]] == ["valid", "valid"]
    assert len(script.asked) == retries + 3


@pytest.mark.parametrize("reason", ["length", "content_filter", "context_length"])
def test_a_final_reason_is_asked_once(reason):
    """Not even a reply that could be read is taken, also when it comes on a second try."""
    good = reply(finish_reason=reason)
    assert one_step(Script(good))[0].outcome == reason
    later = one_step(Script(BROKEN, good))
    assert (later[0].outcome, later[0].tags) == (reason, ())


def test_usage_counts_every_completion_that_was_asked_for():
    """Parse retries and invalid answers cost too; a request whose tokens the endpoint does not tell
    is counted."""
    script = Script(
        Completion("没有", prompt_tokens=100, completion_tokens=7),
        reply(prompt_tokens=120, completion_tokens=30),
        Completion("", "length", prompt_tokens=5, completion_tokens=1000),
        reply(prompt_tokens=None, completion_tokens=None),
    )
    assert played(script).chat.usage == Usage(
        prompt_tokens=225, completion_tokens=1037, requests=4, untold=1
    )


def test_json_mode_is_asked_for_in_every_request_or_in_none():
    """`structured` none leaves `response_format` out of first and further tries alike."""
    modes: dict[Structured, bool] = {
        "json_object": True,
        "json_schema": True,
        "auto": True,
        "none": False,
    }
    for structured, wanted in modes.items():
        script = Script(BROKEN, reply())
        one_step(script, structured=structured)
        assert [request.json_object for request in script.asked] == [wanted, wanted]


def test_schema_is_sent_where_the_run_asks_for_it_and_nowhere_else():
    """The pool as it stands and the asked number of tags, in first and further tries alike."""
    modes: dict[Structured, bool] = {
        "json_object": False,
        "json_schema": True,
        "auto": True,
        "none": False,
    }
    for structured, sent in modes.items():
        script = Script(BROKEN, reply())
        one_step(script, structured=structured)
        assert [request.schema for request in script.asked] == [
            schema(tuple(POOL), 3) if sent else None
        ] * 2


# What play may see

GIVEN_REPLIES = (reply("一", POOL[4:8]), BROKEN, reply("二"), Completion("", "length"))


def asked_for(data: JSON, settings: dict[str, Any]) -> bytes:
    script = Script(*GIVEN_REPLIES)
    play(script, data, **settings)
    return orjson.dumps(
        [[(m.role, m.content) for m in request.messages] for request in script.asked]
    )


@pytest.mark.parametrize("whose", ["own", "template", "authors"])
def test_ground_truth_and_meta_reach_no_prompt(whose, tmp_path):
    """Other truth, other distractors, other dates: every request stays the same bytes."""
    path = {"own": None, "template": tmp_path / "t.txt", "authors": tmp_path / "bench_task.py"}[
        whose
    ]
    (tmp_path / "t.txt").write_text(" ".join(f"${{{name}}}" for name in sorted(prompts.PLACES)))
    (tmp_path / "bench_task.py").write_text(
        "class BenchTaskBuilder:\n"
        "    def __init__(self, platform): self.platform = platform\n"
        "    def format_prompt(self, **given): return str(given)\n"
    )
    before = asked_for(TASK, {"prompt": path})
    other = deepcopy(TASK)
    for number, step in enumerate(other["prediction_tasks"]):
        step["ground_truth"] = {
            "all_tags": ["秘密"],
            "new_tags": ["秘密"],
            "keep_tags": [POOL[number]],
        }
        step["meta"] = {
            "T_keep": ["秘密"],
            "T_new": [],
            "D_random": ["秘密"],
            "D_decay": [POOL[-1]],
        }
        step["date_input"] = step["date_target"] = "2099-01-01"
    assert asked_for(other, {"prompt": path}) == before
    assert "秘密".encode() not in before
    other["prediction_tasks"][1]["candidate_pool"] = [*POOL[1:], POOL[0]]
    assert asked_for(other, {"prompt": path}) != before


@pytest.mark.parametrize(
    ("size", "asked"),
    [(1, 1), (2, 1), (5, 1), (6, 2), (10, 2), (12, 3), (14, 4), (18, 4), (22, 6), (50, 12)],
)
def test_the_number_asked_for_is_rounded_half_to_even(size, asked):
    """A quarter of the pool, at least one: 2.5 -> 2, 3.5 -> 4, 4.5 -> 4, 5.5 -> 6, 12.5 -> 12."""
    data = deepcopy(TASK)
    data["prediction_tasks"] = data["prediction_tasks"][:1]
    data["prediction_tasks"][0]["candidate_pool"] = [f"候选{number}" for number in range(size)]
    script = Script(reply())
    play(script, data)
    assert f"最可能使用的 {asked} 个" in script.prompts[0]
    assert parsed(data).given.steps[0].asked == asked


# Records


def record_of(benchmark: StreamProfile, *completions: Completion, data: JSON = TASK) -> JSON:
    made = parsed(data)
    return recorded(
        benchmark, made, asyncio.run(play_user(benchmark, made, Script(*completions).ask))
    )


MIXED = (
    reply("一", [*POOL[:2], "外", *POOL[3:6]]),
    Completion("", "content_filter", prompt_tokens=9),
    Completion(f"```json\n{reply('三', [POOL[1], POOL[1]]).text}\n```"),
)


def test_a_record_has_the_keys_of_the_authors_first():
    """Their keys, then ours; the truth as they list it, new tags before kept ones."""
    record = record_of(configure(), *MIXED)
    theirs = ["step_id", "prediction", "ground_truth", "metrics", "reasoning", "persona_summary"]
    assert list(record) == ["user_id", "platform", "username", "steps", "usage"]
    assert (record["user_id"], record["platform"], record["username"]) == ("we_1", "Weibo", "小明")
    assert [list(step)[:6] for step in record["steps"]] == [theirs] * 3
    step = record["steps"][0]
    assert list(step["prediction"]) == [*POOL[:2], "外", *POOL[3:6]]
    assert list(step["ground_truth"]) == [POOL[1], POOL[2], POOL[0]]
    assert (step["reasoning"], step["persona_summary"], step["outcome"], step["asked"]) == (
        "依据",
        "一",
        "valid",
        3,
    )
    assert (step["metrics"]["Recall"], step["metrics"]["Error_Peer"]) == (2 / 3, 1.0)
    assert (step["out_of_pool"], step["metrics_at_asked"]["Error_Peer"]) == (1, 0.0)
    assert [one["outcome"] for one in record["steps"]] == ["valid", "content_filter", "valid"]
    assert list(record["steps"][2]["repairs"]) == ["fence", "duplicate_tags"]
    assert record["usage"] == {
        "prompt_tokens": 9,
        "completion_tokens": 0,
        "requests": 3,
        "untold": 2,
    }


def test_a_record_measured_again_is_the_same_bytes():
    """Through JSON and back, with an unscored step, an invalid one, a long one and a repeated
    tag."""
    data = deepcopy(TASK)
    data["prediction_tasks"][0]["meta"] = {"T_keep": [], "T_new": []}
    for settings in ({}, {"persona": False}):
        benchmark = configure(**settings)
        for content in (TASK, data):
            saved = orjson.dumps(record_of(benchmark, *MIXED, data=content))
            again = rescored(benchmark, parsed(content), orjson.loads(saved))
            assert orjson.dumps(again) == saved


def test_measuring_again_follows_the_task_and_forgets_old_values():
    """With another truth the metrics change; fields of ours, also unknown ones, stay."""
    benchmark = configure()
    saved = orjson.loads(
        orjson.dumps(record_of(benchmark, *MIXED) | {"format": 1, "task": "0" * 32})
    )
    other = deepcopy(TASK)
    other["prediction_tasks"][0]["meta"] = {"T_keep": ["外"], "T_new": []}
    other["prediction_tasks"][0]["candidate_pool"] = (
        POOL * 2
    )  # twelve tags, twenty-four entries: six are asked for
    again = rescored(benchmark, parsed(other), saved)
    step = again["steps"][0]
    assert (step["metrics"]["Recall"], step["metrics"]["Recall_Novelty"]) == (1.0, None)
    assert "metrics_at_asked" not in step and step["asked"] == 6
    assert (again["format"], again["task"], again["usage"]) == (1, "0" * 32, saved["usage"])
    assert saved["steps"][0]["metrics"]["Recall"] == 2 / 3, "the saved record itself was changed"


def test_a_step_that_the_tasks_file_lacks_is_refused():
    """User and step are reported."""
    benchmark = configure()
    saved = orjson.loads(orjson.dumps(record_of(benchmark, *MIXED)))
    fewer = TASK | {"prediction_tasks": TASK["prediction_tasks"][:2]}
    with pytest.raises(
        BadInput, match="user we_1: step_id 3 of the results is not in the tasks file"
    ):
        rescored(benchmark, parsed(fewer), saved)


def authors_step(number: int, reasoning: Any, prediction: Sequence[str] = ()) -> JSON:
    """A step as the authors' runner writes it: bare NaN among the metrics, nothing of ours."""
    return {
        "step_id": number,
        "prediction": list(prediction),
        "ground_truth": [*POOL[1:3], *POOL[:1]],
        "metrics": {"Recall": 0.9, "Recall_Novelty": float("nan"), "Error_Decay": float("nan")},
        "reasoning": reasoning,
        "persona_summary": "",
    }


def test_a_record_of_the_authors_runner_is_measured_anew():
    """Repeated tags count once, errors of both kinds are distinguished, NaN is gone; a second time
    changes nothing."""
    steps = [
        authors_step(1, "选这些", [POOL[0], POOL[0], POOL[3]]),
        authors_step(2, "Error: Connection error."),
        authors_step(3, "Error: Expecting value: line 1 column 1 (char 0)"),
    ]
    saved = {"user_id": "we_1", "platform": "weibo", "username": "小明", "steps": steps}
    benchmark = configure()
    again = rescored(benchmark, parsed(TASK), saved)
    written = orjson.dumps(again)
    found = orjson.loads(written)
    assert [step["outcome"] for step in found["steps"]] == [
        "valid",
        "authors_api_failure",
        "authors_no_json",
    ]
    assert found["steps"][0]["prediction"] == [POOL[0], POOL[3]]
    assert found["steps"][0]["metrics"]["Precision"] == 1 / 2
    assert found["steps"][0]["metrics"]["Recall_Stability"] == 1.0
    assert [step["metrics"]["Recall"] for step in found["steps"]] == [1 / 3, 0.0, 0.0]
    assert "usage" not in found and found["steps"][0]["repairs"] == []
    assert orjson.dumps(rescored(benchmark, parsed(TASK), found)) == written


@pytest.mark.parametrize(
    ("reasoning", "outcome"),
    [
        ("Error: Expecting value: line 1 column 1 (char 0)", "authors_no_json"),
        ("Error: Extra data: line 3 column 1 (char 200)", "authors_no_json"),
        ("Error: Unterminated string starting at: line 1 column 20 (char 19)", "authors_no_json"),
        ("Error: Invalid control character at: line 2 column 9 (char 30)", "authors_no_json"),
        ("Error: Invalid \\escape: line 1 column 5 (char 4)", "authors_no_json"),
        ("Error: expected string or bytes-like object, got 'NoneType'", "authors_no_json"),
        ("Error: Connection error.", "authors_api_failure"),
        ("Error: Request timed out.", "authors_api_failure"),
        (
            "Error: Error code: 429 - {'error': {'message': 'Rate limit reached'}}",
            "authors_api_failure",
        ),
        (
            "Error: Error code: 400 - {'error': \"'messages' must contain the word 'json'\"}",
            "authors_api_failure",
        ),
        (
            "Error: Error code: 500 - {'error': 'failed to parse, expecting a value'}",
            "authors_api_failure",
        ),
        ("Error: 'NoneType' object is not subscriptable", "authors_api_failure"),
        ("选这些", "valid"),
        ("", "valid"),
        (None, "valid"),
        (["Error:"], "valid"),
        ("说明 Error: Connection error.", "valid"),
    ],
)
def test_how_a_step_of_the_authors_runner_ended_is_told_by_its_reasoning(reasoning, outcome):
    """The texts are those of Python's `json` and of the `openai` package; an API's own message may
    speak of JSON."""
    line = json.dumps({"user_id": "u", "steps": [authors_step(1, reasoning)]}).encode()
    (step,) = authors.record(line, Where("results", 1))["steps"]
    assert authors_outcome(step) == outcome
    assert authors_outcome(authors_step(1, reasoning, POOL[:1])) == "valid", (
        "it predicted something"
    )


def test_settings_that_change_answers_are_identity():
    """Prompt, persona, structured mode and parse retries, each distinguished."""
    made: list[dict[str, Any]] = [
        {},
        {"persona": False},
        {"structured": "none"},
        {"structured": "auto"},
        {"parse_retries": 0},
    ]
    identities = [configure(**settings).configuration.identity for settings in made]
    assert identities[0] == {
        "prompt": "own",
        "persona": True,
        "structured": "json_object",
        "parse_retries": 2,
    }
    assert len({orjson.dumps(identity) for identity in identities}) == len(made)
