"""Weights from a trainer into engines, on every path; each transfer is proven by log-probs."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from agentrl.config.learn import LearnSection
from agentrl.config.run import ProbeSection
from agentrl.engine.remote import EngineReplicas, ProcessEngine
from agentrl.engine.remote.weight_broadcast import WeightBroadcaster
from agentrl.engine.spec import ClosableEngine, EngineSpec
from agentrl.engine.weights import Weights
from agentrl.learn.trainer import PolicyTrainer
from agentrl.learn.weight_check import add_proof
from agentrl.models.folders import load_model
from agentrl.policy import ScoringEngine
from agentrl.runtime.gpu_placement import visible_devices
from agentrl.selfcheck.checks.policies import CONTEXT_TOKENS, PolicyDtype, write_policy
from agentrl.selfcheck.context import CheckContext, CheckFailed, CheckSkipped
from agentrl.weight_sync.check import CheckedWeights, complaint
from agentrl.weight_sync.transfer_group import Backend

PROOF_LIMITS = {"float32": 0.01, "bfloat16": 0.5}
"""Largest gap of one log-prob between engine and trainer, in nats, as a run has it."""
SLOTS = 4
START_S = 60.0
VERSION = 3


def open_trainer(folder: Path, *, device: str, dtype: PolicyDtype = "float32") -> PolicyTrainer:
    """Return the trainer of a policy."""
    model = load_model(folder, dtype=dtype, device=device)
    return PolicyTrainer(model, LearnSection(precision=dtype), seed=0)


def build_spec(
    folder: Path, *, device: str, dtype: PolicyDtype = "float32", slots: int = SLOTS
) -> EngineSpec:
    """Return the recipe of a local engine."""
    return EngineSpec(
        kind="local",
        folder=str(folder),
        slots=slots,
        context_tokens=CONTEXT_TOKENS,
        dtype=dtype,
        device=device,
        threads=torch.get_num_threads(),
    )


def check_in_process(context: CheckContext) -> None:
    """Load a state dict into an engine of the same process."""
    folders = _write_policies(context)
    spec = build_spec(folders[0], device=context.device)
    asyncio.run(_expect_loaded(context, spec.open(), folders, lambda checked: checked))


def check_file(context: CheckContext) -> None:
    """Load a folder of safetensors."""
    folders = _write_policies(context)
    spec = build_spec(folders[0], device=context.device)
    asyncio.run(_expect_loaded(context, spec.open(), folders, lambda checked: folders[1]))


def check_shared_memory(context: CheckContext) -> None:
    """Have an engine in another process read weights from memory that both share."""
    folders = _write_policies(context)
    spec = build_spec(folders[0], device=context.device)
    engine = ProcessEngine(spec, python=sys.executable, start_s=START_S)
    asyncio.run(_expect_loaded(context, engine, folders, lambda checked: checked))


def check_gloo(context: CheckContext) -> None:
    """Broadcast weights to an engine in another process by Gloo."""
    folders = _write_policies(context)
    spec = build_spec(folders[0], device=context.device)
    _check_broadcast(context, spec, folders, "gloo")


def check_nccl(context: CheckContext) -> None:
    """Broadcast weights to an engine on another GPU by NCCL."""
    count = 0 if context.device == "cpu" else torch.cuda.device_count()
    if count < 2:
        raise CheckSkipped(f"NCCL needs two GPUs, and {count} can be used here")
    folders = _write_policies(context)
    second = visible_devices(count)[1]
    spec = replace(build_spec(folders[0], device="cuda"), cuda_devices=second)
    _check_broadcast(context, spec, folders, "nccl")


def _check_broadcast(
    context: CheckContext, spec: EngineSpec, folders: tuple[Path, Path], backend: Backend
) -> None:
    engine = ProcessEngine(spec, python=sys.executable, start_s=START_S)
    spreader = WeightBroadcaster(backend=backend, bucket_bytes=2**20, deadline_s=START_S)
    replicas = EngineReplicas([engine], spreader)
    asyncio.run(_expect_loaded(context, replicas, folders, lambda checked: checked))


def _write_policies(context: CheckContext) -> tuple[Path, Path]:
    """Write the policy that an engine has at first, and the one that it is given."""
    return write_policy(context.folder / "old"), write_policy(context.folder / "new", seed=1)


async def _expect_loaded(
    context: CheckContext,
    opened: ClosableEngine,
    folders: tuple[Path, Path],
    give: Callable[[CheckedWeights], Weights],
) -> None:
    old, new = (open_trainer(folder, device=context.device) for folder in folders)
    async with opened as engine:
        assert isinstance(engine, ScoringEngine)
        await expect_transfer(context, engine, old=old, new=new, dtype="float32", give=give)


async def expect_transfer(
    context: CheckContext,
    engine: ScoringEngine,
    *,
    old: PolicyTrainer,
    new: PolicyTrainer,
    dtype: PolicyDtype,
    give: Callable[[CheckedWeights], Weights] = lambda checked: checked,
) -> None:
    """Load the weights of `new` into an engine that has those of `old`, and have it prove them."""
    before, after = (prove_weights(trainer, PROOF_LIMITS[dtype]) for trainer in (old, new))
    await expect_old_weights(engine, before, after)
    loop = asyncio.get_running_loop()
    start_s = loop.time()
    await engine.load(give(after), VERSION)
    seconds = loop.time() - start_s
    size = sum(tensor.numel() * tensor.element_size() for tensor in after.values())
    context.record("transfer.mib", round(size / 2**20, 2))
    context.record("transfer.seconds", round(seconds, 4))
    if fault := await find_fault(engine, after, version=VERSION):
        raise CheckFailed(f"after the transfer, {fault}")


async def expect_old_weights(
    engine: ScoringEngine, before: CheckedWeights, after: CheckedWeights
) -> None:
    """Expect an engine to prove the weights it has, and not those that it is given later: else a
    proof could not fail."""
    if fault := await find_fault(engine, before, version=engine.version):
        raise CheckFailed(f"before the transfer, {fault}")
    if await find_fault(engine, after, version=engine.version) is None:
        raise CheckFailed("the engine proves weights that it was not given")


def prove_weights(trainer: PolicyTrainer, max_gap: float) -> CheckedWeights:
    """Return the weights of a trainer with their proof."""
    checked = add_proof(trainer, ProbeSection(), max_gap=max_gap)
    assert isinstance(checked, CheckedWeights)
    return checked


async def find_fault(engine: ScoringEngine, checked: CheckedWeights, *, version: int) -> str | None:
    """Return the fault in an engine's proof of weights; None if it proves them."""
    scores = await engine.score(checked.proof.request(f"selfcheck/{version}/{id(checked)}"))
    return complaint(checked.proof, scores, version=version)
