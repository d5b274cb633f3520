"""Whether a model's answers can be used at all: judged by the first ones, before the rest is paid
for."""

from __future__ import annotations

from collections import Counter

from harness.errors import AnswersUnusable, InvalidReply, in_brief
from harness.model import Completion

FIRST, MOST_UNUSABLE = 20, 18
"""Answers of a process that are looked at, and how many of them make it stop: nine of ten. A model
that is only often wrong answers better than that."""
NEW_RUN = "in a new run (--restart, or another --name)"
HINTS = {
    "length": f"give more --max-tokens, {NEW_RUN}",
    "only_thinking": (
        f"give more --max-tokens, or let the model think less (--extra-body), {NEW_RUN}"
    ),
    "content_filter": "the provider's filter does not let the prompts pass: take another provider",
    "context_length": (
        "the prompts do not fit into the model's context: take a model or server with a longer one"
    ),
    "tool_calls": (
        "this model answers by tool calls, which hold no single object: turn them off at the server"
    ),
}
"""What to do, by the kind of most unusable answers, or by the finish reason `tool_calls` of the
last."""
OTHERWISE = (
    "see the replies in responses_*.jsonl: the model may need --structured json_schema, or a larger"
    " one does it"
)


class Answers:
    """The answers of one process so far: how many were `read`, and the `unusable` ones by kind."""

    def __init__(self, allow_invalid: bool) -> None:
        self.read = 0
        self.unusable: Counter[str] = Counter()
        self._allow_invalid = allow_invalid

    def add(self, user: str, completion: Completion, error: InvalidReply | None) -> None:
        """Count how a user's reply was read. Raise `AnswersUnusable` with the last of the first
        replies, if almost none is usable."""
        self.read += 1
        example = ""
        if error is not None:
            kind: object = error.kind  # an author's, who may have taken another type
            self.unusable[kind if isinstance(kind, str) else in_brief(kind)] += 1
            beginning = in_brief(completion.text[:200])
            example = (
                f", the last of {user} with finish_reason {completion.finish_reason}: {beginning}"
            )
        number = self.unusable.total()
        # Judged once, at the twentieth answer: a later look would stop runs that are merely bad.
        if self.read != FIRST or self._allow_invalid or number < MOST_UNUSABLE:
            return
        kinds = self.unusable.most_common()
        counted = ", ".join(f"{kind} {times}" for kind, times in kinds)
        hint = HINTS.get(kinds[0][0]) or HINTS.get(completion.finish_reason or "", OTHERWISE)
        raise AnswersUnusable(
            f"{number} of the first {FIRST} answers cannot be used ({counted}{example}): {hint}; or"
            " go on all the same with --allow-invalid"
        )
