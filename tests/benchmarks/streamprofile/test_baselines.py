"""Baseline models read prompts as text: pure tests, with our own prompt and with a foreign one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
import pytest

from harness.benchmarks.streamprofile.baselines import BASELINES, MAX_CARRIED_TAGS, read
from harness.benchmarks.streamprofile.prompt import TemplatePrompt
from harness.benchmarks.streamprofile.task import StepInput, UserInput
from tests.support import ROOT
from tests.support.scripted import answer

PROMPT = TemplatePrompt()
POSTS = "[1] Content: 旧动态\nTags: 电影, 猫\n[2] Content: 新动态\nTags: 咖啡，跑步、电影"
POOL = ("跑步", "股票", "猫", "电影", "咖啡", "汽车", "围棋", "露营")


def own_prompt(posts: str, pool: tuple[str, ...], persona: str = "") -> list[dict[str, Any]]:
    """Messages as our template makes them."""
    step = StepInput(step_id=2, total_steps=3, posts_text=posts, pool=pool)
    given = UserInput("u1", "weibo", "weibo", "小王", '["简介"]', (step,))
    return [
        {"role": message.role, "content": message.content}
        for message in PROMPT.messages(given, step, persona)
    ]


def foreign_prompt(posts: str, pool: tuple[str, ...]) -> list[dict[str, Any]]:
    """Another template: English, the pool before the posts, no number asked, no persona section."""
    text = (
        f"Pick tags from {orjson.dumps(pool).decode()} for this user.\n{posts}\nReply like"
        ' {"predicted_tags": ["x"]}'
    )
    return [{"role": "user", "content": text}]


def ask(model: str, messages: list[dict[str, Any]], seed: int = 0) -> dict[str, Any]:
    reply: dict[str, Any] = orjson.loads(answer(model, messages, seed))
    return reply


@pytest.mark.parametrize("model", BASELINES)
def test_reply_has_the_three_fields_and_the_asked_number_of_pool_tags(model):
    """Every baseline answers as a model is asked to: three fields, N distinct tags of the pool."""
    reply = ask(model, own_prompt(POSTS, POOL))
    assert list(reply) == ["persona_summary", "predicted_tags", "reasoning"]
    assert len(set(reply["predicted_tags"])) == len(reply["predicted_tags"]) == 2
    assert set(reply["predicted_tags"]) <= set(POOL)
    assert reply["persona_summary"] and reply["reasoning"]


def test_example_reply_and_brackets_in_posts_are_not_taken_for_the_pool():
    """The pool is found although bio, posts and the format example hold brackets and arrays too."""
    posts = (
        '[1] Content: [视频] ["甲","乙","丙","丁"] 看[1] Content:'
        ' 和["未闭合\n["子","丑","寅"]\nTags: 猫'
    )
    reading = read(own_prompt(posts, ("猫", "狗"))[1]["content"])
    assert reading.pool == ("猫", "狗")
    assert reading.posts == (("猫",),)


def test_escapes_in_the_pool_are_decoded():
    """A pool tag with a quote, a bracket or a backslash comes back as it was given."""
    pool = ('说"好"', "a]b", "反\\斜", "换\n行")
    assert read(own_prompt(POSTS, pool)[1]["content"]).pool == pool


def test_recency_ranks_newest_post_then_older_posts_then_persona_then_pool_order():
    """Tags of post 2 come before those of post 1, then the carried ones, then the pool in its
    order."""
    pool = (*POOL, *(f"填{n}" for n in range(20)))  # 28 tags, 7 asked
    reply = ask("baseline/recency", own_prompt(POSTS, pool, "近期标签：露营、不在候选"))
    assert reply["predicted_tags"] == ["咖啡", "跑步", "电影", "猫", "露营", "股票", "汽车"]


def test_recency_summary_lists_tags_newest_first_and_carries_earlier_ones():
    """Its own summary of the step before is found in our prompt and goes on behind the new tags."""
    first = ask("baseline/recency", own_prompt("[1] Content: x\nTags: 书法, 猫", POOL))
    assert first["persona_summary"] == "近期标签：书法、猫"
    second = ask("baseline/recency", own_prompt(POSTS, POOL, first["persona_summary"]))
    assert second["persona_summary"] == "近期标签：咖啡、跑步、电影、猫、书法"


def test_frequency_counts_posts_and_carried_counts_with_ties_in_pool_order():
    """Posts give 电影 2 and 咖啡, 跑步, 猫 1; the persona adds 3 to 围棋 and 1 to 猫."""
    pool = (*POOL, *(f"填{n}" for n in range(12)))  # 20 tags, 5 asked
    reply = ask("baseline/frequency", own_prompt(POSTS, pool, "标签频次：围棋×3、猫×1、坏×、×2"))
    assert reply["predicted_tags"] == ["围棋", "猫", "电影", "跑步", "咖啡"]
    assert reply["persona_summary"] == "标签频次：围棋×3、电影×2、猫×2、咖啡×1、跑步×1"


@pytest.mark.parametrize("model", ["baseline/recency", "baseline/frequency"])
def test_summary_is_bounded(model):
    """A summary carries MAX_CARRIED_TAGS tags at most, the newest among equals, so that prompts do not
    grow."""
    posts = "\n".join([f"[{n}] Content: x\nTags: 标{n}" for n in range(1, 61)])
    listed = ask(model, own_prompt(posts, POOL))["persona_summary"].partition("：")[2].split("、")
    assert len(listed) == MAX_CARRIED_TAGS
    assert listed[0].startswith("标60") and listed[-1].startswith("标21")


def test_random_depends_on_seed_and_prompt_alone():
    """The same seed and prompt give the same tags; another seed or another prompt gives others."""
    pool = tuple([f"标{n}" for n in range(50)])
    reply = answer("baseline/random", own_prompt(POSTS, pool), 1)
    assert answer("baseline/random", own_prompt(POSTS, pool), 1) == reply
    assert answer("baseline/random", own_prompt(POSTS, pool), 2) != reply
    assert answer("baseline/random", own_prompt(POSTS + " ", pool), 1) != reply


def test_foreign_prompt_is_read_too():
    """Any text with Tags lines and a JSON array works; the number falls back to a quarter of the
    pool, half to even."""
    pool = (*POOL, "读书", "钓鱼")  # 0.25 * 10 = 2.5, rounded to 2
    assert ask("baseline/recency", foreign_prompt(POSTS, pool))["predicted_tags"] == [
        "咖啡",
        "跑步",
    ]
    assert ask("baseline/frequency", foreign_prompt(POSTS, pool))["predicted_tags"] == [
        "电影",
        "跑步",
    ]
    assert ask("baseline/recency", foreign_prompt("", ("甲",)))["predicted_tags"] == ["甲"]


def test_post_without_tags_hides_nothing():
    """The post before and the pool behind are read although a post in the middle and the last have
    no Tags line."""
    posts = (
        "[1] Content: x\nTags: 猫\n[2] Content: [] 无\n[3] Content: y\nTags: 围棋\n[4] Content: 无"
    )
    reading = read(own_prompt(posts, POOL, "近期标签：露营")[1]["content"])
    assert (reading.posts, reading.pool, reading.asked) == ((("围棋",), ("猫",)), POOL, 2)


@pytest.mark.parametrize("model", BASELINES)
def test_prompt_without_pool_is_answered_empty_with_the_reason(model):
    """No JSON array of strings: no prediction, and the reasoning says why."""
    reply = ask(model, [{"role": "user", "content": "你好 [1] [] [2, 3]"}])
    assert reply["predicted_tags"] == []
    assert "候选标签" in reply["reasoning"]


def test_baselines_are_served_without_the_libraries_of_benchmarks():
    """Maps need an extra that may be missing, and a baseline reads text alone."""
    code = """
import sys
sys.modules.update(dict.fromkeys(("numpy", "scipy", "shapely", "pycityproto", "google.protobuf")))
from harness.benchmarks import registry
print(*registry.baselines())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert {"baseline/recency", "baseline/commuter"} <= set(done.stdout.split())
