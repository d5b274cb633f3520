"""Read models' replies: a JSON object, or text, out of a completion.

Only the text decides, so that the same completion always gives the same answer (docs/design.md,
section 6).
"""

from __future__ import annotations

import re
from itertools import islice
from typing import Any

import orjson

from harness.errors import InvalidReply
from harness.model import JSON, Completion

FINAL_REASONS = frozenset({"length", "only_thinking", "content_filter", "context_length"})
"""Finish reasons that make an invalid answer of this kind at once: not repaired, and not asked for
again."""

WITHOUT_JSON = frozenset({"unclosed", "failed_generation"})
"""Finish reasons of a reply that broke off, whose end is not to be made up, and of one that failed
at the form asked for."""

_FENCE = re.compile(r"```[\w-]*[ \t]*\r?\n(.*?)```", re.DOTALL)
_THINKING = re.compile(
    r"\s*(?:<(?:think|thinking|seed:think)>|\[THINK\]|◁think▷|<\|channel\|>analysis)"
)
"""How thoughts begin: of most models, Seed-OSS, Magistral, Kimi, and gpt-oss, whose harmony format
has channels."""
_THOUGHT = re.compile(
    r"</(?:think|thinking|seed:think)>|\[/THINK\]|◁/think▷"
    r"|<\|channel\|>(?:final|commentary)[^{}]{0,60}?<\|message\|>|assistantfinal"
)
"""How thoughts end. Some servers return the end without the beginning, which was in the prompt, or
harmony without its special tokens."""
_TURN_ENDS = ("<|return|>", "<|end|>", "<|call|>")
"""Marks that end a message of harmony."""

_MAX_THOUGHTS = 16
"""Ends of thoughts that are tried, in addition to the last: each takes time that grows with what
follows."""

_OBJECT = re.compile(r'\{\s*"')
_MAX_OPENERS = 64
_MAX_WORK = 3_000_000
"""Bounds of what is repaired. Repair recurses with every opener, and its time grows with length
times marks. Without bounds, a reply of 30 KB that repeats itself blocks every other user for
minutes, and whether a deep one is read depends on the caller's own stack."""


def json_object(completion: Completion, repairs: list[str]) -> JSON:
    """Return the JSON object in a completion, and add the kinds of repairs that it needed to
    `repairs`.

    Raise `InvalidReply` if there is none.
    """
    # Repair would close the brackets, and score an answer that nobody gave.
    if completion.finish_reason in WITHOUT_JSON:
        raise InvalidReply("no_json")

    if completion.tool_calls and _is_called_answer(completion):
        repairs.append("tool_call")
        return completion.tool_calls[0].json()

    text = checked_text(completion)
    if completion.finish_reason == "tool_call":
        repairs.append("tool_call")

    data = _decode(text, repairs)
    if data is None:
        raise InvalidReply("no_json")

    if type(data) is not dict:
        raise InvalidReply("not_object")

    return data


def _is_called_answer(completion: Completion) -> bool:
    """Return whether a completion is one tool call and no text: the answer, where the user offers a
    tool for it by --extra-body."""
    is_whole = completion.finish_reason not in FINAL_REASONS
    return is_whole and len(completion.tool_calls) == 1 and not completion.text.strip()


def strict_object(**fields: JSON) -> JSON:
    """Return the JSON schema of an object with these fields, each by its schema, in a form that
    every strict dialect takes: all of them required, and no others."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def answer_text(completion: Completion, repairs: list[str]) -> str:
    """Return the text of a completion without the thoughts before it. Raise `InvalidReply` if there
    is none."""
    text = checked_text(completion).strip()
    # The arguments of a tool call are an object, and a text was asked for.
    if completion.finish_reason == "tool_call":
        raise InvalidReply("empty")

    answer = after_thinking(text)
    if answer is None:
        return text

    repairs.append("thinking")
    if not answer:
        raise InvalidReply("empty")

    return answer


def checked_text(completion: Completion) -> str:
    """Return the text of a completion that is whole. Raise `InvalidReply` for one cut off, refused
    or empty."""
    reason = completion.finish_reason
    text = completion.text
    if reason in FINAL_REASONS:
        is_thinking = _THINKING.match(text) and not _THOUGHT.search(text)
        if reason == "length" and is_thinking:
            reason = "only_thinking"

        raise InvalidReply(reason, final=True)

    if completion.refusal:
        raise InvalidReply("refusal")

    if not text.strip():
        raise InvalidReply("empty")

    return text


def _decode(text: str, repairs: list[str]) -> Any:
    """Return the JSON value in a text, by the mildest means that finds one; None if there is none.

    They are: as it is; without thoughts; out of the first fence that contains an object; without
    the text around the outermost braces (an array is the answer, whatever it contains); with
    repaired syntax.
    """
    # Most replies are JSON as they are: the first attempt costs no search.
    bare = text.strip()
    try:
        return orjson.loads(bare)
    except ValueError:
        pass

    answer = after_thinking(bare)
    if answer is not None:
        repairs.append("thinking")
        bare = answer

    for fence in _FENCE.finditer(bare):
        if "{" in fence[1]:
            repairs.append("fence")
            bare = fence[1].strip()
            break

    start, end = _object_span(bare)
    if (start, end) != (0, len(bare)):
        repairs.append("prose")

    try:
        return orjson.loads(bare[start:end])
    except ValueError:
        pass

    # A quote after the last brace: this is no prose, but the end of an object that was cut off.
    if '"' in bare[end:]:
        end = len(bare)

    return _repaired(bare[start:end], repairs)


def _object_span(text: str) -> tuple[int, int]:
    """Return where the text within the outermost braces begins and ends; all of an array, and of a
    text without braces."""
    if text.startswith("["):
        return 0, len(text)

    # A prose text may have braces of its own: an object's first brace is followed by a quote.
    start = max(0, text.find("{"))
    if start:
        opened = _OBJECT.search(text)
        if opened:
            start = opened.start()

    end = text.rfind("}") + 1
    if end <= start:
        end = len(text)

    return start, end


def after_thinking(text: str) -> str | None:
    """Return what follows the thoughts in a text, None if there are none.

    Thoughts may contain other thoughts, and drafts of the answer. So the answer follows the last
    end of any, unless what follows an earlier one is JSON and nothing else, with any text in its
    strings. A text that begins like an answer has thoughts only if such JSON follows them.
    """
    end = 0
    for mark in islice(_THOUGHT.finditer(text), _MAX_THOUGHTS):
        end = mark.end()
        answer = _without_turn_end(text[end:])
        if is_json(answer):
            return answer

    begins_like_answer = text.startswith(("{", "[", "`")) and not _THINKING.match(text)
    if not end or begins_like_answer:
        return None

    for mark in _THOUGHT.finditer(text, end):
        end = mark.end()

    return _without_turn_end(text[end:])


def _without_turn_end(text: str) -> str:
    text = text.strip()
    for mark in _TURN_ENDS:
        text = text.removesuffix(mark)
    return text.rstrip()


def is_json(text: str) -> bool:
    """Return whether a text is an object or array, bare or in a fence, and nothing else."""
    fence = _FENCE.fullmatch(text)
    if fence:
        text = fence[1]
    try:
        return type(orjson.loads(text)) in (dict, list)
    except ValueError:
        return False


def _repaired(text: str, repairs: list[str]) -> Any:
    openers = sum(map(text.count, "{[("))
    work = len(text) * (openers + text.count('"') + 20)
    if not openers or openers > _MAX_OPENERS or work > _MAX_WORK:
        return None

    if "{" not in text and "[" not in text:
        return None

    # Importing it takes a fiftieth of a second, which only replies that need a repair cost.
    import json_repair

    repairs.append("syntax")
    # On some texts an assertion of its own fails: then it has found no JSON.
    try:
        data = json_repair.loads(text)
    except Exception:
        return None

    # json_repair returns these for text without JSON.
    if data in ("", {}):
        return None

    return data
