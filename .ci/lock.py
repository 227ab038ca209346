"""Write `uv.lock` with the versions of `constraints.txt`, as far as what is locked allows them.

    python .ci/lock.py          needs uv on PATH and the network

uv knows constraints only as a list in pyproject.toml, so the lock is made twice: with them and
without vLLM, which asks for older versions, and then as pyproject.toml has it, where uv keeps what
it finds locked.
"""

import json
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ("README.md", "LICENSE", "agentrl", "envs", "tools", "sandbox", "configs")
"""What the metadata of the distribution is made of."""
ELSEWHERE = ("pillow",)
"""Packages whose version in constraints.txt an extra excludes: Trackio takes no pillow 13."""


def read_constraints(text: str) -> list[str]:
    """Return the requirements of a constraints file that the lock is to keep."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return [line for line in lines if line and line.partition("==")[0] not in ELSEWHERE]


def constrain(project: str, constraints: list[str]) -> str:
    """Return pyproject.toml with constraints of uv, without vLLM."""
    table = f"[tool.uv]\nconstraint-dependencies = {json.dumps(constraints)}\n"
    found = project.replace("[tool.uv]\n", table, 1)
    found = re.sub(r"^conflicts = .*\n", "", found, flags=re.MULTILINE)
    return re.sub(r"^vllm = .*\n", "", found, flags=re.MULTILINE)


def main() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    constraints = read_constraints((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory(prefix="agentrl-lock-") as name:
        folder = Path(name)
        for source in SOURCES:
            (folder / source).symlink_to(ROOT / source)
        for text in (constrain(project, constraints), project):
            (folder / "pyproject.toml").write_text(text, encoding="utf-8")
            subprocess.run(["uv", "lock", "--no-config"], cwd=folder, check=True)
        shutil.copyfile(folder / "uv.lock", ROOT / "uv.lock")


if __name__ == "__main__":
    main()
