"""The keys of drafts against each other and the rest of a config."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig


def draft_conflicts(config: "RunConfig") -> Iterator[str]:
    """Yield conflicts between drafts and the rest of a config."""
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
