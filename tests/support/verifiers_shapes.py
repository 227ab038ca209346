"""Tasksets of verifiers, for its own interpreter, each with one thing that an answer alone lacks.

`verifiers_shapes.py KIND.py` writes for every shape what the host says of it, as JSON.
"""

# pyright: basic, reportMissingImports=false
import asyncio
import importlib.util
import json
import sys
import types
from typing import Any

import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str = "7"


class Sum(vf.Task[Data]):
    """A question and an answer: what can be played."""

    @vf.reward
    async def right(self, trace) -> float:
        return float(trace.last_reply == self.data.answer)


class Begun(Sum):
    async def setup(self, trace, runtime) -> None:
        await runtime.write("file", b"")


class Ended(Sum):
    async def finalize(self, trace, runtime) -> None:
        trace.record_reward("more", 1.0)


class Staged(Sum):
    async def stage_verifier(self, trace, runtime) -> None:
        await runtime.write("file", b"")


class Scored(Sum):
    async def score(self, trace, runtime=None) -> None:
        trace.record_reward("all", 1.0)


class WithTools(Sum):
    @classmethod
    def toolsets(cls, config):
        return []


class Stopped(Sum):
    @vf.stop
    async def at_once(self, trace) -> bool:
        return True


class Rewritten(Sum):
    @vf.intercept
    def shout(self, request: vf.Request) -> vf.Request | None:
        return None


class Ran(vf.Task[Data]):
    """Its metric runs a program, and its reward reads the metric: 0 for whoever has no runtime."""

    @vf.metric
    async def passed(self, trace, runtime) -> float:
        return float((await runtime.run(["true"], {})).exit_code == 0)

    @vf.reward
    async def right(self, trace) -> float:
        return trace.metrics.get("passed", 0.0)


class MayRun(vf.Task[Data]):
    @vf.reward
    async def right(self, trace, runtime=None) -> float:
        return float(runtime is not None)


class Terse(vf.Task[Data]):
    """Pays for few tokens, which only verifiers' own client counts."""

    @vf.reward
    async def short(self, trace) -> float:
        return float(trace.num_output_tokens < 9)


class Metered(vf.Task[Data]):
    @vf.reward
    async def cheap(self, trace) -> float:
        return float(len(trace.calls) == 1)


class Kept(vf.State):
    seen: int = 0


class Stateful(vf.Task[Data, Kept]):
    @vf.reward
    async def right(self, trace) -> float:
        return 1.0


class Unpaid(vf.Task[Data]):
    pass


class Failing(vf.Task[Data]):
    @vf.reward
    async def right(self, trace) -> float:
        raise KeyError("no such thing")


class Laden(Sum):
    def __init__(self, data, config=None) -> None:
        super().__init__(data, config)
        self.secret = 7


class OwnEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        raise NotImplementedError


class OwnHarness(vf.Harness):
    async def launch(self, *arguments: Any):
        raise NotImplementedError


ASK = [vf.UserMessage(content="3 + 4")]
PICTURE = vf.ImageUrlContentPart(image_url=vf.ImageUrlSource(url="data:image/png;base64,"))
TASKS: dict[str, tuple[type, dict[str, Any]]] = {
    "plain": (Sum, {}),
    "conversation": (Sum, {"prompt": [*ASK, vf.AssistantMessage(content="7?"), *ASK]}),
    **{
        kind.__name__.lower(): (kind, {})
        for kind in (Begun, Ended, Staged, Scored, WithTools, Stopped, Rewritten, Ran, MayRun)
    },
    **{
        kind.__name__.lower(): (kind, {})
        for kind in (Terse, Metered, Stateful, Unpaid, Failing, Laden)
    },
    "user_begins": (Sum, {"prompt": None}),
    "pictures": (Sum, {"prompt": [vf.UserMessage(content=[PICTURE])]}),
    "image": (Sum, {"image": "python:3.11"}),
    "folder": (Sum, {"workdir": "/app"}),
    "offline": (Sum, {"network_allow": []}),
    "collected": (Sum, {"artifacts": [{"source": "/answer"}]}),
}
EXPORTS = {"own_env": OwnEnv, "own_harness": OwnHarness}


def taskset_of(task: type, given: dict[str, Any]) -> type:
    def load(self):
        config = task.config_type()() if task is Laden else self.config.task
        return [task(Data(**{"prompt": "3 + 4", **given}), config)]

    base = vf.Taskset[task, vf.TasksetConfig]  # type: ignore[valid-type]
    return types.new_class("Sums", (base,), {}, lambda names: names.update(load=load))


def install(name: str, **exported: type) -> None:
    module = types.ModuleType(name)
    module.__spec__ = importlib.util.spec_from_loader(name, None)
    vars(module).update(exported, __all__=[*exported])
    sys.modules[name] = module


def main() -> None:
    spec = importlib.util.spec_from_file_location("agentrl_hosted_kind", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    kind = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kind)
    for name, (task, given) in TASKS.items():
        install(name, Sums=taskset_of(task, given))
    for name, extra in EXPORTS.items():
        install(name, Sums=taskset_of(Sum, {}), Own=extra)
    told: dict[str, Any] = {}
    for name in (*TASKS, *EXPORTS):
        params = {"taskset": name, "config": {}, "size": 9}
        try:
            told[name] = len(kind.ask(params))
        except Exception as error:  # noqa: BLE001 - told to the test
            told[name] = f"{type(error).__name__}: {error}"
    for name, metric in (("plugged", "metrics"), ("stopped_by_config", "stops")):
        install(name, Sums=taskset_of(Sum, {}))
        plugged = {"task": {metric: {"extra": {"fn": "verifiers_shapes:needs_runtime"}}}}
        try:
            told[name] = len(kind.ask({"taskset": name, "config": plugged, "size": 9}))
        except Exception as error:  # noqa: BLE001 - told to the test
            told[name] = f"{type(error).__name__}: {error}"
    sys.stdout.write(json.dumps(told))


async def needs_runtime(task, trace, runtime) -> float:
    await asyncio.sleep(0)
    return 1.0


if __name__ == "__main__":
    sys.modules["verifiers_shapes"] = sys.modules["__main__"]
    main()
