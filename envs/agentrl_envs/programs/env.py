"""A program to write, with a Python interpreter at hand; what is left in its file is graded apart.

The episode's session is read once, at the end. Nothing that ran in it runs in the grading, and
nothing of the grading (the hidden arguments, the right answers) was ever in it.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from difflib import get_close_matches

from agentrl.authoring.tool_env import ScoredAnswer, ToolEnv
from agentrl.authoring.toolset import ToolSet
from agentrl.env import Action, call, say
from agentrl.errors import ConfigError
from agentrl.grading import ArtefactSet, GradeReport, OpenSession, collect, grade_calls
from agentrl.message import Message
from agentrl.task import Split, Task
from agentrl_envs.programs.families import FAMILIES
from agentrl_envs.programs.family import LEVELS, ProgramFamily
from agentrl_envs.programs.tasks import hidden_of, tasks_of
from agentrl_sandbox.grading import checker_sessions
from agentrl_tools.python import Python

SOLUTION = "solution.py"
SYSTEM = (
    "Write the program you are asked for. You can run Python with the tool `python`: names and "
    "files live on from call to call, and it is how you write the file. Try your program on the "
    "examples. When the file is as it should be, say so without calling the tool: that ends the "
    "task, and the file is graded as it is then."
)


class ProgramsEnv(ToolEnv):
    """Write `solution.py`; its function is called on hidden arguments in sessions of its own.

    The episode ends with the first message that calls no tool, or after `max_turns` messages. The
    step that pays says in its info what was graded (`artefacts`) and how (`grade`). Forks copy the
    interpreter with its files.
    """

    def __init__(
        self,
        *,
        families: str | Sequence[str],
        level: int = 0,
        hidden_tests: int = 12,
        size: int | None = None,
        heldout_fraction: float = 0.1,
        partial_credit: bool = True,
        system: str = SYSTEM,
        max_turns: int = 8,
        tool_timeout_s: float = 30.0,
    ) -> None:
        """Choose problems.

        Args:
            families: A name, or several that take turns.
            level: 0 to 3; more steps, conditions and larger inputs.
            hidden_tests: Calls that decide the grade.
            size: At most so many tasks per split; None gives all there are.
            heldout_fraction: Share of all problems kept for the held-out split.
            partial_credit: Pay the share of hidden tests passed; False pays 1 for all of them or 0.
            system: The system message; empty for none.
            max_turns: After so many messages the file is graded as it is; keep it at most the
                run's own limit of turns, which grades nothing.
            tool_timeout_s: Deadline of one call of the tool.
        """
        program_families = _find_families(families)
        _check(level, hidden_tests, size, heldout_fraction)

        def tasks(split: Split, seed: int) -> Iterator[Task]:
            return tasks_of(
                program_families,
                split,
                seed,
                level=level,
                hidden_tests=hidden_tests,
                heldout_fraction=heldout_fraction,
                size=size,
            )

        super().__init__(
            tasks=tasks,
            reward=_reward(partial_credit=partial_credit),
            tools=(Python,),
            system=system,
            gold=play,
            tool_timeout_s=tool_timeout_s,
            max_turns=max_turns,
        )


async def grade(
    task: Task, artefacts: ArtefactSet, *, open_session: OpenSession | None = None
) -> GradeReport:
    """Grade what an episode left behind: at its end, or later from stored artefacts.

    Sessions come from `checker_sessions()` unless another opener is given. Raises `SandboxError`
    when none could be had, which is nobody's grade.
    """
    return await grade_calls(
        artefacts, hidden_of(task), open_session=open_session or checker_sessions(), entry=SOLUTION
    )


def play(task: Task, seen: Sequence[Message]) -> Action:
    """Write the reference as the solution and try it on the examples; then say that it is done."""
    if seen[-1].role == "tool":
        return say("solution.py is written.")
    family = FAMILIES[task.data["family"]]
    program = family.program(task.data["params"])
    tries = ", ".join(f"solve(*{example!r})" for example in task.data["examples"])
    code = (
        f"program = {program!r}\n"
        f"with open({SOLUTION!r}, 'w') as file:\n"
        "    file.write(program)\n"
        "exec(program)\n"
        f"[{tries}]"
    )
    return call("python", code=code)


def _reward(
    *, partial_credit: bool
) -> Callable[[Task, Sequence[Message], ToolSet], Awaitable[ScoredAnswer]]:
    async def reward(task: Task, messages: Sequence[Message], toolbox: ToolSet) -> ScoredAnswer:
        artefacts = ArtefactSet()
        if any(message.tool_calls for message in messages):
            session = await toolbox.instance(Python).session()
            artefacts = await collect(session, [SOLUTION])
        graded = await grade(task, artefacts)
        paid = graded.score if partial_credit else float(graded.score == 1)
        return ScoredAnswer(reward=paid, info={"grade": graded, "artefacts": artefacts})

    return reward


def _find_families(families: str | Sequence[str]) -> tuple[ProgramFamily, ...]:
    names = [families] if isinstance(families, str) else list(families)
    if not names:
        raise ConfigError(f"families is empty; the families are {', '.join(FAMILIES)}")
    for name in names:
        if name not in FAMILIES:
            near = get_close_matches(str(name), FAMILIES, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ConfigError(
                f"there is no family of programs {name!r}.{hint} The families are "
                f"{', '.join(FAMILIES)}"
            )
    return tuple(FAMILIES[name] for name in dict.fromkeys(names))


def _check(level: int, hidden_tests: int, size: int | None, heldout_fraction: float) -> None:
    if level not in LEVELS:
        raise ConfigError(f"level must be {LEVELS[0]} to {LEVELS[-1]}, got {level}")
    if not 4 <= hidden_tests <= 64:
        raise ConfigError(f"hidden_tests must be 4 to 64, got {hidden_tests}; 12 is the default")
    if size is not None and size < 1:
        raise ConfigError(
            f"size must be at least 1 task per split, got {size}; omit it to use the default"
        )
    if not 0 < heldout_fraction < 1:
        raise ConfigError(
            f"heldout_fraction must be between 0 and 1, got {heldout_fraction}; 0.1 is the default"
        )
