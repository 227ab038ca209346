"""OpenEnv's environments (https://github.com/meta-pytorch/OpenEnv), as a server offers them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.chat.call_json import CALL_LIMITS
from agentrl.env import Action, Info, Observation, Step, ToolSchema
from agentrl.message import Message, ToolCall
from agentrl.runtime.json_limits import JsonLimitError, read_json
from agentrl_envs.adapters.foreign_env import ForeignEnv, refuse_calls

_JSON_WANTED = "An action is one JSON object and nothing else."


class OpenEnvEnv(ForeignEnv):
    """The environment of one OpenEnv server; a task is a seed of its `reset`.

    OpenEnv's actions are typed objects. What the agent says becomes one in one of three ways: the
    text is the field `action_key`; the arguments of a call of one of `tools` are the action, with
    the tool's name under `tool_key`; or else the text is a JSON object. The end of an episode is
    always `terminated`, because OpenEnv knows no other. Its state is the server's: no forks.
    """

    def __init__(
        self,
        url: str,
        *,
        python: str,
        instructions: str = "",
        action_key: str = "",
        tools: Sequence[ToolSchema] = (),
        tool_key: str = "",
        observation_key: str = "",
        options: Mapping[str, Any] | None = None,
        path: Sequence[str] = (),
        pass_env: Sequence[str] = (),
        timeout_s: float = 60.0,
        start_timeout_s: float = 120.0,
    ) -> None:
        """`python` is the interpreter that has OpenEnv; `options` are further keys of `reset`.

        `instructions` stand before the first observation. `observation_key` is the field of an
        observation that is shown; all of them as JSON without.
        """
        self._action_key = action_key
        self._tools = tuple(tools)
        self._tool_key = tool_key
        self._options = dict(options or {})
        settings = {"url": url, "observation_key": observation_key, "timeout_s": timeout_s}
        where = (python, path, pass_env, timeout_s, start_timeout_s)
        super().__init__("openenv", url, settings, *where, prompt=instructions)

    async def reset(
        self, *, seed: int | None = None, options: Mapping[str, Any] | None = None
    ) -> tuple[Observation, Info]:
        task = await self._choose_task(seed, options)
        await self._episode.open(self._settings)
        answer = await self._episode.ask("reset", {"seed": task.seed, "options": self._options})
        self._task = task
        text = "\n\n".join(filter(None, (self._prompt, answer["text"])))
        return Observation((Message("user", text),), tools=self._tools), {}

    async def step(self, action: Action) -> Step:
        self._require_task()
        sent = self._build_action(action)
        if isinstance(sent, str):
            return refuse_calls(action, sent)
        answer = await self._episode.ask("step", {"action": sent})
        if "invalid" in answer:
            return refuse_calls(action, f"This is not a valid action: {answer['invalid']}.")
        step = self._parse_step(answer)
        return step if not action.tool_calls else _answer_call(action.tool_calls[0], step)

    def _build_action(self, action: Action) -> dict[str, Any] | str:
        """Return the action's object, or why there is none, for the agent."""
        if action.malformed:
            return "; ".join(action.malformed)
        names = [tool["function"]["name"] for tool in self._tools]
        if action.tool_calls:
            (first, *more) = action.tool_calls
            if more or first.name not in names:
                return (
                    f"Call exactly one tool at a time; the tools are {', '.join(names) or 'none'}."
                )
            tool_field = {self._tool_key: first.name} if self._tool_key else {}
            return {**first.arguments, **tool_field}
        if self._action_key:
            return {self._action_key: action.text}
        try:
            read: Any = read_json(action.text, CALL_LIMITS)
        except JsonLimitError:
            return _JSON_WANTED
        return copy.copy(read) if isinstance(read, dict) else _JSON_WANTED


def _answer_call(call: ToolCall, step: Step) -> Step:
    observation, *rest = step
    text = "".join(message.text for message in observation.messages)
    answer = Message("tool", text, tool_call_id=call.id, name=call.name)
    return (Observation((answer,)), *rest)  # pyright: ignore[reportReturnType]
