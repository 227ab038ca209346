"""A plan as rows of text, and as plain JSON."""

from collections.abc import Mapping
from typing import Any

from agentrl.plan.run_plan import USABLE, RunPlan

Rows = list[tuple[str, ...]]
GIB = 2**30


def memory_rows(plan: RunPlan) -> Rows:
    """Return the bytes of one device, by phase."""
    cost, rollout = plan.training, plan.rollout
    training, engine = "training, a rank", name_engine(plan)
    rows: Rows = [
        (training, "parameters", gib(cost.parameter_bytes)),
        (training, "gradients", gib(cost.gradient_bytes)),
        (training, "optimiser", gib(cost.optimizer_bytes)),
    ]
    if cost.copy_bytes:
        rows.append((training, "reference, average", gib(cost.copy_bytes)))
    if cost.host_bytes:
        rows.append((training, "of these in the host's memory", gib(cost.host_bytes)))
    rows += [
        (training, f"activations and head, {cost.places} places", gib(cost.activation_bytes)),
        (training, "peak", gib(cost.peak_bytes)),
        (engine, "parameters", gib(rollout.weight_bytes)),
        (engine, "KV cache", gib(rollout.cache_bytes)),
        (engine, "all it takes", gib(rollout.held_bytes)),
        ("a device", "has for tensors", gib(round(USABLE * plan.machine.device.memory_bytes))),
    ]
    return rows


def name_engine(plan: RunPlan) -> str:
    """Return the name of the rows of an engine's memory."""
    return "rollout, an engine" if plan.rollout.devices == 1 else "rollout, a GPU of an engine"


def speed_rows(plan: RunPlan) -> Rows:
    """Return speeds and seconds, by phase."""
    time, rollout = plan.training_time, plan.rollout
    rows: Rows = [
        ("training", "tokens/s per device", f"{time.tokens_per_s:,.0f}"),
        ("training", "share of peak", f"{time.mfu:.0%}"),
        ("training", "seconds of a step", f"{time.step_s:.3g}"),
    ]
    if rollout.devices > 1:
        name = f"engines of {rollout.devices} GPUs ({rollout.parallelism.describe()})"
        rows.append(("rollout", name, f"{plan.engines}, with room for {plan.engine_room}"))
    rows += [
        ("rollout", "KV cache per token", f"{rollout.kv_bytes_per_token / 1024:.3g} KiB"),
        ("rollout", "slots", f"{rollout.slots}, {rollout.room_slots} of the longest context"),
        ("rollout", "seconds of a decode step", f"{rollout.step_s:.3g}"),
    ]
    if rollout.devices > 1:
        rows.append(("rollout", "of these in all-reduces", f"{rollout.all_reduce_s:.3g}"))
    rows += [
        ("rollout", "sampled tokens/s per engine", f"{rollout.tokens_per_s:,.0f}"),
        ("rollout", "prompt tokens/s per engine", f"{rollout.prefill_tokens_per_s:,.0f}"),
    ]
    rows += [
        (
            "weights",
            f"{path.name}{', as configured' if path is plan.path else ''}",
            f"{path.sent_bytes / GIB:.2f} GiB, {path.seconds:.3g} s",
        )
        for path in plan.paths
    ]
    return rows


def mode_rows(plan: RunPlan) -> Rows:
    """Return the schedule of each mode."""
    return [
        (
            one.mode + (" *" if one.mode == plan.mode else ""),
            f"{one.steps_per_hour:.1f}",
            f"{one.trained_tokens_per_s:,.0f}",
            f"{one.train_busy:.0%}",
            f"{one.engine_busy:.0%}",
            one.bound_by,
        )
        for one in plan.modes
    ]


MODE_HEADINGS = (
    *("mode", "steps/h", "trained tokens/s", "trainer busy", "engines busy"),
    "waits for",
)


def advice_lines(plan: RunPlan) -> list[str]:
    """Return the advice of the modes, in a line for those with the same. They are no column: a
    narrow one would break the keys."""
    modes: dict[str, list[str]] = {}
    for one in plan.modes:
        modes.setdefault(one.advice, []).append(one.mode)
    return [f"{', '.join(names)}: {advice}" for advice, names in modes.items()]


def title_of(plan: RunPlan) -> str:
    """Return the line above the tables."""
    size = f"{plan.parameters / 1e9:.3g} B parameters"
    if plan.active_parameters != plan.parameters:
        size += f", {plan.active_parameters / 1e9:.3g} B active"
    place = "sharing devices" if plan.shares_devices else "on devices of their own"
    if (devices := plan.rollout.devices) > 1:
        place = f"of {devices} GPUs ({plan.rollout.parallelism.describe()}) {place}"
    return (
        f"{plan.model} ({size}) on {plan.machine.name}: {count_of(plan.ranks, 'trainer rank')}, "
        f"{count_of(plan.engines, 'engine')} {place}; {plan.trajectory_tokens:,.0f} tokens per "
        "trajectory"
    )


def count_of(number: int, name: str) -> str:
    """Return a number of things."""
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def gib(size: int) -> str:
    """Return bytes in GiB."""
    return f"{size / GIB:.2f} GiB"


def to_json(plan: RunPlan, changes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the plan as plain values, bytes and seconds, and the config lines with which it would
    fit. `docs/plan.md` names each."""
    cost, time, rollout = plan.training, plan.training_time, plan.rollout
    return {
        "model": plan.model,
        "parameters": plan.parameters,
        "active_parameters": plan.active_parameters,
        "machine": plan.machine.name,
        "ranks": plan.ranks,
        "engines": plan.engines,
        "engine_room": plan.engine_room,
        "shares_devices": plan.shares_devices,
        "trajectory_tokens": plan.trajectory_tokens,
        "training": {
            "parameter_bytes": cost.parameter_bytes,
            "gradient_bytes": cost.gradient_bytes,
            "optimizer_bytes": cost.optimizer_bytes,
            "host_bytes": cost.host_bytes,
            "copy_bytes": cost.copy_bytes,
            "activation_bytes": cost.activation_bytes,
            "peak_bytes": cost.peak_bytes,
            "flops": cost.flops,
            "step_s": time.step_s,
            "tokens_per_s": time.tokens_per_s,
            "mfu": time.mfu,
        },
        "rollout": {
            "devices": rollout.devices,
            "parallelism": {
                "tensor": rollout.parallelism.tensor,
                "pipeline": rollout.parallelism.pipeline,
                "data": rollout.parallelism.data,
                "expert": rollout.parallelism.is_expert,
            },
            "weight_bytes": rollout.weight_bytes,
            "cache_bytes": rollout.cache_bytes,
            "kv_bytes_per_token": rollout.kv_bytes_per_token,
            "held_bytes": rollout.held_bytes,
            "slots": rollout.slots,
            "room_slots": rollout.room_slots,
            "step_s": rollout.step_s,
            "first_step_s": rollout.first_step_s,
            "all_reduce_s": rollout.all_reduce_s,
            "tokens_per_s": rollout.tokens_per_s,
            "prefill_tokens_per_s": rollout.prefill_tokens_per_s,
        },
        "weights": [
            {
                "name": p.name,
                "sent_bytes": p.sent_bytes,
                "seconds": p.seconds,
                "used": p is plan.path,
            }
            for p in plan.paths
        ],
        "modes": [
            {
                "mode": one.mode,
                "steps_per_hour": one.steps_per_hour,
                "trained_tokens_per_s": one.trained_tokens_per_s,
                "train_busy": one.train_busy,
                "engine_busy": one.engine_busy,
                "env_busy": one.env_busy,
                "bound_by": one.bound_by,
                "advice": one.advice,
            }
            for one in plan.modes
        ],
        "faults": [
            {"name": f.name, "needs_bytes": f.needs_bytes, "has_bytes": f.has_bytes}
            for f in plan.faults
        ],
        "changes": changes,
        "warnings": list(plan.warnings),
    }
