"""The folder of one evaluation: what was evaluated, everything that was played, and the report.

FOLDER/
  config.yaml       the complete config
  evaluation.json   the policy: where it was, and a digest of its files
  store/            every trajectory, as a run keeps them; see docs/durability.md
  report.json       once it has ended
"""

import hashlib
from pathlib import Path

from agentrl.config.load import changes, load_config, save_resolved
from agentrl.config.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.evaluation.record import EvaluationRecord
from agentrl.runtime.atomic_files import load_json, write_json
from agentrl.store.settings import StoreSettings

CONFIG = "config.yaml"
POLICY = "evaluation.json"
STORE = "store"

MATTERS = (
    *("env.id", "env.kwargs", "policy.", "engine.context_tokens", "sampling.max_turn_tokens"),
    *("run.seed", "sandbox.backend", "sandbox.limits", "sandbox.after_timeout", "sandbox.packages"),
    *("rollout.max_turns", "rollout.reset_s", "rollout.step_s", "rollout.turn_s"),
    *("rollout.episode_s", "evaluate.samples_per_task", "evaluate.temperature"),
    "evaluate.budget.each",
)
"""Keys that decide what a trajectory is: with another value it would be another evaluation. The
others decide how many are played, how fast, and what is said about them."""

BLOCK_BYTES = 2**20
_OF_A_POLICY = (".safetensors", ".json", ".jinja", ".model", ".gguf")


def open_record(
    folder: Path, config: RunConfig, policy: Path | str, *, resume: bool
) -> EvaluationRecord:
    """Make the folder of an evaluation, or with `resume` go on with the one that is there.

    Raises `ConfigError` if there is one and `resume` is off, if there is none and it is on, if it
    is of another policy, or if its config differed in a key that matters, naming each.
    """
    there = (folder / POLICY).exists()
    if there and not resume:
        raise ConfigError(
            f"{folder} already holds an evaluation; resume it with --resume, or choose another "
            "folder"
        )
    if resume and not there:
        raise ConfigError(f"{folder} holds no evaluation to resume; start one without --resume")
    identity = {"policy": str(policy), "digest": policy_digest(policy)}
    if there:
        _check_same(folder, config, identity)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        save_resolved(config, folder / CONFIG)
        # Last, because it is what makes the folder an evaluation.
        write_json(folder / POLICY, identity)
    # A process that was killed between the two has left no store: then nothing was played yet.
    begun = any((folder / STORE).glob("segments/*"))
    settings = StoreSettings(keep="all")
    store = folder.absolute() / STORE  # whatever an environment makes the working directory
    return EvaluationRecord.open(store, settings, seed=config.run.seed, resume=begun)


def policy_digest(policy: Path | str) -> str:
    """Return 16 hex digits of the files of a policy's folder, or of its GGUF file; of a hub name,
    of the name."""
    digest = hashlib.sha256()
    place = Path(policy)
    files = sorted(place.iterdir()) if place.is_dir() else [place] if place.is_file() else []
    if not files:
        digest.update(str(policy).encode())
    for file in files:
        if file.suffix in _OF_A_POLICY and file.is_file():
            digest.update(file.name.encode() + b"\0")
            with file.open("rb") as data:
                while block := data.read(BLOCK_BYTES):
                    digest.update(block)
    return digest.hexdigest()[:16]


def _check_same(folder: Path, config: RunConfig, policy: dict[str, str]) -> None:
    was = load_config(folder / CONFIG)
    changed = changes(was, config, counts=lambda key: key.startswith(MATTERS))
    if changed:
        raise ConfigError(
            f"{folder} holds an evaluation with a different config: {changed}. Resume it with the "
            "original values, or choose another folder"
        )
    advice = "restore it from a copy, or start over in another folder"
    before = load_json(folder / POLICY, dict, advice=advice)
    if before["digest"] != policy["digest"]:
        raise ConfigError(
            f"{folder} holds an evaluation of {before['policy']} (digest {before['digest']}), but "
            f"this policy is {policy['policy']} (digest {policy['digest']}); resume with that "
            "--checkpoint, or choose another folder"
        )
    save_resolved(config, folder / CONFIG)
