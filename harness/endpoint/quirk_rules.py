"""The table of what endpoints take differently: data for harness/endpoint/quirks.py, each entry with a public source.

Another one is an entry here, and a refusal of its endpoint in tests/endpoint/test_quirks.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import orjson

from harness.model import JSON

_NEAR = r"(?:(?!\. ).){0,60}?"
"""What may stand between a parameter and what is said of it: no end of a sentence."""

_NOT_TAKEN = (
    r"unsupported|not[ -]support|n't support|unavailable|not (?:yet )?(?:available|implemented|permitted|allowed"
    r"|accepted?|enabled|recogni[sz]ed)|unknown (?:name|parameter|field|argument|property)|unrecogni[sz]ed"
    r"|unexpected (?:keyword|argument|parameter|field|property)|deprecated|only [\d.]+ is allowed|不支持"
)
_NOT_THIS_FORM = rf"must be|should be|{_NOT_TAKEN}"
_PERHAPS_NOT_THIS_FORM = rf"(?<!un)expected|\bonly\b|invalid(?!\w)|{_NOT_THIS_FORM}"
"""Of a parameter whose value is ours, so that it is never the user's that is wrong."""

_OUT_OF_RANGE = re.compile(
    r"between|range|at most|at least|(?:less|greater|higher|lower) than|m(?:ax|in)imum|<=|>=|≤|≥|too (?:large|high|low"
    r"|small)|范围"
)
"""Where the value is what is wrong, which is the user's to know: leaving it out would be another run."""

_NO_SCHEMA = re.compile(r"invalid (?:json[_ ]?)?schema|schema is (?:invalid|not valid)")


def _said_of(names: str, said: str = _NOT_TAKEN) -> re.Pattern[str]:
    name = rf"(?<!\w)(?:{names})(?!\w)"
    return re.compile(f"{name}{_NEAR}(?:{said})|(?:{said}){_NEAR}{name}")


_FORMS = r"response_format|json_schema|json_object|json[ _-]mode|structured[ _]outputs?"
_FORMAT = _said_of(_FORMS, _PERHAPS_NOT_THIS_FORM)
PLAINLY_THE_FORMAT = _said_of(_FORMS, _NOT_THIS_FORM)
"""What must be said of a response_format by an endpoint that calls it a failure of its own."""


@dataclass(frozen=True, slots=True)
class Quirk:
    """`member` is what of a body it is about, `refusal` how endpoints say it (in lower case), `unless` what must not be
    said beside it, `beside` what must, and `undoes` the quirk that it would undo. `change` is made to the decoded
    body. `told` is the sentence for a report."""

    member: str
    refusal: re.Pattern[str]
    change: Callable[[JSON], object]
    told: str
    unless: re.Pattern[str] | None = None
    beside: str = ""
    undoes: str = ""


def _form(body: JSON) -> object:
    asked = body.get("response_format")
    return asked.get("type") if isinstance(asked, dict) else None


def _any_object(body: JSON) -> None:
    if _form(body) == "json_schema":
        body["response_format"] = {"type": "json_object"}


def _as_schema(body: JSON) -> None:
    if _form(body) == "json_object":
        schema = {"name": "answer", "schema": {"type": "object"}}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}


def _where_json_is_spoken_of(body: JSON) -> None:
    if _form(body) == "json_object" and not any("json" in text_of(message).lower() for message in body["messages"]):
        del body["response_format"]


def _renamed(body: JSON) -> None:
    if "max_tokens" in body:
        body.setdefault("max_completion_tokens", body.pop("max_tokens"))


def _streamed(body: JSON) -> None:
    if body.setdefault("stream", True):
        body.setdefault("stream_options", {"include_usage": True})


def _system_in_front(body: JSON) -> None:
    """What the system messages say goes in front of the first user message."""
    said = [text_of(message) for message in body["messages"] if message["role"] == "system"]
    others = [message for message in body["messages"] if message["role"] != "system"]
    if not said:
        return
    first = next((message for message in others if message["role"] == "user"), None)
    if first is None:
        others.insert(0, first := {"role": "user", "content": ""})
    if isinstance(first["content"], str):
        first["content"] = "\n\n".join([*said, first["content"]]).rstrip()
    else:
        first["content"] = [*({"type": "text", "text": text} for text in said), *first["content"]]
    body["messages"] = others


def text_of(message: JSON) -> str:
    """The text of a message; of a content in parts, their JSON."""
    content = message.get("content", "")
    return content if isinstance(content, str) else orjson.dumps(content).decode()


QUIRKS = {
    # https://github.com/BerriAI/litellm/pull/31466: DeepSeek takes json_object, and no json_schema.
    "json_object": Quirk(
        "response_format",
        _FORMAT,
        _any_object,
        "the endpoint takes no JSON schema: it was asked for any JSON object instead",
        _NO_SCHEMA,
        undoes="json_schema",
    ),
    # https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/169: LM Studio takes json_schema or text.
    "json_schema": Quirk(
        "response_format",
        _FORMAT,
        _as_schema,
        "the endpoint takes a response_format only as a JSON schema: it got one that fits every object",
        _NO_SCHEMA,
        beside="json_schema",
        undoes="json_object",
    ),
    # https://help.aliyun.com/zh/model-studio/error-code: so say DashScope, OpenAI and DeepSeek.
    "json_word": Quirk(
        "response_format",
        re.compile(r"must contain the word .{0,3}json"),
        _where_json_is_spoken_of,
        "the endpoint takes response_format json_object only where the prompt holds the word JSON: elsewhere the model "
        "was free to answer in any form",
    ),
    # https://github.com/egoist/chatwise-releases/issues/141 (SiliconFlow),
    # https://github.com/presenton/presenton/issues/184 (DashScope, while a model thinks)
    "no_response_format": Quirk(
        "response_format",
        _FORMAT,
        lambda body: body.pop("response_format", None),
        "the endpoint takes no response_format: nothing but the prompt asked for JSON",
        _NO_SCHEMA,
    ),
    # https://github.com/ITSpecialist111/ai_automation_suggester/issues/38: OpenAI's reasoning models.
    "max_completion_tokens": Quirk(
        "max_tokens",
        _said_of("max_tokens"),
        _renamed,
        "the endpoint takes max_tokens under the name max_completion_tokens only, which counts thoughts as well",
        _OUT_OF_RANGE,
    ),
    # https://github.com/gabrii/Cursor-Azure-GPT-5/issues/33: OpenAI's reasoning models.
    "no_temperature": Quirk(
        "temperature",
        _said_of("temperature"),
        lambda body: body.pop("temperature", None),
        "the endpoint takes no temperature: its own default was used",
        _OUT_OF_RANGE,
    ),
    "no_top_p": Quirk(
        "top_p",
        _said_of("top_p"),
        lambda body: body.pop("top_p", None),
        "the endpoint takes no top_p: its own default was used",
        _OUT_OF_RANGE,
    ),
    "no_seed": Quirk(
        "seed",
        _said_of("seed"),
        lambda body: body.pop("seed", None),
        "the endpoint takes no seed: samples cannot be repeated",
        _OUT_OF_RANGE,
    ),
    # https://github.com/infiniflow/ragflow/issues/5912 and /issues/8972 (DashScope),
    # https://github.com/musistudio/claude-code-router/issues/948 (ModelScope)
    "stream": Quirk(
        "stream",
        re.compile(
            r"only support\w* stream|stream(?:ing)?[ _-](?:mode|output)? ?only|non-stream|非流式|[仅只]支持流式"
            r"|(?<!\w)stream\W{0,4}=\W{0,4}false|enable the stream|stream\W{1,3}(?:must|should) be (?:set to )?true"
            r"|(?:requires?|must use|please use) stream"
        ),
        _streamed,
        "the endpoint answers in streams only: replies were streamed",
    ),
    "no_stream_options": Quirk(
        "stream_options",
        _said_of("stream_options"),
        lambda body: body.pop("stream_options", None),
        "the endpoint takes no stream_options: streamed replies may not tell their tokens",
    ),
    # https://github.com/vllm-project/vllm/pull/2964: Gemma's chat template; OpenAI's o1-mini.
    "no_system_role": Quirk(
        "messages",
        re.compile(
            r"system role (?:is )?not support|(?:unsupported|invalid)(?: message)? role\W{1,3}system"
            r"|role\W{1,5}does not support\W{1,3}system|developer instruction is not enabled"
            r"|conversation roles must alternate user/assistant"
        ),
        _system_in_front,
        "the endpoint takes no system message: it stands in front of the user's first",
    ),
}
"""In the order in which they are applied to a body, and looked for in a refusal."""
