"""Rules between keys of a config, checked when it is loaded and not at step 400."""

from collections.abc import Callable, Iterator, Mapping

from agentrl.config.curation import DuetAllocation, XrpoAllocation
from agentrl.config.document import ConfigProblem
from agentrl.config.learning.conflicts import learning_conflicts
from agentrl.config.run import UNTIL_STEPS, RunConfig
from agentrl.config.schema import plain
from agentrl.config.section import peeking
from agentrl.rollout.curation.rules import CurationContext, build_curation_rules, conflicts
from agentrl.runtime.vllm_release import FIXED_ARGUMENTS, TEMPERATURES


def cross_check(config: RunConfig) -> list[ConfigProblem]:
    """Return all violated rules between keys; does not count as reading any of them."""
    with peeking():
        return [ConfigProblem("", text) for rule in RULES for text in rule(config)]


def _check_policy(config: RunConfig) -> Iterator[str]:
    policy = config.policy
    if policy.path is None and policy.make is None:
        yield (
            "neither policy.path nor policy.make is set, but a run needs a policy; set policy.path "
            "to a model folder, or `policy.make: {}` to create a small model"
        )
    if policy.path is not None and policy.make is not None:
        yield (
            f"policy.path is {policy.path} and policy.make is also set, but a run has only one "
            "policy; set one of them to null"
        )
    if policy.renderer is not None and (policy.template is not None or policy.make is not None):
        other = "policy.make" if policy.make is not None else "policy.template"
        yield (
            f"policy.renderer is {policy.renderer} and {other} is also set, but a renderer belongs "
            "to the tokenizer of a model family and replaces its template; remove one of them"
        )
    if policy.dialect == "renderer" and policy.renderer is None:
        yield (
            "policy.dialect is renderer, but policy.renderer, which parses turns then, is not set; "
            "set it, or policy.dialect: auto"
        )


def _check_heads(config: RunConfig) -> Iterator[str]:
    make = config.policy.make
    if make is None:
        return
    if make.heads % make.kv_heads:
        yield (
            f"policy.make.heads is {make.heads} and policy.make.kv_heads is {make.kv_heads}: each "
            "key-value head must serve the same number of heads; make heads a multiple of kv_heads"
        )
    if make.head_dim % 2:
        yield (
            f"policy.make.head_dim is {make.head_dim}: rotary position embeddings rotate pairs of "
            "dimensions; choose an even number"
        )


def _check_pass_at_k(config: RunConfig) -> Iterator[str]:
    k, samples = config.evaluate.k, config.evaluate.samples_per_task
    if not k:
        yield (
            "evaluate.k is an empty list, so there is nothing to report; set it to [1], for example"
        )
    if k and max(k) > samples:
        yield (
            f"evaluate.k is {list(k)} and evaluate.samples_per_task is {samples}: pass@k needs k "
            f"samples per task; raise evaluate.samples_per_task to {max(k)}, or remove the larger k"
        )


def _check_scaling(config: RunConfig) -> Iterator[str]:
    scaling = config.evaluate.scaling
    if scaling is None:
        return
    if scaling.name == "best_of" and scaling.verifier is None:
        yield (
            "evaluate.scaling.name is best_of, but evaluate.scaling.verifier, which ranks the "
            "attempts, is not set; set it to a module:function of the task and the messages"
        )
    if scaling.name == "pdr" and scaling.keep > scaling.samples:
        yield (
            f"evaluate.scaling.keep is {scaling.keep} and evaluate.scaling.samples is "
            f"{scaling.samples}: there are only as many notes as samples; lower the first"
        )


def _check_turn_length(config: RunConfig) -> Iterator[str]:
    turn, context = config.sampling.max_turn_tokens, config.engine.context_tokens
    if turn >= context:
        yield (
            f"sampling.max_turn_tokens is {turn} and engine.context_tokens is {context}: a turn "
            "and its prompt must fit in the context; lower the first, or raise the second"
        )


_OF_ONE_MODE = {
    "over_provision": "partial",
    "max_staleness": "async",
    "backlog": "async",
    "segment": "partial or async",
    "max_start_lag": "partial or async",
    "max_age": "partial or async",
    "when_old": "partial or async",
}


def _check_mode(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    for key, modes in _OF_ONE_MODE.items():
        value, default = getattr(rollout, key), type(rollout).model_fields[key].default
        if value != default and rollout.mode not in modes.split(" or "):
            yield (
                f"rollout.{key} is {value}, but it has no effect with rollout.mode: "
                f"{rollout.mode}; remove it, or set rollout.mode: {modes}"
            )
    if rollout.min_valid > rollout.group_size:
        yield (
            f"rollout.min_valid is {rollout.min_valid} and rollout.group_size is "
            f"{rollout.group_size}: no group would ever train; lower the first"
        )
    for key in ("max_staleness", "max_start_lag", "max_age"):
        bound = getattr(rollout, key)
        if bound is not None and rollout.mode == "async" and bound < rollout.backlog:
            yield (
                f"rollout.backlog is {rollout.backlog} and rollout.{key} is {bound}: batches at "
                "the end of the backlog would be too stale to train; raise the second to at least "
                "the first"
            )
    if rollout.alarms.min_count > rollout.alarms.window:
        yield (
            f"rollout.alarms.min_count is {rollout.alarms.min_count} and rollout.alarms.window is "
            f"{rollout.alarms.window}: no alarm would ever fire; lower the first"
        )


def _check_engines(config: RunConfig) -> Iterator[str]:
    engine = config.engine
    urls = engine.endpoint.urls if engine.endpoint is not None else ()
    count = len(urls) or len(engine.addresses) or engine.processes
    if engine.addresses and engine.processes:
        yield (
            f"engine.processes is {engine.processes} and engine.addresses names "
            f"{len(engine.addresses)} engines: either the run starts its engines, or it connects "
            "to running ones; set only one of the two keys"
        )
    if engine.addresses and engine.key_file is None:
        yield (
            "engine.addresses is set but engine.key_file is not: engines accept no connection "
            "without their key; set engine.key_file to the file they were started with"
        )
    if engine.vllm.adapters == "native" and config.learn.lora is None:
        yield (
            "engine.vllm.adapters is native but learn.lora is not set, so there are no adapters; "
            "remove it, or set learn.lora"
        )
    if engine.draft_tokens and engine.kind != "local":
        yield (
            f"engine.draft_tokens is {engine.draft_tokens} and engine.kind is {engine.kind}, but "
            "only the local engine drafts tokens by n-grams; set it to 0"
        )
    yield from _check_vllm(config)
    if engine.kind == "vllm" and engine.vllm.sampler == "vllm":
        least, most = TEMPERATURES
        for key, temperature in (
            ("sampling.temperature", config.sampling.temperature),
            ("evaluate.temperature", config.evaluate.temperature),
        ):
            if temperature and not least <= temperature <= most:
                yield (
                    f"{key} is {temperature:g}, but vLLM's own sampler accepts only 0 and "
                    f"{least:g} to {most:g}; change {key}, or set engine.vllm.sampler: agentrl"
                )
    useless = {
        "probe": engine.probe is not None and engine.kind == "local",
        "broadcast": engine.broadcast is not None and not config.engine.is_server,
    }
    for key, is_set in useless.items():
        if is_set and not count:
            yield (
                f"engine.{key} is set, but the engine runs in this process and copies the "
                "trainer's weights directly; remove it, or set engine.processes or "
                "engine.addresses"
            )
    if (
        engine.broadcast is not None
        and engine.broadcast.backend == "nccl"
        and engine.processes
        and config.cluster.kind == "ray"
        and config.cluster.engine_gpus < 1
    ):
        yield (
            "engine.broadcast.backend is nccl and cluster.engine_gpus is "
            f"{config.cluster.engine_gpus:g}: NCCL needs a separate GPU for each engine; set "
            "cluster.engine_gpus to 1, or choose gloo"
        )
    if engine.probe is not None and engine.probe.tokens >= engine.context_tokens:
        yield (
            f"engine.probe.tokens is {engine.probe.tokens} and engine.context_tokens is "
            f"{engine.context_tokens}: the probe and one more token must fit in the context; lower "
            "the first"
        )
    if engine.rolling and count < 2:
        yield (
            f"engine.rolling is true, but there is only {max(1, count)} engine: no other engine "
            "could keep sampling during an update; set engine.processes to 2 or more, or add "
            "engine.addresses or engine.endpoint.urls"
        )
    if engine.rolling and config.rollout.mode != "async":
        yield (
            f"engine.rolling is true, but with rollout.mode: {config.rollout.mode} nothing is "
            "sampled during a weight update; remove it, or set rollout.mode: async"
        )


_BALANCED = ("aepo", "arpo", "aepo_paper", "arpo_paper")
_OF_SOME_TOPOLOGIES = {
    **dict.fromkeys(("split", "beam", "base", "weight", "temperature"), _BALANCED),
    **dict.fromkeys(("probe_tokens", "top_logprobs"), _BALANCED),
    **dict.fromkeys(("roots", "path_branches"), (*_BALANCED, "fan_out")),
    "threshold": ("aepo_paper", "arpo_paper"),
    "penalty": ("aepo", "aepo_paper"),
    "budget_tokens": (*_BALANCED, "tree_grpo", "fan_out"),
    **dict.fromkeys(("trees", "rounds"), ("tree_grpo",)),
    "width": ("tree_grpo", "fan_out"),
    "turns": ("fan_out",),
}


def _check_branching(config: RunConfig) -> Iterator[str]:
    section = config.rollout.branching
    for key, topologies in _OF_SOME_TOPOLOGIES.items():
        value, default = getattr(section, key), type(section).model_fields[key].default
        if value != default and section.topology not in topologies:
            yield (
                f"rollout.branching.{key} is {value}, but it has no effect with "
                f"rollout.branching.topology: {section.topology}; remove it, or choose one of "
                f"{', '.join(topologies)}"
            )
    if section.topology == "none":
        return
    if config.rollout.redundancy:
        yield (
            f"rollout.redundancy is {config.rollout.redundancy} and rollout.branching.topology is "
            f"{section.topology}: a tree has exactly rollout.group_size trajectories, and stopping "
            "some of them would cut off its branches; set the first to 0 or the second to none"
        )
    if section.topology == "aepo" and section.base == 0:
        yield "rollout.branching.base is 0, with which aepo branches at every turn; set it above 0"
    if section.topology in _BALANCED and section.probe_tokens >= config.sampling.max_turn_tokens:
        yield (
            f"rollout.branching.probe_tokens is {section.probe_tokens} and "
            f"sampling.max_turn_tokens is {config.sampling.max_turn_tokens}: a turn must be longer "
            "than its probe; lower the first"
        )
    yield from _check_tree_shape(config)


def _check_tree_shape(config: RunConfig) -> Iterator[str]:
    section, size = config.rollout.branching, config.rollout.group_size
    leaves = section.trees * (1 + section.rounds * section.width)
    if section.topology == "tree_grpo" and leaves != size:
        yield (
            f"rollout.branching creates trees x (1 + rounds x width) = {leaves} trajectories, but "
            f"rollout.group_size is {size}; make them equal"
        )
    allocation = config.curation.allocation.name
    if section.topology == "tree_grpo" and allocation != "fixed":
        yield (
            f"curation.allocation.name is {allocation}, but with rollout.branching.topology: "
            "tree_grpo all trees have the same size; choose curation.allocation.name: fixed, or "
            "another topology"
        )
    if section.topology == "fan_out" and not section.turns:
        yield (
            "rollout.branching.topology is fan_out but rollout.branching.turns is empty, so "
            "nothing branches; list some turns, such as [1, 2], or set the topology to none"
        )


def _check_sandbox(config: RunConfig) -> Iterator[str]:
    sandbox = config.sandbox
    if sandbox.backend == "process" and not sandbox.allow_unisolated:
        yield (
            "sandbox.backend is process, which does not isolate model-written code from this "
            "machine; use namespaces, or accept the risk with sandbox.allow_unisolated: true"
        )


def _check_warmstart(config: RunConfig) -> Iterator[str]:
    warmstart = config.warmstart
    if warmstart is None:
        return
    if warmstart.until_loss is not None and warmstart.steps < UNTIL_STEPS:
        yield (
            f"warmstart.until_loss={warmstart.until_loss} is compared with the mean loss of "
            f"{UNTIL_STEPS} steps, but warmstart.steps={warmstart.steps} is less than that; raise "
            "warmstart.steps, or remove warmstart.until_loss"
        )
    if warmstart.recordings is None:
        return
    for key in ("demonstrations", "guess_fraction"):
        # The config in a run's folder has every key, so one that is there may be the default.
        if getattr(warmstart, key) != type(warmstart).model_fields[key].default:
            yield (
                f"warmstart.{key} and warmstart.recordings are both set: recordings replace the "
                "demonstrations of the gold player; remove one of the two"
            )


def _check_minibatches(config: RunConfig) -> Iterator[str]:
    trajectories = config.rollout.tasks_per_step * config.rollout.group_size
    if config.learn.minibatches > trajectories:
        yield (
            f"learn.minibatches is {config.learn.minibatches}, but a step has {trajectories} "
            "trajectories (rollout.tasks_per_step x rollout.group_size) and a minibatch needs at "
            "least one; lower learn.minibatches"
        )


def _check_micro_batch(config: RunConfig) -> Iterator[str]:
    micro, context = config.learn.micro_batch_tokens, config.engine.context_tokens
    if micro < context:
        yield (
            f"learn.micro_batch_tokens is {micro} and engine.context_tokens is {context}: the "
            "longest possible trajectory must fit in one forward pass; raise the first"
        )


def _check_lengths(config: RunConfig) -> Iterator[str]:
    schedule, growth = config.rollout.schedule, config.rollout.growth
    if schedule is not None and growth is not None:
        yield (
            "rollout.schedule and rollout.growth are both set, but only one can say what the "
            "limits of a step are; remove one of them"
        )
    if schedule is not None:
        lengths = {"min_turn_tokens": schedule.min_turn_tokens, "min_turns": schedule.min_turns}
        yield from _check_least_lengths(config, "schedule", lengths)
    if growth is not None:
        lengths = {"turn_tokens": growth.turn_tokens, "turns": growth.turns}
        yield from _check_least_lengths(config, "growth", lengths)


def _check_least_lengths(
    config: RunConfig, section: str, lengths: Mapping[str, int | None]
) -> Iterator[str]:
    """Yield conflicts of the shortest turn and the fewest turns of a section, in this order."""
    branching, keys = config.rollout.branching, " nor ".join(lengths)
    full = {
        "sampling.max_turn_tokens": config.sampling.max_turn_tokens,
        "rollout.max_turns": config.rollout.max_turns,
    }
    if all(value is None for value in lengths.values()):
        yield (
            f"rollout.{section} sets neither {keys}, so it has no effect; set one of them, or "
            "remove the section"
        )
    for (key, value), (limit_key, limit) in zip(lengths.items(), full.items(), strict=True):
        if value is not None and value >= limit:
            yield (
                f"rollout.{section}.{key} is {value} and {limit_key} is {limit}: the minimum must "
                "be below the full limit; lower the first, or remove it"
            )
    key, tokens = next(iter(lengths.items()))
    if tokens is not None and branching.topology != "none" and branching.probe_tokens >= tokens:
        yield (
            f"rollout.branching.probe_tokens is {branching.probe_tokens} and "
            f"rollout.{section}.{key} is {tokens}: a turn must be longer than its probe; lower the "
            "first"
        )


def _check_vllm(config: RunConfig) -> Iterator[str]:
    engine, rollout = config.engine, config.rollout
    if engine.kind != "vllm":
        return
    section = engine.vllm
    server_keys = {
        "transfer": section.transfer != "folder",
        "update": section.update != "recompute",
        "sleep_level": section.sleep_level != 0,
    }
    for key in (key for key, is_set in server_keys.items() if is_set):
        value = getattr(section, key)
        if section.sampler == "agentrl":
            yield (
                f"engine.vllm.{key} is {value} and engine.vllm.sampler is agentrl, which runs "
                "vLLM without its server; remove the first, or set sampler: vllm"
            )
        elif section.adapters == "native" and key != "sleep_level":
            yield (
                f"engine.vllm.{key} is {value} and engine.vllm.adapters is native: only adapters "
                "are sent, each under a name of its own; remove the first, or set adapters: merged"
            )
    if section.sleep_level and rollout.mode == "async":
        yield (
            f"engine.vllm.sleep_level is {section.sleep_level}, but with rollout.mode: async the "
            "engine samples while the trainer computes; set it to 0, or set rollout.mode: sync"
        )
    if section.sleep_level and section.adapters == "native":
        yield (
            f"engine.vllm.sleep_level is {section.sleep_level} and engine.vllm.adapters is native: "
            "nothing would give the base back after sleep; set adapters: merged"
        )
    if section.sampler == "vllm":
        for name in section.options:
            if name.replace("-", "_") in FIXED_ARGUMENTS:
                yield (
                    f"engine.vllm.options.{name} is {section.options[name]!r:.100}, but this "
                    "argument follows from other keys of the config; remove it"
                )
    if section.sampler == "agentrl" or engine.addresses or config.cluster.kind == "ray":
        return
    if engine.broadcast is not None:
        yield (
            "engine.broadcast is set, but vLLM's server gets its weights by engine.vllm.transfer; "
            "remove it, or set engine.vllm.sampler: agentrl"
        )
    if config.policy.make is not None and config.policy.make.vision is not None:
        yield (
            "policy.make.vision is set, but images are not sent to vLLM's server; set "
            "engine.vllm.sampler: agentrl"
        )


def _check_endpoint(config: RunConfig) -> Iterator[str]:
    engine = config.engine
    if engine.kind != "endpoint":
        if engine.endpoint is not None:
            yield (
                f"engine.endpoint is set but engine.kind is {engine.kind}, which uses no server; "
                "set engine.kind: endpoint, or remove engine.endpoint"
            )
        return
    if engine.endpoint is None:
        yield (
            "engine.kind is endpoint but engine.endpoint is not set; set engine.endpoint.urls and "
            "engine.endpoint.model"
        )
    yield from _check_server(config)
    for key in ("processes", "addresses", "python", "broadcast"):
        if value := getattr(engine, key):
            yield (
                f"engine.{key} is {value}, but with engine.kind: endpoint the run starts no "
                "engine; remove it"
            )
    if config.policy.make is not None and config.policy.make.vision is not None:
        yield (
            "policy.make.vision is set and engine.kind is endpoint, which supports no images; use "
            "engine.kind: local or vllm"
        )


def _check_server(config: RunConfig) -> Iterator[str]:
    """Yield what does not go together in `engine.endpoint`."""
    server = config.engine.endpoint
    if server is None or server.weights == "adapters":
        if config.learn.lora is None:
            yield (
                "engine.kind is endpoint but learn.lora is not set: an endpoint accepts adapters, "
                "not full weights; set learn.lora, or engine.endpoint.weights: folder"
            )
        if server is not None and server.update == "keep":
            yield (
                "engine.endpoint.update is keep and engine.endpoint.weights is adapters: an "
                "adapter has a name that its requests are bound to; set weights: folder, or "
                "update: recompute"
            )
        if server is not None and server.api == "sglang":
            yield (
                "engine.endpoint.api is sglang and engine.endpoint.weights is adapters, which "
                "only servers with vLLM's API take; set weights: folder"
            )
    elif server.update == "keep" and server.api == "completions":
        yield (
            "engine.endpoint.update is keep, but completions name no weight versions; set "
            "engine.endpoint.api: generate, or update: recompute"
        )


def _check_drafts(config: RunConfig) -> Iterator[str]:
    drafts = config.rollout.drafts
    if drafts is None:
        return
    if not config.engine.tells_distributions:
        yield (
            "rollout.drafts is set, but it needs full token distributions, which engine.kind "
            "endpoint and vLLM's own sampler do not report; set rollout.drafts to null, "
            "engine.kind: local, or engine.kind: vllm with engine.vllm.sampler: agentrl"
        )
    topology = config.rollout.branching.topology
    if topology != "none":
        yield (
            f"rollout.drafts is set and rollout.branching.topology is {topology}: branching "
            "depends on how a trajectory was sampled, and draft tokens are not sampled; set "
            "rollout.drafts to null or the topology to none"
        )
    if drafts.residual and (drafts.leniency > 1 or drafts.scale < 1):
        yield (
            f"rollout.drafts.residual is true with rollout.drafts.leniency {drafts.leniency:.6g} "
            f"and rollout.drafts.scale {drafts.scale:.6g}: tokens would be accepted more often "
            "than the policy allows; set rollout.drafts.leniency: 1 and keep scale at 1 or more"
        )
    default = type(drafts).model_fields["alternatives"].default
    if not drafts.residual and drafts.alternatives != default:
        yield (
            f"rollout.drafts.alternatives is {drafts.alternatives}, but it has no effect with "
            "rollout.drafts.residual: false; remove it, or set residual: true"
        )


def _check_curation(config: RunConfig) -> Iterator[str]:
    rollout = config.rollout
    context = CurationContext(
        group_size=rollout.group_size,
        tasks_per_step=rollout.tasks_per_step,
        tasks=config.env.task_limit,
        entropies=config.engine.tells_distributions,
        max_age=rollout.max_age,
    )
    yield from conflicts(build_curation_rules(plain(config.curation)), context)
    yield from _check_rounds(config)


def _check_rounds(config: RunConfig) -> Iterator[str]:
    rollout, allocation = config.rollout, config.curation.allocation
    if not isinstance(allocation, XrpoAllocation | DuetAllocation):
        return
    setting = f"curation.allocation.name is {allocation.name}"
    if rollout.mode != "sync":
        yield (
            f"{setting}, which compares all groups of a step once each has had its first "
            f"trajectories, but with rollout.mode: {rollout.mode} groups are not open together; "
            "set rollout.mode: sync, or curation.allocation.name: fixed"
        )
    if rollout.branching.topology != "none":
        yield (
            f"{setting}, which counts trajectories as independent, but those of "
            f"rollout.branching.topology: {rollout.branching.topology} share turns; set one of "
            "them to fixed or none"
        )
    if rollout.redundancy:
        yield (
            f"{setting}, which works out sizes from the first trajectories of each task, but with "
            f"rollout.redundancy: {rollout.redundancy} the fastest ones count; set "
            "rollout.redundancy: 0"
        )
    if rollout.min_valid > allocation.first_round:
        yield (
            f"rollout.min_valid is {rollout.min_valid} and curation.allocation.first_round is "
            f"{allocation.first_round}: after its first round, no group could go on with a "
            "failed trajectory; lower the first or raise the second"
        )


RULES: tuple[Callable[[RunConfig], Iterator[str]], ...] = (
    _check_policy,
    _check_heads,
    _check_pass_at_k,
    _check_scaling,
    _check_turn_length,
    _check_mode,
    _check_engines,
    _check_endpoint,
    _check_branching,
    _check_drafts,
    _check_curation,
    _check_lengths,
    _check_sandbox,
    _check_warmstart,
    _check_minibatches,
    _check_micro_batch,
    learning_conflicts,
)
