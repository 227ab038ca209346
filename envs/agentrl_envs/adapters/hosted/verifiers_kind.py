"""verifiers: the tasks of a taskset, and their rewards for a finished conversation."""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import asyncio
import inspect
import sys
from functools import cache
from itertools import islice


def preload():
    """Import the library."""
    import verifiers.v1  # noqa: F401


def load_taskset(params):
    """Return a taskset."""
    from verifiers.v1.configs.taskset import TasksetConfig
    from verifiers.v1.utils.generic import concrete_type
    from verifiers.v1.utils.loaders import taskset_class

    kind = taskset_class(params["taskset"])
    config = concrete_type(kind, TasksetConfig) or TasksetConfig
    return kind(config(**{"id": params["taskset"], **params["config"]}))


def ask(params):
    """Return the first tasks, as data; raises for a taskset that cannot be played here."""
    refuse(find_package_obstacles(params["taskset"]))
    taskset = load_taskset(params)
    refuse(find_taskset_obstacles(taskset))
    rows = []
    for task in islice(taskset, params["size"]):
        refuse(find_task_obstacles(task, taskset))
        data = task.data
        prompt = data.prompt
        if not isinstance(prompt, str):
            prompt = [{"role": m.role, "content": read_text(m)} for m in prompt]
        row = data.model_dump(mode="json", exclude_none=True)
        rows.append({"key": task.key, "system": data.system_prompt, "prompt": prompt, "data": row})
    if rows:
        probe(rows[0], params)
    return rows


PLAIN_DATA = {"idx", "id", "name", "description", "prompt", "system_prompt"}
"""Fields of every task's data that need nothing but a conversation."""
KNOWN_PARTS = {
    *("task", "messages", "assistant_messages", "tool_messages", "last_message", "last_reply"),
    *("transcript", "num_turns", "num_branches", "root_reply", "metrics", "rewards", "reward"),
    *("record_metric", "record_metrics", "info", "state", "stop_condition", "is_completed", "ok"),
    *("is_timeout", "errors", "last_error", "has_error"),
}
"""Parts of a trace that are here what they are in verifiers: what was said, and how it ended."""


def refuse(obstacles):
    """Raise `ValueError` where there is a reason why a reward would not be what verifiers pays."""
    if obstacles:
        raise ValueError(
            f"{'; '.join(obstacles)}. Only single text answers are supported here, so the reward "
            "would differ; run this environment with verifiers itself (see docs/adapters.md)"
        )


def find_package_obstacles(name):
    """Return why a taskset's package is more than a taskset."""
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.harness import Harness
    from verifiers.v1.taskset import Taskset
    from verifiers.v1.utils.loaders import environment_class, import_taskset

    module = import_taskset(name)
    exported = [getattr(module, part, None) for part in getattr(module, "__all__", ())]
    kinds = [part for part in exported if isinstance(part, type)]
    obstacles = [
        f"{name} brings a harness of its own, {kind.__name__}"
        for kind in kinds
        if issubclass(kind, Harness)
    ]
    if not any(issubclass(kind, Taskset) for kind in kinds):
        return obstacles or [f"{name} has no taskset"]
    env = environment_class(name)
    if env is not SingleAgentEnv:
        obstacles.append(f"{name} is played by an environment of its own, {env.__name__}")
    return obstacles


def find_taskset_obstacles(taskset):
    """Return why a taskset's kind of task is more than a question, an answer and its rewards."""
    from verifiers.v1.state import State
    from verifiers.v1.task import Task
    from verifiers.v1.taskset import Taskset
    from verifiers.v1.utils.generic import concrete_type

    kind, task = type(taskset), type(taskset).task_type()
    obstacles = [
        f"{kind.__name__} has its own {name}"
        for name in find_overridden(kind, Taskset, {"load", "INFINITE", "__init__"})
    ]
    marked = {"intercept": "rewrites messages", "stop": "decides when to stop"}
    obstacles += [
        f"{task.__name__}.{name} {does}"
        for mark, does in marked.items()
        for name in find_decorated(task, mark)
    ]
    obstacles += [
        f"{task.__name__} has its own {name}"
        # `validate` is for authors, and is not called when a task is played.
        for name in find_overridden(task, Task, {"key", "hash", "validate"})
    ]
    state = concrete_type(task, State)
    if state not in (None, State):
        obstacles.append(f"{task.__name__} keeps a state of its own, {state.__name__}")
    return obstacles


def find_overridden(kind, base, harmless):
    """Return the members of `base` that a class overrides, but for `harmless`."""
    parents = kind.__mro__[: kind.__mro__.index(base)]
    members = {name for parent in parents for name in vars(parent)}
    base_members = {name for name in vars(base) if name[0] != "_"} | {"__init__", "__iter__"}
    return sorted(members & base_members - harmless)


def find_decorated(kind, mark):
    """Return the names of the functions of a class that verifiers' decorator `mark` has marked."""
    return sorted(
        {
            name
            for parent in kind.__mro__
            for name, value in vars(parent).items()
            if callable(value) and hasattr(value, mark)
        }
    )


def find_task_obstacles(task, taskset):
    """Return why one task is more than a question, an answer and its rewards."""
    from verifiers.v1.task import TaskData

    kind, data = type(task).__name__, task.data
    obstacles = []
    if type(task) is not type(taskset).task_type():
        obstacles.append(f"{kind} is not the kind of task that its taskset declares")
    if data.prompt is None:
        obstacles.append(f"{kind} lets a user begin")
    for name, field in TaskData.model_fields.items():
        usual = field.get_default(call_default_factory=True)
        if name not in PLAIN_DATA and getattr(data, name) != usual:
            obstacles.append(f"{kind} sets {name}")
    rewards, metrics = task.hooks("reward"), task.hooks("metric")
    if not rewards:
        obstacles.append(f"{kind} has no reward")
    obstacles += [
        f"{kind}'s {function.__name__} is computed in a runtime"
        for function in (*rewards, *metrics)
        # Optional or not: verifiers would hand one over.
        if "runtime" in inspect.signature(function).parameters
    ]
    obstacles += [f"{kind} is stopped by {function.__name__}" for function in task.hooks("stop")]
    if task.config.judges:
        obstacles.append(f"{kind} is scored by a model")
    if task.config != taskset.config.task or {*vars(task)} != {"data", "config"}:
        obstacles.append(f"{kind} holds more than its data and its taskset's config")
    elif type(data).model_validate(data.model_dump(mode="json", exclude_none=True)) != data:
        obstacles.append(f"{kind}'s data is not the same after JSON")
    return obstacles


def probe(row, params):
    """Score one answer, so that a reward that cannot be computed here is told before a run."""
    prompt = row["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    rows = [{"message": message, "sampled": False} for message in messages]
    rows.append({"message": {"role": "assistant", "content": "probe"}, "sampled": True})
    try:
        TasksetScoring({**params, "data": row["data"]}).score(rows)
    except Exception as error:
        cause = error.__cause__ or error
        raise ValueError(
            f"the rewards of {params['taskset']} cannot be computed from an answer alone: "
            f"{type(cause).__name__}: {cause}"
        ) from error


def read_text(message):
    """Return the text of a prompt's message; raises for one that is more than that."""
    fields = message.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    if more := sorted({*fields} - {"role", "content"}):
        refuse([f"a message of the prompt has {', '.join(more)}"])
    content = message.content
    if isinstance(content, str):
        return content
    if any(part.type != "text" for part in content):
        refuse(["the prompt has other content than text"])
    return "".join(part.text for part in content)


@cache
def answer_trace():
    """Return the kind of trace that raises where a reward reads what nobody has recorded."""
    from verifiers.v1.trace import Trace

    class AnswerTrace(Trace):
        def __getattribute__(self, name):
            reader = sys._getframe(1).f_globals.get("__name__", "")
            ours = reader.partition(".")[0] in ("verifiers", "pydantic", __name__)
            if ours or name.startswith("_") or name in KNOWN_PARTS:
                return super().__getattribute__(name)
            raise ValueError(f"a reward reads trace.{name}, which only verifiers itself records")

    return AnswerTrace


class TasksetScoring:
    """The scoring of one task."""

    def __init__(self, params):
        from verifiers.v1.task import Task
        from verifiers.v1.utils.generic import concrete_type

        taskset = load_taskset(params)
        kind = concrete_type(type(taskset), Task)
        self.task = kind(kind.data_type().model_validate(params["data"]), taskset.config.task)

    def score(self, messages):
        """Return the reward of a conversation; each message says whether the policy sampled it."""
        import verifiers.v1 as vf
        from verifiers.v1.graph import MessageNode
        from verifiers.v1.trace import AgentInfo, TraceTask

        task = self.task
        nodes = [
            MessageNode.model_validate(
                {"parent": at - 1 if at else None, "message": m["message"], "sampled": m["sampled"]}
            )
            for at, m in enumerate(messages)
        ]
        trace = answer_trace()(
            task=TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash),
            agent=AgentInfo(config=vf.AgentConfig(), name="agentrl"),
            nodes=nodes,
            is_completed=True,
            ok=True,
            stop_condition="agent_completed",
        )
        asyncio.run(task.score(trace))
        unscored = [name for name, reward in trace.rewards.items() if reward is None]
        if unscored or not trace.rewards:
            raise ValueError(f"the rewards {unscored} were not computed")
        parts = {name: reward.value for name, reward in trace.rewards.items()}
        return {"reward": trace.reward, "components": parts, "metrics": trace.metrics}


EPISODE = TasksetScoring
