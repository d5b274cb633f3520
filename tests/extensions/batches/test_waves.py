"""Runs by batches over a provider in memory: waves, faults at every operation, and what goes
again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from harness.errors import EndpointStopped, TransportFault
from harness.model import JSON
from harness.store.submissions import outstanding, submissions
from tests.extensions.batches.provider import BatchRun, Losing, Provider
from tests.support.disks import CHANGING, Death, FaultyDisk, QuickDisk
from tests.support.whole_run import USERS, WholeRun

QUICK = QuickDisk()
STEPS = sum(USERS.values())
OPERATIONS = (*CHANGING, "network")


@pytest.fixture
def online(tmp_path: Path) -> bytes:
    """The results of the run without batches."""
    (tmp_path / "online").mkdir()
    run = WholeRun(tmp_path / "online")
    run.process(QUICK)
    return run.files.results.read_bytes()


def made(folder: Path, provider: Provider, **options: int | bool) -> BatchRun:
    folder.mkdir(parents=True)
    return BatchRun(folder, provider, **options)  # type: ignore[arg-type]


def check(run: WholeRun, provider: Provider, online: bytes, most: int = 1) -> None:
    """The run ended as it does online; every request was run and answered as often as it may be,
    and no batch is unknown to the journal."""
    assert run.files.results.read_bytes() == online
    assert run.wrong() == []
    assert set(provider.answered.values()) == {1}
    assert max(provider.ran.values()) <= most
    assert {one.batch for one in submissions(run.files.batches) if one.batch} == set(
        provider.batches
    )
    # A death after the last record leaves a batch without a line on its end, with all its replies
    # saved.
    assert {place[2] for one in outstanding(run.files) for place in one.places} <= run.saved.keys()


def test_users_advance_in_waves_one_step_each(tmp_path, online):
    """There are as many batches as the longest user has steps, each with one request of each user
    with steps left."""
    provider = Provider()
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    check(run, provider, online)
    assert not outstanding(run.files)
    sizes = [
        len(provider.files[batch.input_file_id or ""][1].splitlines())
        for batch in provider.batches.values()
    ]
    assert sizes == [
        sum(steps > wave for steps in USERS.values()) for wave in range(max(USERS.values()))
    ]
    assert [one.wave for one in submissions(run.files.batches)] == [1, 2, 3]


def test_wave_is_split_by_the_limits_of_a_file(tmp_path, online):
    """With three requests a file, the first wave of four users is two batches, and identifiers are
    unique in each."""
    provider = Provider()
    run = made(tmp_path / "run", provider, most_requests=3)
    run.process(QUICK)
    check(run, provider, online)
    first = [
        provider.files[batch.input_file_id or ""][1].splitlines()
        for batch in provider.batches.values()
    ][:2]
    assert [len(lines) for lines in first] == [3, 1]


@pytest.mark.parametrize("fate", ["expired", "cancelled"])
def test_what_a_batch_did_not_answer_goes_again(tmp_path, online, fate):
    """Half of the first batch is answered and kept; the other half is run by a later one, once."""
    provider = Provider((fate,))
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    check(run, provider, online)
    assert len(provider.lines()) == STEPS + len(USERS) // 2


def test_lines_that_failed_go_again_alone(tmp_path, online):
    """A line with a passing error is in the next wave; no other request of its batch is."""
    provider = Provider(
        line=lambda body, tries: busy() if tries == 1 and of(body) == "丙" else None
    )
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    check(run, provider, online, most=2)
    assert len(provider.lines()) == STEPS + USERS["丙"]


def test_line_that_fails_for_ever_makes_its_user_a_failure(tmp_path):
    """After --max-retries other waves the user is given up, and the others are complete."""
    provider = Provider(line=lambda body, tries: busy() if of(body) == "丙" else None)
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    assert max(provider.ran.values()) == 3
    assert sorted(run.recorded) == sorted(set(USERS) - {"丙"})


def test_refused_line_makes_its_user_a_failure_at_once(tmp_path):
    """Another try would not help."""
    refusal = {"status": 400, "error": {"message": "odd", "code": "odd"}}
    provider = Provider(line=lambda body, tries: refusal if of(body) == "丙" else None)
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    assert max(provider.ran.values()) == 1
    assert sorted(run.recorded) == sorted(set(USERS) - {"丙"})


def test_batch_that_fails_as_a_whole_goes_again_after_a_pause_if_it_met_a_limit(tmp_path, online):
    """A limit of requests passes; nothing of such a batch was run."""
    provider = Provider(("failed", "failed"))
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    check(run, provider, online)
    assert len(provider.batches) == max(USERS.values()) + 2


MANY = {f"用户{number}": 1 + number % 2 for number in range(40)}


@pytest.mark.parametrize("strict", [False, True], ids=["failed", "not created"])
@pytest.mark.parametrize("most", [40, 15], ids=["one file", "several"])
def test_waves_are_split_until_the_provider_takes_them(tmp_path, strict, most):
    """With room for 10 requests, 40 users are complete: each request was run once, and none was
    given up."""
    provider = Provider(room=10, strict=strict)
    (tmp_path / "run").mkdir()
    run = BatchRun(tmp_path / "run", provider, MANY, most_requests=most)
    run.process(QUICK)
    assert run.wrong() == []
    assert sorted(run.recorded) == sorted(MANY)
    assert set(provider.ran.values()) == {1}
    sizes = [
        len(provider.files[batch.input_file_id or ""][1].splitlines())
        for batch in provider.batches.values()
    ]
    ran = [
        size
        for size, batch in zip(sizes, provider.batches.values(), strict=True)
        if batch.status == "completed"
    ]
    assert (sum(ran), max(ran)) == (sum(MANY.values()), max(size for size in ran if size <= 10))
    assert (
        len(ran) <= 2 * sum(MANY.values()) / 5
    )  # at least half of the room is used, but for ends of waves
    assert not outstanding(run.files)


def test_room_that_something_else_uses_is_waited_for(tmp_path, online):
    """Even one request is too much at first; after a pause the whole is tried again."""
    provider = Provider(room=4)
    provider.enqueued["of somebody else"] = 4
    run = made(tmp_path / "run", provider)

    def until_paused(act: Callable[[], Any]) -> Any:
        if provider.operations["create"] == 4:
            provider.enqueued.pop("of somebody else", None)
        return act()

    run.step = until_paused
    run.process(QUICK)
    check(run, provider, online)
    assert len(provider.batches) == 3 + max(USERS.values())


@pytest.mark.parametrize("why", ["Enqueued token limit reached", "limit: too many batches"])
def test_batches_that_fail_for_ever_stop_the_run_and_fail_no_user(tmp_path, why):
    """It can be resumed, and is complete once the provider takes them."""
    provider = Provider(("failed",) * 100, why=why)
    run = made(tmp_path / "run", provider)
    with pytest.raises(EndpointStopped):
        run.process(QUICK)
    assert run.files.failures.read_bytes() == b""
    run.provider = Provider()
    run.process(QUICK)
    assert run.wrong() == []


def test_first_batch_that_fails_as_a_whole_for_another_reason_stops_the_run(tmp_path, online):
    """Every batch would; the next process submits the requests again, and does not wait for that
    one."""
    provider = Provider(("failed",), why="no such model")
    run = made(tmp_path / "run", provider)
    with pytest.raises(EndpointStopped):
        run.process(QUICK)
    run.process(QUICK)
    check(run, provider, online)


def test_endpoint_without_the_api_stops_the_run_and_leaves_nothing_behind(tmp_path):
    """404 for the first upload ends it at once, and no batch is expected at the provider."""
    run = made(tmp_path / "run", Provider())

    def refuse(act: Callable[[], Any]) -> Any:
        raise TransportFault("http_404", "not found", unreachable=True)

    run.step = refuse
    with pytest.raises(EndpointStopped):
        run.process(QUICK)
    assert [one.ended for one in submissions(run.files.batches)] == ["refused"]


def test_quirk_is_learned_from_the_lines_that_are_refused_for_it(tmp_path):
    """All go again once, without what the endpoint does not take; later waves are sent without
    it."""
    refusal = {"status": 400, "error": {"message": "response_format is not supported"}}
    provider = Provider(line=lambda body, tries: refusal if "response_format" in body else None)
    run = made(tmp_path / "run", provider)
    manifest = run.process(QUICK)
    assert manifest.provenance["quirks"] == ["no_response_format"]
    assert run.wrong() == []
    assert len(provider.lines()) == STEPS + len(USERS)


def test_results_that_break_off_are_downloaded_again(tmp_path, online):
    """Half a file of results is no answer to the rest."""
    provider = Provider(cut=2)
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    check(run, provider, online)
    assert provider.operations["download"] == max(USERS.values()) + 2
    assert len(provider.lines()) == STEPS


def test_line_that_is_there_twice_settles_its_request_once(tmp_path, online):
    """Also one that failed, whose request goes again."""
    provider = Provider(line=lambda body, tries: busy() if tries == 1 else None, doubled=True)
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    check(run, provider, online, most=2)


def test_half_a_surrogate_pair_that_nobody_reads_costs_no_reply(tmp_path, online):
    """A line of results with one beside its answer was paid for, and is read."""

    class Odd(Provider):
        def _kept(self, name: str, content: bytes) -> str:
            if name == "output":
                content = content.replace(b'"message":{', rb'"message":{"note":"\ud83d",')
            return super()._kept(name, content)

    provider = Odd()
    run = made(tmp_path / "run", provider)
    run.process(QUICK)
    check(run, provider, online)


def test_replies_without_a_user_who_waits_are_not_saved_twice(tmp_path, online):
    """A process that dies before the end of a batch is noted leaves replies that the next one finds
    again."""
    provider = Provider()
    run = made(tmp_path / "run", provider)
    ended = b'"what":"ended"'

    class Dying(QuickDisk):
        def write(self, fd: int, content: bytes) -> int:
            if ended in content:
                raise Death
            return super().write(fd, content)

    with dying():
        run.process(Dying())
    assert len(run.saved) == len(USERS)
    run.process(QUICK)
    check(run, provider, online)


@pytest.mark.parametrize("before", [False, True])
def test_answer_lost_at_every_operation_submits_nothing_twice(tmp_path, online, before):
    """Whichever answer of the provider is lost, or operation fails, it is asked what it has before
    anything is sent again."""
    for nth in count(1):
        provider = Provider()
        run = made(tmp_path / f"{nth}", provider)
        run.step = Losing(nth, before=before)
        run.process(QUICK)
        check(run, provider, online)
        assert len(provider.batches) == max(USERS.values())
        if nth > provider.operations.total():
            break


@contextmanager
def dying() -> Iterator[None]:
    """The end of a process that may die."""
    try:
        yield
    except Death:
        pass
    except BaseExceptionGroup as group:
        assert group.split(Death)[1] is None


def deaths(how: str) -> Iterator[FaultyDisk]:
    """Each ends the process one operation later than the one before."""
    for nth in count(1):
        disk = FaultyDisk(nth, how, OPERATIONS, QUICK)
        yield disk
        if disk.struck is None:
            return


@pytest.mark.slow
@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("how", ["death before", "death after", "death midway"])
def test_death_at_every_operation_submits_nothing_twice_and_forgets_no_batch(
    tmp_path, online, how, power
):
    """At each operation of the disk and of the provider in turn; the next process ends the run with
    the same bytes."""
    for number, disk in enumerate(deaths(how)):
        provider = Provider()
        run = made(tmp_path / f"{number}", provider, power=power)
        with dying():
            run.process(disk)
        disk.bury()
        run.process(QUICK)
        check(run, provider, online)
        shutil.rmtree(tmp_path / f"{number}")


def of(body: JSON) -> str:
    """Whose request it is."""
    return str(body["messages"][0]["content"])


def busy() -> JSON:
    return {"status": 500, "error": {"message": "busy", "code": "server_error"}}
