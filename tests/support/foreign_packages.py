"""Other people's packages, asked in processes of their own: what they make of what we wrote."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parents[2] / ".bench"

_ATIF = """
import sys
from pathlib import Path
from harbor.utils.trajectory_validator import TrajectoryValidator
for file in sorted(Path(sys.argv[1]).glob("*.json")):
    validator = TrajectoryValidator()
    if not validator.validate(file):
        print(file.name, *validator.errors)
"""
_TASKS = """
import json, sys
from pathlib import Path
from harbor.models.task.config import TaskConfig
configs = []
for text in json.loads(Path(sys.argv[1]).read_text()):
    try:
        config = TaskConfig.model_validate_toml(text)
    except ValueError:
        configs.append(None)
    else:
        configs.append(config.model_dump(mode="json"))
print(json.dumps(configs))
"""
# What the verifier imports to run is not there, and is not what is asked. It is written for Python
# 3.12, whose texts may have expressions of several lines: those are put in one.
_REWARDS = """
import json, re, sys, types, typing
from pathlib import Path
typing.override = lambda function: function
names = {
    "harbor.environments.base": "BaseEnvironment",
    "harbor.models.task.task": "Task",
    "harbor.verifier.base": "BaseVerifier",
    "harbor.utils.file_staging": "selected_directory",
}
for module, name in names.items():
    sys.modules[module] = types.ModuleType(module)
    setattr(sys.modules[module], name, type(name, (), {}))
from harbor.models.verifier.result import VerifierResult
place = next(Path(folder, "harbor") for folder in sys.path if Path(folder, "harbor").is_dir())
source = (place / "verifier" / "verifier.py").read_text()
source = re.sub(r"\\n\\s+}", "}", re.sub(r"{\\n\\s+", "{", source))
module = types.ModuleType("harbor_verifier")
exec(compile(source, "verifier.py", "exec"), module.__dict__)
Verifier = module.Verifier
rewards = []
for folder in sorted(Path(sys.argv[1]).iterdir()):
    paths = types.SimpleNamespace(
        reward_json_path=folder / "reward.json", reward_text_path=folder / "reward.txt"
    )
    verifier = Verifier.__new__(Verifier)
    verifier.trial_paths = paths
    try:
        if paths.reward_json_path.exists():
            found = verifier._parse_reward_json()
        else:
            found = verifier._parse_reward_text()
        rewards.append(VerifierResult(rewards=found).rewards)
    except Exception:
        rewards.append(None)
print(json.dumps(rewards))
"""
_PARQUET = """
import json, sys
from pathlib import Path
from agentrl.export import export
run, output = map(Path, sys.argv[1:])
export(run, output, to="hf", tokens=True)
from pyarrow import parquet
rows = [r for f in sorted(output.glob("data/*.parquet")) for r in parquet.read_table(f).to_pylist()]
print(json.dumps(rows))
"""
_HUB = """
import json, sys
from agentrl.errors import ConfigError
from agentrl_envs.dataset import DatasetEnv
from agentrl_envs.dataset.rows import read_rows
answers = []
for settings in json.loads(sys.argv[2]):
    try:
        rows = [[row.place, row.values] for row in read_rows(sys.argv[1], **settings)]
        answers.append([len(rows), *rows[0]])
    except ConfigError as error:
        answers.append(str(error))
split = {"train": "train", "heldout": "test"}
env = DatasetEnv(path=sys.argv[1], split=split, prompt="question")
answers.append({name: sorted(task.answer for task in env.tasks(name)) for name in split})
print(json.dumps(answers))
"""


def atif_errors(folder: Path) -> list[str]:
    """Return what harbor's own validator says against the documents of a folder."""
    return _run(_ATIF, folder, place="harbor").splitlines()


def harbor_configs(file: Path) -> list[dict[str, Any] | None]:
    """Return what harbor reads of the `task.toml` texts in a JSON file; None for one it refuses."""
    return json.loads(_run(_TASKS, file, place="harbor"))


def harbor_rewards(folder: Path) -> list[dict[str, float] | None]:
    """Return what harbor's verifier reads in each folder below one, in order; None is an error."""
    return json.loads(_run(_REWARDS, folder, place="harbor"))


def export_with_pyarrow(run: Path, output: Path) -> list[dict[str, Any]]:
    """Export a run as a dataset where pyarrow is, and return the rows it reads back."""
    return json.loads(_run(_PARQUET, run, output, place="pyarrow"))


def read_with_datasets(folder: Path, settings: Sequence[Mapping[str, str]]) -> list[Any]:
    """Return, for each of the settings, what `datasets` reads of a folder: count and first row.

    Then the answers of the tasks by split. An error is its text.
    """
    asked = json.dumps(settings)
    return json.loads(
        _run(_HUB, folder, asked, place="datasets", HF_HUB_OFFLINE="1", HF_HOME=f"{folder}/../home")
    )


def python_of(name: str) -> str:
    """Return the interpreter of a peer's venv."""
    return str(BENCH / name / "bin" / "python")


def _run(program: str, *arguments: Path | str, place: str, **environ: str) -> str:
    places = (place, "pyarrow") if place == "datasets" else (place,)
    path = os.pathsep.join([*filter(None, sys.path), *(str(BENCH / name) for name in places)])
    ran = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def write_uv_index(folder: Path) -> dict[str, str]:
    """Write an index of the peer's wheels; return the variables with which uv installs from it."""
    index = folder / "index"
    for wheel in (BENCH / "uv" / "wheels").glob("*.whl"):
        name = wheel.name.partition("-")[0].lower().replace("_", "-").replace(".", "-")
        page = index / name / "index.html"
        page.parent.mkdir(parents=True)
        page.write_text(f'<a href="{wheel.resolve().as_uri()}">{wheel.name}</a>\n')
    home = folder / "home"
    home.mkdir()
    return {
        "HOME": str(home),
        "PATH": f"{BENCH / 'uv' / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "UV_DEFAULT_INDEX": index.as_uri(),
        "UV_PYTHON_DOWNLOADS": "never",
    }
