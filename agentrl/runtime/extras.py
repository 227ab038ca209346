"""Packages that an extra of the distribution installs, and how to get one that is missing."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec

from agentrl.errors import ConfigError
from agentrl.runtime.distribution import DISTRIBUTION

EXTRAS: Mapping[str, str] = {
    "bm25s": "web",
    "cryptography": "gui",
    "datasets": "data",
    "docker": "docker",
    "gguf": "train",
    "gymnasium": "gym",
    "jaxtyping": "train",
    "jinja2": "train",
    "math_verify": "data",
    "mcp": "mcp",
    "miniwob": "web",
    "mlflow": "sinks",
    "opentelemetry": "sinks",
    "peft": "train",
    "PIL": "gui",
    "playwright": "web",
    "pyarrow": "data",
    "ray": "ray",
    "reasoning_gym": "reasoning",
    "renderers": "renderers",
    "safetensors": "train",
    "tensorboard": "sinks",
    "tokenizers": "train",
    "torch": "train",
    "torchao": "torchao",
    "trackio": "sinks",
    "transformers": "train",
    "vllm": "vllm",
    "wandb": "sinks",
}
"""Extra of each top-level module that a plain installation does not have."""


def is_installed(module: str) -> bool:
    """Return whether a top-level module can be found; it is not imported."""
    return find_spec(module) is not None


def list_extras() -> dict[str, list[str]]:
    """Return the modules of each extra."""
    extras: dict[str, list[str]] = {}
    for module, extra in EXTRAS.items():
        extras.setdefault(extra, []).append(module)
    return extras


def install_command(*modules: str) -> str:
    """Return the command that installs modules, such as `pip install 'agentrl-gym[web]'`."""
    extras = ",".join(dict.fromkeys(EXTRAS[module] for module in modules))
    return f"pip install '{DISTRIBUTION}[{extras}]'"


def explain_missing(feature: str, *modules: str) -> str:
    """Return the sentence that a feature needs modules which are not installed."""
    verb = "is" if len(modules) == 1 else "are"
    return (
        f"{feature} needs {' and '.join(modules)}, which {verb} not installed: "
        f"{install_command(*modules)}"
    )


def find_missing(feature: str, *modules: str) -> Iterator[str]:
    """Yield the sentence of `explain_missing` for the modules that are not installed, if any."""
    if missing := [module for module in modules if not is_installed(module)]:
        yield explain_missing(feature, *missing)


def check_installed(feature: str, *modules: str) -> None:
    """Raise `ConfigError` for the modules that are not installed. Imports nothing."""
    for problem in find_missing(feature, *modules):
        raise ConfigError(problem)


def missing_module(error: ImportError) -> str | None:
    """Return the module of an extra whose absence an import failed for, or None."""
    name = (error.name or "").partition(".")[0]
    return name if name in EXTRAS and not is_installed(name) else None
