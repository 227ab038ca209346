"""verifiers (https://github.com/PrimeIntellect-ai/verifiers), from version 0.4 on."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentrl_envs.adapters.hosted_program import HostedProgramEnv
from agentrl_envs.blackbox.policy_errors import PolicyErrors

VerifiersRuntime = Literal["subprocess", "docker", "podman", "apptainer"]


class VerifiersEnv(HostedProgramEnv):
    """An environment of verifiers, played by verifiers itself against the gateway.

    One task is one episode, and the reward is the sum of score x weight that verifiers recorded in
    the trace of the role that the policy plays. An error in the episode, a reward that was not
    computed and a deadline of verifiers' own are failures. A task's prompt decides its split.
    """

    def __init__(
        self,
        taskset: str,
        *,
        python: str = "",
        config: Mapping[str, Any] | None = None,
        runtime: VerifiersRuntime | None = None,
        role: str = "",
        size: int = 1000,
        path: Sequence[str] = (),
        pass_env: Sequence[str] = (),
        start_timeout_s: float = 120.0,
        policy_errors: PolicyErrors | None = None,
        ignore_fields: Sequence[str] = (),
    ) -> None:
        """Choose an environment; nothing is started.

        Args:
            taskset: The id that verifiers imports.
            python: The interpreter that has verifiers and the taskset; this one if empty.
            config: Keys of the environment's config, what verifiers calls its `[env]` block.
            runtime: Where harnesses run that would run in verifiers' hosted runtime by default.
            role: The role that the policy plays; not needed where all others have a model.
            size: Number of tasks that are read, in the taskset's order.
            path: Folders with modules of your own.
            pass_env: Names of our variables that verifiers gets.
            start_timeout_s: Deadline of importing verifiers, and of loading a task.
            policy_errors: As for `blackbox/Program-v0`.
            ignore_fields: As for `blackbox/Program-v0`.
        """
        settings = {
            "taskset": taskset,
            "config": dict(config or {}),
            "runtime": runtime or "",
            "role": role,
        }
        super().__init__(
            "verifiers",
            settings,
            python=python,
            path=path,
            pass_env=pass_env,
            size=size,
            start_timeout_s=start_timeout_s,
            policy_errors=policy_errors,
            ignore_fields=ignore_fields,
        )
