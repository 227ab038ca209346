"""First policy of a run: a model folder, or a small new model, and a warm start.

Either way it ends as a Hugging Face folder, `policy/` of the run, that the run starts from; a run
that is resumed finds it there.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from agentrl.authoring.env_contract import read_tasks
from agentrl.chat.dialects import find_dialect
from agentrl.config.run import MakePolicySection, RunConfig, WarmstartSection
from agentrl.env import Env
from agentrl.errors import CancelledRollout
from agentrl.message import Message
from agentrl.metrics.diagnostics import find_memorised
from agentrl.models.provenance import provenance
from agentrl.rollout.demonstrations import demonstrate, plan_demonstrations
from agentrl.run.policy_model import (
    PolicyModel,
    build_chat_format,
    load_policy,
    save_policy,
    trains_in_shards,
)
from agentrl.run.summary import RunSummary
from agentrl.runtime.atomic_files import new_folder
from agentrl.runtime.progress import ProgressPhase, RunProgress
from agentrl.runtime.seeds import derive
from agentrl.runtime.threads import run_in_stoppable_thread

if TYPE_CHECKING:
    from agentrl.learn.demonstrate import DemonstrationTurns

VOCABULARY_EPISODES = 2000
"""Number of demonstrations a new tokenizer is trained on."""
TEXT_CHARS = 100_000
"""Characters of each that it is trained on, from its beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialPolicyBuilder:
    """Makes the policy a run starts from."""

    config: RunConfig
    folder: Path
    interrupted: Path
    """File that keeps the progress of a warm start that is interrupted."""
    make_env: Callable[[], Env]
    summary: RunSummary
    progress: RunProgress

    async def open(self) -> PolicyModel:
        """Return the policy in `folder`, making it first if it is not there.

        The folder appears whole and on the disk, or not at all.
        """
        if not self.folder.exists():
            with new_folder(self.folder) as partial:
                policy = await self._make(partial)
                save_policy(policy, partial)
            self.interrupted.unlink(missing_ok=True)
            # Before it is loaded again: a device that holds one model may not hold two.
            del policy
            gc.collect()
        # What is going to be cut up goes to devices in parts only.
        device = "cpu" if trains_in_shards(self.config) else None
        return load_policy(self.config, self.folder, device=device)

    async def _make(self, scratch: Path) -> PolicyModel:
        section, warmstart = self.config.policy, self.config.warmstart
        conversations = await self._collect_conversations(warmstart)
        if section.make is not None:
            policy = self._make_model(section.make, conversations, scratch)
        else:
            assert section.path is not None, "load_config sees to it"
            # A policy that is only written again needs no device.
            device = "cpu" if warmstart is None else None
            policy = load_policy(self.config, section.path, device=device)
            self.summary.put("policy", provenance(policy.path))
        if warmstart is not None:
            with self.summary.time_phase("warm start"):
                await run_in_stoppable_thread(
                    partial(self._warm_up, policy, warmstart, conversations)
                )
        return policy

    async def _collect_conversations(
        self, section: WarmstartSection | None
    ) -> Sequence["DemonstrationTurns"]:
        from agentrl.learn.demonstrate import DemonstrationTurns
        from agentrl.learn.recording import read_recordings

        if section is None:
            # A new tokenizer needs to see the environment's texts, even without a warm start.
            section = WarmstartSection(demonstrations=VOCABULARY_EPISODES // 10)
            if self.config.policy.make is None:
                return ()
        elif section.recordings is not None:
            path = section.recordings
            return [
                DemonstrationTurns.from_recording(recording, f"{path}, conversation {number}")
                for number, recording in enumerate(read_recordings(path), start=1)
            ]
        seed = derive(self.config.run.seed, "demonstrations")
        tasks = list(
            islice(read_tasks(self.make_env(), "train", seed=seed), section.demonstrations)
        )
        planned = plan_demonstrations(
            tasks,
            guess_fraction=section.guess_fraction,
            seed=seed,
            every_task=len(tasks) < section.demonstrations,
        )
        with (
            self.summary.time_phase("demonstrations"),
            self.progress.phase("demonstrations", total=len(planned)) as phase,
        ):
            episodes = await demonstrate(
                self.make_env,
                planned,
                concurrency=self.config.rollout.concurrency,
                on_episode=lambda: phase.advance(),
            )
        return [DemonstrationTurns.from_gold(episode) for episode in episodes]

    def _make_model(
        self, section: MakePolicySection, shown: Sequence["DemonstrationTurns"], scratch: Path
    ) -> PolicyModel:
        from agentrl.chat.tokenizer import conversation_text, train_tokenizer
        from agentrl.models.folders import make_images, make_model
        from agentrl.models.precision import round_to

        template = self.config.policy.template or "hermes"
        with self.summary.time_phase("new policy"):
            tokenizer = train_tokenizer(
                (
                    conversation_text(_flatten_messages(c), c.tools, template=template)[:TEXT_CHARS]
                    for c in shown[:VOCABULARY_EPISODES]
                ),
                vocab_size=section.vocab_size,
                folder=scratch,
                template=template,
                sees=section.vision is not None,
            )
            image_tokens = find_dialect(template).image_tokens if section.vision else None
            token_ids = tokenizer.added_tokens_encoder
            ids = [token_ids[token] for token in image_tokens or ()]
            assert isinstance(tokenizer.eos_token_id, int)
            assert isinstance(tokenizer.pad_token_id, int)
            model = make_model(
                section,
                vocab_size=len(tokenizer),
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                context_tokens=self.config.engine.context_tokens,
                seed=derive(self.config.run.seed, "weights"),
                image_token_ids=(ids[0], ids[1], ids[2]) if ids else None,
            )
            round_to(model, self.config.policy.dtype)
            images = None
            if section.vision is not None:
                images = make_images(section.vision, token_id=ids[1])
        chat = build_chat_format(self.config, tokenizer, images)
        return PolicyModel(scratch, model, tokenizer, chat, images)

    def _warm_up(
        self,
        policy: PolicyModel,
        section: WarmstartSection,
        shown: Sequence["DemonstrationTurns"],
        stop: Event,
    ) -> None:
        from agentrl.learn.demonstrate import demonstrations
        from agentrl.learn.warmstart import warmstart

        context_tokens = self.config.engine.context_tokens
        rows = demonstrations(shown, policy.chat, context_tokens=context_tokens)
        with ExitStack() as stack:
            phase: ProgressPhase | None = None

            def on_start(done: int) -> None:
                nonlocal phase
                if self.interrupted.exists() and not done:
                    self.progress.say(
                        "warm start: it begins anew, for its demonstrations are not those of before"
                    )
                begun = self.progress.phase("warm start", total=section.steps, done=done)
                phase = stack.enter_context(begun)

            def on_step(step: int, loss: float, tokens: int) -> None:
                assert phase is not None
                phase.advance(1, {"loss": loss})
                if stop.is_set():
                    raise CancelledRollout("the warm start was interrupted")

            result = warmstart(
                policy.model,
                rows,
                section,
                seed=derive(self.config.run.seed, "warm start"),
                learn=self.config.learn,
                on_start=on_start,
                on_step=on_step,
                images=policy.images,
                file=self.interrupted,
            )
        times = result.steps * min(section.batch_size, len(rows)) / len(rows)
        by_heart = find_memorised(demonstrations=len(rows), times=times, loss=result.last_loss)
        facts: dict[str, float | bool | str] = {"steps": result.steps, "loss": result.last_loss}
        if by_heart is not None:
            facts["memorised"] = by_heart
            self.progress.say(f"warm start: {by_heart}")
        if result.reached is not None:
            facts["reached"] = result.reached
        self.summary.put("warm start", facts)
        if result.reached is False:
            self.progress.say(
                f"the warm start ended after {result.steps} steps at a loss of "
                f"{result.last_loss:.3f}, above warmstart.until_loss={section.until_loss}; raise "
                "warmstart.steps, or check whether warmstart.learning_rate suits the policy"
            )


def _flatten_messages(conversation: "DemonstrationTurns") -> tuple[Message, ...]:
    turns = ((action.message, *answers) for action, answers in conversation.turns)
    return (*conversation.opening, *(message for turn in turns for message in turn))
