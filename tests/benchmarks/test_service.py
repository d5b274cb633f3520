"""The example of an agent with tools that serves a simulated customer (`examples/service`)."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

from harness.cli import main
from tests.support import ROOT
from tests.support.plugins import Commands
from tests.support.scripted import completion, serving

FOLDER = ROOT / "examples" / "service"
SERVICE = FOLDER / "service.py"
ROLE = ("--role", "customer=baseline/customer")


@pytest.fixture
def harness(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(tmp_path / "results", capsys)


def test_the_example_is_one_short_file_that_keeps_the_contract():
    """Below 150 lines of 100 columns; `check-benchmark` finds nothing."""
    lines = SERVICE.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 150 and max(map(len, lines)) <= 100
    assert main(["check-benchmark", str(SERVICE), "--tasks-dir", str(FOLDER)]) == 0


def test_pass_hat_k_falls_with_k(harness):
    """The forgetful agent succeeds in some repeats; all of two, or of four, succeed less often."""
    words = ["--tasks-dir", FOLDER, "--model", "baseline/agent", *ROLE, "--repeats", "4"]
    harness("run", SERVICE, *words, "--no-html")
    report = harness.report("agent", "retail")
    pass_1 = report["metrics"]["Success"]["value"]
    pass_2, pass_4 = (report["secondary"][f"pass^{k}"]["value"] for k in (2, 4))
    assert 0 < pass_4 < pass_2 < pass_1 < 1
    text = harness.text("agent", "eval_report_retail.txt")
    assert f"pass^2           {100 * pass_2:.2f} %" in text
    harness("verify", "agent", "--tasks-dir", FOLDER)


def tool_call(name: str, arguments: str) -> tuple[int, bytes]:
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return 200, orjson.dumps({"model": "a", "choices": [choice], "usage": usage})


class Agent:
    """An agent that looks the customer up, sends broken arguments once, and returns the mug."""

    def __init__(self) -> None:
        self.results: list[str] = []

    def __call__(self, body: dict[str, Any]) -> tuple[int, bytes]:
        if not body.get("tools"):
            return 200, completion("###STOP###" if len(body["messages"]) > 2 else "I am Dilek.")
        results = [m["content"] for m in body["messages"] if m["role"] == "tool"]
        self.results = max(self.results, results, key=len)
        order = "#W0000032"
        match len(results):
            case 0:
                return tool_call("find_user_id_by_email", '{"email": "dilek@shop.example"}')
            case 1:
                return tool_call("get_order_details", '{"order_id": ')
            case 2:
                return tool_call(
                    "cancel_pending_order", f'{{"order_id": "{order}", "reason": "x"}}'
                )
            case 3:
                arguments = {
                    "order_id": order,
                    "item_ids": ["8000000002"],
                    "payment_method_id": "credit_card_0000003",
                }
                name = "return_delivered_order_items"
                return tool_call(name, orjson.dumps(arguments).decode())
        return 200, completion("The mug comes back.")


def test_state_of_the_shop_decides(harness, tmp_path):
    """What goes wrong is said to the agent, which may still succeed; others get the same shop."""
    tasks = tmp_path / "tasks"
    shutil.copytree(FOLDER, tasks)
    published = orjson.loads((tasks / "tasks.json").read_bytes())
    other = {
        "action_id": "x",
        "name": "exchange_delivered_order_items",
        "arguments": {"order_id": "#W1"},
    }
    published[0]["evaluation_criteria"]["actions"].append(other)
    published[1]["evaluation_criteria"] = {"actions": [], "communicate_info": ["The MUG"]}
    published[2]["evaluation_criteria"] = {"actions": [], "communicate_info": ["a plate"]}
    (tasks / "tasks.json").write_bytes(orjson.dumps(published[:4]))
    agent = Agent()
    with serving(agent) as server:
        words = ["--tasks-dir", tasks, "--model", "a", "--role", "customer=c", "--concurrency", "1"]
        harness("run", SERVICE, *words, "--api-url", server.url, "--no-html")
    lines = harness.text("a", "inference_results_retail.jsonl").splitlines()
    records = [orjson.loads(line.rpartition("\t")[0] or line) for line in lines]
    success = {record["user_id"]: record["metrics"]["Success"] for record in records}
    assert success == {"0": None, "1": 0.0, "2": 0.0, "3": 1.0}
    user, broken, delivered, returned = agent.results
    assert "dilek_shopper_103" in user
    assert broken.startswith("Error: ") and "not a JSON object" in broken
    assert delivered == "Error: the order is delivered, not pending"
    assert "return requested" in returned
