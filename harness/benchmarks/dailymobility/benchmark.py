"""DailyMobility as a benchmark: how a resident is played, measured and recorded (docs/design.md,
section 9)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

from harness.benchmark import (
    VALID,
    About,
    Benchmark,
    Configuration,
    Imports,
    Metric,
    Records,
    Task,
    TaskFiles,
)
from harness.benchmarks.agents.city import City, load_city
from harness.benchmarks.agents.loader import AgentFile, load_agent
from harness.benchmarks.agents.player import AgentPlayer
from harness.benchmarks.agents.resident import Resident, resident_of
from harness.benchmarks.agents.runner import Runner, World
from harness.benchmarks.dailymobility import groundtruth, summary, synth
from harness.benchmarks.dailymobility.agent import DailyMobilityAgent
from harness.benchmarks.dailymobility.cards import ResidentCards
from harness.benchmarks.dailymobility.day import (
    INTENTIONS,
    NUMBERS,
    ROW_SECONDS,
    ROWS,
    SLOTS,
    Day,
    gyration_radius,
    intention_sequence,
    proportions,
    visited,
)
from harness.benchmarks.dailymobility.plan import (
    PlanMode,
    prompt_of,
    stayed_home,
)
from harness.benchmarks.dailymobility.protocols import METRICS
from harness.benchmarks.dailymobility.summary import SCORE
from harness.benchmarks.hash_seed import COPY_PREFIX
from harness.benchmarks.records import read_of
from harness.benchmarks.settings import checked
from harness.chat import Asking, Chat
from harness.errors import BadInput, InvalidReply, in_brief
from harness.model import JSON

FOLDER, PROFILES = "dailymobility", "profiles.json"
"""Below the tasks folder: the data as published."""
LAYOUTS = ((FOLDER,), ("datasets", FOLDER), ())
"""Where the data may be in a tasks folder, in any case of letters: ours, that of asbench, the
folder itself."""

SIMULATOR_VERSION = "1"
AGENT_PARAMETERS = "agent_parameters"
SENT = "sent"
"""In an identity: requests have the parameters that the agent asks for. Without it (runs of version
0.1) none has."""

AGENT_MEMORY_SEARCH = "agent_memory_search"
"""In an identity: agents' searches of their memories find something. Without it they find nothing,
as upstream's."""

IDENTITIES = (
    "structured",
    "parse_retries",
    "simulator",
    "agent_seed",
    AGENT_PARAMETERS,
    AGENT_MEMORY_SEARCH,
)
"""What the modes say of themselves in a run's identity."""

SYNTHETIC = (
    "The city, its residents and the ground truth are synthetic: they show that the harness works,"
    " and say nothing of anyone."
)
SIMULATED = (
    "Movements are simulated: straight lines x 1.3 at 8 m/s driving and 1.34 m/s walking, without"
    " roads and traffic. This approximates the traffic simulator of the benchmark's authors."
)
BASELINES_AND_AGENTS = (
    "warning: baselines answer with a whole day, whatever is asked: an agent that asks other"
    " questions needs a model (examples/commuting_agent.py is one that they can answer)"
)
RUNS_PARAMETERS = (
    "Requests have this run's sampling parameters, not those that the agent file asks for."
)


class AgentMode:
    """An agent file written for `asbench` lives through the day, step by step."""

    name = "agent"
    steps = ROWS
    """Requests that a day is expected to take, for the schedule: one a step. It may take fewer or
    more."""

    def __init__(
        self,
        agent: AgentFile,
        city: City,
        settings: DailyMobility.Settings,
        asking: Asking,
        warn: Callable[[str], None],
        log: Callable[[str], None],
    ) -> None:
        files = {COPY_PREFIX + agent.name: agent.data}
        for name, data in agent.siblings.items():
            files[COPY_PREFIX + name] = data

        identity: JSON = {
            "simulator": SIMULATOR_VERSION,
            "agent_seed": settings.agent_seed,
        }
        # Absent where it is off, as in runs from before there was the option.
        if settings.agent_memory_search:
            identity[AGENT_MEMORY_SEARCH] = True

        if settings.sends_parameters:
            identity[AGENT_PARAMETERS] = SENT

        identity |= asking.identity
        self.asks_with = Configuration(
            f"agent {agent.name}",
            agent.path,
            files,
            identity,
            None,
            BASELINES_AND_AGENTS,
        )
        world = World(city, ROWS, ROW_SECONDS)
        runner = Runner(
            agent,
            world,
            seed=settings.agent_seed,
            finds_memories=settings.agent_memory_search,
            warn=warn,
            log=log,
        )
        self._player = AgentPlayer(runner, asking, sends_parameters=settings.sends_parameters)

    async def play(self, resident: Resident, chat: Chat) -> Day:
        try:
            rows, oddities = await self._player.play(resident, chat)
        except InvalidReply as error:
            return stayed_home(resident, self.name, error.kind)

        # A row is a quarter of an hour, and a slot two of them.
        slot_rows = rows[: 2 * SLOTS : 2]
        oddities["unknown_intention"] = sum(row.intention not in NUMBERS for row in slot_rows)
        # A counter's `+` leaves out the oddities that never occurred.
        counts = sorted((+oddities).items())
        return Day(
            mode=self.name,
            intentions=intention_sequence(rows),
            places=tuple([row.aoi for row in slot_rows]),
            visited=visited(rows),
            outcome=VALID,
            warnings=tuple([f"{oddity}: {count}" for oddity, count in counts]),
        )


def _divergence(metric: str) -> Metric:
    definition = (
        f"Jensen-Shannon divergence of {metric.replace('_', ' ')} from real residents, protocol"
        " aligned"
    )
    return Metric(f"JSD_{metric}", better="lower", definition=definition)


@dataclass(frozen=True)
class Days(Records):
    """A record has the day: intentions and places. `city` is None where nothing is prepared to
    measure one."""

    outcome_field = "invalid"
    has_answer = False
    city: City | None = None

    def record(
        self,
        task: Task,
        answer: Day,
        metrics: JSON,
        outcome: str,
        repairs: Sequence[str],
    ) -> JSON:
        return {
            "user_id": task.given.number,
            "mode": answer.mode,
            "intentions": answer.intentions,
            "places": answer.places,
            "visited_aois": answer.visited,
            **metrics,
            "invalid": None if answer.outcome == VALID else answer.outcome,
            "repairs": answer.repairs,
            "warnings": answer.warnings,
        }

    def rescore(self, task: Task, data: JSON) -> JSON:
        assert self.city is not None
        with read_of(task.key):
            _check_record(task.given, data, self.city)
            return data | _measured(self.city, data["visited_aois"], data["intentions"])

    def rows(self, record: JSON) -> Iterable[JSON]:
        """Return a row for each half hour of the day, from 0."""
        about: JSON = {}
        for name in ("user_id", "repeat", "mode"):
            if name in record:  # `repeat` only with repeats
                about[name] = record[name]

        # Tables of all benchmarks have this column.
        about["outcome"] = record["invalid"] or VALID
        slots = zip(record["places"], record["intentions"], strict=True)
        for slot, (place, intention) in enumerate(slots):
            yield about | {"slot": slot, "place": place, "intention": intention}

    def outcomes(self, record: JSON) -> Iterable[str]:
        return (record["invalid"] or VALID,)


def _measured(city: City, places: Sequence[int], intentions: Sequence[int]) -> JSON:
    points = [(city.aois[place].x, city.aois[place].y) for place in places]
    return {
        "daily_location_number": len(places),
        "gyration_radius_m": gyration_radius(points),
        "intention_proportions": proportions(intentions),
    }


@dataclass(frozen=True, kw_only=True)
class ProfileFiles(TaskFiles):
    """The data in one of `LAYOUTS`."""

    key_field: str = "id"
    data_files: Sequence[str] = (
        f"{FOLDER}/beijing.pb",
        *(f"{FOLDER}/{groundtruth.FOLDER}/{name}.npy" for name in groundtruth.FILES),
    )
    data_set: str = "tsinghua-fib-lab/daily-mobility-generation-benchmark"

    def file_in(self, folder: Path, name: str) -> Path:
        inner_path = Path(name).relative_to(FOLDER)
        for layout in LAYOUTS:
            for data_folder in _below(folder, *layout):
                if os.path.isfile(data_folder / PROFILES):
                    return data_folder / inner_path
        return folder / FOLDER / inner_path


def _settings(identity: JSON, files: Mapping[str, Path]) -> DailyMobility.Settings:
    # Without the agent's file no resident is played, so its settings do not matter.
    if checked(identity, "mode", str) != AgentMode.name or "agent" not in files:
        return DailyMobility.Settings(prompt=files.get("prompt"))

    settings: type[DailyMobility.Settings] = DailyMobility.EarlierSettings
    if identity.get(AGENT_PARAMETERS) == SENT:
        settings = DailyMobility.Settings

    return settings(
        agent=files["agent"],
        agent_seed=checked(identity, "agent_seed", int),
        agent_memory_search=identity.get(AGENT_MEMORY_SEARCH) is True,
    )


class DailyMobility(Benchmark):
    name = "dailymobility"
    version = "1"
    subsets: ClassVar = {"beijing": f"{FOLDER}/{PROFILES}"}
    metrics = (
        Metric(
            SCORE,
            definition="1 minus the mean of the four divergences, protocol aligned",
        ),
        *map(_divergence, METRICS),
    )
    about = About(
        title="DailyMobility",
        user="resident",
        invalid_as="Invalid days count as stayed home with the intention other",
        synthetic=SYNTHETIC,
        language="zh",
        floor="commuter",
        parser_version="2",
    )
    scoring = summary.DayScoring()
    task_files = ProfileFiles()
    records = Days()
    cards = ResidentCards()
    imports = Imports(
        upgraded=summary.upgraded,
        settings=_settings,
        runs_code=lambda identity: bool(identity.get("mode") == AgentMode.name),
        same_note=True,
    )

    @dataclass(frozen=True)
    class Settings:
        prompt: Path | None = field(
            default=None, metadata={"help": "a prompt template for plan mode"}
        )
        agent: Path | None = field(
            default=None,
            metadata={"help": "an agent file written for asbench; its code is run"},
        )
        agent_seed: int = field(default=0, metadata={"help": "seed of the agents' random numbers"})
        agent_memory_search: bool = field(
            default=False,
            metadata={
                "help": (
                    "let agents' searches of their stream of memories find something, unlike"
                    " upstream's"
                )
            },
        )
        sends_parameters: ClassVar[bool] = True

        def __post_init__(self) -> None:
            if self.agent is not None and self.prompt is not None:
                raise BadInput(
                    "--agent and --prompt exclude each other: an agent file writes its own prompts"
                )

            if self.agent is None and self.agent_seed:
                raise BadInput("--agent-seed has no effect without --agent")

            if self.agent is None and self.agent_memory_search:
                raise BadInput("--agent-memory-search has no effect without --agent")

    class EarlierSettings(Settings):
        """Settings of a run from before requests had the parameters that the agent asks for."""

        sends_parameters = False

    def prepare(self) -> Configuration:
        folder = self.task_files.file_in(self.folder, FOLDER)
        self.city = load_city(folder / "beijing.pb")
        self.records = Days(self.city)
        self.cards = ResidentCards(self.city)
        truth = groundtruth.load(folder)
        self.scoring = summary.DayScoring(truth)
        if self.recorded is None:
            self._mode = self._construct_mode()
            mode = self._mode.name
            configuration = self._mode.asks_with
        else:
            # Days are only measured, so the mode itself is not needed.
            recorded = {name: self.recorded[name] for name in IDENTITIES if name in self.recorded}
            mode = checked(self.recorded, "mode", str)
            source = checked(self.recorded, "prompt", str)
            configuration = Configuration(source, None, {}, recorded)

        self._steps = PlanMode.steps
        if mode == AgentMode.name:
            self._steps = AgentMode.steps

        # A task is valid for one map: the index of tasks is made again for another.
        version = f"1 {self.city.sha256} {self._steps}"
        self.task_files = ProfileFiles(version=version, truth_sha256=truth.sha256)
        identity = {
            "mode": mode,
            "prompt": configuration.source,
            **configuration.identity,
            "map_sha256": self.city.sha256,
        }
        return replace(configuration, identity=identity, remark=_remark(mode, identity))

    def _construct_mode(self) -> PlanMode | AgentMode:
        settings = self.settings
        if settings.agent is None:
            return PlanMode(prompt_of(settings.prompt), self.city, self.asking)

        if self.asking.needs_schema:
            raise BadInput(
                "--structured json_schema has no effect with --agent: its file asks in its own form"
            )

        agent = load_agent(settings.agent, DailyMobilityAgent, self.digests)
        return AgentMode(
            agent,
            self.city,
            settings,
            self.asking,
            self.warn,
            self.logged.append,
        )

    def parse(self, line: JSON, subset: str) -> Task:
        return task_of(line, self.city, self._steps)

    async def play(self, resident: Resident, chat: Chat) -> Day:
        return await self._mode.play(resident, chat)

    def measure(self, task: Task, answer: Day) -> Any:
        """Return what the record has of a day: the figures are made of records (`scores.py`)."""
        return _measured(self.city, answer.visited, answer.intentions)

    @classmethod
    def synthesise(cls, folder: Path, users: int, seed: int) -> Mapping[str, Iterable[bytes]]:
        files = synth.files(users, seed)
        return {f"{FOLDER}/{name}": (content,) for name, content in files.items()}


def _remark(mode: str, identity: JSON) -> str:
    if mode != AgentMode.name:
        return ""
    if AGENT_PARAMETERS in identity:
        return SIMULATED
    return f"{SIMULATED} {RUNS_PARAMETERS}"


def task_of(entry: JSON, city: City, steps: int) -> Task:
    """Return the task of an entry; `given` is a `Resident`. Raise `FieldError`."""
    resident = resident_of(entry, city)
    return Task(resident.key, given=resident, steps=steps)


def _check_record(resident: Resident, data: JSON, city: City) -> None:
    """Raise `BadInput` for a saved day whose measures would be wrong."""
    visited = data["visited_aois"]
    places = data["places"]
    intentions = data["intentions"]
    for aoi in visited:
        if aoi not in city.aois:
            raise BadInput(
                f"user {resident.key}: the map has no AOI {in_brief(aoi)}, where the record says"
                " they were"
            )

    if not visited or len(set(visited)) < len(visited):
        raise BadInput(
            f"user {resident.key}: field visited_aois: expected one AOI or more, each once"
        )

    if len(places) != SLOTS or not {*places} <= {*visited, None}:
        raise BadInput(
            f"user {resident.key}: field places: expected {SLOTS} of the visited AOIs, or null"
        )

    # JSON's `true` and 1.0 equal 1.
    if (
        len(intentions) != SLOTS
        or {*map(type, intentions)} != {int}
        or {*intentions} - {*INTENTIONS}
    ):
        raise BadInput(
            f"user {resident.key}: field intentions: expected {SLOTS} whole numbers from 1 to 7"
        )


def _below(folder: Path, *names: str) -> list[Path]:
    """Return the folders at a path of names below a folder, in any case of letters, that spelling
    itself first."""
    folders = [folder]
    for name in names:
        entries = chain.from_iterable(map(_entries, folders))
        folders = [path for path in entries if path.name.lower() == name]
        folders.sort(key=lambda path: (path.name != name, path.name))
    return folders


def _entries(folder: Path) -> list[Path]:
    # What a manifest has as a path may be none at all.
    with suppress(OSError, ValueError):
        return list(folder.iterdir())
    return []
