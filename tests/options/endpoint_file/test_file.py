"""`--config`: what is taken from asbench's YAML file, and what is said of one that cannot be
used."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.errors import BadInput
from harness.options import providers
from harness.options.endpoint_file import read

SECRET = "sk-marked-0123456789"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "配置.yml"


def test_the_first_endpoint_is_taken(file):
    """Address, key, model and pace come from the first entry; the others are counted."""
    file.write_text(
        f"llm:\n- provider: vllm\n  base_url: http://h:1/v1\n  api_key: {SECRET}\n  model: 千问\n "
        " semaphore: 7\n  timeout: 30\n- provider: openai\n  model: x\nenv:\n  home_dir: .x\n",
        encoding="utf-8",
    )
    found, others = read(file)
    assert (found.url, found.key, found.model, others) == ("http://h:1/v1", SECRET, "千问", 1)
    assert found.tuning == {"concurrency": 7, "timeout": 30}
    assert found.address_from == f"--config {file.resolve()}"
    assert SECRET not in repr(found)


@pytest.mark.parametrize(
    ("named", "ours"),
    [
        ("openai", "openai"),
        ("deepseek", "deepseek"),
        ("qwen", "dashscope"),
        ("siliconflow", "siliconflow"),
        ("zhipuai", "zhipuai"),
        ("volcengine", "volcengine"),
    ],
)
def test_a_known_provider_needs_no_address(file, named, ours):
    """Providers that asbench knows by name have the address of the shipped providers file."""
    file.write_text(f"llm: [{{provider: {named}, model: m, api_key: k}}]", encoding="utf-8")
    found, _ = read(file)
    assert (found.url,) == providers.shipped().providers[ours].base_url
    assert found.tuning == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("llm: !!int ''", "expected YAML"),
        ("llm: !!float ''", "expected YAML"),
        ("llm: !!timestamp foo", "expected YAML"),
        ("llm: []", "field llm: expected a list"),
        ("llm: {}", "field llm: expected a list"),
        ("llm: [x]", r"field llm\[0\]: expected a mapping"),
        ("llm: [{provider: openai, model: 3}]", r"llm\[0\]\.model"),
        ("llm: [{provider: vllm, model: m}]", r"llm\[0\]\.base_url: expected an address"),
        ("llm: [{provider: dashscope, model: m}]", r"llm\[0\]\.base_url: expected an address"),
        (
            "llm: [{provider: openai, model: m, concurrency: many}]",
            r"llm\[0\]\.concurrency: expected a whole number",
        ),
        (
            "llm: [{provider: openai, model: m, concurrency: 0}]",
            r"llm\[0\]\.concurrency: expected a whole number",
        ),
        ("llm: [{provider: openai, model: m, api_key: !!bool 12345678}]", "expected YAML"),
        ("llm: [{provider: openai, model: m, semaphore: true}]", r"llm\[0\]\.semaphore"),
        (
            "llm: [{provider: openai, model: m, timeout: -1}]",
            r"llm\[0\]\.timeout: expected seconds above 0",
        ),
    ],
)
def test_what_cannot_be_used_is_told_by_field(file, text, said):
    """One sentence with file and field, and never a value, which might be the key."""
    file.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput, match=said) as raised:
        read(file)
    assert str(file) in str(raised.value)
    assert "12345678" not in str(raised.value)
