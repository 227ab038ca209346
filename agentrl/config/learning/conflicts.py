"""Rules between keys of the training section."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from agentrl.config.curation import DarsAllocation
from agentrl.config.learning.advantage import (
    BranchGrpoAdvantage,
    EchoAdvantage,
    GaeAdvantage,
    GigpoAdvantage,
    McGrpoAdvantage,
    MilestonesAdvantage,
    NudgeAdvantage,
    PoiseAdvantage,
)
from agentrl.config.learning.correction import NoCorrection, check_bounds
from agentrl.config.learning.group_reward import VOTES
from agentrl.config.learning.hint import RemovedHint
from agentrl.config.learning.loss import BapoLoss, M2poLoss
from agentrl.config.learning.proximal import (
    BehaviourProximal,
    EwmaProximal,
    RecomputedProximal,
    RevisedEwmaProximal,
    SnapshotProximal,
)
from agentrl.config.learning.rejection import DivergenceRejection, resolve_bounds
from agentrl.config.learning.selection import BranchPruningSelection, PivotSelection
from agentrl.config.learning.shaping import OverlongShaping
from agentrl.config.section import CustomMethod
from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig


MOST_BOUNDS = 100_000
"""Bounds that BAPO may try one after the other."""


def learning_conflicts(config: "RunConfig") -> Iterator[str]:
    """Yield conflicts between the methods of a config."""
    yield from _check_group_size(config)
    yield from _check_horizon(config)
    yield from _check_kl(config)
    yield from _check_loss(config)
    yield from _check_bounds(config)
    yield from _check_critic(config)
    yield from _check_probe(config)
    yield from _check_replay(config)
    yield from _check_hint(config)
    yield from _check_overlong(config)
    yield from _check_selection(config)
    yield from _check_votes(config)
    yield from _check_echo(config)
    yield from _check_devices(config)
    yield from _check_context_parallel(config)


def _check_group_size(config: "RunConfig") -> Iterator[str]:
    advantage, allocation = config.learn.advantage, config.curation.allocation
    if config.rollout.group_size > 1 or isinstance(allocation, DarsAllocation):
        return
    compares = isinstance(
        advantage,
        McGrpoAdvantage
        | BranchGrpoAdvantage
        | MilestonesAdvantage
        | NudgeAdvantage
        | PoiseAdvantage,
    )
    raw = getattr(advantage, "singleton", None)
    # GiGPO also compares turns with each other, those of one trajectory too.
    if isinstance(advantage, GigpoAdvantage) and advantage.omega:
        return
    if not compares and raw != "zero":
        return
    way_out = "" if compares else ", set learn.advantage.singleton to raw"
    yield (
        f"rollout.group_size is 1 and learn.advantage.name is {advantage.name}, which compares the "
        "trajectories of a group: all advantages would be 0, and nothing would train. Raise "
        f"rollout.group_size, to 8 for example{way_out}, or choose a method without groups "
        "(learn.advantage.name: reinforce_pp)"
    )


def _check_horizon(config: "RunConfig") -> Iterator[str]:
    how, horizon = config.learn.aggregation, config.learn.horizon_tokens
    if how == "seq-mean-token-sum-norm" and horizon is None:
        yield (
            "learn.aggregation is seq-mean-token-sum-norm, which divides by a constant, but "
            "learn.horizon_tokens is null; set learn.horizon_tokens, for example to the length of "
            "the longest answer"
        )
    if how != "seq-mean-token-sum-norm" and horizon is not None:
        yield (
            f"learn.horizon_tokens is {horizon}, but it has no effect with learn.aggregation: "
            f"{how or 'null'}; remove it, or choose seq-mean-token-sum-norm"
        )


def _check_kl(config: "RunConfig") -> Iterator[str]:
    kl = config.learn.kl
    if kl and kl.estimator == "k1" and not (kl.straight_through or kl.off_policy):
        yield (
            "learn.kl.estimator is k1, whose gradient is 0 in expectation; set "
            "learn.kl.straight_through or learn.kl.off_policy to true, or choose k2 or k3"
        )


def _check_loss(config: "RunConfig") -> Iterator[str]:
    loss, learn = config.learn.loss, config.learn
    if (
        isinstance(loss, M2poLoss)
        and not isinstance(learn.correction, NoCorrection)
        and not isinstance(learn.proximal, BehaviourProximal)
    ):
        yield (
            "learn.loss.name is m2po, whose ratio is already current over behaviour, and "
            f"learn.correction.name is {learn.correction.name}, which would apply part of it "
            "twice; set learn.correction.name: none"
        )
    if isinstance(loss, BapoLoss) and not (
        0 <= loss.low[0] <= loss.low[1] <= 1 <= loss.high[0] <= loss.high[1]
    ):
        yield (
            f"learn.loss.low is {list(loss.low)} and learn.loss.high is {list(loss.high)}: each "
            "pair is the initial and the maximum bound of the ratio; set 0 <= low[0] <= low[1] <= "
            "1 <= high[0] <= high[1]"
        )
    elif isinstance(loss, BapoLoss):
        for key, step_key, (start, most), step in (
            ("low", "step_low", loss.low, loss.step_low),
            ("high", "step_high", loss.high, loss.step_high),
        ):
            if not (most - start) / step <= MOST_BOUNDS:
                yield (
                    f"learn.loss.{key} is {[start, most]} and learn.loss.{step_key} is {step}, "
                    f"but at most {MOST_BOUNDS:,} bounds are tried in an optimiser step; lower "
                    f"learn.loss.{key}[1] or raise learn.loss.{step_key}"
                )


def _check_bounds(config: "RunConfig") -> Iterator[str]:
    learn = config.learn
    try:
        check_bounds(learn.correction)
        for rejection in learn.rejection:
            if isinstance(rejection, DivergenceRejection):
                resolve_bounds(rejection)
    except ConfigError as error:
        yield str(error)


def _check_critic(config: "RunConfig") -> Iterator[str]:
    advantage = config.learn.advantage
    if config.learn.critic is not None and not isinstance(advantage, GaeAdvantage | CustomMethod):
        yield (
            f"learn.critic is set, but learn.advantage.name is {advantage.name}, which uses no "
            "values; remove learn.critic, or choose gae"
        )
    if isinstance(advantage, GaeAdvantage) and config.learn.critic is None:
        yield (
            "learn.advantage.name is gae, which needs the values of a critic, but learn.critic is "
            "null; set learn.critic, for example to {} for its defaults"
        )


def _check_probe(config: "RunConfig") -> Iterator[str]:
    advantage, learn = config.learn.advantage, config.learn
    if not isinstance(advantage, PoiseAdvantage):
        return
    if learn.devices.count > 1:
        yield (
            "learn.advantage.name is poise, whose regression supports only one device, but "
            f"learn.devices.count is {learn.devices.count}; set it to 1, or choose another method"
        )
    topology = config.rollout.branching.topology
    if topology != "none":
        yield (
            f"learn.advantage.name is poise and rollout.branching.topology is {topology}, whose "
            "trajectories share sampled tokens: a baseline made of one would depend on the tokens "
            "of another; set rollout.branching.topology: none, or choose arpo or aepo"
        )
    shape = config.policy.make
    if shape and advantage.layer is not None and advantage.layer > shape.layers:
        yield (
            f"learn.advantage.layer is {advantage.layer}, but policy.make.layers is "
            f"{shape.layers}; name one of these layers, or set it to null"
        )


def _check_replay(config: "RunConfig") -> Iterator[str]:
    learn = config.learn
    if (
        not isinstance(learn.correction, NoCorrection)
        or not isinstance(learn.proximal, RecomputedProximal)
        or isinstance(learn.loss, M2poLoss)
    ):
        return
    others = {
        "curation.pool.name is success, which reuses trajectories sampled by older policies": (
            config.curation.pool.name == "success"
        ),
        "learn.hint.name is remove, which trains after other prompts than were sampled after": (
            isinstance(learn.hint, RemovedHint)
        ),
    }
    for setting, is_set in others.items():
        if is_set:
            yield (
                f"{setting}, but learn.correction.name is none, which would train them as "
                "on-policy; set learn.correction.name: tis"
            )


def _check_hint(config: "RunConfig") -> Iterator[str]:
    images = config.rollout.images
    if config.learn.hint is not None and images is not None:
        yield (
            f"learn.hint.name is {config.learn.hint.name}, but rollout.images is {images}: a "
            "prompt whose images are dropped cannot be told from one with a hint; set "
            "rollout.images: null, or remove learn.hint"
        )


def _check_selection(config: "RunConfig") -> Iterator[str]:
    advantage = config.learn.advantage
    for place, selection in enumerate(config.learn.selection):
        if isinstance(selection, PivotSelection) and place:
            before = ", ".join(one.name for one in config.learn.selection[:place])
            yield (
                f"learn.selection has pivot after {before}, which may remove trajectories, but the "
                "pivot is the median of a whole group; put pivot first in learn.selection"
            )
        if isinstance(selection, PivotSelection) and not isinstance(
            advantage, McGrpoAdvantage | CustomMethod
        ):
            yield (
                "learn.selection has pivot, the baseline of mc_grpo, but learn.advantage.name is "
                f"{advantage.name}, which credits it like the others; set learn.advantage.name: "
                "mc_grpo, or remove pivot"
            )
        if (
            isinstance(selection, BranchPruningSelection)
            and selection.width == "all"
            and not selection.depths
        ):
            yield (
                "learn.selection has branch_pruning with width all and no depths, which prunes "
                "nothing; set width to half or extremes, or depths, to [0] for example"
            )


_REWARD_BLIND = {
    "sampler": ("stream", "uniform"),
    "allocation": ("fixed",),
    "filter": ("none",),
    "pool": ("none",),
    "members": ("all",),
}
"""Methods of curation that no reward of the environment changes."""


def _check_votes(config: "RunConfig") -> Iterator[str]:
    votes = config.learn.group_reward
    if not isinstance(votes, VOTES):
        return
    setting = f"learn.group_reward.name is {votes.name}, "
    if config.rollout.group_size == 1:
        yield (
            f"{setting}which counts the votes of a group, but rollout.group_size is 1; raise it, "
            "to 8 for example"
        )
    for slot, blind in _REWARD_BLIND.items():
        name = getattr(config.curation, slot).name
        if name not in blind:
            yield (
                f"{setting}which uses no reward of the environment, but curation.{slot}.name is "
                f"{name}, which does; set curation.{slot}.name: {blind[0]}"
            )
    if any(shaping.name == "fapo" for shaping in config.learn.reward_shaping):
        yield (
            f"{setting}but learn.reward_shaping has fapo, whose judge looks at what the "
            "environment paid; remove one of them"
        )


def _check_echo(config: "RunConfig") -> Iterator[str]:
    echo = config.learn.advantage
    if isinstance(echo, EchoAdvantage) and echo.multiplier * echo.limit >= 1:
        yield (
            f"learn.advantage.multiplier is {echo.multiplier} and learn.advantage.limit is "
            f"{echo.limit}: from a product of 1 on, the advantage of a sure token changes its "
            "sign; lower one of them"
        )


def _check_devices(config: "RunConfig") -> Iterator[str]:
    learn = config.learn
    if learn.devices.count > 1 and isinstance(
        learn.proximal, EwmaProximal | RevisedEwmaProximal | SnapshotProximal
    ):
        yield (
            f"learn.devices.count is {learn.devices.count}, but learn.proximal.name is "
            f"{learn.proximal.name}, which supports only one device; set learn.proximal.name: "
            "recompute, or learn.devices.count: 1"
        )
    if learn.devices.count > 1 and learn.kl is not None and learn.kl.reset_every is not None:
        yield (
            f"learn.devices.count is {learn.devices.count}, but learn.kl.reset_every supports only "
            "one device; set learn.kl.reset_every: null, or learn.devices.count: 1"
        )


def _check_context_parallel(config: "RunConfig") -> Iterator[str]:
    learn, size = config.learn, config.learn.devices.context_parallel
    if size == 1:
        return
    setting = f"learn.devices.context_parallel is {size}, but "
    if learn.devices.count % size:
        yield (
            f"{setting}it does not divide learn.devices.count, {learn.devices.count}: set the "
            "count to a multiple of it"
        )
    if learn.layout == "padded":
        yield (
            f"{setting}learn.layout is padded, which has no line to divide: set learn.layout: "
            "packed, or tree"
        )
    if learn.critic is not None:
        yield f"{setting}learn.critic needs whole contexts: set context_parallel to 1"
    shape = config.policy.make
    if shape and (fault := find_head_fault(size, heads=shape.heads, kv_heads=shape.kv_heads)):
        yield fault


def find_head_fault(ranks: int, *, heads: int, kv_heads: int) -> str:
    """Return the reason why so many ranks cannot divide a model's heads, or an empty string."""
    if heads % ranks == 0 and kv_heads % ranks == 0:
        return ""
    fits = [n for n in range(1, ranks) if heads % n == 0 and kv_heads % n == 0]
    return (
        f"learn.devices.context_parallel is {ranks}, which does not divide the model's {heads} "
        f"attention heads and {kv_heads} key-value heads: set it to {' or '.join(map(str, fits))}"
    )


def _check_overlong(config: "RunConfig") -> Iterator[str]:
    for shaping in config.learn.reward_shaping:
        if not isinstance(shaping, OverlongShaping):
            continue
        free = shaping.limit_tokens - shaping.buffer_tokens
        if free < 0:
            yield (
                f"learn.reward_shaping overlong has buffer_tokens {shaping.buffer_tokens} and "
                f"limit_tokens {shaping.limit_tokens}, but the buffer must lie within the limit; "
                "lower buffer_tokens"
            )
        elif free >= config.engine.context_tokens:
            yield (
                f"learn.reward_shaping overlong penalises more than {free} tokens, but "
                f"engine.context_tokens is {config.engine.context_tokens}, so no trajectory is "
                "ever penalised; lower limit_tokens"
            )
