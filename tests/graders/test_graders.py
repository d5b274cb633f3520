"""Ready-made parts of benchmarks: answers, judges, pass^k, agreement."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import orjson
import pytest

from harness.chat import Chat
from harness.errors import BadInput, InvalidReply
from harness.graders import (
    PassHatK,
    Rubric,
    choice_letter,
    exact_match,
    human_agreement,
    krippendorff_alpha,
    number_in,
    numeric_match,
    pass_hat_k,
    prefer,
    ratings_in,
)
from harness.model import Completion, Request

CHOICES = {
    "B": "B",
    "(b) is wrong. The answer is (C).": "C",
    "答案：Ｂ": "B",
    "答案是 D。": "D",
    "**A**": "A",
    r"so \boxed{D}": "D",
    "A cat sat on the mat, so **B** it is": "B",
    "Answer: B\n\nBecause a cat is an animal.": "B",
    "The answer is **C**.": "C",
    "选项C正确": "C",
}


@pytest.mark.parametrize("text", CHOICES)
def test_letter_of_a_choice_is_read(text):
    assert choice_letter(text) == CHOICES[text]


@pytest.mark.parametrize(
    "text",
    ["", "A cat sat on the mat", "I think so", "Answer: B, or answer: C", "E", "both (A) and (B)"],
)
def test_reply_without_one_letter_is_no_choice(text):
    """A guess would be a score that nobody gave."""
    with pytest.raises(InvalidReply, match="A, B, C, D"):
        choice_letter(text)


def test_numbers_and_texts_match():
    """The last number is the result; full-width digits and thousands are read."""
    assert number_in("First 3, then 4: in all 1,234.5 元") == 1234.5
    assert number_in("共４２") == 42
    assert numeric_match(number_in("about 3.14"), math.pi, 0.01) == 1.0
    assert numeric_match(3.0, math.pi, 0.01) == 0.0
    with pytest.raises(InvalidReply):
        number_in("none")
    assert exact_match(" 北京\n", ("北京", "Beijing")) == 1.0
    assert exact_match("beijing", "Beijing") == 0.0


CANONICAL = {  # Krippendorff 2011, section C: four observers, twelve units
    1: (1, 1, 1),
    2: (2, 2, 3, 2),
    3: (3, 3, 3, 3),
    4: (3, 3, 3, 3),
    5: (2, 2, 2, 2),
    6: (1, 2, 3, 4),
    7: (4, 4, 4, 4),
    8: (1, 1, 2, 1),
    9: (2, 2, 2, 2),
    10: (5, 5, 5),
    11: (1, 1),
    12: (3,),
}


@pytest.mark.parametrize(
    ("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)]
)
def test_alpha_is_that_of_the_published_example(level, alpha):
    """The example has missing ratings, and a unit with one."""
    found = krippendorff_alpha(CANONICAL.values(), level)
    assert found is not None and round(found, 3) == alpha


def test_alpha_of_nothing_to_compare_is_none():
    assert krippendorff_alpha([(1,), (2,)]) is None
    assert krippendorff_alpha([(1, 1), (1, 1)]) is None


def test_pass_hat_k_is_the_share_of_draws_that_all_succeed():
    """As counted over all draws of k tries."""
    for tries in range(1, 7):
        for successes in range(tries + 1):
            outcomes = [place < successes for place in range(tries)]
            for k in range(1, tries + 1):
                draws = [all(draw) for draw in combinations(outcomes, k)]
                assert pass_hat_k(successes, tries, k) == pytest.approx(sum(draws) / len(draws))
    with pytest.raises(ValueError, match="at least 3"):
        pass_hat_k(1, 2, 3)


def test_pass_hat_k_leaves_out_users_with_fewer_repeats():
    """Two users with two repeats, one with one."""
    scoring = PassHatK("Success", ks=(1, 2))
    pairs = [("a", 1), ("a", 1), ("b", 1), ("b", 0), ("c", 1)]
    records = [{"user_id": user, "metrics": {"Success": value}} for user, value in pairs]
    tallies = [scoring.tallied(records[:2])[1], scoring.tallied(records[2:])[1]]
    assert scoring.further_figures(tallies[0] + tallies[1]) == {
        "pass^1": pytest.approx((1 + 0.5 + 1) / 3),
        "pass^2": pytest.approx(0.5),
    }


class Judge:
    """A judge that likes what a function says; `prompts` are what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.prompts: list[str] = []
        self.roles: list[str] = []

    async def ask(self, request: Request) -> Completion:
        self.prompts.append(request.messages[-1].text)
        self.roles.append(request.role)
        return Completion(orjson.dumps(self.answer(self.prompts[-1])).decode())


@pytest.mark.anyio
async def test_pairwise_judge_is_asked_in_both_orders():
    """One that prefers the longer answer is consistent; one that prefers a place is not."""

    def longer(prompt: str) -> dict[str, int]:
        return {"better": 1 if prompt.index("猫猫猫") < prompt.index("[Answer 2]") else 2}

    judge = Judge(longer)
    chat = Chat(judge.ask)
    assert (await prefer(chat, "t", "猫猫猫", "狗")).value == 1.0
    assert (await prefer(chat, "t", "狗", "猫猫猫")).value == 0.0
    assert judge.roles == ["judge"] * 4
    for place, value in ((1, 0.5), (2, 0.5), (0, 0.5)):
        found = await prefer(
            Chat(Judge(lambda _, place=place: {"better": place}).ask), "t", "a", "b"
        )
        assert found.value == value and found.consistent == (place == 0)


@pytest.mark.anyio
async def test_rubric_takes_whole_grades_alone():
    """Another grade is asked for again, and after all retries belongs to nobody."""
    rubric = Rubric({"clear": "easy to read", "true": "no false claim"})
    good = Judge(lambda _: {"reason": "", "clear": 4, "true": 5})
    assert await rubric.grade(Chat(good.ask), "t", "a") == {"clear": 4, "true": 5}
    assert set(rubric.schema["required"]) == {"reason", "clear", "true"}
    for grade in (6, 0, 4.5, True, "4", None):
        bad = Judge(lambda _, grade=grade: {"clear": grade, "true": 5})
        with pytest.raises(InvalidReply) as raised:
            await rubric.grade(Chat(bad.ask), "t", "a")
        assert raised.value.role == "judge" and len(bad.prompts) > 1


def test_ratings_of_people_stand_next_to_a_judge(tmp_path):
    """Users whom one side alone has rated are left out; alpha and bias are of the others."""
    path = tmp_path / "ratings.csv"
    path.write_text("﻿user_id,rater,rating\n用户1,x,1\n用户1,y,2\nu2,x,4\nu2,y,4\nu3,x,5\n", "utf-8")
    people = ratings_in(path)
    assert people["用户1"] == {"x": 1.0, "y": 2.0}
    found = human_agreement({"用户1": 2.5, "u2": 4.0, "u4": 1.0}, people)
    assert found.users == 2
    assert found.judge_above_people == pytest.approx(0.5)
    assert found.people_alpha == pytest.approx(krippendorff_alpha([(1, 2), (4, 4)]))
    assert "2 users" in found.table().columns
    assert human_agreement({}, people).judge_alpha is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("user_id,rating\n", "line 1: expected the columns user_id, rater, rating"),
        ("user_id,rater,rating\nu,x,good\n", "line 2, field rating: expected a number"),
        ("user_id,rater,rating\nu,x,1\nu,x,2\n", "line 3: x has rated u before"),
        ("user_id,rater,rating\nu,x,inf\n", "finite"),
    ],
)
def test_ratings_that_cannot_be_read_name_file_and_line(tmp_path, text, words):
    path = tmp_path / "ratings.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        ratings_in(path)
