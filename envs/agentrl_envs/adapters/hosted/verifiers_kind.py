"""verifiers: the tasks of a taskset, and their rewards for a finished conversation."""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import asyncio
import inspect
from itertools import islice


def preload():
    """Import the library."""
    import verifiers.v1  # noqa: F401


def loaded(params):
    """Return a taskset."""
    from verifiers.v1.configs.taskset import TasksetConfig
    from verifiers.v1.utils.generic import concrete_type
    from verifiers.v1.utils.loaders import taskset_class

    kind = taskset_class(params["taskset"])
    config = concrete_type(kind, TasksetConfig) or TasksetConfig
    return kind(config(**{"id": params["taskset"], **params["config"]}))


def ask(params):
    """Return the first tasks, as data; raises for one that cannot be played here."""
    taskset = loaded(params)
    if type(taskset).toolsets(taskset.config):
        raise ValueError("the taskset has tools, which are servers of its own")
    found = []
    for task in islice(taskset, params["size"]):
        check(task)
        data = task.data
        prompt = data.prompt
        if not isinstance(prompt, str):
            prompt = [{"role": m.role, "content": text_of(m.content)} for m in prompt]
        row = data.model_dump(mode="json", exclude_none=True)
        found.append({"key": task.key, "system": data.system_prompt, "prompt": prompt, "data": row})
    return found


def check(task):
    """Raise `ValueError` for a task whose reward would not be what verifiers would pay."""
    from verifiers.v1.task import Task

    kind, why = type(task), ""
    if kind.NEEDS_CONTAINER or task.data.image:
        why = "needs a container"
    elif task.data.prompt is None:
        why = "lets a user begin"
    elif kind.toolsets(task.config):
        why = "has tools, which are servers of its own"
    elif kind.setup is not Task.setup or kind.finalize is not Task.finalize:
        why = "prepares a runtime"
    elif task.plugged_judges():
        why = "is scored by a model"
    elif any(needs_runtime(fn) for fn in task.hooks("reward")):
        why = "is scored in a runtime"
    elif task.hooks("stop"):
        why = "has conditions to stop at"
    elif not task.hooks("reward"):
        why = "has no reward"
    if why:
        raise ValueError(f"{kind.__name__} {why}; a single answer is all there is here")


def needs_runtime(function):
    """Return whether a reward can be computed in a running runtime only."""
    parameter = inspect.signature(function).parameters.get("runtime")
    return parameter is not None and parameter.default is inspect.Parameter.empty


def text_of(content):
    """Return content that is text."""
    if isinstance(content, str):
        return content
    if any(part.type != "text" for part in content):
        raise ValueError("a prompt with other content than text")
    return "".join(part.text for part in content)


class World:
    """The scoring of one task."""

    def __init__(self, params):
        from verifiers.v1.task import Task
        from verifiers.v1.utils.generic import concrete_type

        taskset = loaded(params)
        kind = concrete_type(type(taskset), Task)
        self.task = kind(kind.data_type().model_validate(params["data"]), taskset.config.task)

    def score(self, messages):
        """Return what a conversation is paid; each message says whether the policy sampled it."""
        import verifiers.v1 as vf
        from verifiers.v1.graph import MessageNode
        from verifiers.v1.trace import AgentInfo, Trace, TraceTask

        task = self.task
        nodes = [
            MessageNode.model_validate(
                {"parent": at - 1 if at else None, "message": m["message"], "sampled": m["sampled"]}
            )
            for at, m in enumerate(messages)
        ]
        trace = Trace(
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=AgentInfo(config=vf.AgentConfig(), name="agentrl"),
            nodes=nodes,
            is_completed=True,
            ok=True,
        )
        asyncio.run(task.score(trace))
        parts = {name: reward.value for name, reward in trace.rewards.items()}
        return {"reward": trace.reward, "components": parts, "metrics": trace.metrics}

    def close(self):
        """Hold nothing."""
