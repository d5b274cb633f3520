"""Names and files that a command takes, and those that cannot be meant."""

from __future__ import annotations

from harness.cli import main


def test_name_with_white_space_is_answered_by_how_several_are_given(tmp_path, capsys):
    """In one sentence, before anything is sent or written; also the name of an entry of a queue."""
    endpoint = ["--api-url", "http://127.0.0.1:9/v1", "--results-dir", str(tmp_path / "r")]
    assert main(["run", "--demo", "--model", "a b", *endpoint]) == 2
    refused = capsys.readouterr().err
    assert "did you mean --model a --model b?" in refused and refused.count("\n") == 1
    book = tmp_path / "providers.toml"
    book.write_text('[queues]\nq = ["a b"]\n')
    assert main(["run", "--demo", "--queue", "q", "--providers", str(book), *endpoint]) == 2
    assert "white space" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_results_folder_that_is_a_link_to_nothing_is_refused(tmp_path, capsys):
    """As one that cannot be made, before anything else."""
    (tmp_path / "r").symlink_to(tmp_path / "nowhere")
    assert main(["run", "--demo", "--results-dir", str(tmp_path / "r")]) == 2
    assert "a link to nothing" in capsys.readouterr().err


def test_what_is_wrong_in_a_settings_file_is_said_without_its_text(tmp_path, capsys):
    """A line may hold a key, which no message shows."""
    file = tmp_path / "s.toml"
    file.write_text("concurrency = ")
    assert main(["run", "--demo", "--settings", str(file)]) == 2
    assert "end: expected TOML in UTF-8 (invalid value)" in capsys.readouterr().err
    file.write_text('[a]\n[a]\nsk-key-of-somebody = "1" x\n')
    assert main(["run", "--demo", "--settings", str(file)]) == 2
    assert "sk-key" not in capsys.readouterr().err
