"""Check a run's folder: every line sound, every input user exactly once, metrics equal to a
re-score, records what the saved responses give, counts of the manifest those of the files.

Not detected: missing lines that will be produced again anyway (responses of users that are not
done, records of a run that died); missing events in the log, or a missing failure of a user;
changes to fields that only the manifest has (packages, tuning, times, cost); changes to reports,
pages and exports, which `reeval` and `report` make again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from harness.analysis.replies import TORN, Beat, Replies, opened
from harness.analysis.saved_runs import SavedRun
from harness.benchmark import Benchmark, Task
from harness.benchmarks.files import open_regular
from harness.benchmarks.records import ODD_SHAPE, in_form_of
from harness.client.request_body import Sampling
from harness.commands.verify.checksums import check_logs, unlike_manifest
from harness.engine.play import play, recorded, rescored
from harness.engine.replay import ReplayMiss, replaying
from harness.engine.run import user_counts
from harness.errors import AgentFailed, BadInput, BenchmarkError, in_brief
from harness.model import JSON, Completion
from harness.reply_facts import ReplyFacts
from harness.store.log import decode_line, line_at
from harness.store.manifest import COMPLETE, INCOMPLETE, RUNNING
from harness.store.run import RECORD_FORMAT, numbered
from harness.store.tally import RunTally
from harness.store.tasks import TaskIndex
from harness.ui.words import plural

MISSHAPEN = (BadInput, BenchmarkError, *ODD_SHAPE)
"""Errors of a line that has a correct checksum but is not ours."""


@dataclass(frozen=True, slots=True)
class Replayer:
    """Plays users again from their saved responses."""

    benchmark: Benchmark
    sampling: Sampling
    loop: asyncio.Runner

    def difference(
        self, task: Task, data: JSON, saved: Mapping[tuple[str, int], Completion], repeat: int
    ) -> str | None:
        """Return how a record differs from what the responses give, None if it does not."""
        replies = replaying(self.sampling.of_repeat(repeat), saved)
        try:
            played = self.loop.run(play(self.benchmark, task, replies.ask, repeat))
            measured = recorded(self.benchmark, task, played)
        except (ReplayMiss, AgentFailed):
            return "was made of a missing response"
        header = {"task": data["task"], "format": data["format"]}
        if "roles" in data:
            header["roles"] = data["roles"]
        measured = {**header, **numbered(repeat), **measured}
        expected = as_saved(self.benchmark, data, measured)
        names = [name for name in expected | data if data.get(name, ...) != expected.get(name, ...)]
        if names:
            return f"is not what the saved responses give: {', '.join(names)}"
        return None


def as_saved(benchmark: Benchmark, data: JSON, measured: JSON) -> JSON:
    """Return what was measured now as a file has it; without the values that were not measured when
    `data` was saved."""
    # Plug-ins may keep tuples, which a file has as lists.
    saved: JSON = orjson.loads(orjson.dumps(measured))
    if benchmark.records.completed(data) != data:
        saved = in_form_of(data, saved)
    return saved


class Check:
    """The checks of one run, over its files as they are; nothing is changed."""

    def __init__(
        self,
        run: SavedRun,
        benchmark: Benchmark,
        index: TaskIndex,
        player: Replayer | None,
        beat: Beat,
    ) -> None:
        selection = run.manifest.selection
        self.expected = index.selected(selection)
        self.notes: list[str] = []
        self._run = run
        self._files = run.files
        self._manifest = run.manifest
        self._benchmark = benchmark
        self._index = index
        self._player = player
        self._beat = beat
        self._tally = RunTally()
        self._replies = Replies(run.files.responses, self._counted, beat)
        # Offsets and no records: a run of a million users is checked in the memory of its index.
        self._offsets = np.full(len(index), -1, np.int64)
        self._numbers = np.zeros(len(index), np.int64)
        self._failed = np.zeros(len(index), np.bool_)

    @property
    def done(self) -> Any:
        """Return a mask of the tasks that have a record."""
        return self._offsets >= 0

    def findings(self) -> Iterator[str]:
        yield from self._tasks()
        yield from check_logs(self._run, self._replies, self._beat, self._saw_failure)
        yield from self._results()
        yield from self._records()
        yield from self._users()
        # A run that died has counts of its last orderly moment, and `resume` counts again.
        if self._manifest.state != RUNNING:
            yield from self._counts()

    def _tasks(self) -> Iterator[str]:
        manifest = self._manifest
        index = self._index
        if manifest.subset != self._files.subset:
            yield f"{self._files.manifest.name} is of {manifest.subset}"
        tasks = manifest.tasks
        users = index.users_in_file
        if tasks["sha256"] != index.sha256:
            yield f"{index.path} is not the tasks file that this run was made with"
        elif tasks["users"] != users:
            yield (
                f"{self._files.manifest.name}: tasks.users is {tasks['users']}, there are {users}"
            )
        if tasks.get("truth", "") != self._benchmark.task_files.truth_sha256:
            yield (
                "the ground truth is not the one that this run was scored with: score it again with"
                " `reeval`"
            )

    def _counted(self, line: JSON) -> int | None:
        """Count a saved response; return whose it is."""
        self._tally.add_reply(line)
        return self._index.position_of(line)

    def _saw_failure(self, data: JSON) -> None:
        """Note a failed user, if the task is unchanged."""
        position = self._index.current(data)
        if position is not None:
            self._failed[position] = True

    def _results(self) -> Iterator[str]:
        """Yield torn, duplicate, foreign and misplaced lines; note where each user's record is.

        Only a complete run has its records in the order of the tasks, and none of an earlier
        content of its tasks.
        """
        checksum = hashlib.sha256()
        without_task = 0
        last_position = -1
        is_complete = self._manifest.state == COMPLETE
        for place, number, line, data in opened(self._files.results, self._beat):
            checksum.update(line.text + b"\n")
            if data is None:
                yield f"{place}: {TORN}"
                continue
            position = self._index.current(data)
            if position is None:
                if is_complete:
                    yield f"{place}: user {data.get('user_id')} has no such task"
                else:
                    without_task += 1
                continue
            if self._offsets[position] >= 0:
                yield f"{place}: user {data['user_id']} has a duplicate record"
            elif is_complete and position <= last_position:
                yield f"{place}: user {data['user_id']} is not in the order of the tasks file"
            self._offsets[position] = line.offset
            self._numbers[position] = number
            last_position = position
        if without_task:
            records = plural(without_task, "record")
            self.notes.append(f"{records} of users or tasks that are not in the tasks file")
        yield from unlike_manifest(self._run, checksum.hexdigest())

    def _records(self) -> Iterator[str]:
        """Yield records that differ from what their answers or responses give."""
        path = self._files.results
        if not self.done.any():
            return  # there may be no file
        with open_regular(path) as file:
            for position in np.flatnonzero(self.done).tolist():
                self._beat()
                data = decode_line(line_at(file, int(self._offsets[position])))
                problem = self._record(position, data)
                if problem:
                    yield f"{path.name}, line {self._numbers[position]}: {problem}"

    def _record(self, position: int, data: JSON) -> str | None:
        """Return what is wrong with a record, None for nothing."""
        user = f"user {data['user_id']}"
        task = self._index.task(self._benchmark, position, self._files.subset)
        try:
            measured = as_saved(self._benchmark, data, rescored(self._benchmark, task, data))
            if data.get("format") != RECORD_FORMAT:
                return (
                    f"the record of {user} is of format {in_brief(data.get('format'))}, not"
                    f" {RECORD_FORMAT}"
                )
            if measured != data:
                return f"the metrics of {user} differ from a re-score"
            if data.get("reparse") == "diverged":  # `reeval` marked it, and kept it
                return None
            problem = self._unlike_responses(task, position, data)
        except MISSHAPEN as error:
            return f"the record of {user} cannot be scored again ({error})"
        return problem and f"the record of {user} {problem}"

    def _unlike_responses(self, task: Task, position: int, data: JSON) -> str | None:
        """Return how a record differs from its responses: by their count alone without a player."""
        try:
            saved = self._replies.completions(position)
        except MISSHAPEN:
            return "has a malformed saved response"
        if self._player is not None:
            return self._player.difference(task, data, saved, self._index.repeat(position))
        requests = data["usage"]["requests"]
        if len(saved) < requests:
            return f"was made of {requests} responses, and {len(saved)} are there"
        return None

    def _users(self) -> Iterator[str]:
        """Yield input users that are neither recorded nor failed, if the manifest says that all
        have been played."""
        state = self._manifest.state
        if state not in (COMPLETE, INCOMPLETE):
            return
        played = self.done if state == COMPLETE else self.done | self._failed
        for position in np.flatnonzero(self.expected & ~played):
            yield (
                f"{self._index.where(int(position))}: this user has neither a record nor a failure"
            )

    def _counts(self) -> Iterator[str]:
        """Yield numbers of the manifest that do not match the files."""
        manifest = self._manifest
        file = self._files.manifest.name
        # Users beyond the selection may have records of an earlier, larger one.
        counts = user_counts(self._index, self.expected | self.done, self.done, self._failed)
        for name, count in counts.items():
            saved = manifest.counts.get(name)
            if saved != count:
                yield f"{file}: counts.{name} is {saved}, and there are {count}"
        facts = self._tally.replies.facts
        # Others were not counted.
        for name in manifest.replies.keys() & set(ReplyFacts.__struct_fields__):
            if getattr(manifest.reply_facts, name) != getattr(facts, name):
                yield f"{file}: replies.{name} is not what the saved replies say"
