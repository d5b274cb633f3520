"""Saved replies of another run, found by request and by nothing else."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.extensions.reuse import saved_replies as reuse
from harness.extensions.reuse.saved_replies import SavedReplies
from harness.model import Completion, Reply
from harness.store.log import encode_line


def line(request: str, nth: Any = 0, text: str = "答", **more: Any) -> bytes:
    saved = {"user_id": "甲", "request": request, "nth": nth, "completion": {"text": text}}
    return encode_line(
        {**saved, "seconds": 1.5, "tries": 2, "endpoint": "http://x/v1", "format": 1, **more}
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses_weibo.jsonl"


def test_replies_are_found_by_digest_and_number(path):
    """Of equal requests of several users the first reply is taken."""
    path.write_bytes(
        line("a", text="一")
        + line("a", 1, "二")
        + line("b", text="三", first_token=0.25)
        + line("a")
    )
    with closing(SavedReplies(path, "first")) as saved:
        assert saved.reply("a", 0) == Reply(Completion("一"), 1.5, 2, "http://x/v1", reused="first")
        assert saved.reply("a", 1) == Reply(Completion("二"), 1.5, 2, "http://x/v1", reused="first")
        assert saved.reply("b", 0) == Reply(Completion("三"), 1.5, 2, "http://x/v1", 0.25, "first")
        assert (saved.reply("a", 2), saved.reply("b", 1), saved.reply("c", 0)) == (None, None, None)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        line("a")[:-9] + b"\n",
        line("a").replace("答".encode(), "问".encode()),
        line("a", "0"),
        line("a", completion={"text": 1}),
        line("a", completion={"text": "答", "prompt_tokens": -1}),
        line("a", seconds="1"),
        encode_line({"request": "a", "nth": 0}),
    ],
)
def test_lines_that_no_run_wrote_are_not_reused(path, content):
    """Torn, changed, or of another shape: the request is sent."""
    path.write_bytes(line("b") + content)
    with closing(SavedReplies(path, "first")) as saved:
        assert saved.reply("a", 0) is None


def test_line_that_is_changed_after_it_was_found_is_not_reused(path):
    """It is checked when it is read."""
    path.write_bytes(line("a"))
    with closing(SavedReplies(path, "first")) as saved:
        path.write_bytes(line("a").replace("答".encode(), "问".encode()))
        assert saved.reply("a", 0) is None


def test_requests_of_equal_hash_are_told_apart(path, monkeypatch):
    """The line itself decides."""
    monkeypatch.setattr(reuse, "key_hash", lambda key: 7)
    path.write_bytes(line("a", text="一") + line("b", text="二"))
    with closing(SavedReplies(path, "first")) as saved:
        found = [reply.completion.text for name in "abc" if (reply := saved.reply(name, 0))]
    assert found == ["一", "二"]


def test_run_without_replies_has_none(path):
    """Its file need not be there."""
    with closing(SavedReplies(path, "first")) as saved:
        assert saved.reply("a", 0) is None
