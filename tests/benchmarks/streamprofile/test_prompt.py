"""Prompts: our own, a user's template, and the benchmark authors' builder (docs/design.md, section
8)."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec import structs

from harness.benchmarks.streamprofile.prompt import (
    AUTHORS_SYSTEM,
    OWN_PROMPT,
    PLACES,
    AuthorsPrompt,
    TemplatePrompt,
    load,
)
from harness.benchmarks.streamprofile.task import PLATFORMS, StepInput, UserInput
from harness.errors import BadInput
from harness.model import Message
from tests.support import examples

POOL = ("猫", '带"引号"的', "看过影视:片名", "如何看待猫，为什么？", "狗", "茶")
STEP = StepInput(2, 5, "[1] Content: 早\nTags: 猫, 狗", POOL)


def given_of(user_id: str | int, username: str, bio: str, step: StepInput = STEP) -> UserInput:
    return UserInput(user_id, "weibo", "weibo", username, bio, (step,))


USER = given_of("we_1", "小明", "爱猫")
VALUES = {
    "platform_name": PLATFORMS["weibo"].name,
    "platform_context": PLATFORMS["weibo"].context,
    "username": "小明",
    "bio": "爱猫",
    "step_id": "2",
    "total_steps": "5",
    "persona": "此前画像",
    "posts": STEP.posts_text,
    "pool": '["猫","带\\"引号\\"的","看过影视:片名","如何看待猫，为什么？","狗","茶"]',
    "asked": "2",
}


def template(folder: Path, text: str, name: str = "我的.txt") -> TemplatePrompt:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return TemplatePrompt(path, needed=frozenset())


def filled(
    prompt: TemplatePrompt | AuthorsPrompt, persona: str = "此前画像"
) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in prompt.messages(USER, STEP, persona)]


# Our own


@pytest.mark.parametrize("subset", PLATFORMS)
def test_our_prompt_carries_everything_that_is_given(subset):
    """A system and a user message; platform, user, persona, posts, the pool as a JSON array, and
    the number asked."""
    system, user = TemplatePrompt().messages(structs.replace(USER, subset=subset), STEP, "此前画像")
    assert (system.role, user.role) == ("system", "user")
    for value in (
        VALUES
        | {
            "platform_name": PLATFORMS[subset].name,
            "platform_context": PLATFORMS[subset].context,
        }
    ).values():
        assert value in user.content
    assert "最可能使用的 2 个" in user.content
    assert "JSON" in system.content and "JSON" not in VALUES["posts"]
    assert "${" not in system.content + user.content


def test_the_pool_stands_as_a_json_array_that_decodes_to_the_pool():
    """Quotes are escaped, Chinese is not."""
    lines = TemplatePrompt().messages(USER, STEP, "")[1].content.splitlines()
    [pool] = [line for line in lines if line.startswith('["猫"')]
    assert tuple(orjson.loads(pool)) == POOL


def test_our_prompt_is_known_by_its_bytes(tmp_path):
    """Named as a file, or from a run's folder, it is still our own, under the same name."""
    ours = load(None)
    assert (ours.source, ours.files) == ("own", {"prompt_own.txt": OWN_PROMPT.read_bytes()})
    for name in ("prompt_own.txt", "抄来的.txt"):
        (tmp_path / name).write_bytes(OWN_PROMPT.read_bytes())
        again = load(tmp_path / name)
        assert (again.source, again.files) == (ours.source, ours.files)


# Templates


def test_every_place_is_filled(tmp_path):
    """Each name alone gives its value; together they are all there are."""
    assert set(VALUES) == PLACES
    for name, value in VALUES.items():
        assert filled(template(tmp_path, f"${{{name}}}")) == [("user", value)]


LITERALS = st.one_of(
    st.sampled_from(
        [
            "$",
            "{",
            "}",
            "{}",
            "$$",
            "$ {",
            "{x}",
            "${x",
            '{"a": "${"}',
            "\\1",
            "%s",
            "\\$",
            "[user]",
            "猫",
        ]
    ),
    st.text(st.characters(exclude_characters="{}\r\n", exclude_categories=["Cs"]), max_size=8),
)


@settings(max_examples=examples(150), deadline=None)
@given(
    parts=st.lists(
        st.one_of(LITERALS, st.sampled_from(sorted(PLACES)).map("${{{}}}".format)),
        min_size=1,
        max_size=12,
    )
)
def test_a_template_cut_once_is_filled_as_by_plain_replacement(tmp_path_factory, parts):
    """No value here looks like a place, so replacing name after name is the same."""
    text = "猫" + "".join(parts) + "猫"
    expected = text
    for name, value in VALUES.items():
        expected = expected.replace(f"${{{name}}}", value)
    assume(
        not re.search(r"\$\{[^{}\n]*\}", expected)
    )  # the parts together made a place that is none
    assert filled(template(tmp_path_factory.getbasetemp(), text)) == [("user", expected)]


def test_values_that_look_like_places_stay_as_they_are(tmp_path):
    """What a user posts is never taken for a part of the template, nor for an escape."""
    posts = "${pool} ${unknown} \\g<0> \\1 $asked {bio} %s"
    step = StepInput(1, 1, posts, POOL)
    prompt = template(tmp_path, "${posts}|${persona}|${username}")
    user = given_of("x", "${bio}", "", step)
    assert prompt.messages(user, step, "${posts}") == (
        Message("user", f"{posts}|${{posts}}|${{bio}}"),
    )


@pytest.mark.parametrize(
    "name", ["pol", "候选", "", "pool ", " pool", "ground_truth", "POOL", "pool.x", "pool-1"]
)
def test_an_unknown_place_is_refused(tmp_path, name):
    """A slip in a name would send the slip to the model: the file, the name and the known ones are
    reported."""
    for text in (f"候选：${{{name}}}", f"[system]\n${{{name}}}\n[user]\n${{pool}}"):
        with pytest.raises(BadInput) as caught:
            template(tmp_path, text)
        assert f"我的.txt: unknown place ${{{name}}}; known are asked, bio, persona" in str(
            caught.value
        )


def test_braces_and_dollar_signs_are_text(tmp_path):
    """JSON examples, prices and lone brackets go through as they are."""
    text = '{"predicted_tags": ["${asked}"]} $5 {pool} $pool ${ $${asked} }${\n}'
    assert filled(template(tmp_path, text)) == [("user", text.replace("${asked}", "2"))]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_parts_are_headed_system_and_user(tmp_path, end):
    """Heads stand on lines of their own; white space around the parts is left off."""
    text = end.join(
        ["", "[system]  ", "", "你好 ${username}", "[user]", "", "${pool}", "[user]的简介"]
    )
    expected = end.join([VALUES["pool"], "[user]的简介"])
    assert filled(template(tmp_path, text)) == [("system", "你好 小明"), ("user", expected)]


@pytest.mark.parametrize(
    "text", ["${pool}", "[user]\n${pool}", "\ufeff[user]\n${pool}\n", "[system]\n[user]\n${pool}"]
)
def test_without_a_system_part_there_is_only_the_users(tmp_path, text):
    """No heads, only the user's head, or nothing under the system's."""
    assert filled(template(tmp_path, text)) == [("user", VALUES["pool"])]


@pytest.mark.parametrize(
    "text", ["", " \n", "[system]\n甲\n[user]\n", "[system]\n甲\n[user]", "[user]"]
)
def test_a_template_that_says_nothing_is_refused(tmp_path, text):
    """An empty user message is refused by endpoints, after the run has begun."""
    with pytest.raises(
        BadInput, match=r"我的\.txt: the prompt template has no text for the user message"
    ):
        template(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "source"), [("我的.txt", "我的.txt"), ("own", "file own"), ("authors", "file authors")]
)
def test_a_kept_template_is_the_same_prompt_again(tmp_path, name, source):
    """The copy in a run's folder has the same source and files; no file's name can claim to be ours
    or theirs."""
    first = template(tmp_path, "[user]\n${posts}${pool}", name)
    assert first.source == source
    assert first.files == {f"prompt_{name}": b"[user]\n${posts}${pool}"}
    results = tmp_path / "results"
    results.mkdir()
    for kept, content in first.files.items():
        (results / kept).write_bytes(content)
    again = load(results / f"prompt_{name}")
    assert (again.source, again.files) == (first.source, first.files)


# The authors' builder

BUILDER = """
import json


class BenchTaskBuilder:
    def __init__(self, platform):
        self.platform = platform

    def format_prompt(self, username, bio, batch_n_posts, candidate_pool, step_id, total_steps, prev_persona):
        if username == "坏":
            raise KeyError(candidate_pool[0])
        if username == "空":
            return None
        given = [self.platform, username, bio, batch_n_posts, candidate_pool, step_id, total_steps, prev_persona]
        return json.dumps(given, ensure_ascii=False)
"""
RUNNER = '''
"""Its imports need packages that nobody has here."""
import package_that_does_not_exist

raise RuntimeError("this file must not be run")


class Client:
    def ask(self, prompt):
        return self.call(
            messages=[
                {"role": "system", "content": "第一句。" "Output valid JSON only."},
                {"role": "user", "content": prompt},
            ]
        )


EXAMPLE = {"role": "system", "content": "a later one, though less deep in the tree"}
'''
SYSTEM = "第一句。Output valid JSON only."


def release(folder: Path, builder: str = BUILDER, runner: str | None = RUNNER) -> Path:
    (folder / "bench_task.py").write_text(builder, encoding="utf-8")
    if runner is not None:
        (folder / "bench_inference.py").write_text(runner, encoding="utf-8")
    return folder / "bench_task.py"


def authors(folder: Path, builder: str = BUILDER, runner: str | None = RUNNER) -> AuthorsPrompt:
    prompt = load(release(folder, builder, runner))
    assert isinstance(prompt, AuthorsPrompt)
    return prompt


@pytest.mark.parametrize("subset", ["weibo", "douban"])
def test_the_authors_builder_is_called_with_what_is_given(tmp_path, subset):
    """Each argument under the authors' name for it: the platform as they write it, the pool as a
    list."""
    user = structs.replace(given_of(7, "小明", ""), subset=subset)
    for persona in ("", "此前画像"):
        system, message = authors(tmp_path).messages(user, STEP, persona)
        assert system == Message("system", SYSTEM)
        assert message.role == "user"
        assert orjson.loads(message.content) == [
            subset,
            "小明",
            "",
            STEP.posts_text,
            list(POOL),
            2,
            5,
            persona,
        ]


def test_a_builder_cannot_change_the_task(tmp_path):
    """Code that shuffles its list shuffles a copy."""
    prompt = authors(
        tmp_path,
        BUILDER.replace("        given =", "        candidate_pool.clear()\n        given ="),
    )
    assert orjson.loads(filled(prompt)[1][1])[4] == []
    assert STEP.pool == POOL


def test_their_runner_is_read_and_never_run(tmp_path):
    """The first system message in the order of the source is taken, though the file raises on
    import."""
    assert filled(authors(tmp_path))[0] == ("system", SYSTEM)
    assert "bench_inference" not in sys.modules


@pytest.mark.parametrize(
    "runner",
    [
        None,
        "def broken(:\n",
        "messages = []\n",
        'm = {"role": "system", "content": SYSTEM}\n',
        'm = {"role": "user", "content": "x"}\n',
        'm = {**base, "role": "system", "content": 5}\n',
        "x = '\x00'\n",
    ],
    ids=["no file", "not Python", "no message", "a name", "of the user", "a number", "a null byte"],
)
def test_without_their_system_message_the_prompt_is_not_called_the_authors(tmp_path, runner):
    """A stand-in is sent, and the source tells that scores do not compare with published ones."""
    prompt = authors(tmp_path, runner=runner)
    assert prompt.source == "bench_task.py without bench_inference.py"
    assert set(prompt.files) == {"prompt_bench_task.py"}
    assert filled(prompt)[0] == ("system", AUTHORS_SYSTEM)


def test_a_failure_of_their_code_names_file_user_and_step(tmp_path):
    """An exception in `format_prompt`, or in the constructor, is one sentence about their file."""
    path, user = release(tmp_path), given_of("we_9", "坏", "")
    with pytest.raises(BadInput) as caught:
        load(path).messages(user, STEP, "")
    assert (
        str(caught.value) == f"{path}: format_prompt failed for user we_9, step 2: KeyError: '猫'"
    )
    with pytest.raises(BadInput, match=r"bench_task\.py: .* user we_1, step 2: OSError: 没有"):
        filled(
            authors(tmp_path, BUILDER.replace("self.platform = platform", "raise OSError('没有')"))
        )


def test_a_prompt_that_is_no_string_is_refused(tmp_path):
    """The file and what it returned are reported."""
    with pytest.raises(
        BadInput, match=r"bench_task\.py: format_prompt returned NoneType, expected a string"
    ):
        load(release(tmp_path)).messages(given_of(1, "空", ""), STEP, "")


@pytest.mark.parametrize(
    ("builder", "expected_text"),
    [
        ("import package_that_does_not_exist\n", "could not be loaded: ModuleNotFoundError"),
        ("1 / 0\n", "could not be loaded: ZeroDivisionError"),
        ("BenchTaskBuilder = None\n", "has no class BenchTaskBuilder"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_refused(tmp_path, builder, expected_text):
    """Whatever its top level does, the sentence names the file; the search path is as it was."""
    before = list(sys.path)
    with pytest.raises(BadInput) as caught:
        authors(tmp_path, builder)
    assert str(caught.value).startswith(f"{tmp_path / 'bench_task.py'}: {expected_text}")
    assert sys.path == before


def test_their_file_is_run_as_a_module_of_its_own(tmp_path):
    """It finds its neighbours and itself, its dataclasses work, and its annotations are evaluated
    as it says."""
    (tmp_path / "neighbour_of_bench_task.py").write_text("GREETING = '你好'\n", encoding="utf-8")
    builder = """
from __future__ import annotations
import pathlib
from dataclasses import dataclass
from neighbour_of_bench_task import GREETING

@dataclass
class BenchTaskBuilder:
    platform: str

    def format_prompt(self, *, prev_persona: Unknown, **rest: Any):
        return GREETING + pathlib.Path(__file__).name
"""
    before = list(sys.path)
    try:
        assert filled(authors(tmp_path, builder))[1] == ("user", "你好bench_task.py")
    finally:
        sys.modules.pop("neighbour_of_bench_task", None)
    assert sys.path == before


def test_the_bytes_that_are_kept_are_those_that_ran(tmp_path):
    """A file changed within the clock's grain runs as it now stands: no compiled copy is written or
    used."""
    first = authors(tmp_path, BUILDER)
    second = authors(
        tmp_path, BUILDER.replace("[self.platform, username", "[username, self.platform")
    )
    assert first.files != second.files
    assert orjson.loads(filled(first)[1][1])[:2] == ["weibo", "小明"]
    assert orjson.loads(filled(second)[1][1])[:2] == ["小明", "weibo"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bench_inference.py",
        "bench_task.py",
    ]


def test_kept_copies_are_the_authors_prompt_again(tmp_path):
    """Both files stand in a run's folder under kept names; the same source, files and messages come
    of them."""
    first = authors(tmp_path)
    assert first.source == "authors"
    assert {name: content.decode() for name, content in first.files.items()} == {
        "prompt_bench_task.py": BUILDER,
        "prompt_bench_inference.py": RUNNER,
    }
    results = tmp_path / "results"
    results.mkdir()
    for name, content in first.files.items():
        (results / name).write_bytes(content)
    again = load(results / "prompt_bench_task.py")
    assert (again.source, again.files) == (first.source, first.files)
    assert again.messages(USER, STEP, "画像") == first.messages(USER, STEP, "画像")


def test_template_without_posts_or_pool_is_refused(tmp_path):
    """Such a prompt would be paid for and scored, and no model could answer it; `{posts}` is not a
    place."""
    path = tmp_path / "p.txt"
    path.write_text("动态：{posts}\n候选：{pool}\n", encoding="utf-8")
    with pytest.raises(BadInput, match=r"has no place \$\{pool\} and \$\{posts\}"):
        load(path)
