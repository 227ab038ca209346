"""What only a process of its own can show: what an import loads, and that processes agree."""

import json
import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

from agentrl.store.writer import StoreWriter
from agentrl_envs.families import FAMILIES, HASH_ORDERED
from agentrl_envs.reasoning.optional_pycosat import NEEDED

IMPORTING = """
import sys
from agentrl.tool import ToolContext
from agentrl.authoring.tool_schema import signature_of

def add(a: int, b: int = 1) -> int:
    "Add."
    return a + b

signature = signature_of(add)
signature.schema
before = {*sys.modules}
signature.bind({"a": "1"}, ToolContext(task_id="t", sample=0, seed=0))
print(sorted({*sys.modules} - before))
"""


def test_a_call_imports_nothing() -> None:
    """The first call is bound on the loop of a run, and importing pydantic took it 0.1 s."""
    said = subprocess.run([sys.executable, "-c", IMPORTING], capture_output=True, text=True)
    assert said.stdout == "[]\n", said.stderr


def test_importing_tool_env_is_light() -> None:
    code = (
        "import json, sys, agentrl, agentrl.testing.env;"
        "import agentrl.authoring.tool_env, agentrl.authoring.gold;"
        "heavy = ['torch', 'transformers', 'gymnasium', 'pydantic', 'numpy'];"
        "print(json.dumps([name for name in heavy if name in sys.modules]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(ran.stdout) == []


def test_importing_and_registering_envs_is_light() -> None:
    script = (
        "import sys, agentrl_envs\n"
        "heavy = {'torch', 'transformers', 'reasoning_gym', 'sympy'}\n"
        "print(sorted((heavy | {'gymnasium', 'numpy'}) & set(sys.modules)))\n"
        "agentrl_envs.register_envs()\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    path = f"import sys; sys.path[:] = {sys.path!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", path + script], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout.split(), done.stderr) == (["[]", "[]"], "")


def _prompts_in_a_fresh_process(hash_seed: str) -> str:
    script = (
        "from itertools import islice\n"
        "from agentrl_envs.reasoning.mixture import mixture\n"
        "from agentrl_envs.reasoning.tasks import tasks_of\n"
        "from agentrl_envs.families import FAMILIES, HASH_ORDERED\n"
        "slow = {'arc_agi', 'futoshiki', 'intermediate_integration', 'puzzle24', 'sokoban', "
        "'zebra_puzzles', 'figlet_font', 'group_anagrams'}\n"
        "names = [n for n in FAMILIES if n not in HASH_ORDERED | slow]\n"
        "print([t.fingerprint for t in tasks_of(mixture(names), 'train', 5, size=len(names))])\n"
    )
    env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_processes_agree_on_the_tasks() -> None:
    assert HASH_ORDERED.issubset(FAMILIES)
    assert _prompts_in_a_fresh_process("1") == _prompts_in_a_fresh_process("2")


def test_all_families_but_one_work_without_pycosat(tmp_path: Path) -> None:
    """It has no wheels: on a machine without a C compiler it cannot be installed."""
    packages = Path(sysconfig.get_path("purelib"))
    for entry in packages.iterdir():
        if not entry.name.startswith("pycosat"):
            (tmp_path / entry.name).symlink_to(entry)
    path = [str(tmp_path) if Path(place) == packages else place for place in sys.path]
    script = (
        f"import sys; sys.path[:] = {path!r}\n"
        "from agentrl.errors import ConfigError\n"
        "from agentrl_envs.adapters.hosted import reasoning_kind\n"
        "from agentrl_envs.reasoning.family import ReasoningFamily\n"
        "reasoning_kind.preload()\n"
        "entry = next(ReasoningFamily('chain_sum').entries(3))[1]\n"
        "assert ReasoningFamily('chain_sum').judge(entry['answer'], entry) == 1\n"
        "try:\n"
        "    ReasoningFamily('zebra_puzzles')\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
        "print('pycosat' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("task family 'zebra_puzzles' needs pycosat, which is not installed: ")
    assert (second, done.stderr) == ("False", "")


def test_what_reasoning_gym_lacks_is_named_with_the_way_out(root: Path) -> None:
    """Mutant seen caught: the error of the import told as it is."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    names = [each.partition(">")[0] for each in project["dependency-groups"]["reasoning"]]
    assert names == NEEDED.split()
    script = (
        "import sys; sys.modules['zss'] = None\n"
        "from agentrl.errors import ConfigError\n"
        "from agentrl_envs.reasoning.family import ReasoningFamily\n"
        "try:\n"
        "    ReasoningFamily('chain_sum')\n"
        "except ConfigError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    said = f"reasoning-gym needs zss, which is not installed: pip install {NEEDED}\n"
    assert (done.stdout, done.stderr) == (said, "")


def test_matplotlib_is_imported_for_the_families_that_need_it() -> None:
    """Mutant seen caught: cellpylib imported with reasoning-gym."""
    script = (
        "import sys, warnings; warnings.simplefilter('error', SyntaxWarning)\n"
        "from agentrl_envs.reasoning.family import ReasoningFamily\n"
        "for name in ('chain_sum', 'game_of_life'):\n"
        "    family = ReasoningFamily(name)\n"
        "    entry = next(family.entries(3))[1]\n"
        "    print(family.judge(entry['answer'], entry), 'matplotlib' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("1.0 False\n1.0 True\n", "")


def test_a_second_writer_of_a_store_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with StoreWriter.open(folder):
        code = (
            "import sys; from pathlib import Path\n"
            "from agentrl.store.writer import StoreWriter\n"
            "StoreWriter.open(Path(sys.argv[1]), resume=True)\n"
        )
        command = [sys.executable, "-c", code, str(folder)]
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        ran = subprocess.run(
            command, capture_output=True, text=True, env=env, check=False, timeout=60
        )
        assert f"ConfigError: {folder} is being written by process {os.getpid()}" in ran.stderr
