"""Messages between driver and workers survive the way: every kind of them, and every error."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from harness.cost import Rate
from harness.endpoint.replies import Denied
from harness.engine.answers import Judgement
from harness.errors import (
    AgentFailed,
    GaveUp,
    HarnessError,
    InUse,
    MachineError,
    Rejected,
    TransportFault,
)
from harness.features.ray import messages as m
from harness.features.ray.crew import WorkersStopped
from harness.model import Completion

WHOLE = Completion("答案😀", "length", 3, 2, "模型", "不能", "想了想")
BUSY = TransportFault("http_429", "忙", retry_after=2.5, unreachable=True, foreign=True)

ERRORS: dict[str, HarnessError] = {
    "AgentFailed": AgentFailed("agent_error", "第 3 行"),
    "Denied": Denied("额度用完"),
    "GaveUp": GaveUp("persistent_error", "http_503: 忙", 7),
    "Rejected": Rejected("http_400", "不行"),
    "TransportFault": BUSY,
}
TO_WORKER: list[Any] = [
    m.Play(
        1,
        0,
        "weibo",
        "tasks.jsonl",
        7,
        b'{"user_id": "\xe4\xb8\x80"}',
        2,
        3,
        [("ab", 0, WHOLE), ("cd", 1, WHOLE)],
        Rate(1),
        9,
    ),
    m.Granted(1, 2),
    m.Settled(2, None),
    m.Settled(2, WHOLE),
    m.Settled(2, None, 4096),
    m.Reclaim(0),
    m.Refused(2, m.packed(BUSY)),
    m.Cancel(1),
    m.Score(3, 0, "weibo", [b'{"user_id": "1"}'], [(0, "tasks.jsonl", 7, b'{"user_id": "1"}')]),
    m.Adopt(0, "no_temperature"),
]
TO_DRIVER: list[Any] = [
    m.Ask(1, 2, "一", b"{}", 3, "ab", 0),
    m.Ask(1, 2, "一", b"{}", 3, "ab", 0, m.packed(BUSY), 0.5),
    m.Replied(1, 2, "一", b'{"user_id":"1","crc":"00000000"}\n', tuple(range(16)), 999, 0.5),
    m.Late(1, 2, "一", 7.5),
    m.GivenBack(1),
    m.GivenBack(1, 2),
    m.PlayEnded(1, "一", b'{"user_id": "1"}', None, True, 2, 1),
    m.PlayEnded(1, "一", None, m.packed(ERRORS["GaveUp"]), False, 0, 0),
    m.Scored(3, b"\x80\x05"),
    m.Scored(3, None),
    m.Running([1, 2], b"\x80\x05"),
    m.Stopped(1, m.packed(ERRORS["Denied"])),
    m.Stopped(1, None, "Traceback"),
    m.Worked(0.75),
    m.Learned(0, "no_temperature", "不支持"),
    m.Exhausted(0, 12.5),
    m.Noted(0, "http://here/v1 is back"),
    m.Logged(0, ["行"], ["警告"]),
    m.Judged(1, Judgement("length", "length", "'想'")),
    m.Usable(0, 3),
]


def over(error: HarnessError) -> HarnessError:
    [message] = m.to_driver(m.encode([m.Stopped(1, m.packed(error))]))
    assert isinstance(message, m.Stopped) and message.error
    return m.unpacked(message.error)


def test_every_message_arrives_as_it_was_sent() -> None:
    """Of all kinds, with all of their members."""
    assert m.to_worker(m.encode(TO_WORKER)) == TO_WORKER
    assert m.to_driver(m.encode(TO_DRIVER)) == TO_DRIVER
    assert {type(message) for message in TO_WORKER} == set(get_args(m.ToWorker))
    assert {type(message) for message in TO_DRIVER} == set(get_args(m.ToDriver))


@pytest.mark.parametrize("name", sorted(m.ERRORS))
def test_every_error_arrives_as_it_was_raised(name: str) -> None:
    """Its class, its sentence, and whatever else it holds."""
    error = ERRORS.get(name) or m.ERRORS[name]("一句话")
    found = over(error)
    assert type(found) is type(error) is m.ERRORS[name]
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))
    assert found.exit_code == error.exit_code


def test_error_of_another_class_arrives_as_its_nearest_base() -> None:
    """One that a message has no word for still has its exit code and sentence."""
    assert type(over(InUse("占用"))) is MachineError and str(over(InUse("占用"))) == "占用"
    stopped = over(WorkersStopped("没有了"))
    assert type(stopped) is HarnessError and str(stopped) == "没有了"
