"""What endpoints say when they do not answer: their words, as a message shows them and as the classes look them up.

All lists are in lower case and hold what the providers' public documentation or their servers' public issue threads
show; tests/endpoint/test_replies.py has a body of each with its source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

CONTENT_FILTER = (
    "content_filter",  # Azure, Moonshot
    "content_policy",
    "flagged as potentially violating",  # OpenAI: invalid_prompt
    "input was flagged",  # OpenRouter
    "data_inspection_failed",  # DashScope, and three others
    "datainspectionfailed",
    "ipinfringementsuspect",
    "faqruleblocked",
    "content exists risk",  # DeepSeek
    "sensitive_content",
    "sensitivecontent",  # Volcano Ark: InputTextSensitiveContentDetected
    "riskdetection",  # Volcano Ark: InputTextRiskDetection, https://www.volcengine.com/docs/82379/1299023
    "敏感内容",  # Zhipu
    "unsafe or sensitive content",
    "new_sensitive",  # MiniMax
    "sensitive_words_detected",  # relays built on new-api
)
CONTEXT = (
    "context_length",
    "context length",  # vLLM, SGLang, DeepSeek
    "context size",  # llama.cpp
    "context window",
    "input length",  # DashScope: Range of input length should be ...
    "input token count",  # Gemini
    "input token length",  # Moonshot, and two others
    "model token limit",
    "total message size",
    "less than max_seq_len",  # SiliconFlow
    "prompt exceeds max length",  # Zhipu
    "prompt is too long",
    "too many tokens",
    "max_tokens must be at least 1, got -",  # vLLM: what the prompt leaves of the model's length
    "string_above_max_length",  # OpenAI: one message of over a million characters
)
CONTEXT_AS_500 = ("exceed_context_size_error", "exceed context window")
"""What llama.cpp and llama-cpp-python say, in some versions as a failure of theirs."""

TOO_MANY_ASKED = re.compile(r"max_(?:completion_)?tokens\W.{0,40}too large(?:: (\d{1,15})\b)?")
"""A --max-tokens that no model allows: wrong parameters, even where the sentence goes on about the context length."""

WHOLE_CONTEXT = re.compile(r"maximum context length is (\d{1,15})\b")

QUOTA = (
    "insufficient_quota",
    "insufficient_user_quota",  # relays built on new-api
    "exceeded your current quota",
    "exceeded_current_quota",  # Moonshot
    "free allocated quota exceeded",  # DashScope
    "freetieronly",
    "free trial quota",  # Volcano Ark
    "arrearage",
    "in arrears",
    "overdue",
    "insufficient balance",
    "insufficient_balance",
    "balance is insufficient",  # SiliconFlow
    "欠费",
    "余额不足",  # Zhipu
    "额度不足",
)
PASSING_QUOTA = (
    "#token-limit",  # DashScope's tokens a minute, in OpenAI's words for an empty account
    "in-flight requests",  # OpenRouter, which holds credit back for what is under way
)
"""What makes of words for an empty account a limit that passes by itself."""

UNKNOWN_MODEL = (
    "model_not_found",
    "model not exist",
    "unknown model",
    "invalid model",
    "no such model",
    "not a valid model",  # OpenRouter
    "no endpoints found",
    "modelnotopen",  # Volcano Ark
    "模型不存在",  # Zhipu
)
REGION = ("unsupported_country_region_territory", "not available in your region")

FINISH_REASONS = {
    # Ended of its own accord: TGI, Anthropic, Cohere.
    **dict.fromkeys(("stop", "eos", "eos_token", "stop_sequence", "end_turn", "complete"), "stop"),
    # Cut off: Anthropic and Gemini (max_tokens), Mistral (model_length), Zhipu (model_context_window_exceeded);
    # vLLM and MiMo where they cut off what repeats itself.
    **dict.fromkeys(("max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("length", "repetition", "repetition_truncation"), "length"),
    # Filtered: Zhipu (sensitive), Anthropic's classifiers (refusal), Bedrock, Gemini.
    **dict.fromkeys(("sensitive", "content-filter", "refusal", "guardrail_intervened"), "content_filter"),
    **dict.fromkeys(("safety", "prohibited_content", "blocklist", "recitation", "spii"), "content_filter"),
}
"""What providers say instead of OpenAI's words for the same, and those words themselves, since some shout."""

QUOTED = re.compile(r"""['"`“‘「『](.*?)['"`”’」』]""")

BROKEN_OFF = frozenset({"insufficient_system_resource", "abort", "error", "network_error"})
"""Finish reasons of a reply that the endpoint broke off itself: DeepSeek; vLLM and SGLang; OpenRouter; Zhipu."""

BASE_RESP = {
    **dict.fromkeys((1002, 1039, 1041, 2045), 429),
    **dict.fromkeys((1004, 2049), 401),
    1008: 402,
    **dict.fromkeys((1026, 1027, 2013), 400),
}
"""Statuses for MiniMax's codes (platform.minimax.io: error codes), which may come with status 200; 500 for others."""

ECHOED_INPUT = re.compile(r"""['"]input['"]\s*:|\binput_value=""")
"""Where the message of a validator (FastAPI, pydantic) goes over to the input that it refuses."""

PARAMETER = re.compile(r"[A-Za-z_][\w.\[\]-]{0,63}", re.ASCII)
"""The name of a parameter or the path to it: anything else in its place may be somebody's text."""

SHOWN = 300
"""Characters of an endpoint's own words in a message."""


def said(holder: Any) -> str:
    """The endpoint's own words on one line, the error's code in front; empty where they stand in no known place."""
    if type(holder) is str:
        return one_line(holder)
    if type(holder) is not dict:
        return ""
    if type(holder.get("error")) is dict:
        holder = holder["error"]
    return one_line(", ".join(dict.fromkeys(_said(holder))))


def _said(holder: dict[str, Any]) -> Iterator[str]:
    for name in ("error", "code", "type", "param", "message", "detail"):
        value = holder.get(name)
        if name == "param" and not (type(value) is str and PARAMETER.fullmatch(value)):
            continue
        if value and type(value) in (str, int):
            yield str(value)
        elif type(value) in (list, dict):
            yield from _validators(value)
    if type(base := holder.get("base_resp")) is dict:  # MiniMax
        yield f"{base.get('status_code')}, {base.get('status_msg')}"
    if type(metadata := holder.get("metadata")) is dict:  # OpenRouter
        yield from _behind(metadata)


def _validators(found: Any) -> Iterator[str]:
    """What validators (FastAPI, pydantic) found, each with its place, and without the input that they quote."""
    if type(found) is dict:
        found = found.get("detail")
    for each in found[:3] if type(found) is list else ():
        if type(each) is dict and type(each.get("loc")) is list and type(each.get("msg")) is str:
            place = ".".join(str(step) for step in each["loc"] if type(step) is int or PARAMETER.fullmatch(str(step)))
            yield f"{place}: {each['msg']}"


def _behind(metadata: dict[str, Any]) -> Iterator[str]:
    """What the provider behind a relay said: its error as a text in `raw`; and that its moderation objected."""
    if "flagged_input" in metadata:
        yield "input was flagged"
    try:
        words = said(orjson.loads(raw)) if type(raw := metadata.get("raw")) is str else ""
    except ValueError:
        return
    if words:
        yield words


def own_words(text: str) -> str:
    """What the lists above are looked up in: the endpoint's own words in lower case, without the input it quotes."""
    return ECHOED_INPUT.split(text, maxsplit=1)[0].lower()


def one_line(text: str) -> str:
    """Foreign words as a message shows them: printable, on one line, and not too long.

    A word that the end cuts in two goes as a whole, since a part of an echoed key would not be recognised as one.
    """
    line = "".join(filter(str.isprintable, " ".join(text.split())))
    return line if len(line) <= SHOWN else re.sub(r"[!-~]+\Z", "", line[:SHOWN]) + "…"


def without_quotes(words: str, asked: str) -> str:
    """What an endpoint says without what it quotes of the request: a post that speaks of an empty account is none."""
    return QUOTED.sub(lambda quote: "" if quote[1] and quote[1] in asked else quote[0], words)


def any_of(words: tuple[str, ...], text: str) -> bool:
    return any(word in text for word in words)


def too_long(status: int, low: str) -> bool:
    """Whether an error says that the prompt is too long: a fact of this step, unlike an absurd --max-tokens."""
    if status == 413 or (status in (400, 422, 500) and any_of(CONTEXT_AS_500, low)):
        return True
    if status not in (400, 422) or not any_of(CONTEXT, low):
        return False
    if not (asked := TOO_MANY_ASKED.search(low)):
        return True
    # vLLM says so, too, where the prompt leaves less room than was asked for, though the model has more.
    whole = WHOLE_CONTEXT.search(low)
    return bool(asked[1] and whole and int(asked[1]) < int(whole[1]))


def used_up(status: int, low: str) -> bool:
    """Whether an error says that the account's quota or balance is."""
    return (status == 402 or any_of(QUOTA, low)) and not any_of(PASSING_QUOTA, low)


def names_no_model(low: str) -> bool:
    return any_of(UNKNOWN_MODEL, low) or ("model" in low and ("not found" in low or "does not exist" in low))
