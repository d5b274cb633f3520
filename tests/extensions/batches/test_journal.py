"""The journal of a run's batches, as a process finds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.store.files import RunFiles
from harness.store.log import AppendLog, encode_line
from harness.store.submissions import BatchJournal, Submission, outstanding, submissions
from tests.support.disks import QuickDisk

PLACES = [("用户", 1, "0" * 32, 0), ("用户", 2, "1" * 32, 3)]


def journal(path: Path) -> BatchJournal:
    return BatchJournal(AppendLog(path, QuickDisk()), lambda: 1.0)


def test_journal_holds_how_far_each_batch_came(tmp_path):
    """After each line, what the next process reads is what this one knew; an ended batch is no
    longer outstanding."""
    files = RunFiles(tmp_path, "weibo")
    written = journal(files.batches)
    written.waves += 1
    one = Submission("label", written.waves, PLACES)
    written.intend(one, "abc")
    [read] = outstanding(files)
    assert (read.name, read.wave, list(read.places), read.file, read.doubtful) == (
        "label.jsonl",
        1,
        PLACES,
        None,
        True,
    )
    written.uploaded(one, "file-1")
    written.created(one, "batch-1")
    written.counted(one, 1)
    [read] = outstanding(files)
    assert (read.file, read.batch, read.completed) == ("file-1", "batch-1", 1)
    again = journal(files.batches)
    assert (again.waves, [left.label for left in again.outstanding]) == (1, ["label"])
    written.end(one, "completed")
    assert outstanding(files) == [] and written.outstanding == []
    assert [(read.ended, read.places) for read in submissions(files.batches)] == [("completed", ())]


def test_unchanged_count_is_not_written_again(tmp_path):
    """A batch is looked at a thousand times a day."""
    path = tmp_path / "batches.jsonl"
    written = journal(path)
    one = Submission("label", written.waves, PLACES)
    written.intend(one, "abc")
    written.counted(one, 1)
    size = path.stat().st_size
    written.counted(one, 1)
    assert path.stat().st_size == size


def test_line_of_another_shape_is_refused_with_its_place(tmp_path):
    """A folder may come from somebody else."""
    path = tmp_path / "batches.jsonl"
    path.write_bytes(encode_line({"what": "intend", "label": 3}))
    with pytest.raises(BadInput, match="byte 0"):
        submissions(path)
