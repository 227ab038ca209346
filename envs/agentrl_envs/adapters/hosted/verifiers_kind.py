"""verifiers: environments as they are, each task played against a gateway and paid as they pay."""

# The library is in another venv, so a type checker cannot see it from here.
# pyright: basic, reportMissingImports=false

import asyncio
import inspect
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from itertools import islice
from urllib.parse import urlsplit

NEEDS = {"verifiers": "0.4.0"}
KEY_VARIABLE = "AGENTRL_GATEWAY_API_KEY"
"""Holds the gateway's key; verifiers hands no variable with API_KEY in its name to a harness."""
HOSTED_RUNTIMES = ("prime", "modal", "e2b")
LOCAL_RUNTIMES = ("subprocess", "docker", "podman", "apptainer")
CONTAINER_FACTS = {"container_label": "verifiers.run", "label_variable": "VF_RUN_ID"}
"""The label of its containers of Docker, and the variable with the label's value."""
CONNECT_S = 5.0
PREPARE_S = 60.0
"""Time in which harnesses may be prepared before the first episode."""
ENGINE_S = 30.0


def preload():
    """Import the library, and let programs beside its interpreter be found."""
    import verifiers.v1  # noqa: F401

    os.environ.setdefault("HOME", os.path.expanduser("~"))
    os.environ["PATH"] = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    # Servers of tools are started as modules, with the import path of the host's setup.
    if folders := json.loads(sys.argv[2])["path"]:
        os.environ["PYTHONPATH"] = os.pathsep.join(folders)


def warm_up(params):
    """Prepare the harnesses that a config names, once for all episodes.

    One of verifiers' own is a script, whose interpreter uv looks up once in a process; and what
    looks for a taskset imports all of its own, with the clients of their tools.
    """
    import verifiers.v1.tasksets  # noqa: F401

    asyncio.run(asyncio.wait_for(prepare_harnesses(params), PREPARE_S))


async def prepare_harnesses(params):
    """Set up verifiers' own harnesses in a runtime on this machine, as an episode does."""
    import verifiers.v1 as vf

    for harness in list_harnesses(params) if find_uv() else ():
        runtime = {"type": "subprocess"}
        agent = vf.Agent(vf.AgentConfig(model="none", harness=harness, runtime=runtime))
        if type(agent.harness).__module__.startswith("verifiers.v1.harnesses."):
            async with agent.provision() as box:
                await agent.harness.setup(box)


def list_harnesses(params):
    """Return the settings of the harnesses that run on this machine, without a container."""
    runtimes = [one.get("type") for one in find_settings(params["config"], "runtime")]
    if {params["runtime"], *runtimes} - {"", None, "subprocess"}:
        return []
    return [*find_settings(params["config"], "harness")] or [{"id": "bash"}]


def find_settings(settings, name):
    """Yield the blocks of a name in settings, as deep as they stand."""
    for key, value in settings.items():
        if isinstance(value, dict):
            if key == name:
                yield value
            yield from find_settings(value, name)


def ask(params):
    """Return the first tasks; raises for an environment that cannot be played here."""
    env = load_env(params)
    obstacles = [*find_obstacles(env.config), *find_task_obstacles(env)]
    if obstacles:
        raise ValueError(f"{params['taskset']} cannot be played here: {'; '.join(obstacles)}")
    rows = [describe_task(task) for task in islice(env.taskset, params["size"])]
    if not rows:
        raise ValueError(f"{params['taskset']} has no tasks")
    return rows


# -- the environment and its roles ----------------------------------------------------------------


def load_env(params):
    """Return the environment of a taskset, each role of it in a runtime of this machine."""
    import verifiers.v1 as vf

    settings = params["config"]
    block = {**settings, "taskset": {**settings.get("taskset", {}), "id": params["taskset"]}}
    config = vf.resolve_env_config(block)
    task = vf.task_type(params["taskset"])
    hooks = find_runtime_hooks(task)
    roles = {}
    for name, harness in config.agent_harnesses().items():
        role = getattr(config, name)
        runs = [f"harness {harness.id}"] if vf.load_harness(harness).EXECUTES_CODE else []
        kind = choose_runtime(name, role.runtime.type, params["runtime"], [*runs, *hooks])
        if kind != role.runtime.type:
            patch = {"runtime": {"type": kind}}
            roles[name] = type(role).model_validate({**role.model_dump(), **patch})
    choose_role(read_roles(config), params["role"])
    return vf.load_environment(config.model_copy(update=roles))


def choose_runtime(role, configured, choice, commands):
    """Return the runtime of a role's harness; raises where that cannot be here or is left open.

    `commands` name the parts that run what the policy wrote; without any, every runtime will do.
    """
    if configured in HOSTED_RUNTIMES and configured != "prime":
        raise ValueError(
            f"the role {role} runs in {configured}, which is hosted elsewhere; choose one of "
            f"{', '.join(LOCAL_RUNTIMES)}"
        )
    if configured != "prime":
        return configured
    if choice:
        return choice
    if commands:
        raise ValueError(
            f"the role {role} runs commands ({', '.join(commands)}), by default in prime, which is "
            "hosted elsewhere; set runtime: docker (or podman, apptainer) for a container, or "
            "runtime: subprocess to run what the policy writes on this machine, with your rights"
        )
    return "subprocess"


def find_runtime_hooks(task):
    """Return the hooks of a kind of task that work in its runtime."""
    import verifiers.v1 as vf

    marks = ("reward", "metric", "stop", "intercept")
    marked_names = {
        name
        for parent in task.__mro__
        for name, value in vars(parent).items()
        if callable(value) and any(hasattr(value, mark) for mark in marks)
    }
    own_names = {
        name for name in ("setup", "finalize") if getattr(task, name) is not getattr(vf.Task, name)
    }
    return sorted(
        f"{task.__name__}.{name}"
        for name in marked_names | own_names
        if "runtime" in inspect.signature(getattr(task, name)).parameters
    )


def read_roles(config):
    """Return, by role, whether it has a model of its own."""
    import verifiers.v1 as vf

    return {
        name: role.client is not None for name, role in config if isinstance(role, vf.AgentConfig)
    }


def choose_role(roles, choice):
    """Return the role that the policy plays, the one whose trace is paid; raises if there is none.

    `roles` says which have a model of their own: every other would ask the policy too, and be
    trained with a reward that is not its own.
    """
    if choice and choice not in roles:
        raise ValueError(f"there is no role {choice!r}; the roles are {', '.join(roles)}")
    open_roles = [name for name, has_model in roles.items() if not has_model]
    if choice and choice not in open_roles:
        raise ValueError(f"the role {choice} has a model of its own; remove its client")
    if not open_roles:
        raise ValueError("every role has a model of its own; remove the client of one")
    if len(open_roles) > 1:
        others = [name for name in open_roles if name != (choice or open_roles[0])]
        raise ValueError(
            f"the roles {', '.join(open_roles)} would all be the policy, but each has a reward of "
            "its own and a trajectory has one; give the others a model (config: "
            + "{"
            + ", ".join(f"{name}: {{model: ..., client: {{base_url: ...}}}}" for name in others)
            + "})"
        )
    return open_roles[0]


# -- obstacles ------------------------------------------------------------------------------------


def find_obstacles(config):
    """Yield what an environment needs that is not here."""
    import verifiers.v1 as vf

    for name, harness in config.agent_harnesses().items():
        loaded = vf.load_harness(harness)
        runtime = getattr(config, name).runtime.type
        if loaded.NEEDS_CONTAINER and runtime == "subprocess":
            yield f"the harness {harness.id} needs a container; set runtime: docker"
        if runtime != "subprocess" and shutil.which(runtime) is None:
            yield f"the runtime {runtime} is not installed"
        elif runtime == "docker" and (fault := find_docker_fault()):
            yield f"the role {name} runs in docker, and {fault}"
        is_script = type(loaded).__module__.startswith("verifiers.v1.harnesses.")
        if runtime == "subprocess" and is_script and not find_uv():
            yield f"the harness {harness.id} is a script of uv, which is missing: pip install uv"
    for where, client in find_clients(config, "config"):
        variable = client.api_key_var
        is_local = is_loopback(client.base_url)
        if not is_local and not os.environ.get(variable):
            yield (
                f"{where} asks a model at {client.base_url} with the key in {variable}, which is "
                "not set; name it in pass_env, or configure another endpoint"
            )
        elif fault := find_connection_fault(client.base_url):
            yield f"{where} asks a model at {client.base_url}, which cannot be reached: {fault}"


def find_task_obstacles(env):
    """Yield what tasks and their tool servers need that is not here."""
    config, task = env.config, type(env.taskset).task_type()
    kinds = {getattr(config, name).runtime.type for name in config.agent_harnesses()}
    if task.NEEDS_CONTAINER and "subprocess" in kinds:
        yield f"{task.__name__} needs a container; set runtime: docker"
    toolsets = [*env.taskset.toolsets(config.taskset), *task.toolsets(config.taskset.task)]
    for toolset in toolsets:
        name, url = type(toolset).__name__, getattr(toolset.config, "url", None)
        if url and (fault := find_connection_fault(url)):
            yield f"the tools of {name} are at {url}, which cannot be reached: {fault}"
        kind = getattr(getattr(toolset.config, "runtime", None), "type", "subprocess")
        if not url and kind in HOSTED_RUNTIMES:
            yield f"the tools of {name} run in {kind}, which is hosted elsewhere"


def find_docker_fault():
    """Return why verifiers can start no containers, or an empty text."""
    host = os.environ.get("DOCKER_HOST", "unix://")
    if not host.startswith("unix://"):
        return f"DOCKER_HOST is {host}: the engine must be on this machine, behind a unix:// socket"
    command = ["docker", "network", "inspect", "bridge"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=ENGINE_S, check=False)
    if ran.returncode == 0:
        return ""
    fault = f"{' '.join(command)} fails: {ran.stderr.strip()[-300:]}"
    if "not found" in fault.lower() or "no such network" in fault.lower():
        fault += (
            "; verifiers publishes a port of each container: start dockerd without --bridge=none"
        )
    return fault


def find_clients(config, where):
    """Yield the endpoints of models that a config names, with the keys that lead to them."""
    import verifiers.v1 as vf
    from pydantic import BaseModel

    if isinstance(config, vf.BaseClientConfig):
        yield where, config
        return
    if isinstance(config, BaseModel):
        for name, value in config:
            yield from find_clients(value, f"{where}.{name}")
    elif isinstance(config, list):
        for at, value in enumerate(config):
            yield from find_clients(value, f"{where}[{at}]")


def find_uv():
    """Return the place of uv, as verifiers looks for it."""
    places = f"{os.environ['HOME']}/.local/bin{os.pathsep}{os.environ['PATH']}"
    return shutil.which("uv", path=places)


def is_loopback(url):
    """Return whether an address is of this machine."""
    return urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")


def find_connection_fault(url):
    """Return why nobody listens at an address, or an empty text."""
    parts = urlsplit(url)
    try:
        port = parts.port or (80 if parts.scheme == "http" else 443)
        socket.create_connection((parts.hostname, port), timeout=CONNECT_S).close()
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
    return ""


# -- tasks ----------------------------------------------------------------------------------------


def describe_task(task):
    """Return the facts about a task that are known before it is played."""
    data, prompt = task.data, task.data.prompt
    if prompt is None:
        name = data.name or data.id or task.key[:32]
        prompt = f"{name}: the environment begins to speak"
    turns = [("user", prompt)] if isinstance(prompt, str) else [(m.role, m.content) for m in prompt]
    if data.system_prompt:
        turns.insert(0, ("system", data.system_prompt))
    messages = [{"role": role, "content": read_text(content)} for role, content in turns]
    return {"id": task.key[:32], "messages": messages, "data": {"idx": data.idx, "key": task.key}}


def read_text(content):
    """Return a message's text, with a mark for every part that is none."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(getattr(part, "text", None) or f"[{part.type}]" for part in content)


def find_task(env, params):
    """Return a task by its place; raises where the taskset has another one there now."""
    (task,) = env.taskset.include(idx=[params["idx"]])
    if task.key != params["key"]:
        raise ValueError(
            f"task {params['idx']} of {params['taskset']} is not the one that was listed: its "
            "taskset does not load the same tasks twice, give it a seed"
        )
    return task


# -- an episode -----------------------------------------------------------------------------------


class VerifiersEpisode:
    """One task of an environment, played by verifiers."""

    def __init__(self, params):
        self.env = load_env(params)
        self.role = choose_role(read_roles(self.env.config), params["role"])
        self.task = find_task(self.env, params)
        config = self.env.config
        kinds = {getattr(config, name).runtime.type for name in config.agent_harnesses()}
        self.facts = CONTAINER_FACTS if "docker" in kinds else None

    def play(self, endpoint):
        """Return the rewards of the task, or its failure."""
        os.environ.update(endpoint["environ"])
        tempfile.tempdir = None  # that the variables name another folder
        os.environ[KEY_VARIABLE] = endpoint["key"]
        return asyncio.run(self._play(endpoint["url"], endpoint["model"]))

    async def _play(self, url, model):
        import verifiers.v1 as vf

        client = vf.EvalClientConfig(base_url=url, api_key_var=KEY_VARIABLE)
        async with self.env.serving():
            (slot,) = self.env.slots(self.task)
            episode = await self.env.run_slot(slot, vf.ModelContext(model=model, client=client))
        return read_episode(episode, self.role)


def read_episode(episode, role):
    """Return the rewards of a role in a finished episode, or its failure: never a guess."""
    if episode.errors:
        return {"failure": describe(episode.errors[-1])}
    for trace in episode.traces:
        if not trace.ok:
            return {
                "failure": describe(trace.errors[-1]) if trace.errors else "its trace is not ok"
            }
        if trace.is_timeout:
            return {"failure": f"TimeoutError: {trace.stop_condition}"}
        if failed := [call.error for call in trace.calls if call.error is not None]:
            return {"failure": describe(failed[-1])}
    traces = [trace for trace in episode.traces if trace.agent.name == role]
    if not episode.ok or not traces:
        return {"failure": f"ValueError: the episode has no finished trace of {role}"}
    for trace in traces:
        if fault := find_reward_fault(trace.rewards):
            return {"failure": f"ValueError: {fault}"}
    # Score x weight, and summed in verifiers' order: its own `trace.reward`.
    all_rewards = [
        {name: one.score * one.weight for name, one in t.rewards.items()} for t in traces
    ]
    if any(sum(one.values()) != sum(all_rewards[0].values()) for one in all_rewards):
        return {
            "failure": f"ValueError: {role} played {len(traces)} times and was paid differently, "
            "but a trajectory has one reward; configure the environment to let it play once"
        }
    first = traces[0]
    # A metric is told beside the reward: one without a number is left out, and fails nothing.
    metrics = {name: value for name, value in first.metrics.items() if is_finite(value)}
    return {"rewards": all_rewards[0], "metrics": metrics, "stop": first.stop_condition}


def find_reward_fault(rewards):
    """Return why rewards are no reward, or an empty text."""
    if not rewards:
        return "the task has no reward"
    names = [name for name, reward in rewards.items() if reward is None]
    if names:
        return f"the reward {', '.join(names)} was not computed"
    for name, reward in rewards.items():
        if not is_finite(reward.score * reward.weight):
            return (
                f"the reward {name} is {reward.score} with the weight {reward.weight}, "
                "but a reward is a finite number"
            )
    return ""


def is_finite(value):
    """Return whether a value is a number that is neither infinite nor NaN."""
    return isinstance(value, (int, float)) and math.isfinite(value)


def describe(error):
    """Return a recorded error in a line."""
    return f"{error.type}: {error.message}"[:2000]


EPISODE = VerifiersEpisode
