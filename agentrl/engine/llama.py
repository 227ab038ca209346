"""The fast decoder: Llama, Mistral, Qwen2, Qwen3 and what reads in Qwen-VL, in plain torch.

Decoding and prefill are one thing: a flat list of rows, each a token with its slot and position.
All rows share the linear layers; attention is called per span of rows (see `attention`). In float32
on CPU with one thread, the numbers of a row depend on the tokens before it and on the weights, and
on nothing else: not on the batch, not on whether a prefix came from the cache.
"""

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu
from transformers import PreTrainedModel

from agentrl.engine.attention import (
    KEY_STEP,
    ROW_STEP,
    AttentionSpan,
    CausalMasks,
    decode_spans,
    key_lengths,
    prefill_spans,
    round_up,
)
from agentrl.engine.decoder import DecoderCapacity, DecodeSegment
from agentrl.engine.image_encoder import ImageEncoder
from agentrl.engine.llama_shape import LlamaShape
from agentrl.engine.llama_weights import LlamaLayer, arrange
from agentrl.engine.weights import Weights, read_weights
from agentrl.models.vision.encoder_cache import ImageFeatures


@dataclass(frozen=True, slots=True)
class _Call:
    """One attention call and its mask: (slots, 1, 1, keys) or (1, 1, rows * group, keys)."""

    span: AttentionSpan
    mask: Tensor


@dataclass(frozen=True, slots=True)
class _Shown:
    rows: slice
    features: ImageFeatures
    tokens: slice


@dataclass(frozen=True, slots=True)
class _Step:
    """Everything about a forward pass but the numbers. Rows are padded to a multiple of four."""

    tokens: Tensor
    rope: Tensor
    slots: Tensor
    positions: Tensor
    """Slots and positions of the true rows alone."""
    calls: tuple[_Call, ...]
    wanted: Tensor
    """Rows whose logits are asked for, padded to a multiple of four."""
    shown: tuple[_Shown, ...] = ()


class LlamaDecoder:
    """See the module. The cache is one tensor (layers, 2, slots, heads, context, head)."""

    def __init__(
        self,
        model: PreTrainedModel,
        shape: LlamaShape,
        capacity: DecoderCapacity,
        *,
        device: torch.device,
        dtype: torch.dtype,
        eyes: ImageEncoder | None = None,
    ) -> None:
        self.vocabulary = shape.vocabulary
        self.eyes = eyes
        self._shape = shape
        self._device, self._dtype = device, dtype
        self._padding = key_lengths(shape.head, device.type, dtype)
        context = self._padding.pad_length(round_up(capacity.context_tokens, KEY_STEP))
        with torch.inference_mode():
            self._weights = arrange(model.state_dict(), shape, device=device, dtype=dtype)
            self._rope = _rotations(model, shape, context).to(device)
            self._axes = None if eyes is None else _axes(model, shape).to(device)
            self._masks = CausalMasks(context, device=device, dtype=dtype)
            cache_shape = (shape.layers, 2, capacity.slots, shape.heads, context, shape.head)
            self._cache = _allocate_cache(cache_shape, device=device, dtype=dtype)
            # Attention reads whole groups of four query rows, past the last true one if need be.
            self._heads = torch.zeros(
                (
                    round_up(capacity.slots + capacity.prefill_tokens, ROW_STEP) + 2 * ROW_STEP,
                    (shape.group + 1) * shape.heads,
                    shape.head,
                ),
                device=device,
                dtype=dtype,
            )

    def load(self, weights: Weights) -> None:
        with torch.inference_mode():
            state = read_weights(weights, device=self._device)
            vision_weights = None if self.eyes is None else self.eyes.select_weights(state)
            self._weights = arrange(state, self._shape, device=self._device, dtype=self._dtype)
            self.release_cache()
            if self.eyes is not None and vision_weights is not None:
                self.eyes.load(vision_weights)

    @torch.inference_mode()
    def release_cache(self) -> None:
        """Forget all keys. On a CPU their memory is free until they are computed again.

        On a GPU it is kept: what the trainer put there might stay, and leave no room of one piece.
        """
        # Padding is multiplied by zero, which removes only what is finite.
        if self._device.type == "cpu":
            shape = self._cache.shape
            del self._cache  # before there is another
            self._cache = _allocate_cache(shape, device=self._device, dtype=self._dtype)
        else:
            self._cache.zero_()

    def reuse(self, source: int, target: int, tokens: int) -> int:
        if source != target and tokens:
            with torch.inference_mode():
                rows = self._cache[..., :tokens, :]
                rows[:, :, target].copy_(rows[:, :, source])
        return tokens

    @torch.inference_mode()
    def forward(self, segments: Sequence[DecodeSegment]) -> Tensor:
        ordered = sorted(segments, key=lambda s: (len(s.tokens) > 1, s.slot))
        step = self._plan(ordered)
        x = self._weights.embedding.index_select(0, step.tokens)
        for image in step.shown:
            x[image.rows] = image.features.embeddings[image.tokens]
        for index, layer in enumerate(self._weights.layers):
            x = self._block(layer, x, self._cache[index], step)
            for image in step.shown:
                if index < len(image.features.deep):
                    x[image.rows] += image.features.deep[index][image.tokens]
        if not len(step.wanted):
            return x.new_empty((0, self.vocabulary), dtype=torch.float32)
        x = x.index_select(0, step.wanted)
        logits = self._weights.head(self._norm(x, self._weights.norm)).float()
        places: dict[int, range] = {}
        end = 0
        for segment in ordered:
            places[id(segment)] = range(end, end + segment.wanted)
            end += segment.wanted
        order = list(chain.from_iterable(places[id(s)] for s in segments))
        if order == list(range(len(order))):
            return logits[: len(order)]
        return logits[self._tensor(order)]

    def _block(self, layer: LlamaLayer, x: Tensor, cache: Tensor, step: _Step) -> Tensor:
        shape, rows = self._shape, x.shape[0]
        mixed = layer.qkv(self._norm(x, layer.input_norm))
        narrow = shape.heads * shape.head
        heads = mixed[:, :-narrow].view(rows, -1, shape.head)
        if layer.head_norms is not None:
            heads = rms_norm(heads, (shape.head,), None, shape.epsilon) * layer.head_norms
        self._rotate(heads, step.rope)
        true = step.slots.shape[0]
        keys = self._heads[:true, shape.group * shape.heads :]
        cache[0][step.slots, :, step.positions] = keys
        values = mixed[:true, -narrow:].view(true, shape.heads, shape.head)
        cache[1][step.slots, :, step.positions] = values
        x = x + layer.out(self._attend(cache, step, rows))
        gate, up = layer.gate_up(self._norm(x, layer.inner_norm)).chunk(2, -1)
        return x + layer.down(silu(gate).mul_(up))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, (x.shape[-1],), weight, self._shape.epsilon)

    def _rotate(self, heads: Tensor, rope: Tensor) -> None:
        """Rotate queries and keys by their positions, into the buffer that attention reads."""
        rows, count, width = heads.shape
        pairs = torch.view_as_complex(heads.float().view(rows, count, width // 2, 2))
        if self._dtype == torch.float32:
            buffer = self._heads[:rows].view(rows, count, width // 2, 2)
            torch.mul(pairs, rope, out=torch.view_as_complex(buffer))
        else:
            self._heads[:rows] = torch.view_as_real(pairs * rope).flatten(-2)

    def _attend(self, cache: Tensor, step: _Step, rows: int) -> Tensor:
        """Return (rows, group * heads * head), zeros in the padding."""
        shape = self._shape
        parts: list[Tensor] = []
        row_count = 0
        for call in step.calls:
            span = call.span
            of_slots = cache[:, span.slot : span.slot + span.slots, :, : span.keys]
            query = self._queries(span)
            out = scaled_dot_product_attention(query, of_slots[0], of_slots[1], attn_mask=call.mask)
            out = out.transpose(1, 2)
            if span.slots != span.rows:
                out = out.reshape(-1, shape.group, shape.heads, shape.head)[: span.rows]
            else:
                out = out[:, : shape.group]
            parts.append(out)
            row_count += span.rows
        if row_count < rows:
            size = (rows - row_count, shape.group, shape.heads, shape.head)
            parts.append(self._heads.new_zeros(size))
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
        return joined.reshape(rows, -1)

    def _queries(self, span: AttentionSpan) -> Tensor:
        """Return (slots, heads, query rows, head), the rows padded with what follows to four."""
        shape, buffer = self._shape, self._heads
        if span.slots == span.rows:
            stride = buffer.stride(0)
            return buffer.as_strided(
                (span.slots, shape.heads, round_up(shape.group, ROW_STEP), shape.head),
                (stride, shape.head, shape.heads * shape.head, 1),
                span.row * stride,
            )
        until = span.row + round_up(span.rows, ROW_STEP)
        rows = buffer[span.row : until, : shape.group * shape.heads]
        return rows.reshape(1, -1, shape.heads, shape.head).transpose(1, 2)

    def _plan(self, segments: Sequence[DecodeSegment]) -> _Step:
        shape = self._shape
        tokens = list(chain.from_iterable(s.tokens for s in segments))
        slots = [s.slot for s in segments for _ in s.tokens]
        positions = [s.start + i for s in segments for i in range(len(s.tokens))]
        ends, end = list[int](), 0
        for segment in segments:
            end += len(segment.tokens)
            ends.extend(range(end - segment.wanted, end))
        rows = round_up(len(tokens), ROW_STEP)
        padded_positions = self._tensor(positions + [0] * (rows - len(tokens)))
        return _Step(
            tokens=self._tensor([max(0, t) for t in tokens] + [0] * (rows - len(tokens))),
            rope=self._select_rotations(segments, padded_positions).unsqueeze(1),
            slots=self._tensor(slots),
            positions=padded_positions[: len(tokens)],
            calls=self._calls(segments, key_bytes=2 * shape.heads * shape.head * 4),
            wanted=self._tensor(ends + [0] * (-len(ends) % ROW_STEP)),
            shown=tuple(self._find_image_rows(segments)),
        )

    def _find_image_rows(self, segments: Sequence[DecodeSegment]) -> Iterator[_Shown]:
        row = 0
        for segment in segments:
            end = segment.start + len(segment.tokens)
            for span in segment.sight.spans if segment.sight is not None else ():
                start, stop = max(span.start, segment.start), min(span.stop, end)
                if self.eyes is None or start >= stop:
                    continue
                first = row + start - segment.start
                yield _Shown(
                    slice(first, first + stop - start),
                    self.eyes.features(span.image),
                    slice(start - span.start, stop - span.start),
                )
            row += len(segment.tokens)

    def _select_rotations(self, segments: Sequence[DecodeSegment], positions: Tensor) -> Tensor:
        """Return the rotations (rows, head / 2) of rows at `positions`, which count tokens.

        Where a context shows images, positions have three dimensions, and each frequency turns
        with one of them.
        """
        if self._axes is None or not any(s.sight is not None for s in segments):
            return self._rope.index_select(0, positions)
        deep = positions.expand(3, -1).clone()
        row = 0
        for segment in segments:
            count = len(segment.tokens)
            if segment.sight is not None:
                deep[:, row : row + count] = segment.sight.positions_at(segment.start, count)
            row += count
        # In order in memory, as the rows of text alone are: products differ in the last bit if not.
        indices = deep[self._axes].t().contiguous()
        return self._rope[indices, torch.arange(indices.shape[1], device=indices.device)]

    def _calls(self, segments: Sequence[DecodeSegment], key_bytes: int) -> tuple[_Call, ...]:
        singles = [s for s in segments if len(s.tokens) == 1]
        spans = decode_spans(
            [s.slot for s in singles], [s.start + 1 for s in singles], key_bytes, self._padding
        )
        calls: list[_Call] = []
        if spans:
            positions = self._tensor([s.start for s in singles])
            rows = self._masks.rows(positions, max(span.keys for span in spans))[:, None, None]
            for span in spans:
                mask = rows[span.row : span.row + span.rows, ..., : span.keys]
                calls.append(_Call(span, mask))
        row = len(singles)
        for segment in segments[len(singles) :]:
            count = len(segment.tokens)
            spans = prefill_spans(row, segment.slot, segment.start, count, self._padding)
            offset = segment.start - row
            calls += [self._prefill_call(span, offset + span.row) for span in spans]
            row += count
        return tuple(calls)

    def _prefill_call(self, span: AttentionSpan, start: int) -> _Call:
        if span.rows == 1:
            return _Call(span, self._masks.rows(self._tensor([start]), span.keys)[:, None, None])
        group = self._shape.group
        last = start + span.rows - 1
        positions = [min(start + i, last) for i in range(round_up(span.rows, ROW_STEP))]
        rows = self._masks.rows(self._tensor(positions), span.keys)
        return _Call(span, rows.repeat_interleave(group, 0)[None, None])

    def _tensor(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.long, device=self._device)


def _axes(model: PreTrainedModel, shape: LlamaShape) -> Tensor:
    """Return the position dimension that each of the (head / 2) frequencies turns with. The three
    dimensions are turned one after the other to find out."""
    rotary = model.get_submodule(f"{shape.root}.rotary_emb")
    device = next(model.parameters()).device
    turned = torch.eye(3, dtype=torch.long, device=device)[:, :, None]
    sines = [rotary(torch.zeros(1, device=device), axis[:, None])[1] for axis in turned.unbind(1)]
    return torch.stack([sine[0, 0, : shape.head // 2] for sine in sines]).abs().argmax(0)


def _allocate_cache(shape: Sequence[int], *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return zeros. On a CPU they take no memory where nothing is written; `torch.zeros` writes."""
    if device.type != "cpu":
        return torch.zeros(*shape, device=device, dtype=dtype)
    size = math.prod(shape) * dtype.itemsize
    try:
        pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"you tried to allocate {size} bytes") from error
    return torch.frombuffer(pages, dtype=dtype).view(*shape)


def _rotations(model: PreTrainedModel, shape: LlamaShape, context: int) -> Tensor:
    """Return (context, head / 2) complex numbers, from the model's own rotary embedding.

    Scaled kinds of RoPE come out right because cosine and sine are the model's, scale included.
    """
    rotary = model.get_submodule(f"{shape.root}.rotary_emb")
    device = next(model.parameters()).device
    positions = torch.arange(context, device=device)[None]
    cos, sin = rotary(torch.zeros(1, device=device), positions)
    half = cos.shape[-1] // 2
    return torch.complex(cos[0, :, :half].float(), sin[0, :, :half].float())
