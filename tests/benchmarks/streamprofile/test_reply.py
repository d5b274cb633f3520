"""From the text of a completion to an answer, a row of docs/design.md, section 6, at a time."""

from __future__ import annotations

import threading
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.benchmarks.parsing import FINAL_REASONS
from harness.benchmarks.streamprofile import reply
from harness.benchmarks.streamprofile.reply import StepAnswer
from harness.model import Completion
from tests.support import examples
from tests.support.readings import Invalid, reading_of

POOL = ("猫", "狗", "茶", "书, 与画", "如何看待猫，为什么？")
GOOD = '{"persona_summary": "爱猫", "predicted_tags": ["猫", "茶"], "reasoning": "常写猫"}'


def read(completion: Completion, pool: tuple[str, ...]) -> StepAnswer | Invalid:
    return reading_of(reply.read, completion, pool)


def readable(text: str) -> StepAnswer:
    reading = read(Completion(text), POOL)
    assert isinstance(reading, StepAnswer), reading
    return reading


def unreadable(text: str, **more: Any) -> Invalid:
    reading = read(Completion(text, **more), POOL)
    assert isinstance(reading, Invalid), reading
    return reading


def tags(value: Any) -> StepAnswer:
    """The reading of a clean reply with these `predicted_tags`."""
    return readable(orjson.dumps({"predicted_tags": value}).decode())


# Clean replies


@pytest.mark.parametrize("text", [GOOD, f"\n \u3000{GOOD}\n"], ids=["bare", "white space"])
def test_a_clean_reply_is_read_without_a_repair(text):
    """Persona, tags in the model's order, reasoning."""
    assert readable(text) == StepAnswer("爱猫", ("猫", "茶"), "常写猫", ())


def test_persona_and_reasoning_may_be_missing_and_more_may_be_there():
    """Only `predicted_tags` is needed; what else the object holds is nobody's business."""
    assert readable('{"predicted_tags": [], "置信度": [[1]]}') == StepAnswer("", (), "", ())
    assert (
        readable('{"predicted_tags": ["猫"], "persona_summary": null, "reasoning": null}').repairs
        == ()
    )


@pytest.mark.parametrize("finish_reason", ["stop", None, "", "eos", "tool_calls"])
def test_other_finish_reasons_do_not_matter(finish_reason):
    """Providers have words of their own, and some have none."""
    assert isinstance(read(Completion(GOOD, finish_reason), POOL), StepAnswer)


# Repairs by content


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        (f"```json\n{GOOD}\n```", ("fence",)),
        (f"```\r\n{GOOD}\r\n```", ("fence",)),
        (f"```json\n{GOOD}", ("prose",)),
        (f"好的：\n```JSON\n{GOOD}\n```\n以上。", ("fence",)),
        (f"```\n猫、狗\n```\n```json\n{GOOD}\n```", ("fence",)),
        (f"```json\n```\n{GOOD}", ("prose",)),
        (f"根据动态判断如下：{GOOD}", ("prose",)),
        (f"{GOOD}\n希望“有用”。", ("prose",)),
        (f"\ufeff{GOOD}", ("prose",)),
        (f"从{{画像}}与{{动态}}看：\n{GOOD}", ("prose",)),
        (f"<think>先看 {{猫}}，\n再看 [狗]</think>\n{GOOD}", ("thinking",)),
        (f"先看 {{'猫'}}，再看 [\"狗\"]\n</think>\n\n{GOOD}", ("thinking",)),
        (f"<think></think>\n```json\n{GOOD}\n```", ("thinking", "fence")),
        (f"<think>没有收尾的想法\n{GOOD}", ("prose",)),
        (GOOD[:-1], ("syntax",)),
        (GOOD[:-2], ("syntax",)),
        (GOOD.replace("]", ",]"), ("syntax",)),
        (GOOD.replace('"茶"]', '"茶"').replace("常写猫", "常写"), None),
        (GOOD.replace('"', "'"), ("syntax",)),
        (
            "{“persona_summary”: “爱猫”, “predicted_tags”: [“猫”, “茶”], “reasoning”: “常写猫”}",
            ("syntax",),
        ),
        (f"```json\n{GOOD[:-1]}\n```", ("fence", "syntax")),
    ],
)
def test_a_wrapped_or_broken_reply_is_repaired_by_content(text, repairs):
    """Fences, prose, thoughts and slips of syntax come off, and each is named once."""
    reading = readable(text)
    assert reading.persona == "爱猫"
    assert reading.tags[0] == "猫"
    if repairs is None:
        assert "syntax" in reading.repairs
    else:
        assert (reading.tags, reading.reasoning, reading.repairs) == (
            ("猫", "茶"),
            "常写猫",
            repairs,
        )


def test_braces_in_prose_do_not_cost_the_persona():
    """The object is looked for where a brace is followed by a quote."""
    assert readable(f"{{注}} {GOOD[:-1]},}}".removeprefix("{注}")).persona == "爱猫"
    assert readable(f"注{{一}}：{GOOD}") == StepAnswer("爱猫", ("猫", "茶"), "常写猫", ("prose",))


def test_an_object_without_an_end_keeps_what_follows_its_last_inner_brace():
    """What stands after the last closing brace is only prose where no string is in it."""
    text = '{"persona_summary": "喜欢{科技}", "predicted_tags": ["猫", "狗"'
    assert readable(text).tags == ("猫", "狗")
    assert readable('{"predicted_tags": [{"tag": "猫"}, {"tag": "狗"').tags == ("猫", "狗")


def test_thoughts_alone_are_no_answer():
    """An object in the thoughts is not what was answered."""
    assert unreadable(f"<think>{GOOD}</think>").kind == "no_json"
    assert unreadable(f"<think>{GOOD}</think>\n我选猫。").kind == "no_json"


def test_the_end_of_thoughts_or_a_fence_inside_an_object_is_text():
    """A reply that is JSON is not taken apart, and one that begins as an object has no thoughts
    before it."""
    assert readable('{"predicted_tags": ["</think>{x}", "猫",]}').tags == ("</think>{x}", "猫")
    assert readable('{"predicted_tags": ["```", "</think>{x}"]}').tags == ("```", "</think>{x}")


DRAFT = GOOD.replace("爱猫", "草稿")


@pytest.mark.parametrize(
    "text",
    [
        f"<think>草稿：{DRAFT}</think>{GOOD}",
        f"<think>{DRAFT}</think>\n{GOOD}",
        f"{DRAFT}\n不对。</think>\n{GOOD}",
        f"[先看]{DRAFT}</think>```json\n{GOOD}\n```",
        f"<think>一<think>二</think>三，{DRAFT}</think>\n{GOOD}",
        f"<think>一</think>\n<think>二：{DRAFT}</think>\n{GOOD}",
        f"<think>一</think>\n{DRAFT}\n再想想。</think>\n{GOOD}",
        "<think>一</think>\n" * 40 + GOOD,
        f"<think>一</think>\n<think>{DRAFT}</think>\n答：{GOOD}",
    ],
)
def test_the_answer_is_what_follows_the_last_thoughts(text):
    """Thoughts hold drafts, and other thoughts: none of them is the answer."""
    reading = readable(text)
    assert (reading.persona, reading.tags) == ("爱猫", ("猫", "茶"))
    assert "thinking" in reading.repairs and "syntax" not in reading.repairs


def test_the_end_of_thoughts_in_a_string_of_the_answer_is_text():
    """Tags and personas may quote anything; JSON and nothing else after the thoughts is the answer
    as a whole."""
    answer = '{"persona_summary": "写</think>{x}", "predicted_tags": ["猫"]}'
    assert readable(f"<think>一</think>二</think>\n{answer}").persona == "写</think>{x}"
    assert readable(f"<think>一</think>\n```json\n{answer}\n```").persona == "写</think>{x}"


def test_thoughts_without_end_and_without_measure_take_no_time():
    """A model that repeats itself may close its thoughts as often as it likes."""
    assert unreadable("</think>" * 200_000).kind == "no_json"
    assert unreadable("{" + "</think>" * 200_000).kind == "no_json"


# Replies that cannot be used


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        (" \n\t\u3000", "empty"),
        ("我选猫和茶。", "no_json"),
        ("抱歉，我不能回答这个问题。", "no_json"),
        ("null", "no_json"),
        ("{}", "no_tags"),
        ("{", "no_json"),
        ("```json\n```", "no_json"),
        ('["猫", "茶"]', "not_object"),
        (f"[{GOOD}]", "not_object"),
        ('```json\n["猫"]\n```', "not_object"),
        ('"猫"', "not_object"),
        ("7", "not_object"),
        ("true", "not_object"),
        ('{"persona_summary": "爱猫"}', "no_tags"),
        ('{"tags": ["猫"]}', "no_tags"),
        ('{"predicted_tags": null}', "no_tags"),
        ('{"predicted_tags": {"1": "猫"}}', "no_tags"),
        ('{"predicted_tags": 7}', "no_tags"),
        ('{"predicted_tags": true}', "no_tags"),
        ('{"predicted_tags": ""}', "no_tags"),
        ('{"predicted_tags": " ，, "}', "no_tags"),
        ('{"predicted_tags": [null, true, [["猫"]], {"id": 3}]}', "no_tags"),
    ],
)
def test_an_unusable_reply_has_its_kind_and_may_be_asked_again(text, kind):
    """Each says in Chinese what was wrong, for the model to read."""
    reading = unreadable(text)
    assert (reading.kind, reading.final) == (kind, False)
    assert reading.why and not reading.why.isascii()


@pytest.mark.parametrize("text", ["", "抱歉", GOOD])
def test_a_refusal_is_a_refusal_whatever_stands_beside_it(text):
    """The endpoint itself says that the model refused; it may be asked again."""
    assert unreadable(text, refusal="我不能") == unreadable("", refusal="x")
    assert (unreadable(text, refusal="我不能").kind, unreadable(text, refusal="我不能").final) == (
        "refusal",
        False,
    )


@pytest.mark.parametrize("reason", ["length", "only_thinking", "content_filter", "context_length"])
@pytest.mark.parametrize("text", ["", GOOD, GOOD[:-2], f"```json\n{GOOD}\n```"])
def test_a_final_reason_is_never_repaired_nor_asked_again(reason, text):
    """However good the text looks: what was cut off or filtered is no answer, under its own
    kind."""
    for refusal in (None, "我不能"):
        reading = unreadable(text, finish_reason=reason, refusal=refusal)
        assert (reading.kind, reading.final) == (reason, True)


def test_every_final_reason_is_named_here():
    """Another one needs a row in the test above."""
    assert set(FINAL_REASONS) == {"length", "only_thinking", "content_filter", "context_length"}


@pytest.mark.parametrize("text", ["<think>先看", f"\n<think>\n草稿：{GOOD}", "<think>"])
def test_thoughts_cut_off_before_the_answer_are_a_kind_of_their_own(text):
    """Where thoughts stand in the text, too: no answer began. Once they have ended, it is the
    answer that was cut."""
    assert unreadable(text, finish_reason="length") == Invalid("only_thinking", "", final=True)
    assert unreadable(f"{text}</think>", finish_reason="length").kind == "length"
    assert unreadable(text.replace("<think>", ""), finish_reason="length").kind == "length"
    assert unreadable(text, finish_reason="content_filter").kind == "content_filter"


# Tags


@pytest.mark.parametrize(
    ("value", "expected", "repairs"),
    [
        (["猫", "外", " 狗 "], ("猫", "外", " 狗 "), ()),
        (["猫", "狗", "猫", "猫"], ("猫", "狗"), ("duplicate_tags",)),
        ([2024, "猫", 1.5], ("2024", "猫", "1.5"), ("tag_type",)),
        ([2024, "2024"], ("2024",), ("tag_type", "duplicate_tags")),
        (
            [{"tag": "猫", "p": 1}, {"name": "狗"}, {"label": "茶"}, {"text": "书"}],
            ("猫", "狗", "茶", "书"),
            ("tag_type",),
        ),
        (["猫", None, True, ["狗"], {"id": "茶"}], ("猫",), ("tag_dropped",)),
        ("猫", ("猫",), ("tags_string",)),
        ("书, 与画", ("书, 与画",), ("tags_string",)),
        ("如何看待猫，为什么？", ("如何看待猫，为什么？",), ("tags_string",)),
        (
            " 猫, 狗，茶、书；画;诗\n歌 ",
            ("猫", "狗", "茶", "书", "画", "诗", "歌"),
            ("tags_string",),
        ),
        ('["猫", "书, 与画"]', ("猫", "书, 与画"), ("tags_string",)),
        ("2024", ("2024",), ("tags_string",)),
        ([], (), ()),
    ],
)
def test_tags_are_taken_as_given(value, expected, repairs):
    """Outside the pool or not, in the model's order, each once; what is no string is made one or
    dropped; reported."""
    reading = tags(value)
    assert (reading.tags, reading.repairs) == (expected, repairs)


@pytest.mark.parametrize(
    ("persona", "expected"),
    [
        ({"兴趣": ["猫"]}, '{"兴趣":["猫"]}'),
        (["猫", 1], '["猫",1]'),
        (3, "3"),
        (False, "false"),
        ("", ""),
    ],
)
def test_a_persona_of_another_type_becomes_its_json(persona, expected):
    """The next step's prompt carries text, Chinese unescaped; the repair is reported."""
    reading = readable(
        orjson.dumps(
            {"persona_summary": persona, "predicted_tags": [], "reasoning": persona}
        ).decode()
    )
    assert reading.persona == reading.reasoning == expected
    assert reading.repairs == (() if persona == "" else ("persona_type", "reasoning_type"))


# Odd and hostile replies


@pytest.mark.parametrize(
    ("text", "persona", "tag"),
    [
        ('{"persona_summary": "a\\ud83d", "predicted_tags": ["\\ude00b"]}', "a\ufffd", "\ufffdb"),
        ('{"persona_summary": "a\ud83d", "predicted_tags": ["\ude00b"]}', "a\ufffd", "\ufffdb"),
        ('{"persona_summary": "\\ud83d\\ude00", "predicted_tags": ["\\ud83d\\ude00"]', "😀", "😀"),
    ],
    ids=["escaped", "raw", "a whole pair"],
)
def test_half_a_surrogate_pair_becomes_a_replacement_character(text, persona, tag):
    """What no UTF-8 file can hold is replaced; a pair in two escapes is the character that it
    stands for."""
    reading = readable(text)
    assert (reading.persona, reading.tags) == (persona, (tag,))
    assert orjson.dumps([reading.persona, reading.tags])


def test_tags_that_become_the_same_count_once():
    """Replacement comes before the search for repeated tags."""
    assert readable('{"predicted_tags": ["\\ud800", "\\udbff"]}').tags == ("\ufffd",)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        "{" * 100_000,
        "(" * 1000 + "{",
        '{"a":' * 50_000,
        "{]" * 20_000,
        '{"predicted_tags": ["' + 'a" ' * 20_000,
        '{"predicted_tags": ["猫",], "persona_summary": "' + "好" * 2_000_000,
    ],
    ids=["arrays", "objects", "parentheses", "keys", "mismatched", "quotes", "long"],
)
def test_a_broken_reply_without_measure_is_not_repaired(text):
    """Repair of such texts takes minutes, in which nobody else is served; they are no JSON."""
    assert unreadable(text).kind == "no_json"


def test_white_space_without_end_in_a_string_of_tags_takes_no_time():
    """Models in JSON mode do fall into blanks; a separator that matches them too would look at each
    again and again."""
    blanks = " " * 1_000_000
    assert readable(f'{{"predicted_tags": "猫{blanks},狗"}}').tags == ("猫", "狗")
    assert readable(f'{{"predicted_tags": "猫{blanks}狗"}}').tags == (f"猫{blanks}狗",)


@pytest.mark.parametrize("depth", [100, 300, 900, 1000])
def test_a_deep_persona_is_read_the_same_on_any_stack(depth):
    """What can be written stays; what is deeper than records can hold is left out. Neither asks
    Python's stack."""
    text = f'{{"persona_summary": {"[" * depth}{"]" * depth}, "predicted_tags": ["猫"]}}'
    shallow = readable(text)
    found: list[StepAnswer] = []

    def deeper(frames: int) -> None:
        if frames:
            deeper(frames - 1)
        else:
            found.append(readable(text))

    thread = threading.Thread(target=deeper, args=(800,))
    thread.start()
    thread.join()
    assert found == [shallow]
    assert shallow.persona == ("[" * depth + "]" * depth if depth < 250 else "")


def test_a_broken_reply_of_many_levels_is_read_the_same_on_any_stack():
    """Repair recurses in Python: it is only begun where no usual stack can end it."""
    for depth in (10, 60, 70, 150):
        text = '{"predicted_tags": ["猫"], "a": ' + '{"b":' * depth
        shallow = read(Completion(text), POOL)
        found: list[StepAnswer | Invalid] = []

        def deeper(
            frames: int, text: str = text, found: list[StepAnswer | Invalid] = found
        ) -> None:
            if frames:
                deeper(frames - 1)
            else:
                found.append(read(Completion(text), POOL))

        thread = threading.Thread(target=deeper, args=(400,))
        thread.start()
        thread.join()
        assert found == [shallow]


@pytest.mark.parametrize(
    "number",
    [
        "9" * 30,
        "9" * 5000,
        "-" + "9" * 5000,
        "1e400",
        "NaN",
        "-Infinity",
        "0." + "3" * 5000,
        "1e-400",
    ],
)
@pytest.mark.parametrize("end", ["]}", "],}"], ids=["clean", "broken"])
def test_numbers_beyond_measure_are_tags_like_others(number, end):
    """Neither 64 bits nor Python's limit on digits is the model's to know."""
    reading = read(
        Completion(f'{{"persona_summary": {number}, "predicted_tags": [{number}, "猫"{end}'), POOL
    )
    assert isinstance(reading, StepAnswer)
    assert reading.tags[-1] == "猫"
    assert orjson.dumps([reading.persona, reading.tags])


FRAGMENTS = st.sampled_from(
    [
        *(
            '{"',
            '"}',
            "{",
            "}",
            "[",
            "]",
            '"',
            "'",
            ":",
            ",",
            "，",
            "\\",
            "\n",
            "```json\n",
            "\n```",
            "(",
            "“",
            "#",
            "//",
        ),
        *(
            '"predicted_tags": [',
            '"predicted_tags":',
            '"persona_summary": "',
            '"reasoning":',
            "<think>",
            "</think>",
        ),
        *(
            "猫",
            "\\ud83d",
            "\ud83d",
            "\ude00",
            "\x00",
            "null",
            "NaN",
            "1e999",
            "-",
            "9" * 20,
            " ",
            GOOD,
            GOOD[:40],
        ),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=60),
    st.text(st.characters(codec=None), max_size=40),
    st.lists(FRAGMENTS, max_size=12).map("".join),
    st.lists(FRAGMENTS, max_size=8).map(
        lambda found: '{"predicted_tags": ["猫", ' + "".join(found)
    ),
)


@settings(max_examples=examples(150), deadline=None)
@given(text=TEXTS)
@example(text='{"predicted_tags": ["\\ud83d", "\\ud83d"]}')
@example(text='{"predicted_tags": [{"tag": "\\ude00"}], "persona_summary": {"\\ud83d": 1}}')
def test_any_text_is_read_without_an_error_and_always_the_same(text):
    """Whatever a model writes, there is a reading; its parts can be written to a file, and no tag
    is in it twice."""
    reading = read(Completion(text), POOL)
    assert read(Completion(text), POOL) == reading
    if isinstance(reading, StepAnswer):
        orjson.dumps([reading.persona, reading.tags, reading.reasoning, reading.repairs])
        assert len(set(reading.tags)) == len(reading.tags)
        assert len(set(reading.repairs)) == len(reading.repairs)
        assert all(
            type(part) is str for part in (reading.persona, reading.reasoning, *reading.tags)
        )
    else:
        assert reading.kind and reading.why and not reading.final


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=examples(150), deadline=None)
@given(persona=VALUES, chosen=VALUES, reasoning=VALUES)
def test_any_values_in_a_clean_reply_are_read_without_an_error(persona, chosen, reasoning):
    """A list of strings comes back as it is, each once; other types end in text or in a kind."""
    said = {"persona_summary": persona, "predicted_tags": chosen, "reasoning": reasoning}
    reading = read(Completion(orjson.dumps(said).decode()), POOL)
    if isinstance(reading, StepAnswer):
        orjson.dumps([reading.persona, reading.tags, reading.reasoning])
        if type(chosen) is list and all(type(tag) is str for tag in chosen):
            assert reading.tags == tuple(dict.fromkeys(chosen))
    else:
        assert reading.kind == "no_tags"
