"""The engine in this process: continuous batching over a Hugging Face model, on CPU or CUDA.

One step of the loop: seat waiting requests, compute one token of every seated request and a bounded
piece of the prompts that are new, sample. Between two steps the event loop runs. The loop is a task
that exists only while there is something to compute; an idle engine has nothing to leak.

The forward pass of a step runs on the event loop while passes are short: measured with environments
that use the processor beside it, a thread lost half its tokens per CPU second to handing the
interpreter lock back and forth. Once passes take `THREAD_S`, as those of a model of real size do,
they run in a thread, since a browser, a sandbox or an agent program that exchanges ten messages for
one action would wait for ten of them. Requests come and leave meanwhile, but none gets a slot, and
new weights wait for the end of the step.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from transformers import PreTrainedModel

from agentrl.engine.cache_slots import CacheSlot, place
from agentrl.engine.decoder import DecoderCapacity, DecodeSegment, ModelDecoder
from agentrl.engine.fallback import FallbackDecoder
from agentrl.engine.image_encoder import ImageEncoder, PromptImages
from agentrl.engine.in_process import AnyFlight, InProcessEngine
from agentrl.engine.inflight import InflightRequest
from agentrl.engine.inflight_scores import InflightScoreRequest
from agentrl.engine.llama import LlamaDecoder
from agentrl.engine.llama_shape import shape_of
from agentrl.engine.ngram_drafts import RATE_STEP, SHARED_RATE_STEP, NgramDrafts, draft_length
from agentrl.engine.noise import uniforms
from agentrl.engine.sampling import SampledToken, sample
from agentrl.engine.stopping import Decode
from agentrl.engine.weights import Weights
from agentrl.errors import ConfigError, EngineError
from agentrl.message import Image
from agentrl.models.out_of_memory import explain_out_of_memory
from agentrl.models.vision.model import sees
from agentrl.models.vision.processor import ImageProcessor
from agentrl.policy import GenerateRequest, ScoreRequest
from agentrl.runtime.machine import set_batch_invariance
from agentrl.runtime.threads import finish_in_thread

TURNS = 4
"""Turns of the event loop between two steps. A tool's answer takes a few to get from its pipe to
the next request; idle ones cost microseconds."""
THREAD_S = 0.05
"""Duration of a forward pass from which on the next one runs in a thread."""

WAY_OUT = "Lower engine.slots or engine.context_tokens."


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStatistics:
    """Load and counters of an engine."""

    running: int
    waiting: int
    steps: int
    sampled_tokens: int
    scored_tokens: int
    computed_prompt_tokens: int
    """Context tokens computed, those computed again after a load too."""
    drafted_tokens: int
    accepted_tokens: int
    """Drafted tokens that were sampled."""


class LocalEngine(InProcessEngine):
    """Samples many turns at once from a model in this process.

    Llama, Mistral, Qwen2, Qwen3 and the Qwen-VL models run in a decode loop of our own; every other
    causal language model through its own `forward`. The engine copies the weights it is given and
    never changes the model. Requests beyond `slots` wait their turn. All calls belong to one event
    loop at a time.
    """

    task_name = "agentrl-engine"
    blamed = "the engine's decode loop"

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int = 32,
        context_tokens: int = 2048,
        prefill_tokens: int = 256,
        draft_tokens: int = 0,
        decode: Decode | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        threads: int | None = None,
        version: int = 0,
        images: ImageProcessor | None = None,
    ) -> None:
        """Copy the model's weights; the cache is reserved now and touched when used.

        `prefill_tokens` bounds what one step computes of new prompts, so that a long one does not
        hold up the others. A step computes up to `draft_tokens` guessed tokens of each request,
        which changes no sampled token (see `ngram_drafts`). `decode` turns token ids into text and
        is needed for stop strings. `device` and `dtype` are the model's unless given. `threads`
        sets torch's own, which belong to the whole process; with more than one, bits may depend on
        the batch. With `images`, a model that sees takes requests that show some.
        """
        for name, value in (("slots", slots), ("context_tokens", context_tokens)):
            if value < 1:
                raise ValueError(f"engine.{name} must be at least 1, got {value}")
        if draft_tokens < 0:
            raise ValueError(f"engine.draft_tokens must be at least 0, got {draft_tokens}")
        if prefill_tokens < 1:
            raise ValueError(f"prefill_tokens must be at least 1, got {prefill_tokens}")
        set_batch_invariance()
        if threads is not None:
            torch.set_num_threads(threads)
        capacity = DecoderCapacity(
            slots=slots, context_tokens=context_tokens, prefill_tokens=prefill_tokens
        )
        self._subject = f"the local engine with {slots} slots of {context_tokens} tokens each"
        with explain_out_of_memory(ConfigError, self._subject, WAY_OUT):
            self._decoder = _open_decoder(
                model,
                capacity,
                device=torch.device(device or model.device),
                dtype=dtype or model.dtype,
                images=images,
            )
        if draft_tokens and not isinstance(self._decoder, LlamaDecoder):
            raise ConfigError(
                f"engine.draft_tokens is {draft_tokens}, but {type(model).__name__} is computed by "
                "its own forward, whose cache cannot forget drafts that are wrong; set it to 0"
            )
        super().__init__(
            version=version,
            context_tokens=context_tokens,
            score_tokens=context_tokens,
            vocabulary=self._decoder.vocabulary,
            decode=decode,
            images=None if self._decoder.eyes is None else images,
        )
        self._capacity = capacity
        self._slots = [CacheSlot(index) for index in range(slots)]
        self._waiting: deque[AnyFlight] = deque()
        self._draft_tokens = draft_tokens
        self._drafts = NgramDrafts()
        self._steps = self._sampled = self._computed = self._scored = 0
        self._drafted = self._accepted = 0
        self._forward_s = 0.0
        """Duration of the last forward pass."""
        self._is_in_thread = False
        self._delayed: list[tuple[Callable[[], None], asyncio.Future[None]]] = []
        """Changes that wait for the end of the step under way."""

    async def load(self, weights: Weights, version: int) -> None:
        """Copy new weights (a state dict with Hugging Face names, or a folder of safetensors).

        Requests in flight go on: what they have is computed again under the new weights, and their
        next tokens carry the new version. Weights of another model raise `ValueError` and change
        nothing.
        """
        await self._change(partial(self._load, weights, version))

    def _load(self, weights: Weights, version: int) -> None:
        self._check_usable()
        self._decoder.load(weights)
        self._version = version
        self._begin_again()

    async def sleep(self) -> None:
        """Give up the memory of the cache, on a CPU: no key of it outlives the next weights.

        A request that comes before them is answered: what it needs is computed again.
        """
        await self._change(self._sleep)

    def _sleep(self) -> None:
        self._decoder.release_cache()
        self._begin_again()

    def _begin_again(self) -> None:
        """Let the requests in flight wait for a slot, and compute again what they have."""
        seated = [slot.flight for slot in self._slots if slot.flight is not None]
        for slot in self._slots:
            slot.held.clear()
            slot.flight = None
        for flight in seated:
            flight.begin_again()
        # They keep their turn; siblings share what the first of them computes again.
        seated.sort(key=lambda flight: flight.order, reverse=True)
        self._waiting.extendleft(seated)

    async def pause(self) -> None:
        await super().pause()
        await self._change(lambda: None)

    def statistics(self) -> EngineStatistics:
        """Return the load of the engine and its counters so far."""
        return EngineStatistics(
            running=sum(slot.flight is not None for slot in self._slots),
            waiting=len(self._waiting),
            steps=self._steps,
            sampled_tokens=self._sampled,
            scored_tokens=self._scored,
            computed_prompt_tokens=self._computed,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
        )

    def count_open_tokens(self) -> int:
        """Return the tokens sampled for requests that are not answered yet."""
        flights = [*(slot.flight for slot in self._slots if slot.flight), *self._waiting]
        return sum(len(flight.context) - len(flight.request.prompt) for flight in flights)

    # --- the loop ---------------------------------------------------------------------------------

    async def _compute(self) -> None:
        try:
            with explain_out_of_memory(EngineError, self._subject, WAY_OUT):
                await self._step()
        finally:
            self._make_delayed_changes()
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def _step(self) -> None:
        self._seat()
        segments = self._segments()
        logits = await self._forward(segments)
        due: list[tuple[CacheSlot, InflightRequest, DecodeSegment]] = []
        rows: list[int] = []
        row = 0
        for segment in segments:
            slot = self._slots[segment.slot]
            slot.held.extend(segment.tokens)
            flight = slot.flight if segment.wanted else None
            if isinstance(flight, InflightScoreRequest):
                self._score(flight, logits[row : row + segment.wanted])
            elif flight is not None:
                due.append((slot, flight, segment))
                rows.extend(range(row, row + segment.wanted))
            row += segment.wanted
        if due:
            self._sample(due, logits if len(rows) == row else logits[rows])
        self._steps += 1

    async def _forward(self, segments: Sequence[DecodeSegment]) -> torch.Tensor:
        """Return the logits that the segments want; requests may have left when it does."""
        began = time.perf_counter()
        if self._forward_s < THREAD_S:
            logits = self._decoder.forward(segments)
        else:
            self._is_in_thread = True
            try:
                logits = await finish_in_thread(self._decoder.forward, segments)
            finally:
                self._is_in_thread = False
        self._forward_s = time.perf_counter() - began
        return logits

    async def _change(self, change: Callable[[], None]) -> None:
        """Make a change that no step may be under way for, and raise what it raises."""
        if not self._is_in_thread:
            change()
            return
        future = asyncio.get_running_loop().create_future()
        self._delayed.append((change, future))
        await future

    def _make_delayed_changes(self) -> None:
        for change, future in self._delayed:
            if future.done():
                continue  # its caller was cancelled
            try:
                change()
            except Exception as error:  # noqa: BLE001 - handed to the caller
                future.set_exception(error)
            else:
                future.set_result(None)
        self._delayed.clear()

    def _seat(self) -> None:
        """Give waiting requests a slot, first come first served.

        One that waits for a sibling's prefix keeps a slot free. Otherwise the prompts of later
        groups would take all slots, and the sibling could have ended, and its prefix be gone,
        before the others get a place.
        """
        free = sum(slot.flight is None for slot in self._slots)
        for flight in list(self._waiting):
            if not free:
                return
            free -= 1
            placement = place(flight.reusable, self._slots)
            if placement is None:
                continue
            self._waiting.remove(flight)
            slot, source = placement.slot, placement.source
            prefix_length = self._decoder.reuse(source.index, slot.index, placement.tokens)
            slot.held = source.held[:prefix_length]
            slot.flight = flight
            if flight.cached_tokens is None:
                flight.cached_tokens = prefix_length
                if isinstance(flight, InflightRequest):
                    flight.draft_rate = self._drafts.rate

    def _segments(self) -> list[DecodeSegment]:
        segments: list[DecodeSegment] = []
        behind: list[tuple[CacheSlot, AnyFlight]] = []
        current: list[tuple[CacheSlot, AnyFlight]] = []
        for slot in self._slots:
            if (flight := slot.flight) is not None:
                is_current = len(flight.context) - len(slot.held) == 1
                (current if is_current else behind).append((slot, flight))
        room = self._capacity.prefill_tokens
        room -= sum(len(flight.context) - len(slot.held) for slot, flight in behind)
        for slot, flight in current:
            start = len(slot.held)
            draft = self._draft(flight, room)
            room -= len(draft)
            tokens = [flight.context[-1], *draft]
            logit_count = flight.count_logits(start, 1) + len(draft)
            segments.append(DecodeSegment(slot.index, start, tokens, logit_count, flight.sight))
        for slot, flight, count in self._shares(behind):
            start = len(slot.held)
            tokens = flight.context[start : start + count]
            self._computed += count
            if self._draft_tokens:
                self._drafts.learn(flight.context, start, start + count)
            logit_count = flight.count_logits(start, count)
            segments.append(DecodeSegment(slot.index, start, tokens, logit_count, flight.sight))
        return segments

    def _shares(
        self, behind: list[tuple[CacheSlot, AnyFlight]]
    ) -> list[tuple[CacheSlot, AnyFlight, int]]:
        """Divide the step's prefill between those who have not caught up with their prompts.

        Who came first gets at least half, so that it moves on; the others share what is left,
        shortest first, so that a short prompt does not wait for a long one.
        """
        budget = self._capacity.prefill_tokens
        missing = {slot.index: len(f.context) - len(slot.held) for slot, f in behind}
        queue = sorted(behind, key=lambda pair: missing[pair[0].index])
        if queue:
            first = min(behind, key=lambda pair: pair[1].order)
            queue.remove(first)
            others = sum(missing[slot.index] for slot, _ in queue)
            index = first[0].index
            missing[index] = min(missing[index], max(-(-budget // 2), budget - others))
            queue.insert(0, first)
        shares: list[tuple[CacheSlot, AnyFlight, int]] = []
        for slot, flight in queue:
            count = min(missing[slot.index], budget)
            budget -= count
            if count:
                shares.append((slot, flight, count))
        return shares

    def _draft(self, flight: AnyFlight, room: int) -> list[int]:
        """Return the tokens guessed to follow; none where guesses are mostly wrong."""
        if not self._draft_tokens or isinstance(flight, InflightScoreRequest) or flight.sight:
            return []
        left = flight.max_tokens - len(flight.logprobs) - 1
        length = draft_length(flight.draft_rate, min(self._draft_tokens, left, room))
        return self._drafts.guess(flight.context, length)

    def _sample(
        self, due: list[tuple[CacheSlot, InflightRequest, DecodeSegment]], logits: torch.Tensor
    ) -> None:
        flights = [flight for _, flight, segment in due for _ in range(segment.wanted)]
        places = [len(f.context) + i for _, f, segment in due for i in range(segment.wanted)]
        picks = iter(
            sample(
                logits,
                [flight.request.sampling for flight in flights],
                uniforms([flight.noise for flight in flights], places),
                [flight.request.top_logprobs for flight in flights],
                entropies=any(flight.request.entropies for flight in flights),
            )
        )
        for slot, flight, segment in due:
            self._take(slot, flight, segment, list(islice(picks, segment.wanted)))

    def _take(
        self,
        slot: CacheSlot,
        flight: InflightRequest,
        segment: DecodeSegment,
        picks: list[SampledToken],
    ) -> None:
        """Append what was drawn, up to the first token that is not the drafted one."""
        draft = segment.tokens[len(segment.tokens) - len(picks) + 1 :]
        guesses = draft
        if self._draft_tokens and not draft:
            # Compared all the same, to know when drafts begin to pay.
            guesses = self._drafts.guess(flight.context, 1)
        self._drafted += len(draft)
        for count, pick in enumerate(picks, 1):
            flight.take(pick, version=self._version)
            self._sampled += 1
            if self._draft_tokens:
                self._drafts.learn(flight.context, len(flight.context) - 1, len(flight.context))
            is_right = guesses[count - 1 : count] == [pick.token]
            if len(guesses) >= count:
                self._rate(flight, is_right)
            finish = flight.find_finish(self._decode)
            if finish is not None or count == len(picks) or not is_right:
                self._accepted += count - 1
                # The keys of the tokens after it are of a past that never was.
                del slot.held[len(slot.held) - len(picks) + count :]
                if finish is not None:
                    self._end(self._keys[flight.request.id], finish)
                return

    def _rate(self, flight: InflightRequest, is_right: bool) -> None:
        flight.draft_rate += RATE_STEP * (is_right - flight.draft_rate)
        self._drafts.rate += SHARED_RATE_STEP * (is_right - self._drafts.rate)

    def _score(self, flight: InflightScoreRequest, logits: torch.Tensor) -> None:
        flight.take(logits, version=self._version)
        self._scored += len(logits)
        if flight.is_done:
            self._end(self._keys[flight.request.id], "stop")

    def _enqueue(self, key: str, flight: AnyFlight) -> None:
        self._waiting.append(flight)

    def _release(self, key: str, flight: AnyFlight) -> None:
        """Free what a request occupies; its slot keeps the keys for whoever comes next."""
        for slot in self._slots:
            if slot.flight is flight:
                slot.flight = None
                slot.used_at = self._steps
                return
        self._waiting.remove(flight)

    def _must_prepare(self, image: Image) -> bool:
        return self._decoder.eyes is None or not self._decoder.eyes.has(image)

    def _validate_request(self, request: GenerateRequest | ScoreRequest) -> PromptImages | None:
        if self._decoder.eyes is None or not request.images:
            return None
        return self._decoder.eyes.sight(request.prompt, request.images)


def _open_decoder(
    model: PreTrainedModel,
    capacity: DecoderCapacity,
    *,
    device: torch.device,
    dtype: torch.dtype,
    images: ImageProcessor | None = None,
) -> ModelDecoder:
    """Return the fast decoder for architectures it knows, or one that calls the model itself.

    Only the fast one takes images, of a model that sees and with a processor.
    """
    shape = shape_of(model)
    if shape is None:
        return FallbackDecoder(model, capacity, device=device, dtype=dtype)
    eyes = None
    if images is not None and sees(model):
        eyes = ImageEncoder(model, images, device=device, dtype=dtype)
    return LlamaDecoder(model, shape, capacity, device=device, dtype=dtype, eyes=eyes)
