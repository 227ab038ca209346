"""Problems of a config, in its own terms: key, value, rule, and fix."""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentrl.config.document import ConfigDocument, ConfigProblem
from agentrl.config.schema import (
    ConfigKey,
    describe_values,
    element_of,
    format_value,
    iter_own_keys,
    keys,
    method_of,
    sections_of,
    takes,
)
from agentrl.config.section import ConfigSection
from agentrl.errors import ConfigError

FIELD_NAMES: Mapping[str, str] = {
    # The model and its run
    "model": "policy.path",
    "model_name": "policy.path",
    "model_name_or_path": "policy.path",
    "model_path": "policy.path",
    "output_dir": "run.folder",
    "max_steps": "run.steps",
    "total_steps": "run.steps",
    "total_training_steps": "run.steps",
    "save_steps": "run.checkpoint_every",
    "save_freq": "run.checkpoint_every",
    "save_total_limit": "run.keep_checkpoints",
    "eval_steps": "evaluate.every",
    "test_freq": "evaluate.every",
    # Rollouts
    "batch_size": "rollout.tasks_per_step",
    "train_batch_size": "rollout.tasks_per_step",
    "rollout_batch_size": "rollout.tasks_per_step",
    "prompts_per_step": "rollout.tasks_per_step",
    "num_generations": "rollout.group_size",
    "n_samples_per_prompt": "rollout.group_size",
    "rollouts_per_example": "rollout.group_size",
    "max_staleness": "rollout.max_staleness",
    "max_async_level": "rollout.max_staleness",
    "max_completion_length": "sampling.max_turn_tokens",
    "max_response_length": "sampling.max_turn_tokens",
    "max_new_tokens": "sampling.max_turn_tokens",
    "max_tokens": "sampling.max_turn_tokens",
    "max_prompt_length": "engine.context_tokens",
    "max_model_len": "engine.context_tokens",
    "max_seq_len": "engine.context_tokens",
    "max_num_seqs": "engine.slots",
    "gpu_memory_utilization": "engine.vllm.memory_fraction",
    # Learning
    "lr": "learn.optimizer.learning_rate",
    "learning_rate": "learn.optimizer.learning_rate",
    "context_parallel_size": "learn.devices.context_parallel",
    "cp_size": "learn.devices.context_parallel",
    "ulysses_sequence_parallel_size": "learn.devices.context_parallel",
    "weight_decay": "learn.optimizer.weight_decay",
    "max_grad_norm": "learn.optimizer.max_grad_norm",
    "grad_clip": "learn.optimizer.max_grad_norm",
    "beta": "learn.kl.coefficient",
    "kl_beta": "learn.kl.coefficient",
    "kl_coef": "learn.kl.coefficient",
    "kl_loss_coef": "learn.kl.coefficient",
    "entropy_coeff": "learn.entropy_bonus",
    "entropy_coef": "learn.entropy_bonus",
    "clip_ratio": "learn.loss.clip_low",
    "cliprange": "learn.loss.clip_low",
    "epsilon_low": "learn.loss.clip_low",
    "epsilon_high": "learn.loss.clip_high",
    "adv_estimator": "learn.advantage",
    "loss_type": "learn.loss",
    "num_iterations": "learn.epochs",
    "ppo_epochs": "learn.epochs",
    "num_mini_batches": "learn.minibatches",
    "ppo_max_token_len_per_gpu": "learn.micro_batch_tokens",
    "lora_r": "learn.lora.rank",
    "lora_rank": "learn.lora.rank",
    "lora_alpha": "learn.lora.alpha",
    "target_modules": "learn.lora.targets",
}
"""Name used elsewhere (TRL, verl, vLLM, prime-rl), and the equivalent key."""


def config_error(source: str, problems: Sequence[ConfigProblem]) -> ConfigError:
    """Return one error that lists all problems with their locations."""
    lines = [f"{p.origin}: {p.text}" if p.origin else p.text for p in problems]
    if len(lines) == 1:
        return ConfigError(lines[0] if problems[0].origin else f"{source}: {lines[0]}")
    return ConfigError("\n".join([f"{source}: {len(lines)} problems", *(f"  {x}" for x in lines)]))


def unknown_key(
    path: str, sections: Sequence[type[ConfigSection]], root: type[ConfigSection]
) -> str:
    """Return the error of an unknown key: similar keys, and the keys of its section."""
    above, _, name = path.rpartition(".")
    names = sorted({key.name for section in sections for key in iter_own_keys(section)})
    near = [FIELD_NAMES[name]] if name in FIELD_NAMES else []
    near = near or _find_elsewhere(name, root, cutoff=1.0)
    near = near or [f"{above}.{n}".lstrip(".") for n in difflib.get_close_matches(name, names, n=1)]
    near = near or _find_elsewhere(name, root, cutoff=0.75)
    hint = f"did you mean {near[0]}? Keys of" if near else "keys of"
    where = above or "a config"
    if len(sections) == 1 and (method := method_of(sections[0])):
        where += f" (name: {method})"
    return f"{path} is not a key; {hint} {where}: {', '.join(names)}"


def problems_of(
    error: ValidationError, document: ConfigDocument, root: type[ConfigSection]
) -> list[ConfigProblem]:
    """Return every problem pydantic found, each key once, in the order of the keys."""
    problems: dict[tuple[str, ...], ConfigProblem] = {}
    for details in error.errors(include_url=False):
        loc = details["loc"]
        place = _locate(loc, root)
        if details["type"] == "missing" and not place.parents_own:
            # An item of a list of fixed length: what is wrong is the length of the list.
            place = _locate(loc[:-1], root)
            text = _describe_wrong_value(place, details["input"])
        else:
            text = _describe(details, place, root)
        tag = ("name",) if details["type"].startswith("union_tag") else ()
        problems.setdefault(place.path, ConfigProblem(document.origin((*place.path, *tag)), text))
    return list(problems.values())


@dataclass(slots=True)
class _Place:
    """Place of an error in the schema."""

    annotation: object
    sections: tuple[type[ConfigSection], ...]
    """The sections whose key is meant; the methods to choose from at a choice."""
    path: tuple[str, ...] = ()
    parents: tuple[type[ConfigSection], ...] = ()
    key: ConfigKey | None = None
    metadata: Sequence[object] = ()

    @property
    def parents_own(self) -> bool:
        """Whether the path ends at a key of a section, and not at an item of a list."""
        return self.key is not None and self.path[-1] == self.key.name

    @property
    def dotted(self) -> str:
        return ".".join(self.path)


def _locate(loc: Sequence[int | str], root: type[ConfigSection]) -> _Place:
    """Follow pydantic's location down the schema, leaving out the names of union members."""
    place = _Place(root, (root,))
    for part in loc:
        members = [s for s in place.sections if len(place.sections) > 1 and method_of(s) == part]
        if members:
            place.sections = (members[0],)
        elif place.sections:
            every = [key for section in place.sections for key in iter_own_keys(section)]
            place.parents, place.path = place.sections, (*place.path, str(part))
            place.key = next((key for key in every if key.name == part), None)
            place.annotation = place.key.field.annotation if place.key else None
            place.sections = sections_of(place.annotation)
            place.metadata = place.key.field.metadata if place.key else ()
        elif isinstance(part, int) or (place.key and takes(place.annotation, dict)):
            place.path = (*place.path, str(part))
            place.annotation, place.metadata = element_of(place.annotation), ()
            place.sections = sections_of(place.annotation)
    return place


def _describe(details: ErrorDetails, place: _Place, root: type[ConfigSection]) -> str:
    kind, value = details["type"], details["input"]
    match kind:
        case "extra_forbidden":
            return unknown_key(place.dotted, place.parents, root)
        case "missing":
            return _describe_missing(place)
        case "union_tag_invalid" | "union_tag_not_found":
            return _describe_unknown_method(place, cast(Mapping[str, Any], value).get("name"))
        case "value_error":  # of a validator of ours
            return f"{place.dotted}: {details.get('ctx', {}).get('error', details['msg'])}"
        case _:
            return _describe_wrong_value(place, value)


def _describe_missing(place: _Place) -> str:
    doc = f": {place.key.doc}" if place.key else ""
    needed = [key.name for s in place.sections for key in iter_own_keys(s) if key.required]
    name = f"{place.dotted}.{needed[0]}" if needed else place.dotted
    return f"{place.dotted} is missing{doc} Set it, such as `{name}: ...` or {name}=..."


def _describe_unknown_method(place: _Place, name: object) -> str:
    methods = [method_of(section) for section in place.sections]
    near = difflib.get_close_matches(str(name), methods, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    expected = f"expected one of {', '.join(methods)}{hint}"
    return f"{place.dotted}.name is {format_value(name)}, {expected}"


def _describe_wrong_value(place: _Place, value: object) -> str:
    wants = describe_values(place.annotation, place.metadata)
    required = place.key is not None and place.key.required
    if value in [method_of(section) for section in place.sections if method_of(section)]:
        way = f"; write {place.dotted}.name={value}, or `{place.dotted}: {{name: {value}}}`"
        return f"{place.dotted} is {value}, expected a section{way}"
    hint = _suggest(value, place.annotation, required=required)
    if value == 0 and place.path[:1] == ("warmstart",):
        hint = "; write warmstart=null to disable the warm start"
    return f"{place.dotted} is {format_value(value)}, expected {wants}{hint}{_quote_doc(place)}"


def _quote_doc(place: _Place) -> str:
    return f" ({place.key.name}: {place.key.doc})" if place.key and place.key.doc else ""


def _suggest(value: object, annotation: object, *, required: bool) -> str:
    if takes(annotation, str) and isinstance(value, int | float):
        return f'; write it in quotes: "{format_value(value)}"'
    if takes(annotation, int) and isinstance(value, float) and value.is_integer():
        return f"; write {int(value)}"
    if takes(annotation, bool) and str(value).lower() in {"yes", "on", "1"}:
        return "; write true"
    if takes(annotation, bool) and str(value).lower() in {"no", "off", "0"}:
        return "; write false"
    if isinstance(value, str) and _is_number(value) and not takes(annotation, str):
        return "; write it without quotes"
    if value is None and not takes(annotation, NoneType) and not required:
        return "; remove the key to use its default"
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _find_elsewhere(name: str, root: type[ConfigSection], *, cutoff: float) -> list[str]:
    """Return the key of another section with this name, or a similar one."""
    by_name: dict[str, str] = {}
    for key in keys(root):
        by_name.setdefault(key.name, key.path)
    return [by_name[near] for near in difflib.get_close_matches(name, by_name, n=1, cutoff=cutoff)]
