"""Inspect: tasks as they are, each sample evaluated against a gateway and paid as it is scored."""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import contextlib
import functools
import hashlib
import importlib.metadata
import importlib.util
import math
import os
import re
import shutil
import string
import subprocess
import sys
import tempfile

NEEDS = {"inspect-ai": "0.3.275"}
"""With 0.3.200 nobody notices that a scorer asks the policy."""
GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's own values of correct, partially correct, incorrect and no answer."""
ENGINE_S = 30.0
ASK_S = 5
COMPOSE = (2, 21)
"""The oldest compose that Inspect takes."""
UNSAID = string.whitespace + string.punctuation
PAYS_BLANK = {
    "match": lambda targets: any(not text.strip(UNSAID) for text in targets),
    "includes": lambda targets: any(not text.strip() for text in targets),
    "choice": lambda targets: not any(text.strip(string.whitespace + ",") for text in targets),
}
"""Whether a scorer of Inspect's own pays 1 to an agent that says nothing, by its targets."""
GET_COMPOSE = "install Docker's compose plugin 2.21 or newer, which Debian's docker.io has not"


def preload():
    """Import the library, and let programs beside its interpreter be found."""
    # Each evaluation looks through all that is installed, for the package that its task is of.
    importlib.metadata.packages_distributions = functools.cache(
        importlib.metadata.packages_distributions
    )
    import inspect_ai.hooks
    import inspect_ai.model
    import openai  # noqa: F401

    os.environ.setdefault("HOME", os.path.expanduser("~"))
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"

    @inspect_ai.hooks.hooks(name="agentrl", description="Says which models a scorer asks.")
    class ScorerWatch(inspect_ai.hooks.Hooks):
        async def on_sample_scoring(self, data):
            WATCHED["scoring"] = True

        async def on_before_model_generate(self, data):
            if WATCHED["scoring"]:
                WATCHED["asked"].append(data.model_name)


WATCHED = {"scoring": False, "asked": []}


def warm_up(_params):
    """Evaluate a task that asks a model in vain: the first evaluation and request import."""
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import match
    from inspect_ai.solver import solver

    @solver(name="agentrl_idle")
    def ask_in_vain():
        async def solve(state, generate):
            with contextlib.suppress(Exception):  # nobody listens there
                await generate(state, max_retries=0, timeout=ASK_S)
            return state

        return solve

    importlib.metadata.packages_distributions()
    task = Task(MemoryDataset([Sample("", target="")]), solver=ask_in_vain(), scorer=match())
    endpoint = {"model": "none", "url": "http://127.0.0.1:9", "key": "none"}
    try:
        evaluate_sample(task, connect_model(endpoint), {}, lambda log: log.samples)
    finally:
        WATCHED.update(scoring=False, asked=[])


def ask(params):
    """Return the samples as tasks; raises for a task that cannot be played here."""
    task = load_task(params)
    samples = list_samples(task)
    obstacles = {*find_obstacles(task, samples)}
    obstacles |= {*find_blank_targets(task.scorer or (), samples, params["scorer"])}
    if obstacles:
        raise ValueError(f"{params['task']} cannot be played here: {'; '.join(sorted(obstacles))}")
    return [describe_sample(sample) for sample in samples[: params["size"]]]


# -- tasks ----------------------------------------------------------------------------------------


def load_task(params):
    """Return the task of `path/to/tasks.py@name` or `package/name`."""
    from inspect_ai import Task
    from inspect_ai.util import registry_create

    path, _, name = params["task"].partition("@")
    if not path.endswith(".py"):
        return registry_create("task", params["task"], **params["args"])
    path = os.path.abspath(path)
    # Where Inspect runs the tasks of a file, too.
    os.chdir(os.path.dirname(path))
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    tasks = find_tasks(module)
    if not name and len(tasks) == 1:
        (name,) = tasks
    if name not in tasks:
        there = ", ".join(f"{params['task'].partition('@')[0]}@{one}" for one in tasks) or "none"
        raise ValueError(f"{params['task']} names no task of the file; its tasks are {there}")
    task = tasks[name](**params["args"])
    if not isinstance(task, Task):
        raise TypeError(f"{name} returned a {type(task).__name__}, not a Task")
    return task


def find_tasks(module):
    """Return the functions of a module that `@task` has marked, by name."""
    from inspect_ai.util import registry_info

    tasks = {}
    for name, value in vars(module).items():
        try:
            is_task = callable(value) and registry_info(value).type == "task"
        except Exception:  # noqa: BLE001 - whatever it raises for what is not registered
            continue
        if is_task:
            tasks[name] = value
    return tasks


def list_samples(task):
    """Return the samples of a task, each with the id that Inspect gives one without."""
    samples = list(task.dataset)
    for at, sample in enumerate(samples):
        if sample.id is None:
            sample.id = at + 1
    ids = [str(sample.id) for sample in samples]
    if twice := sorted({id for id in ids if ids.count(id) > 1}):
        raise ValueError(f"several samples have the id {twice[0]!r}")
    if not samples:
        raise ValueError("the task has no samples")
    return samples


def describe_sample(sample):
    """Return the facts about a sample that are known before it is played."""
    prompt = sample.input
    turns = [("user", prompt)] if isinstance(prompt, str) else [(m.role, m.text) for m in prompt]
    messages = [{"role": role, "content": text} for role, text in turns if role != "tool"]
    return {
        "id": str(sample.id),
        "messages": messages,
        "data": {"sample": str(sample.id), "digest": digest_sample(sample)},
    }


def digest_sample(sample):
    """Return a digest by which a sample is known again; ids of its messages are new each time."""
    content = sample.model_dump_json(exclude={"input": {"__all__": {"id"}}})
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def find_obstacles(task, samples):
    """Yield what a task needs that is not here."""
    specs = [task.sandbox, *(sample.sandbox for sample in samples)]
    is_docker = any(spec is not None and spec.type == "docker" for spec in specs)
    if is_docker and (fault := find_docker_fault()):
        yield f"its sandbox is docker, and {fault}"
    if task.scorer is None:
        yield "it has no scorer"
    if task.model is not None:
        yield f"it asks {task.model}, a model of its own, and never the policy; remove its model"


def find_blank_targets(scorers, samples, paying):
    """Yield the scorers that pay whatever is said of a sample whose target is blank.

    `paying` names the one whose value is the reward; empty where there is only one.
    """
    for scorer in scorers:
        names = list_scorer_names(scorer)
        # A second one of a name is told apart by a number.
        name = names[0].rpartition("/")[2]
        if paying and (not paying.startswith(name) or paying[len(name) :].strip(string.digits)):
            continue
        for own in sorted({one.removeprefix("inspect_ai/") for one in names} & {*PAYS_BLANK}):
            pays = PAYS_BLANK[own]
            if blank := [sample.id for sample in samples if pays(list_targets(sample))]:
                yield (
                    f"{len(blank)} of {len(samples)} samples (the first is {blank[0]!r}) have a "
                    f"blank target, for which {own} pays 1 to an agent that says nothing; give "
                    "each sample its target, or the task a scorer that needs none"
                )


def list_targets(sample):
    """Return the targets of a sample, any of which is right."""
    return [sample.target] if isinstance(sample.target, str) else [*sample.target]


def list_scorer_names(scorer):
    """Return the registered names of a scorer and, after it, of those that it is made of."""
    from inspect_ai.util import registry_info

    def walk(value):
        if isinstance(value, dict):
            if value.get("type") == "scorer":
                yield str(value.get("name"))
            value = list(value.values())
        if isinstance(value, list | tuple):
            for part in value:
                yield from walk(part)

    return [registry_info(scorer).name, *walk(getattr(scorer, "__registry_params__", {}))]


def find_docker_fault():
    """Return why Inspect can start no containers, or an empty text."""
    if shutil.which("docker") is None:
        return "docker is not installed"
    for command in (["docker", "info"], ["docker", "compose", "version", "--short"]):
        ran = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_S, check=False)
        if ran.returncode:
            wrong = describe_failure(command, ran.stderr)
            return f"{wrong}; {GET_COMPOSE}" if "compose" in command else wrong
    return find_compose_fault(ran.stdout.strip())


def describe_failure(command, stderr):
    """Return that a command failed, with the first line of its words: help may follow."""
    return f"{' '.join(command)} fails: {stderr.strip().partition(chr(10))[0][:300]}"


def find_compose_fault(version):
    """Return why a version of Docker's compose will not do, or an empty text."""
    numbers = re.match(r"v?(\d+)\.(\d+)", version)
    if numbers and tuple(map(int, numbers.groups())) >= COMPOSE:
        return ""
    return f"docker compose is {version or 'of no version'}; {GET_COMPOSE}"


# -- an episode -----------------------------------------------------------------------------------


class InspectEpisode:
    """One sample of a task, evaluated by Inspect."""

    def __init__(self, params):
        self.params = params
        self.task = load_task(params)
        samples = {str(sample.id): sample for sample in list_samples(self.task)}
        self.sample = samples.get(params["sample"])
        if self.sample is None or digest_sample(self.sample) != params["digest"]:
            raise ValueError(
                f"sample {params['sample']} of {params['task']} is not the one that was listed: "
                "its dataset is not the same twice, give it ids and a seed"
            )

    def play(self, endpoint):
        """Return the score of the sample, or its failure."""
        from inspect_ai import task_with
        from inspect_ai.dataset import MemoryDataset
        from inspect_ai.model import get_model

        os.environ.update(endpoint["environ"])
        tempfile.tempdir = None  # that the variables name another folder
        # Nobody's turn: a grader that is not configured must not be the policy.
        grader = get_model("mockllm/model", custom_outputs=refuse_to_grade, memoize=False)
        model = connect_model(endpoint)
        result = evaluate_sample(
            task_with(self.task, dataset=MemoryDataset([self.sample])),
            model,
            {"grader": grader, **self.params["roles"]},
            lambda log: read_log(log, self.params["scorer"], self.params["key"]),
        )
        if str(model) in WATCHED["asked"]:
            return {
                "failure": "ValueError: the scorer asks the policy itself; give the grader a model "
                "of its own"
            }
        return result


def connect_model(endpoint):
    """Return the model behind an endpoint."""
    from inspect_ai.model import get_model

    return get_model(
        f"openai-api/agentrl/{endpoint['model']}",
        base_url=endpoint["url"],
        api_key=endpoint["key"],
        memoize=False,
    )


def evaluate_sample(task, model, roles, read):
    """Evaluate a task with one sample; apply `read` to its log, and return the result."""
    from inspect_ai import Epochs
    from inspect_ai import eval as evaluate

    with tempfile.TemporaryDirectory(prefix="agentrl-inspect-") as folder:
        (log,) = evaluate(
            task,
            model=model,
            model_roles=roles,
            display="none",
            log_dir=folder,
            log_level="error",
            log_realtime=False,
            ctl_server=False,
            epochs=Epochs(1, "mean"),  # a task's own reducers may need more than one
            fail_on_error=True,
            score=True,
        )
        return read(log)  # its samples are read from the folder when they are asked for


def refuse_to_grade(*_):
    """Refuse to grade: no model is configured for it."""
    raise ValueError(
        "the task is graded by a model, and none is configured; set roles: {grader: PROVIDER/MODEL}"
    )


def read_log(log, scorer, key):
    """Return the reward of a log with one sample, or its failure: never a guess."""
    if log.status != "success":
        fault = log.error.message if log.error else f"its status is {log.status}"
        return {"failure": f"EvalError: {fault}"[:2000]}
    if len(log.samples or ()) != 1:
        return {"failure": "ValueError: the log does not have one sample"}
    (sample,) = log.samples
    if sample.error is not None:
        return {"failure": f"EvalError: {sample.error.message}"[:2000]}
    if sample.limit is not None and sample.limit.type in ("time", "working"):
        return {"failure": f"TimeoutError: the sample's limit on {sample.limit.type} was reached"}
    scores = {name: score.value for name, score in (sample.scores or {}).items()}
    return read_scores(scores, scorer, key)


def read_scores(scores, scorer, key):
    """Return the reward that scorers gave, or the failure where it is not clear."""
    if not scores:
        return {"failure": "ValueError: the sample has no score"}
    if not scorer and len(scores) > 1:
        return {"failure": f"ValueError: scored by {', '.join(scores)}; set scorer: to one of them"}
    name = scorer or next(iter(scores))
    if name not in scores:
        return {"failure": f"ValueError: no scorer {name}; the scorers are {', '.join(scores)}"}
    value = scores[name]
    if isinstance(value, dict):
        if key not in value:
            keys = ", ".join(map(str, value))
            return {"failure": f"ValueError: {name} gives {keys}; set key: to one of them"}
        value = value[key]
    elif key:
        return {"failure": f"ValueError: {name} gives {value!r} and has no key {key}"}
    reward = GRADES.get(value) if isinstance(value, str) else value
    if not isinstance(reward, bool | int | float) or not math.isfinite(reward):
        return {"failure": f"ValueError: {name} gives {value!r}, which is no reward"}
    return {"rewards": {name: float(reward)}, "metrics": {}, "stop": None}


EPISODE = InspectEpisode
