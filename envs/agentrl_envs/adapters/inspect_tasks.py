"""Tasks of Inspect (https://inspect.aisi.org.uk), from version 0.3.275 on."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl_envs.adapters.hosted_program import HostedProgramEnv
from agentrl_envs.blackbox.policy_errors import PolicyErrors


class InspectEnv(HostedProgramEnv):
    """A task of Inspect, each sample evaluated by Inspect itself against the gateway.

    A sample's id is the task's, and the scorer's value is the reward: `C` is 1, `P` 0.5, `I` and
    `N` 0, a number is itself. A log without success, a scorer that raises and a value that is none
    of these are failures. A sample's input decides its split.
    """

    def __init__(
        self,
        task: str,
        *,
        python: str = "",
        args: Mapping[str, Any] | None = None,
        scorer: str = "",
        key: str = "",
        roles: Mapping[str, str] | None = None,
        size: int = 1000,
        path: Sequence[str] = (),
        pass_env: Sequence[str] = (),
        start_timeout_s: float = 120.0,
        policy_errors: PolicyErrors | None = None,
        ignore_fields: Sequence[str] = (),
    ) -> None:
        """Choose a task; nothing is started.

        Args:
            task: `path/to/tasks.py@task`, or `package/task` of an installed package.
            python: The interpreter that has Inspect and `openai`; this one if empty.
            args: Arguments of the task.
            scorer: The scorer that pays, where there are several.
            key: The key of its value that pays, where that has several.
            roles: Models by role, such as `{grader: openai/gpt-5}`; without one nothing grades.
            size: Number of samples that are read, in the dataset's order.
            path: Folders with modules of your own.
            pass_env: Names of our variables that Inspect gets.
            start_timeout_s: Deadline of importing Inspect, and of loading a task.
            policy_errors: As for `blackbox/Program-v0`.
            ignore_fields: As for `blackbox/Program-v0`.
        """
        file, at, name = task.partition("@")
        settings = {
            "task": f"{os.path.abspath(file)}{at}{name}" if file.endswith(".py") else task,
            "args": dict(args or {}),
            "scorer": scorer,
            "key": key,
            "roles": dict(roles or {}),
        }
        super().__init__(
            "inspect",
            settings,
            python=python,
            path=path,
            pass_env=pass_env,
            size=size,
            start_timeout_s=start_timeout_s,
            policy_errors=policy_errors,
            ignore_fields=ignore_fields,
        )
