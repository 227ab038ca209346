"""Names of vLLM's arguments, read off files that are laid out as its own are.

Mutants seen caught: fields of any class taken, aliases left out, and dashes not told from words.
"""

from pathlib import Path

import pytest

from agentrl.runtime.vllm_arguments import find_option_faults, list_arguments

ENGINE = """
class Other:
    irrelevant: int = 1

class EngineArgs:
    model: str = "m"
    tensor_parallel_size: int = 1
    def add_cli_args(parser):
        parser.add_argument("--tensor-parallel-size", "-tp", type=int)
        parser.add_argument("--old-alias")
        print("--no-argument")

class AsyncEngineArgs(EngineArgs):
    enable_log_requests: bool = False
"""
SERVER = "class FrontendArgs:\n    root_path: str | None = None\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "arg_utils.py").write_text(ENGINE)
    (tmp_path / "entrypoints" / "launchers").mkdir(parents=True)
    (tmp_path / "entrypoints" / "launchers" / "cli_args.py").write_text(SERVER)
    return tmp_path


def test_arguments_of_the_engine_and_of_the_server(folder: Path) -> None:
    engine = {"model", "tensor_parallel_size"}
    assert list_arguments(folder, serves=False) == engine
    server = engine | {"enable_log_requests", "root_path", "old_alias"}
    assert list_arguments(folder, serves=True) == server


def test_files_of_another_kind_tell_nothing(folder: Path) -> None:
    (folder / "engine" / "arg_utils.py").write_text("def make(:")
    assert list_arguments(folder, serves=True) == frozenset()
    (folder / "engine" / "arg_utils.py").write_text("parser.add_argument('--a')")
    (folder / "entrypoints" / "launchers" / "cli_args.py").unlink()
    assert list_arguments(folder, serves=True) == frozenset()
    assert list_arguments(folder / "nowhere", serves=False) == frozenset()


def test_an_option_that_is_none_is_named_with_similar_ones(folder: Path) -> None:
    known = list_arguments(folder, serves=True)
    fine = ["tensor-parallel-size", "tensor_parallel_size", "root_path.key", "old-alias"]
    assert list(find_option_faults(fine, known)) == []
    wrong = ["tensor-paralel-size", "zzz", "irrelevant"]
    near = "tensor_parallel_size"
    assert list(find_option_faults(wrong, known)) == [(wrong[0], near), ("zzz", ""), (wrong[2], "")]
    assert list(find_option_faults(wrong, frozenset())) == []
