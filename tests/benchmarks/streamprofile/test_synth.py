"""Synthetic tasks: their form, the pool rule, what the sets mean, and that they are worth
predicting."""

from __future__ import annotations

import tracemalloc
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from random import Random
from statistics import fmean, pstdev
from typing import Any

import orjson
import pytest

from harness.benchmarks.streamprofile.benchmark import StreamProfile
from harness.benchmarks.streamprofile.synth import MAX_STEPS, VOCABULARIES, generate, step_count
from harness.benchmarks.streamprofile.task import PLATFORMS
from harness.benchmarks.tasks import parse
from harness.errors import BadInput
from harness.model import Where
from tests.support import ROOT

SAMPLE = ROOT / "harness" / "sample"
SETS = ("T_keep", "T_new", "D_decay", "D_cluster", "D_viral", "D_random")
platforms = pytest.mark.parametrize("platform", sorted(PLATFORMS))


@cache
def sample(platform: str) -> tuple[dict[str, Any], ...]:
    lines = (SAMPLE / f"{platform}_inference_tasks.jsonl").read_bytes().splitlines()
    return tuple(orjson.loads(line) for line in lines)


def all_steps(platform: str) -> list[dict[str, Any]]:
    return [step for user in sample(platform) for step in user["prediction_tasks"]]


def tags_of(posts_text: str) -> list[str]:
    """Tags of a batch, newest post first, each once."""
    lines = [
        line[6:].split(", ")
        for line in reversed(posts_text.split("\n"))
        if line.startswith("Tags: ")
    ]
    return list(dict.fromkeys(tag for line in lines for tag in line))


@platforms
def test_vocabulary_can_be_taken_apart_again(platform):
    """Every platform has 24 topics of 14 tags, no tag twice, none with a character that separates
    tags."""
    words = VOCABULARIES[platform]
    assert [len(topic.tags) for topic in words.topics] == [14] * 24
    everything = words.tags + words.hot
    assert len(set(everything)) == len(everything)
    assert not [tag for tag in everything if set(tag) & set(",，、\n# ")]


@platforms
def test_every_line_is_a_valid_task(platform):
    """The tasks parser takes every line, and users, steps and platform are what was asked for."""
    lines = list(generate(platform, 20, 3, 4))
    tasks = [
        parse(StreamProfile(), line, Where("made", number), platform)
        for number, line in enumerate(lines, 1)
    ]
    assert len({made.key for made in tasks}) == 20
    assert {made.given.platform for made in tasks} == {platform}
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)


@platforms
def test_users_have_the_fields_of_the_published_form_and_a_label(platform):
    """Keys are those of docs/design.md, section 8, plus `synthetic`; the bio is a text, null or
    absent."""
    users = sample(platform)
    fixed = {"user_id", "platform", "username", "total_steps", "prediction_tasks", "synthetic"}
    assert all(user.keys() - {"bio"} == fixed and user["synthetic"] is True for user in users)
    assert {type(user.get("bio", 0)) for user in users} == {str, type(None), int}
    for user in users:
        steps = user["prediction_tasks"]
        assert [step["step_id"] for step in steps] == list(range(1, user["total_steps"] + 1))
        assert {step["total_steps"] for step in steps} == {user["total_steps"]}
        assert all(step["date_input"] < step["date_target"] for step in steps)
        assert all(a["date_target"] == b["date_input"] for a, b in pairwise(steps))


@platforms
def test_pool_is_the_disjoint_union_of_its_kinds_at_the_exact_size(platform):
    """The pool holds each tag of the six sets once and clip(4 x truth, 10, 50) tags in all."""
    for step in all_steps(platform):
        union = [tag for name in SETS for tag in step["meta"][name]]
        pool = step["candidate_pool"]
        truth = step["ground_truth"]["all_tags"]
        assert sorted(pool) == sorted(union)
        assert len(set(pool)) == len(pool) == min(50, max(10, 4 * len(truth)))


@platforms
def test_truth_and_decay_are_read_off_consecutive_batches(platform):
    """Truth is the next batch: kept tags stand in both, new ones in it alone, decayed ones in the
    current alone."""
    for user in sample(platform):
        for step, following in pairwise(user["prediction_tasks"]):
            now, then = set(tags_of(step["posts_text"])), set(tags_of(following["posts_text"]))
            assert set(step["ground_truth"]["all_tags"]) == then
            assert (
                set(step["meta"]["T_keep"]) == now & then == set(step["ground_truth"]["keep_tags"])
            )
            assert set(step["meta"]["T_new"]) == then - now == set(step["ground_truth"]["new_tags"])
            assert set(step["meta"]["D_decay"]) <= now - then


@platforms
def test_other_distractors_come_from_where_their_names_say(platform):
    """Cluster distractors share a topic with the truth, random ones are vocabulary; none is in the
    current batch."""
    words = VOCABULARIES[platform]
    for step in all_steps(platform):
        meta = step["meta"]
        near = {words.topic_index.get(tag) for tag in step["ground_truth"]["all_tags"]}
        assert {words.topic_index[tag] for tag in meta["D_cluster"]} <= near
        assert set(meta["D_random"]) <= set(words.tags)
        assert not set(tags_of(step["posts_text"])) & {
            *meta["D_cluster"],
            *meta["D_viral"],
            *meta["D_random"],
        }


@pytest.mark.slow
def test_one_day_has_the_same_trends_for_all_users():
    """Viral distractors of one day, from two hundred users, are few enough to be one daily list."""
    by_day: dict[str, set[str]] = {}
    seen: dict[str, int] = {}
    for line in generate("weibo", 200, 1, 6):
        for step in orjson.loads(line)["prediction_tasks"]:
            by_day.setdefault(step["date_target"], set()).update(step["meta"]["D_viral"])
            seen[step["date_target"]] = seen.get(step["date_target"], 0) + len(
                step["meta"]["D_viral"]
            )
    assert max(seen.values()) > 30
    assert max(len(tags) for tags in by_day.values()) <= 20
    assert len(set().union(*by_day.values())) > 100


@platforms
def test_truth_varies_in_size_and_in_kind(platform):
    """Ground truths go from one or two tags to a dozen; either part is empty at times, never
    both."""
    truths = [step["ground_truth"] for step in all_steps(platform)]
    sizes = {len(truth["all_tags"]) for truth in truths}
    assert min(sizes) == 1
    assert 12 <= max(sizes) <= 14
    assert len(sizes) >= 12
    assert any(not truth["keep_tags"] for truth in truths)
    assert any(not truth["new_tags"] for truth in truths)


def lengths(platform: str, seed: int) -> list[int]:
    return [orjson.loads(line)["total_steps"] for line in generate(platform, 20, seed, 3)]


def test_same_seed_gives_the_same_bytes():
    """Lines depend on the arguments alone."""
    assert list(generate("douban", 5, 7, 3)) == list(generate("douban", 5, 7, 3))


def test_seed_and_platform_each_give_other_users():
    """Even the lengths of chains, which no vocabulary touches, differ with the seed and with the
    platform."""
    assert lengths("douban", 7) != lengths("douban", 8)
    assert lengths("douban", 7) != lengths("zhihu", 7)


def test_smaller_file_is_a_prefix_of_a_larger_one():
    """A user does not depend on how many users there are."""
    assert list(generate("toutiao", 15, 7, 5))[:6] == list(generate("toutiao", 6, 7, 5))


def peak_memory(users: int) -> int:
    """Bytes held at most while a file is made and its lines are dropped."""
    tracemalloc.start()
    try:
        for _ in generate("weibo", users, 1, 1):
            pass
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_users():
    """Four times the users (half a megabyte more of lines) take less than 100 kB more: the table of
    days, no lines."""
    assert peak_memory(400) - peak_memory(100) < 100_000


def test_a_mean_of_one_gives_everybody_one_step():
    """`--steps 1` is exact, not an average."""
    made = [
        parse(StreamProfile(), line, Where("made", 1), "zhihu")
        for line in generate("zhihu", 50, 1, 1)
    ]
    assert {len(user.given.steps) for user in made} == {1}


@pytest.mark.parametrize("mean", [2, 6, 20])
def test_lengths_of_chains_have_the_mean_of_their_law(mean):
    """20,000 lengths agree, within 4.5 standard errors, with the closed form of a geometric mixture
    cut at 40.

    The mean of 1 + a geometric number with chance q of going on, cut at 40, is (1 - q^40) / (1 -
    q).
    """
    rng = Random(0)
    lengths = [step_count(rng, mean) for _ in range(20_000)]
    expected = 0.0
    for share, factor in ((0.8, 0.65), (0.2, 2.4)):
        q = factor * (mean - 1) / (1 + factor * (mean - 1))
        expected += share * (1 - q**40) / (1 - q)
    assert abs(fmean(lengths) - expected) < 4.5 * pstdev(lengths) / 20_000**0.5
    assert (min(lengths), max(lengths) <= MAX_STEPS) == (1, True)


def test_most_chains_are_short_and_a_few_very_long():
    """Around 6 steps a third of the users have one or two, and some reach the cap of 40."""
    rng = Random(1)
    lengths = [step_count(rng, 6) for _ in range(5_000)]
    assert sum(length <= 2 for length in lengths) > 1_500
    assert lengths.count(MAX_STEPS) > 10


@pytest.mark.parametrize("mean_steps", [0.5, 41])
def test_bad_arguments_are_refused_at_once(mean_steps):
    """What cannot be made is said before the first line is asked for."""
    with pytest.raises(BadInput, match="steps"):
        generate("weibo", 1, 1, mean_steps)


@platforms
def test_shipped_sample_is_what_its_readme_says(platform):
    """The files of harness/sample are 40 users, seed 2026, about 6 steps, byte for byte, and
    modest."""
    shipped = (SAMPLE / f"{platform}_inference_tasks.jsonl").read_bytes()
    assert shipped == b"".join(generate(platform, 40, 2026, 6))
    assert len(shipped) < 1_200_000


def recall(truth: Sequence[str], predicted: Sequence[str]) -> float:
    return len(set(truth) & set(predicted)) / len(truth)


def asked(step: dict[str, Any]) -> int:
    return max(1, round(0.25 * len(step["candidate_pool"])))


def from_newest_posts(step: dict[str, Any]) -> list[str]:
    return [tag for tag in tags_of(step["posts_text"]) if tag in step["candidate_pool"]][
        : asked(step)
    ]


@platforms
def test_newest_posts_predict_far_better_than_chance_and_not_perfectly(platform):
    """Recency finds 0.4 to 0.55 of the truth, a random pick about 0.25; of the kept tags it finds
    most."""
    rng = Random(0)
    recency, chance, kept_recency, kept_chance = [], [], [], []
    for step in all_steps(platform):
        truth, kept = step["ground_truth"]["all_tags"], step["meta"]["T_keep"]
        newest, random = from_newest_posts(step), rng.sample(step["candidate_pool"], asked(step))
        recency.append(recall(truth, newest))
        chance.append(recall(truth, random))
        if kept:
            kept_recency.append(recall(kept, newest))
            kept_chance.append(recall(kept, random))
    assert 0.39 < fmean(recency) < 0.56
    assert 0.2 < fmean(chance) < 0.3
    assert fmean(kept_recency) > fmean(kept_chance) + 0.4
    assert fmean(kept_recency) < 0.97


def test_history_foretells_about_half_of_what_is_new():
    """From step 2 on, half of the new tags stood in an earlier batch, more than twice as many as of
    their peers."""
    new, peers = [], []
    for user in (user for platform in sorted(PLATFORMS) for user in sample(platform)):
        earlier: set[str] = set()
        for step in user["prediction_tasks"]:
            if earlier:
                new += [tag in earlier for tag in step["meta"]["T_new"]]
                peers += [tag in earlier for tag in step["meta"]["D_cluster"]]
            earlier |= set(tags_of(step["posts_text"]))
    assert 0.46 < fmean(new) < 0.7
    assert fmean(new) > 2 * fmean(peers)
