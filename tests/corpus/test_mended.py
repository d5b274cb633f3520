"""What the fuzzer found, at its smallest, or in one reader where others had it too."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from harness.benchmarks.parsing import json_object
from harness.benchmarks.streamprofile.synth import generate
from harness.errors import InvalidReply
from harness.model import Completion
from tests.corpus.command import RUN, TASKS, put

FOLDER = Path("results/recency")
RESULTS, RESPONSES, FAILURES = (
    FOLDER / f"{name}_weibo.jsonl" for name in ("inference_results", "responses", "failures")
)
PAYLOAD = b'{"user_id":"a","task'
NO_JSON = b'%b,"crc":"%08x"}\n' % (PAYLOAD, crc32(PAYLOAD))
"""A line with its own checksum that is no JSON for all that."""


@pytest.mark.parametrize("path", [RESULTS, RESPONSES, FAILURES], ids=lambda path: path.name)
def test_a_line_that_is_no_json_for_all_its_checksum_stops_nothing(command, path):
    """It is passed over and reported by `verify`, and a run goes on to the same results; they leave
    it in a copy."""
    put(TASKS, b"".join(generate("weibo", 3, 5, 2.0)))
    assert command(*RUN) == 0, command.said
    whole = RESULTS.read_bytes()
    put(path, NO_JSON + path.read_bytes())
    assert command("verify") == 1
    assert f"{path.name}, line 1" in command.said
    for words in (("status",), RUN, ("reeval",)):
        assert command(*words) == 0, command.said
    assert RESULTS.read_bytes() == whole
    kept = [path, *FOLDER.glob(f"{path.name}.before-*")]
    assert any(NO_JSON in one.read_bytes() for one in kept)


def test_a_reply_on_which_the_repair_itself_fails_holds_no_json():
    """A fence within a name breaks an assertion of the repair; the answer is invalid, and the run
    goes on."""
    with pytest.raises(InvalidReply) as caught:
        json_object(Completion('{"```json0```'), [])
    assert caught.value.kind == "no_json"
