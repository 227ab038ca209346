"""The keys of drafts against each other and the rest of a config."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.config.run import RunConfig


def draft_conflicts(config: "RunConfig") -> Iterator[str]:
    """Yield what drafts and the rest of a config cannot do together."""
    drafts = config.rollout.drafts
    if drafts is None:
        return
    if not config.engine.tells_distributions:
        yield (
            "rollout.drafts is set and needs whole distributions, which engine.kind endpoint and "
            "vLLM's own sampler do not tell; set rollout.drafts to null, engine.kind: local, or "
            "engine.kind: vllm with engine.vllm.sampler: agentrl"
        )
    topology = config.rollout.branching.topology
    if topology != "none":
        yield (
            f"rollout.drafts is set and rollout.branching.topology is {topology}: where a "
            "trajectory branches depends on how it was sampled, which a draft was not; set one of "
            "the two to null or none"
        )
    if drafts.residual and (drafts.leniency > 1 or drafts.scale < 1):
        yield (
            f"rollout.drafts.residual is true with rollout.drafts.leniency {drafts.leniency:.6g} "
            f"and rollout.drafts.scale {drafts.scale:.6g}: tokens would stand more often than the "
            "policy says them; set rollout.drafts.leniency: 1 and leave scale at 1 or more"
        )
    default = type(drafts).model_fields["alternatives"].default
    if not drafts.residual and drafts.alternatives != default:
        yield (
            f"rollout.drafts.alternatives is {drafts.alternatives} and rollout.drafts.residual is "
            "false, where it decides nothing; leave it out, or set residual: true"
        )
