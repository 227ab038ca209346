"""Harbor task folders made by tests, on an image that is there: nothing has to be built."""

from pathlib import Path

from agentrl_sandbox.recipe import BASE

TOML = f"""
[agent]
timeout_sec = 60.0
[verifier]
timeout_sec = 30.0
[environment]
docker_image = "{BASE}"
cpus = 1
memory_mb = 256
"""
VERDICT = "#!/bin/bash\n[ -e /done ]; echo $((1 - $?)) >/logs/verifier/reward.txt\nexit 3\n"


def write_task(
    folder: Path,
    *,
    toml: str = TOML,
    test: str | None = VERDICT,
    solve: str | None = "#!/bin/bash\ntouch /done\n",
    instruction: str = "Make the file /done.",
) -> Path:
    """Write a task folder and return it; None leaves a file out."""
    (folder / "tests").mkdir(parents=True)
    (folder / "task.toml").write_text(toml)
    (folder / "instruction.md").write_text(instruction)
    if test is not None:
        (folder / "tests" / "test.sh").write_text(test)
    if solve is not None:
        (folder / "solution").mkdir()
        (folder / "solution" / "solve.sh").write_text(solve)
    return folder
