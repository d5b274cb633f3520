"""The words of the harness, each with its unit. Source: docs/design.md, sections 2 and 3.

What every request makes is a `Struct`: making one takes a tenth of the time of a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any, NamedTuple

import orjson
from msgspec import Meta, Struct, to_builtins

# Plug-ins, also those that runs have kept, import the blocks of documents from here.
from harness.document import Block as Block
from harness.document import Card as Card
from harness.document import Chart as Chart
from harness.document import Heading as Heading
from harness.document import Paragraph as Paragraph
from harness.document import Quote as Quote
from harness.document import Series as Series
from harness.document import Sketch as Sketch
from harness.document import Table as Table
from harness.document import Tags as Tags
from harness.document import Tile as Tile
from harness.document import Verbatim as Verbatim
from harness.errors import InvalidReply

JSON = dict[str, Any]
"""One decoded JSON object."""


class Where(NamedTuple):
    """A line of an input file, for error messages. Lines count from 1."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a request; `role` is `system`, `user` or `assistant`.

    `content` is a text, or a list of parts such as texts and pictures, in OpenAI's form. None is
    for a message that has tool calls alone. The request's body has the fields as they are, hence a
    class for each kind of message with more fields.
    """

    role: str
    content: str | Sequence[Mapping[str, Any]] | None

    def __hash__(self) -> int:
        return hash((self.role, self.text))  # a list of parts has no hash

    @property
    def text(self) -> str:
        """Return the content as text: of parts that are no text, their type in brackets."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        texts = [str(item.get("text", f"[{item.get('type')}]")) for item in self.content]
        return "\n".join(texts)

    def with_note(self, note: str) -> Message:
        """Return the message with more text at its end."""
        if self.content is None or isinstance(self.content, str):
            return replace(self, content=(self.content or "") + note)
        return replace(self, content=[*self.content, {"type": "text", "text": note.strip()}])


@dataclass(frozen=True, slots=True)
class AssistantMessage(Message):
    """A reply that called tools, as a message of the next request. `tool_calls` are in OpenAI's
    form; `Completion.as_message` makes them."""

    tool_calls: Sequence[Mapping[str, Any]]

    __hash__ = Message.__hash__


@dataclass(frozen=True, slots=True)
class ToolMessage(Message):
    """The result of a tool call, of the role `tool`; `ToolCall.result` makes it."""

    tool_call_id: str

    __hash__ = Message.__hash__


def message_of(data: Mapping[str, Any]) -> Message:
    """Return the message of a mapping in OpenAI's form; members that no message here has are left
    out. Raise `KeyError` without a role, or without a content where there is no tool call."""
    calls = data.get("tool_calls")
    if calls:
        return AssistantMessage(data["role"], data.get("content"), calls)
    if "tool_call_id" in data:
        return ToolMessage(data["role"], data["content"], data["tool_call_id"])
    return Message(data["role"], data["content"])


RESERVED = frozenset({"model", "messages", "n", "stream", "stream_options"})
"""Members of a request's body that no benchmark may set."""


@dataclass(frozen=True, slots=True)
class Request:
    """One chat call of a benchmark; model and sampling parameters are the run's.

    `json_object` says whether the reply has to be a JSON object, and `schema` is its JSON schema,
    None for any object. `parameters` are further members of the body, plain JSON; each is used
    unless the run sets it. Those in `RESERVED` are the harness's: raise `ValueError` for one.
    `full_messages` are sent in place of `messages` where these lack something, such as the parts of
    a content. `role` names the model that is asked, one of the benchmark's `roles`; empty for the
    model under test. `tools` are the functions that the model may call, and
    `tool_choice` is whether it must call one, and which, both in OpenAI's form.
    """

    messages: tuple[Message, ...]
    json_object: bool = True
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    full_messages: Sequence[Mapping[str, Any]] | None = field(default=None, hash=False)
    role: str = ""
    tools: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    tool_choice: str | Mapping[str, Any] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not RESERVED.isdisjoint(self.parameters):
            taken = ", ".join(sorted(RESERVED.intersection(self.parameters)))
            raise ValueError(
                f"Request.parameters cannot set {taken}: the run and `messages` decide that"
            )


def role_of(digest: str) -> str:
    """Return the role in the digest of a request, `judge:0123...`; empty for the model under
    test."""
    return digest.rpartition(":")[0]


LARGEST_COUNT = 2**40
"""Tokens; no reply has that many, and sums of smaller counts stay far inside the 64 bits that files
hold."""

TokenCount = Annotated[int, Meta(ge=0, lt=LARGEST_COUNT)]


class UnclearTokens(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a usage that contradicts itself leaves open, in tokens: `cached` of the prompt may have
    been cached too, and `prompt` more ones of the prompt, and `either` more ones of prompt or
    completion, may have been billed."""

    cached: TokenCount = 0
    prompt: TokenCount = 0
    either: TokenCount = 0


class ToolCall(Struct, frozen=True, omit_defaults=True):
    """A call of a function that the request offers in `tools`.

    `id` is the endpoint's, or `call_N` with the number of the call in its reply where it sends
    none. `arguments` is what the model wrote, which may be no JSON. `extra_content` is what a
    provider needs back with the call (Gemini: the signature of its thoughts).
    """

    id: str
    name: str
    arguments: str
    extra_content: JSON | None = None

    def json(self) -> JSON:
        """Return the arguments as an object, empty where the model wrote none. Raise
        `InvalidReply("tool_arguments")` for anything else."""
        try:
            value = orjson.loads(self.arguments.strip() or "{}")
        except ValueError:
            value = None
        if type(value) is not dict:
            raise InvalidReply(
                "tool_arguments", "the arguments of a tool call are not a JSON object"
            )
        return value

    def result(self, content: str) -> ToolMessage:
        """Return the message with the result of the call, for the next request."""
        return ToolMessage("tool", content, self.id)

    @property
    def wire(self) -> JSON:
        """Return the call in OpenAI's form."""
        function = {"name": self.name, "arguments": self.arguments}
        call: JSON = {"id": self.id, "type": "function", "function": function}
        if self.extra_content is not None:
            call["extra_content"] = self.extra_content
        return call

    @property
    def size(self) -> int:
        """Return the bytes that the model wrote."""
        return len(self.name.encode()) + len(self.arguments.encode())

    def __str__(self) -> str:
        return f"{self.name}({self.arguments})"


ANSWERER = ("model", "provider", "system_fingerprint")
"""Members of a completion that name who answered, as the endpoint sends them."""
SENT_BY_SOME = ("cached_tokens", "reasoning_tokens", "provider", "system_fingerprint")


class Completion(Struct, frozen=True, forbid_unknown_fields=True):
    """The reply of an endpoint to one request.

    `finish_reason` is the endpoint's value, or OpenAI's equivalent, except for six of our own:
    `content_filter` (its input filter) and `context_length` (too long a prompt) are requests that
    it refused, `failed_generation` is a failure of the model that it reports, `only_thinking` a
    reply that was cut off before its answer began, `tool_call` one whose text is the arguments of
    its only tool call, `unclosed` one whose JSON has no end. Token counts are None if the endpoint
    reports none. `reasoning` is the thoughts of a model, if the endpoint returns them apart from
    the text. `cached_tokens` are those of the prompt that came from the endpoint's cache,
    `reasoning_tokens` those of the completion that went into thoughts. `unclear` is what the
    endpoint's counts leave open, None for nothing. `model`, `provider` (of a router such as
    OpenRouter) and `system_fingerprint` are who answered, in the endpoint's words. `tool_calls` are
    those of a reply to a request that offers tools. `logprobs` is the log-probabilities of the
    choice as the endpoint sends them, None for none; OpenAI's are
    `{"content": [{"token", "logprob", "bytes", "top_logprobs"}, ...]}`.
    """

    text: str
    finish_reason: str | None = "stop"
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    model: str | None = None
    refusal: str | None = None
    reasoning: str | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    unclear: UnclearTokens | None = None
    provider: str | None = None
    system_fingerprint: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    logprobs: JSON | None = None

    @property
    def data(self) -> JSON:
        """Return the completion as responses have it; `SENT_BY_SOME`, tool calls and
        log-probabilities only if the endpoint sends them."""
        data: JSON = {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "model": self.model,
            "refusal": self.refusal,
            "reasoning": self.reasoning,
        }
        for name in SENT_BY_SOME:
            value = getattr(self, name)
            if value is not None:
                data[name] = value
        if self.unclear is not None:
            data["unclear"] = to_builtins(self.unclear)
        if self.tool_calls:
            data["tool_calls"] = to_builtins(self.tool_calls)
        if self.logprobs is not None:
            data["logprobs"] = self.logprobs
        return data

    def as_message(self) -> Message:
        """Return the reply as a message of the next request, its thoughts left out."""
        if self.tool_calls:
            calls = [call.wire for call in self.tool_calls]
            # OpenAI has null for the content of a message with tool calls alone.
            return AssistantMessage("assistant", self.text or None, calls)
        return Message("assistant", self.text or self.refusal or "")

    @property
    def size(self) -> int:
        """Return the bytes of text, thoughts and tool calls."""
        size = len(self.text.encode())
        if self.tool_calls:
            size += sum([call.size for call in self.tool_calls])
        return size + len(self.reasoning.encode()) if self.reasoning else size

    @property
    def lacks_usage(self) -> bool:
        """Return whether tokens may have been billed that the endpoint does not report."""
        return (
            None in (self.prompt_tokens, self.completion_tokens)
            and self.finish_reason not in NEVER_ANSWERED
        )

    @property
    def shown(self) -> str:
        """Return the text, or what there is instead."""
        text = self.text or self.refusal or "\n".join(map(str, self.tool_calls))
        return text or f"(no text; finish_reason {self.finish_reason})"


class Reply(Struct, frozen=True):
    """A settled request: `seconds` of the try that succeeded, `tries` in all, and who answered.

    `first_token` is the seconds until the first piece of a streamed reply, None for one that came
    whole. `sent` is the bytes of the request's body. `reused` is the name of the run that saved it,
    None for a reply to this run's own request.
    """

    completion: Completion
    seconds: float
    tries: int
    endpoint: str
    first_token: float | None = None
    reused: str | None = None
    sent: int = 0


NEVER_ANSWERED = frozenset({"content_filter", "context_length"})
"""Finish reasons of requests that no model may have seen, so that no tokens are missing from the
reported usage."""

Ask = Callable[[Request], Awaitable[Completion]]
Baseline = Callable[[Sequence[Mapping[str, Any]], int], str | Mapping[str, Any]]
"""Answers the messages of a chat request (contents are strings) with a text, or with a message in
OpenAI's form, which may have `tool_calls`. Only they and the seed decide."""


class Usage(Struct, frozen=True):
    """Count tokens and requests of one user's completions; retries after transport faults are not
    counted.

    `untold` counts answered requests for which the endpoint reported no usage.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    requests: int = 0
    untold: int = 0

    def plus(self, completion: Completion) -> Usage:
        return Usage(
            self.prompt_tokens + (completion.prompt_tokens or 0),
            self.completion_tokens + (completion.completion_tokens or 0),
            self.requests + 1,
            self.untold
            + (completion.prompt_tokens is None and completion.finish_reason not in NEVER_ANSWERED),
        )

    @property
    def data(self) -> JSON:
        """Return the usage as records have it; `untold` only if there is any."""
        data = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "requests": self.requests,
        }
        if self.untold:
            data["untold"] = self.untold
        return data


@dataclass(slots=True)
class RunUsage:
    """What requests have used whose replies are saved, and those without; an accumulator.

    `cached_tokens` are among the prompt tokens, `reasoning_tokens` among those of completions, of
    which the `longest` had so many. What the endpoint did not report is counted in bytes:
    `unknown_prompt` of requests' bodies, `unknown_completion` of the texts, thoughts and tool calls
    of `unknown_completions` replies. `seen_prompt_tokens` were for `sent` bytes, and `seen_tokens`
    of completions for `seen_bytes`: the ratios by which the unknown ones are estimated. `lost`
    requests of `lost_bytes` have no reply, and may have been billed. The usage of `unclear` replies
    contradicts itself; what that leaves open is summed up in `unclear_cached`, `unclear_prompt` and
    `unclear_either`.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    requests_without_usage: int = 0
    unknown_prompt: int = 0
    unknown_completion: int = 0
    unknown_completions: int = 0
    seen_prompt_tokens: int = 0
    sent: int = 0
    seen_tokens: int = 0
    seen_bytes: int = 0
    longest: int = 0
    lost: int = 0
    lost_bytes: int = 0
    unclear: int = 0
    unclear_cached: int = 0
    unclear_prompt: int = 0
    unclear_either: int = 0

    def add(self, completion: Completion, sent: int) -> None:
        """Count a reply to a request whose body had so many bytes, 0 if that is not known."""
        prompt, answer, thoughts = (
            completion.prompt_tokens,
            completion.completion_tokens,
            completion.reasoning_tokens,
        )
        self.requests += 1
        self.prompt_tokens += prompt or 0
        # An endpoint may report more than the prompt has, which `Cost` refuses.
        if completion.cached_tokens:
            self.cached_tokens += min(completion.cached_tokens, prompt or 0)
        # Without the size of its body a request says nothing of tokens a byte.
        if prompt is not None and sent:
            self.seen_prompt_tokens += prompt
            self.sent += sent
        if answer is not None:
            self.reasoning_tokens += min(thoughts or 0, answer)
            self.completion_tokens += answer
            self.longest = max(self.longest, answer)
            # Hidden thoughts have tokens and no bytes, and would spoil the ratio.
            if completion.text or completion.reasoning or completion.tool_calls:
                self.seen_tokens += answer
                self.seen_bytes += completion.size
        elif (
            completion.lacks_usage and thoughts
        ):  # a part of the completion, which is reported alone
            self.reasoning_tokens += thoughts
            self.completion_tokens += thoughts
        if completion.lacks_usage:
            self._add_unknown(completion, sent)
        if completion.unclear:
            self.unclear += 1
            self.unclear_cached += completion.unclear.cached
            self.unclear_prompt += completion.unclear.prompt
            self.unclear_either += completion.unclear.either

    def _add_unknown(self, completion: Completion, sent: int) -> None:
        self.requests_without_usage += 1
        if completion.prompt_tokens is None:
            self.unknown_prompt += sent
        if completion.completion_tokens is None:
            self.unknown_completions += 1
            self.unknown_completion += completion.size
            if completion.reasoning and completion.reasoning_tokens:
                # The endpoint reports the tokens of the thoughts, and nothing else.
                self.unknown_completion -= len(completion.reasoning.encode())

    def merge(self, usage: RunUsage) -> None:
        """Count what another one has counted."""
        longest = max(self.longest, usage.longest)
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(usage, name))
        self.longest = longest  # the only member that is no sum


class Money(NamedTuple):
    """An amount in a currency (`USD`, `CNY`), never converted, and its bounds.

    It is exact; `about`: some of its tokens are estimates. `low` and `high` are None where they are
    the amount: what is reported as used alone, and all that may have been billed.
    """

    amount: Decimal
    currency: str
    about: bool = False
    low: Decimal | None = None
    high: Decimal | None = None

    @property
    def least(self) -> Decimal:
        """Return the lower bound."""
        return self.amount if self.low is None else self.low

    @property
    def most(self) -> Decimal:
        """Return the upper bound."""
        return self.amount if self.high is None else self.high


class Record(Struct, frozen=True):
    """One completed user: `data` is the object of its line in the results file."""

    key: str
    data: JSON


@dataclass(frozen=True, slots=True)
class Failure:
    """A user that could not be played: which boundary failed (`endpoint`, `benchmark`, `agent`),
    how, after how many tries, in which of its repeats."""

    key: str
    boundary: str
    kind: str
    detail: str
    tries: int
    repeat: int = 1


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a report says of the run; scorers know only records.

    `run` is plain values by name: settings, sampling parameters, tasks file, share, versions, date.
    `cost` is `harness.cost.Cost` as JSON, None for a baseline, and `replies` is
    `harness.reply_facts.ReplyFacts`. `expected_plays` counts users times their repeats, None where
    there are no repeats.
    """

    subset: str
    model: str
    name: str
    prompt: str
    expected_users: int
    failed_users: int
    notes: tuple[str, ...] = ()
    schedule: JSON | None = None
    run: JSON = field(default_factory=dict)
    cost: JSON | None = None
    replies: JSON = field(default_factory=dict)
    repeats: int = 1
    expected_plays: int | None = None

    @property
    def stated(self) -> JSON:
        """Return the members that a report has as they are, by the same names."""
        names = ("prompt", "subset", "model", "name", "schedule", "run", "notes")
        stated = {name: getattr(self, name) for name in names}
        if self.cost:
            stated["cost"] = self.cost
        if self.replies:
            stated["replies"] = self.replies
        return stated


RUN_FACTS = frozenset(
    {
        "files",
        "tasks",
        "tasks_sha256",
        "users_in_tasks",
        "ratio",
        "limit",
        "sample_seed",
        "endpoint",
        "harness",
    }
    | {"created", "part", "repeats"}
)
"""Names in `RunFacts.run` that are no settings."""


@dataclass(frozen=True, slots=True)
class Published:
    """Published scores, shown with runs and never ranked with them.

    `figures` is metric -> model -> column (a subset, or `Avg.`) -> value in the metric's own unit,
    models in the order of the `source`'s table; `note` is what a reader must know.
    """

    source: str
    note: str
    figures: Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class SubsetProgress:
    """One subset of a run. `scores` are running figures, `units` the units of those that are not
    shares."""

    subset: str
    users: int
    done: int
    failed: int
    steps: int
    steps_done: int
    scores: Mapping[str, float | None] = field(default_factory=dict)
    scored_users: int = 0
    units: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning for the user: `age` is the seconds since its last occurrence, `times` the number of
    occurrences."""

    text: str
    age: float
    times: int = 1


@dataclass(frozen=True, slots=True)
class AtRisk:
    """What a power loss could destroy now: users with records that are not synced yet, and seconds
    since the last sync.

    Without `--durability power` the seconds are those since the run began to save. The death of the
    process destroys no record in either case.
    """

    users: int = 0
    seconds: float = 0.0


Load = tuple[str, ...]
"""Sentences for the display."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of one run at one moment, for displays. Times in seconds, tokens and requests as
    counts.

    Concurrency: `requested` by the user (None for auto), the `limit` now, `in_flight`, and
    `held_by`, the reason why no more requests are in flight. `others_in_flight` are those of other
    runs on the same slots. `outage` is its age, 0 for none; `silence` the seconds since the last
    answer or the start; `awaited` the remaining seconds of `--wait` for the first answer, 0 for
    none; `pause` those of the wait that the endpoint asked for, 0 where requests are in flight or
    may go; `waiting` the requests of this run that wait for a slot. `lag` is the largest delay of
    the event loop, `slowest_write` of the disk, since the last snapshot.

    `rate` is in steps and `token_rates` in tokens per second, of prompts and of completions. `eta`
    is the remaining seconds at that rate, or of the longest user's chain if that takes longer or
    all users left are in play (`chain_bound`), after a `pause`; or until a request that hangs times
    out (`at_most`); None if unknown. `latency` is the median and the 95th percentile of a reply.
    `faults` are failed tries and `failures` failed users, by kind, the most frequent first;
    `notices` are other events of requests, by kind. Tokens are those of this session,
    `projected_tokens` those expected by its end. `cost` is that of all saved replies, of earlier
    sessions too, by currency, and `projected_cost` that expected by the end; empty without a price.
    `allowance` is what is shown of a limit on what requests take; empty without one. `warnings` are
    the last ones, the newest first. `over` is whether the run has ended, in any way. `load` is what
    is shown instead of requests in flight where all users advance together, else empty. `unusable`
    are the replies of this session that no answer could be read from, by kind, the most frequent
    first.
    """

    name: str
    model: str
    seconds: float
    subsets: tuple[SubsetProgress, ...]
    requested: int | None
    limit: int
    in_flight: int
    held_by: str | None
    outage: float
    lag: float
    slowest_write: float
    waiting: int
    backing_off: int
    requests: int
    replayed: int
    retries: int
    prompt_tokens: int
    completion_tokens: int
    rate: float
    eta: float | None
    stopping: str | None = None
    chain_bound: bool = False
    token_rates: tuple[float, float] = (0.0, 0.0)
    latency: tuple[float, float] | None = None
    faults: tuple[tuple[str, int], ...] = ()
    failures: tuple[tuple[str, int], ...] = ()
    projected_tokens: tuple[int, int] | None = None
    warnings: tuple[Warned, ...] = ()
    at_risk: AtRisk = AtRisk()
    silence: float = 0.0
    over: bool = False
    others_in_flight: int = 0
    awaited: float = 0.0
    pause: float = 0.0
    at_most: bool = False
    notices: tuple[tuple[str, int], ...] = ()
    cost: tuple[Money, ...] = ()
    projected_cost: tuple[Money, ...] = ()
    allowance: Load = ()
    load: Load = ()
    unusable: tuple[tuple[str, int], ...] = ()


Snapshots = tuple[Snapshot, ...]
"""One of each run, at the same moment."""
