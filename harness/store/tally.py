"""What the lines of a run's logs add up to: the bill, and what its replies say.

There is one way for a reply into the sums, whether it is saved now, or was by an earlier process or
by a worker.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from harness.cost import Bill, Rate
from harness.defaults import EMBEDDED
from harness.model import JSON, LARGEST_COUNT, Completion, role_of
from harness.reply_facts import ReplyCounts
from harness.store import log
from harness.store.files import RunFiles

IN_FLIGHT = "in_flight"
UNANSWERED = frozenset({"retry", "unanswered", "probe", "outage"})
"""Lines of the log: those that have a member `sent` may have been billed."""


class RunTally:
    """`bill` has every saved reply to a run's own requests, and the requests without a reply that
    may have been billed. `reused` counts replies that are another run's, by its name; `replies`
    what all of them say, those of the harness's own baselines aside."""

    def __init__(self) -> None:
        self.bill = Bill()
        self.reused: Counter[str] = Counter()
        self.replies = ReplyCounts()

    def add_reply(self, line: JSON) -> None:
        """Count a line of the responses, if it is one as the harness writes it."""
        self.add(
            completion_of(line),
            Rate.of_line(line),
            count_of(line.get("sent")),
            line.get("reused"),
            line.get("endpoint"),
            role_of(str(line.get("request"))),
        )

    def add(
        self,
        completion: Completion | None,
        rate: Rate,
        sent: int,
        reused: object,
        endpoint: object,
        role: str = "",
    ) -> None:
        """Count a reply to a request of so many bytes to the model of a role, empty for the one
        under test; `completion` is None where it cannot be used."""
        if reused is not None:  # it was paid for there
            self.reused[str(reused)] += 1
        elif completion:
            self.bill.at(rate).add(completion, sent)
        if completion and endpoint != EMBEDDED:
            self.replies.add(completion, role)

    def add_event(self, line: JSON) -> None:
        """Count a line of the events, if its requests have no reply and may have been billed."""
        if line.get("what") in UNANSWERED:
            self._lose(line)

    def add_events(self, files: RunFiles) -> None:
        """Count all events, and what was in flight where a process died."""
        in_flight: dict[str, JSON] = {}
        for _, line in log.objects(files.events):
            self.add_event(line)
            if line.get("what") == IN_FLIGHT:
                in_flight[str(line.get("session"))] = line
        # The last line of a session counts; one that says zero was written at its orderly end.
        for line in in_flight.values():
            self._lose(line)

    def _lose(self, line: JSON) -> None:
        """Count requests by their number (`requests`, 1 without) and bytes (`sent`)."""
        if line.get("sent") is not None:
            requests = count_of(line.get("requests", 1))
            self.bill.lose(Rate.of_line(line), requests, count_of(line["sent"]))


def tally_of(files: RunFiles) -> RunTally:
    """Return what the lines of a run add up to."""
    tally = RunTally()
    for _, line in log.objects(files.responses):
        tally.add_reply(line)
    tally.add_events(files)
    return tally


def completion_of(line: JSON) -> Completion | None:
    """Return the completion of a response's line; None if the line is not as the harness writes it,
    so that the request is sent again. A checksum shows that a line is unchanged, and not that it is
    one of ours."""
    try:
        saved = msgspec.convert(line.get("completion"), Completion)
    except msgspec.ValidationError:
        return None
    if type(line.get("request")) is not str or type(line.get("nth")) is not int:
        return None
    # A count beyond the bound would overflow the sums, and a negative one would lower the bill.
    for count in (
        saved.prompt_tokens,
        saved.completion_tokens,
        saved.cached_tokens,
        saved.reasoning_tokens,
    ):
        if count is not None and not 0 <= count < LARGEST_COUNT:
            return None
    return saved


def count_of(value: object) -> int:
    return value if type(value) is int and 0 <= value < LARGEST_COUNT else 0
