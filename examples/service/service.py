"""Service: an agent with tools serves a simulated customer; then the shop's state is checked.

Tasks, shop and policy have the form of tau2-bench's retail domain (Barres et al. 2025,
arXiv:2506.07982; MIT licence). Tasks that need other tools than these are not scored."""

import copy
import inspect
import json
import re

from harness import Benchmark, InvalidReply, Metric, Role, Task, TaskFiles
from harness.graders import PassHatK
from harness.model import Message, Request, ToolCall

MAX_REPLIES = 60
GREETING = "How can I help you?"
STOP = "###STOP###"
CUSTOMER = f"""Play a customer of a shop, who talks to its agent. Say one short message at a time,
and no more than you are asked for. Say {STOP} once your wish is met or refused.\n\n"""


class Shop:
    """Tools on a shop; `orders` are copies of those that a play has looked at."""

    def __init__(self, data):
        self.data = data
        self.orders = {}

    def find_user_id_by_email(self, email):
        users = self.data["users"].items()
        return next((key for key, user in users if user["email"] == email), "no such user")

    def get_user_details(self, user_id):
        return self.data["users"][user_id]

    def get_order_details(self, order_id):
        return self.orders.setdefault(order_id, copy.deepcopy(self.data["orders"][order_id]))

    def with_status(self, order_id, status):
        order = self.get_order_details(order_id)
        if order["status"] != status:
            raise ValueError(f"the order is {order['status']}, not {status}")
        return order

    def cancel_pending_order(self, order_id, reason):
        order = self.with_status(order_id, "pending")
        paid = order["payment_history"]
        order["payment_history"] = paid + [one | {"transaction_type": "refund"} for one in paid]
        order.update(status="cancelled", cancel_reason=reason)
        return order

    def return_delivered_order_items(self, order_id, item_ids, payment_method_id):
        order = self.with_status(order_id, "delivered")
        order.update(status="return requested", return_items=sorted(item_ids))
        order["return_payment_method_id"] = payment_method_id
        return order

    def answer(self, call):
        try:
            return json.dumps(TOOLS[call.name](self, **call.json()), ensure_ascii=False)
        except (InvalidReply, KeyError, TypeError, ValueError) as error:
            return f"Error: {error}"

    def changed(self):
        before = self.data["orders"]
        return {key: order for key, order in self.orders.items() if order != before[key]}


VERBS = "find_", "get_", "cancel_", "return_"
TOOLS = {name: tool for name, tool in vars(Shop).items() if name.startswith(VERBS)}
SIGNATURES = {name: inspect.signature(tool) for name, tool in TOOLS.items()}


def described(name):
    texts = {"type": "array", "items": {"type": "string"}}
    names = list(SIGNATURES[name].parameters)[1:]
    properties = {key: texts if key.endswith("_ids") else {"type": "string"} for key in names}
    schema = {"type": "object", "properties": properties, "required": names}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def agent(messages, seed):
    """Cancel the order that the customer names, but forget it one time in three."""
    order = re.search(r"#W\d+", str(messages[2:3]))
    if order is None or messages[-1]["role"] == "tool" or (seed + int(order[0][2:])) % 3 == 0:
        return "It is done."
    arguments = json.dumps({"order_id": order[0], "reason": "no longer needed"})
    function = {"name": "cancel_pending_order", "arguments": arguments}
    return {"tool_calls": [{"id": "1", "function": function}]}


def customer(messages, seed):
    """Tell the wish, then end."""
    wish = messages[0]["content"].partition("\n\n")[2]
    return wish if wish and len(messages) == 2 else STOP


class Service(Benchmark):
    name = "service"
    subsets = {"retail": "tasks.json"}
    task_files = TaskFiles(key_field="id", data_files=("db.json", "policy.md"))
    metrics = (Metric("Success", definition="the shop is as it should be, and all is said"),)
    roles = {"customer": Role("plays the customer")}
    baselines = {"agent": agent, "customer": customer}
    scoring = PassHatK("Success", ks=(2, 4))

    def prepare(self):
        self.shop = json.loads((self.folder / "db.json").read_text("utf-8"))
        self.policy = (self.folder / "policy.md").read_text("utf-8")

    def parse(self, line, subset):
        wish = line["user_scenario"]["instructions"]
        criteria = line["evaluation_criteria"]
        actions = [(action["name"], action["arguments"]) for action in criteria["actions"] or []]
        known = [SIGNATURES[name].bind(None, **given) for name, given in actions if name in TOOLS]
        said = [text.lower() for text in criteria.get("communicate_info") or []]
        truth = {"actions": actions, "said": said, "is_scored": len(known) == len(actions)}
        given = "\n".join(filter(None, wish.values()))
        return Task(line["id"], given=given, truth=truth, steps=4, synthetic="synthetic" in line)

    async def play(self, given, chat):
        shop = Shop(self.shop)
        tools = [described(name) for name in TOOLS]
        to_agent = [Message("system", self.policy), Message("assistant", GREETING)]
        to_customer = [Message("system", CUSTOMER + given), Message("user", GREETING)]
        for _ in range(MAX_REPLIES):
            if to_customer[-1].role == "user":
                words = await chat.text(to_customer, role="customer")
                if STOP in words:
                    said = [message.text for message in to_customer if message.role == "user"]
                    return {"orders": shop.changed(), "said": " ".join(said)}
                to_customer.append(Message("assistant", words))
                to_agent.append(Message("user", words))
            reply = await chat.ask(Request(tuple(to_agent), json_object=False, tools=tools))
            to_agent.append(reply.as_message())
            to_agent += [call.result(shop.answer(call)) for call in reply.tool_calls]
            if not reply.tool_calls:
                to_customer.append(Message("user", reply.text))
        raise InvalidReply("endless")

    def measure(self, task, answer):
        if answer is None or not task.truth["is_scored"]:
            return {"Success": 0.0 if task.truth["is_scored"] else None}
        expected = Shop(self.shop)
        for name, arguments in task.truth["actions"]:
            expected.answer(ToolCall("", name, json.dumps(arguments)))
        said = answer["said"].replace(",", "").lower()
        is_said = all(text in said for text in task.truth["said"])
        return {"Success": float(is_said and answer["orders"] == expected.changed())}
