"""Agent files are found, run and refused as a user would expect it, and the rest of the process
does not notice."""

from __future__ import annotations

import importlib
import logging
import random
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from harness.benchmarks.dailymobility.agent import DailyMobilityAgent
from harness.errors import BadInput
from tests.support.agent_town import FILES, load_agent, played, runner

BASES = [
    "from agentsociety_benchmark.benchmarks import DailyMobilityAgent as Base",
    "from agentsociety_benchmark.benchmarks.DailyMobility import DailyMobilityAgent as Base",
    (
        "from agentsociety_benchmark.benchmarks.DailyMobility.template_agent import"
        " DailyMobilityAgent as Base"
    ),
    (
        "import agentsociety_benchmark.benchmarks\nBase ="
        " agentsociety_benchmark.benchmarks.DailyMobilityAgent"
    ),
    (
        "import agentsociety_benchmark.benchmarks.DailyMobility as daily\nBase ="
        " daily.DailyMobilityAgent"
    ),
    "from agentsociety_benchmark.benchmarks import *\nBase = DailyMobilityAgent",
    "from mobisimbench.benchmarks import DailyMobilityAgent as Base",
    "from mobisimbench.benchmarks.DailyMobility import DailyMobilityAgent as Base",
    "from mobisimbench import benchmarks\nBase = benchmarks.DailyMobilityAgent",
]
OTHERS = [
    (
        "from agentsociety.agent import CitizenAgentBase, MemoryAttribute, AgentToolbox, Block,"
        " BlockParams, AgentParams"
    ),
    (
        "from agentsociety.agent.agent_base import Agent\nfrom agentsociety.memory.memory import"
        " Memory"
    ),
    (
        "from agentsociety.agent import AgentContext, BlockContext, BlockDispatcher, DotDict,"
        " FormatPrompt"
    ),
    (
        "from agentsociety.agent.context import AgentContext, context_to_dot_dict,"
        " auto_deepcopy_dotdict"
    ),
    "from agentsociety.agent.decorator import register_get, param_docs",
    "from agentsociety.agent.dispatcher import BlockDispatcher",
    "from agentsociety.agent.prompt import FormatPrompt",
    "from agentsociety.cityagent.blocks.utils import clean_json_response",
    "from agentsociety.environment import Environment",
    "from agentsociety.environment.utils.const import POI_CATG_DICT",
    "from agentsociety.logger import get_logger",
    "from agentsociety.memory.const import RelationType, SocialRelation",
    (
        "from agentsociety.message import Message, MessageKind\nfrom agentsociety.message.messager"
        " import Message as Same"
    ),
    "from pycityproto.city.person.v2.motion_pb2 import Status",
    "from pycityproto.city.trip.v2.trip_pb2 import TripMode",
]
AGENT = (
    "from agentsociety_benchmark.benchmarks import DailyMobilityAgent\nclass"
    " Own(DailyMobilityAgent): pass\n"
)


def file_of(folder: Path, text: str) -> Path:
    file = folder / "agent.py"
    file.write_text(text, encoding="utf-8")
    return file


@pytest.mark.parametrize("line", BASES)
def test_the_base_class_has_many_names_and_is_one_object(tmp_path, line):
    """Whatever it is imported from, an agent derives from the same class."""
    agent = load_agent(file_of(tmp_path, f"{line}\nclass Own(Base): pass\n"))
    assert agent.cls.__name__ == "Own" and agent.cls.__mro__[1] is DailyMobilityAgent
    assert (agent.name, agent.data, agent.siblings) == ("agent.py", agent.path.read_bytes(), {})


@pytest.mark.parametrize("line", OTHERS)
def test_what_agent_files_import_is_there(tmp_path, line):
    """Each import line of the contract works."""
    assert load_agent(file_of(tmp_path, f"{line}\n{AGENT}")).cls.__name__ == "Own"


@pytest.mark.parametrize("file", sorted(FILES.glob("*.py")), ids=lambda file: file.name)
def test_agent_files_as_users_write_them_load(file):
    """The file that only has a class named as the base among them."""
    assert load_agent(file).data == file.read_bytes()


def test_an_installed_agentsociety_is_not_hidden(tmp_path, monkeypatch):
    """The agent finds what the harness has for it, everybody else what is installed."""
    package = tmp_path / "installed" / "agentsociety"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("agent = 'the real one'\n")
    monkeypatch.syspath_prepend(package.parent)
    real = importlib.import_module("agentsociety")
    try:
        load_agent(
            file_of(
                tmp_path, f"import agentsociety.agent\nassert agentsociety.agent.Block\n{AGENT}"
            )
        )
        assert importlib.import_module("agentsociety") is real and real.agent == "the real one"
        assert "agentsociety.agent" not in sys.modules
    finally:
        del sys.modules["agentsociety"]


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        (
            "class Own(DailyMobilityAgent): pass\nclass Other(DailyMobilityAgent): pass",
            "got Other, Own (a name that",
        ),
        ("class _Own(DailyMobilityAgent): pass", "got none"),
        ("", "got none"),
        (
            "from agentsociety.agent import CitizenAgentBase\nclass Own(CitizenAgentBase): pass",
            "Own, which has no forw",
        ),
    ],
)
def test_a_file_without_exactly_one_agent_is_refused(tmp_path, text, expected_text):
    """The message names what was found."""
    file = file_of(
        tmp_path, f"from agentsociety_benchmark.benchmarks import DailyMobilityAgent\n{text}\n"
    )
    with pytest.raises(BadInput) as refused:
        load_agent(file)
    assert str(refused.value).startswith(
        f"{file}: expected one class derived from DailyMobilityAgent, "
    )
    assert expected_text in str(refused.value)


def test_private_classes_and_second_names_do_not_count(tmp_path):
    """A base with an underscore and an alias leave one agent."""
    text = "class _Base(DailyMobilityAgent): pass\nclass Own(_Base): pass\nAgent = Own\n"
    file = file_of(tmp_path, f"from mobisimbench.benchmarks import DailyMobilityAgent\n{text}")
    assert load_agent(file).cls.__name__ == "Own"


@pytest.mark.parametrize(
    ("text", "line", "expected_text"),
    [
        ("x = 1\nif x\n", 2, "got a syntax error: expected ':'"),
        ("x = 1\n\ny = x / 0\n", 3, "ZeroDivisionError: division by zero"),
        (
            "import agentsociety.survey\n",
            1,
            "no module 'agentsociety.survey' among what agent files find here",
        ),
        (
            "from agentsociety.agent import CustomTool\n",
            1,
            "agentsociety.agent has no 'CustomTool' here",
        ),
        (
            "\nfrom mobisimbench.benchmarks import HurricaneMobilityAgent\n",
            2,
            "no 'HurricaneMobilityAgent' here",
        ),
        ("import no_such_package_anywhere\n", 1, "No module named 'no_such_package_anywhere'"),
        ("from . import other\n", 1, "ImportError"),
        ("import sys\nsys.exit('done')\n", 2, "SystemExit: done"),
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\nraise E\n",
            3,
            "an error without a usable text",
        ),
        (
            "class E(Exception):\n    __traceback__ = property(lambda self: 1 / 0)\nraise E\n",
            0,
            "an error without a usable text",
        ),
        ("raise ValueError('a\\nb\\ud83d' + 'c' * 10**6)\n", 1, f"ValueError: a b?{'c' * 296}"),
    ],
)
def test_a_file_that_cannot_be_run_is_refused_with_its_line(tmp_path, text, line, expected_text):
    """File, line and reason; of an interface that is not here, its name."""
    file = file_of(tmp_path, text)
    with pytest.raises(BadInput) as refused:
        load_agent(file)
    where = f"{file}, line {line}: " if line else f"{file}: "
    assert str(refused.value).startswith(where) and expected_text in str(refused.value)


def test_a_coding_that_does_not_exist_has_no_line(tmp_path):
    """Python says that it is line 0."""
    file = file_of(tmp_path, f"# -*- coding: nonsense -*-\n{AGENT}")
    with pytest.raises(BadInput) as refused:
        load_agent(file)
    assert (
        str(refused.value)
        == f"{file}: expected Python, got a syntax error: unknown encoding: nonsense"
    )


@pytest.mark.parametrize(
    "meta",
    ["__hash__ = None", "__eq__ = lambda self, other: 1 / 0\n    __hash__ = abc.ABCMeta.__hash__"],
)
def test_an_agent_class_need_not_compare(tmp_path, meta):
    """Its metaclass may have no hash, or an equality that raises."""
    base = "from mobisimbench.benchmarks import DailyMobilityAgent"
    text = (
        f"import abc\n{base}\nclass Meta(abc.ABCMeta):\n    {meta}\nclass Own(DailyMobilityAgent,"
        " metaclass=Meta): pass"
    )
    assert len(played(runner(file_of(tmp_path, text)))) == 100


def test_what_python_warns_of_in_a_file_is_told_as_it_plays(tmp_path, capsys):
    """Once, by name and line, and not on the terminal."""
    told: list[str] = []
    file = file_of(tmp_path, f"import warnings\nassert (1, 'x')\nwarnings.warn('旧')\n{AGENT}")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        running = runner(file, told.append)
        played(running), played(running)
    assert [text.split(":")[1].strip() for text in told] == ["SyntaxWarning", "UserWarning"]
    assert told[1] == "agent.py: UserWarning: 旧 (agent.py, line 3)" and told[0].endswith(
        " (agent.py, line 2)"
    )
    assert capsys.readouterr() == ("", "")


def test_a_file_that_is_not_there_is_refused(tmp_path):
    """As one that cannot be read."""
    with pytest.raises(BadInput, match="the agent file"):
        load_agent(tmp_path / "gone.py")


def test_modules_beside_the_file_see_what_it_sees(tmp_path):
    """They are part of the agent: their bytes are known, and errors in them are reported with their
    own lines."""
    (tmp_path / "base.py").write_text(
        "from agentsociety_benchmark.benchmarks import DailyMobilityAgent as Base\n"
    )
    agent = load_agent(
        file_of(tmp_path, "from base import Base\nimport base\nclass Own(Base): pass\n")
    )
    assert agent.cls.__mro__[1] is DailyMobilityAgent
    assert (
        agent.siblings == {"base.py": (tmp_path / "base.py").read_bytes()}
        and "base" not in sys.modules
    )
    (tmp_path / "base.py").write_text("\nimport agentsociety.survey\n")
    with pytest.raises(BadInput, match=r"base\.py, line 2: "):
        load_agent(tmp_path / "agent.py")


def test_a_module_beside_the_file_is_imported_at_the_top(tmp_path):
    """What is imported only while the agent runs would not be among the bytes that the run is known
    by."""
    (tmp_path / "late.py").write_text("")
    file = file_of(tmp_path, f"{AGENT}Own.forward = lambda self: __import__('late')\n")
    with pytest.raises(
        Exception, match=r"late\.py is imported while the agent runs: import it at the top"
    ):
        played(runner(file))


def test_loading_leaves_the_process_as_it_was(tmp_path, capsys):
    """Random states, the root logger, the filters of warnings, the working directory and standard
    output."""
    file = file_of(
        tmp_path,
        "import logging, random\nimport numpy as"
        " np\nrandom.seed(3)\nnp.random.seed(3)\nprint('loaded')\nlogging.basicConfig(level=logging.DEBUG)\nimport"
        f" os, warnings\nos.chdir('/')\nwarnings.simplefilter('ignore')\n{AGENT}",
    )
    here, filters = Path.cwd(), warnings.filters[:]
    root = logging.getLogger()
    before = random.getstate(), np.random.get_state()[1].tolist(), root.level, root.handlers[:]
    load_agent(file)
    assert before == (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        root.level,
        root.handlers,
    )
    assert (Path.cwd(), warnings.filters) == (here, filters)
    assert capsys.readouterr() == ("", "")


def test_draws_while_loading_depend_on_the_file_alone(tmp_path):
    """Two processes that load the same file have the same agent."""
    file = file_of(tmp_path, f"import random\n{AGENT}Own.drawn = random.random()\n")
    random.seed(1)
    first = load_agent(file).cls
    random.seed(2)
    assert load_agent(file).cls.drawn == first.drawn  # type: ignore[attr-defined]


def test_what_an_agent_prints_is_kept(tmp_path):
    """Terminal and standard output are the harness's; a print to a file of the agent's own is let
    be."""
    text = (
        "import io\nprint('a', 1, sep='-')\nout = io.StringIO()\nprint('b', file=out)\nassert"
        " out.getvalue()\n"
    )
    assert load_agent(file_of(tmp_path, f"{text}{AGENT}")).written.taken() == ["a-1"]


def test_dataclasses_of_an_agent_file_find_their_module(tmp_path):
    """With annotations as text they look into `sys.modules`."""
    text = "from __future__ import annotations\nfrom dataclasses import dataclass, KW_ONLY\n"
    load_agent(
        file_of(
            tmp_path, f"{text}@dataclass\nclass Plan:\n    _: KW_ONLY\n    hour: int = 3\n{AGENT}"
        )
    )
