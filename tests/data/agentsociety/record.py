"""Record what an agent file sends in asbench's own run on the demo city: `python record.py AGENT.py OUT.json`.

For an environment of its own with agentsociety-benchmark 0.1.4, agentsociety 1.5.7, qdrant-client 1.14.3, scipy,
msgspec, orjson and anyio, a working directory that may be written to, this checkout in PYTHONPATH, PYTHONHASHSEED=0.
README.md says what is replaced, and why.
"""

import asyncio
import json
import os
import sys
import threading
import types
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copy

import agentsociety.configs
import agentsociety_benchmark.benchmarks as benchmarks
import ray
from agentsociety.agent.agent_base import Agent
from agentsociety.environment import environment
from agentsociety.environment.utils.protobuf import pb2dict
from agentsociety.simulation.simulationengine import SimulationEngine
from google.protobuf.json_format import ParseDict
from pycityproto.city.person.v2 import motion_pb2
from pycityproto.city.person.v2 import person_service_pb2 as service

from harness.benchmarks.agents.city import load_city
from harness.benchmarks.agents.simulator import SPEEDS, Route, Walker
from harness.benchmarks.agents.watchdog import Dice
from tests.support.asbench import DEMO, RESIDENTS, reply

STOP_WORDS = "i me my we our you your he him his she her it its they them what which who this that am is are was were"
CITY = load_city(DEMO / "beijing.pb")
routes, dice, days, requests = {}, {}, {}, {}
now, one_at_a_time = [None], asyncio.Lock()


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        requests.setdefault(now[0], []).append(body)
        message = {"role": "assistant", "content": reply(body["messages"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        made = {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
        data = json.dumps(made).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class Persons:
    """The simulator's service, with straight lines behind its messages."""

    async def AddPerson(self, request):
        routes[request.person.id] = Route(Walker(CITY, request.person.home.aoi_position.aoi_id))

    async def GetPerson(self, req):
        walker = routes[req["person_id"]].walker
        status, speed = {None: 1, "driving": 2, "walking": 3}[walker.mode], SPEEDS.get(walker.mode, 0.0)
        motion = motion_pb2.PersonMotion(id=req["person_id"], status=status, v=speed)
        ParseDict(walker.position, motion.position)
        response = service.GetPersonResponse()
        response.person.motion.CopyFrom(motion)
        return pb2dict(response)

    async def SetSchedule(self, req):
        request = ParseDict(req, service.SetScheduleRequest())
        trips = [trip for schedule in request.schedules for trip in schedule.trips]
        modes = {1: "walking"}
        plan = [(trip.end.aoi_position.aoi_id, modes.get(trip.mode, "driving"), trip.departure_time) for trip in trips]
        routes[request.person_id].replace(plan)

    async def GetGlobalStatistics(self, *_):
        names = ("num_completed_trips", "running_total_travel_time", "running_total_travel_distance")
        return dict.fromkeys(names, 0)


class Economy:
    """Takes everything and has nothing."""

    def set_ids(self, **_):
        pass

    def get_log_list(self):
        return []

    clear_log_list = get_log_list

    async def add_agents(self, *_):
        pass


class Drawn:
    """A coroutine whose draws are those of a resident."""

    def __init__(self, coroutine, own):
        self.coroutine, self.own = coroutine, own

    def __await__(self):
        step, value = self.coroutine.send, None
        while True:
            try:
                with self.own.drawn():
                    waits_for = step(value)
            except StopIteration as end:
                return end.value
            try:
                step, value = self.coroutine.send, (yield waits_for)
            except BaseException as error:
                step, value = self.coroutine.throw, error


def replace_downloads(folder):
    async def start(self):
        self._server_addr, self._syncer = "in this process", None
        self._city_client, self._economy_client = types.SimpleNamespace(person_service=Persons()), Economy()

    async def step(self, ticks):
        self._tick += ticks
        for route in routes.values():
            route.advance(ticks)

    async def embed(self):
        from fastembed import SparseTextEmbedding

        (folder / "english.txt").write_text("\n".join(STOP_WORDS.split()))
        self._embedding = SparseTextEmbedding("Qdrant/bm25", threads=1, specific_model_path=str(folder))

    environment.download_binary = lambda home: "none"
    environment.EnvironmentStarter.init, environment.EnvironmentStarter.step = start, step
    SimulationEngine._init_embedding_task = embed
    agentsociety.configs.AdvancedConfig = lambda **_: None
    sys.modules["mobisimbench"], sys.modules["mobisimbench.benchmarks"] = types.ModuleType("mobisimbench"), benchmarks


def watch_agents():
    make, run = SimulationEngine.__init__, Agent.run

    def few(self, config, *rest):
        config.agents.citizens[0].number = RESIDENTS
        make(self, config, *rest)

    async def watched(self):
        aoi = routes[self.id].walker.aoi
        async with one_at_a_time:
            now[0] = self.id
            seconds = await Drawn(run(self), dice.setdefault(self.id, Dice(0, str(self.id))))
        plan = await self.status.get("current_plan")
        intention = plan["steps"][plan["index"]]["intention"] if plan else "Planning"
        days.setdefault(self.id, []).append([aoi, intention])
        return seconds

    SimulationEngine.__init__, Agent.run = few, watched


async def play(agent, folder, port):
    from agentsociety_benchmark.cli.config import BenchmarkConfig
    from agentsociety_benchmark.runner import BenchmarkRunner

    model = {"provider": "vllm", "base_url": f"http://127.0.0.1:{port}/v1", "api_key": "none", "model": "m"}
    place = {"db": {"enabled": True, "db_type": "sqlite"}, "home_dir": str(folder / "home")}
    (folder / "home").mkdir(parents=True, exist_ok=True)
    copy(DEMO / "beijing.pb", folder)
    copy(DEMO / "profiles.json", folder)
    runner = BenchmarkRunner(BenchmarkConfig.model_validate({"llm": [model], "env": place, "mode": "inference"}))
    config = runner._load_agent_config(agent)
    await runner.run("tenant", "DailyMobility", config, datasets_path=folder, mode="inference")


if __name__ == "__main__":
    folder = Path("recording").resolve()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    replace_downloads(folder)
    watch_agents()
    error = None
    try:
        asyncio.run(play(Path(sys.argv[1]), folder, server.server_port))
    except Exception as raised:
        error = str(raised)
    Path(sys.argv[2]).write_text(json.dumps({"requests": requests, "days": days, "error": error}), encoding="utf-8")
    ray.shutdown()
    os._exit(0)  # threads of the packages would go on
