"""TRL's GRPOTrainer as a contender. Runs in a virtual environment of its own, without agentrl."""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import transformers
import trl  # pyright: ignore[reportMissingImports]
from datasets import Dataset  # pyright: ignore[reportMissingImports]
from safetensors.torch import save_file
from torch.nn.utils.rnn import pad_sequence

from benchmarks.beside_trl import game
from benchmarks.beside_trl.setup import Setup
from benchmarks.beside_trl.stepping import Stepping

FUTURE_LOGGING_STEPS = 10_000
BATCHING = {"page_size": 32, "num_blocks": 2048, "max_batch_tokens": 512}
"""Of continuous batching, whose own defaults are made for GPUs; not measured here."""


class Guessing(game.Host):
    """The guessing game as TRL wants an environment: its public methods are tools."""

    def reset(self, **row: Any) -> None:
        """Begin a round."""
        self.round, self.answers = int(row["round"]), []

    def get_reward(self) -> float:
        """Return what the round was worth."""
        return game.reward(self.answers, self.rules)


class GuessingWaiting(game.WaitingHost):
    """The long game with a host that takes its time."""

    def reset(self, **row: Any) -> None:
        """Begin a round."""
        self.round, self.answers = int(row["round"]), []

    def get_reward(self) -> float:
        """Return what the round was worth."""
        return game.reward(self.answers, self.rules)


class StepBoundary(transformers.TrainerCallback):
    """Waits before every step."""

    def __init__(self, stepping: Stepping) -> None:
        self._stepping = stepping

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        """End the step before this one, too: what is logged after it belongs to it."""
        self._stepping.boundary(part_is_training=False)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the last step."""
        self._stepping.boundary(part_is_training=False)


class MeasuredTrainer(trl.GRPOTrainer):  # pyright: ignore[reportUntypedBaseClass]
    """The trainer, with a look at what it generates and at the credit it gives."""

    stepping: Stepping | None = None

    def _generate(self, prompts: list[Any]) -> Any:
        if (stepping := self.stepping) is None:
            return super()._generate(prompts)
        with stepping.part():
            found = super()._generate(prompts)
        prompt_ids, completion_ids, tool_mask = found[:3]
        trained = tool_mask or [[1] * len(ids) for ids in completion_ids]
        stepping.tokens = sum(sum(mask) for mask in trained)
        stepping.prompt_ids = tuple(prompt_ids[0])
        return found

    def _calculate_rewards(self, *arguments: Any) -> Any:
        found = super()._calculate_rewards(*arguments)
        if self.stepping is not None:
            self.stepping.rewards = tuple(found.flatten().tolist())
        return found

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        found = super()._generate_and_score_completions(inputs)
        if self.stepping is not None:
            self.stepping.advantages = tuple(found["advantages"].tolist())
        return found


def trainer(setup: Setup, folder: str) -> Any:
    """Return the trainer that a setup describes."""
    rewards: dict[str, Any] = {} if setup.rules else {"reward_funcs": _wordy}
    environments = {"single turn": None, "multi-turn": Guessing, "waiting": GuessingWaiting}
    settings = trl.GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        logging_steps=FUTURE_LOGGING_STEPS,
        disable_tqdm=True,
        dataloader_pin_memory=False,
        shuffle_dataset=False,
        seed=setup.first_round,
        max_steps=setup.steps,
        per_device_train_batch_size=setup.peer_rows,
        gradient_accumulation_steps=setup.rows // setup.peer_rows,
        num_generations=setup.group_size,
        max_completion_length=setup.completion_tokens,
        max_tool_calling_iterations=setup.rules.most_guesses if setup.rules else None,
        temperature=setup.temperature,
        use_transformers_continuous_batching=setup.peer_batching,
        transformers_continuous_batching_config=BATCHING if setup.peer_batching else None,
        loss_type="dapo",
        scale_rewards="group",
        beta=0.0,
        epsilon=setup.clip,
        optim="adamw_torch_fused",
        lr_scheduler_type="constant",
        learning_rate=setup.learning_rate,
        adam_beta1=setup.betas[0],
        adam_beta2=setup.betas[1],
        adam_epsilon=setup.epsilon,
        weight_decay=setup.weight_decay,
        max_grad_norm=setup.max_grad_norm,
    )
    return MeasuredTrainer(
        model=setup.policy,
        args=settings,
        train_dataset=Dataset.from_list(rows(setup)),
        environment_factory=environments[setup.task],
        **rewards,
    )


def rows(setup: Setup) -> list[dict[str, Any]]:
    """Return the tasks in the order they are played, a group each."""
    rules = setup.rules
    said: Callable[[int], list[dict[str, str]]] = partial(_game, rules) if rules else _note
    numbers = range(setup.first_round, setup.first_round + setup.groups * setup.steps)
    return [{"prompt": said(number), "round": number} for number in numbers]


def _game(rules: game.Rules, number: int) -> list[dict[str, str]]:
    return [
        {"role": "system", "content": rules.system},
        {"role": "user", "content": game.question(number, rules)},
    ]


def _note(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": game.WORDS.format(number=number)}]


def _wordy(completions: list[Any], **_: Any) -> list[float]:
    return [game.wordy_reward(completion[0]["content"]) for completion in completions]


def steps(setup: Setup, stepping: Stepping) -> None:
    """Train; `stepping` decides when each step begins."""
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(setup, folder)
        made.stepping = stepping
        made.add_callback(StepBoundary(stepping))
        made.train()


def agreement(setup: Setup, told: dict[str, Any]) -> list[list[float]]:
    """Write the gradient of the batch that is told; return the log-probs of what was sampled."""
    setup = replace(setup, peer_rows=setup.rows)  # accelerate would divide what it accumulates
    with tempfile.TemporaryDirectory() as folder:
        made = trainer(setup, folder)
        made.model.train()
        made.current_gradient_accumulation_steps = 1
        inputs = _inputs(told, padding=made.processing_class.pad_token_id)
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        with torch.no_grad():
            logprobs = made._get_per_token_logps_and_entropies(
                made.model,
                torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
                torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
                mask.size(1),
            )[0]
        made.compute_loss(made.model, inputs).backward()
        gradients = {name: weight.grad for name, weight in made.model.named_parameters()}
        save_file(gradients, Path(told["folder"]) / "gradients.safetensors")
    rows = zip(logprobs, mask, strict=True)
    return [row[chosen.bool()].tolist() for row, chosen in rows]


def _inputs(told: dict[str, Any], *, padding: int) -> dict[str, torch.Tensor]:
    """Return the batch as the trainer pads it: prompts on the left, completions on the right."""

    def padded(rows: list[list[int]], value: int, side: str) -> torch.Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return pad_sequence(tensors, batch_first=True, padding_value=value, padding_side=side)

    def ones(rows: list[list[int]], side: str) -> torch.Tensor:
        return padded([[1] * len(row) for row in rows], 0, side)

    tool_mask = padded(told["masks"], 0, "right")
    return {
        "prompt_ids": padded(told["prompts"], padding, "left"),
        "prompt_mask": ones(told["prompts"], "left"),
        "completion_ids": padded(told["completions"], padding, "right"),
        "completion_mask": ones(told["completions"], "right"),
        "tool_mask": tool_mask,
        "advantages": torch.tensor(told["advantages"]),
        "num_items_in_batch": tool_mask.sum(),
    }


def main() -> None:
    """Serve the process that measures, at the other end of the descriptor that is given."""
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))
    told = pipe.recv()
    setup = Setup(**told["setup"])
    torch.set_num_threads(setup.threads)
    if told["what"] == "agreement":
        pipe.send(agreement(setup, told))
    else:
        steps(setup, Stepping(pipe))


if __name__ == "__main__":
    main()
