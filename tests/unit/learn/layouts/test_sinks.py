"""Attention with sinks (gpt-oss) in every layout: transformers' eager attention, one sequence at a
time, in float32. Mutants applied by hand and seen caught:

- the sink not divided by the scale, no window, the sink masked, the sink's logit at
  the last key: layouts
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import GptOssConfig, GptOssForCausalLM, PreTrainedModel

from agentrl.config.learn import LayoutName
from agentrl.engine.fallback import name_cache_argument
from agentrl.learn.layouts import LAYOUTS
from agentrl.learn.layouts.probe import check_layout
from agentrl.learn.sequence_layout import MaskedTokens
from agentrl.learn.token_logprobs import score
from agentrl.models.folders import load_model
from agentrl.models.sinks import NAME
from tests.support.learning import CPU

TOLERANCE = 1e-5
WINDOW = 5
PREFIX = (3, 4, 5, 6, 7, 8, 9)
SEQUENCES = (
    (*PREFIX, 10, 11, 2, 4, 6, 8, 10, 3),
    (*PREFIX, 10, 11, 5, 5),
    (*PREFIX, 2, 9, 4),
    (9, 8, 7, 6, 5, 4, 3, 2, 10),
)


def gpt_oss(*, window: int = WINDOW) -> PreTrainedModel:
    """Return a model with one layer that slides and one that does not, and sinks that count."""
    config = GptOssConfig(
        vocab_size=12,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        sliding_window=window,
        initializer_range=0.3,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GptOssForCausalLM(config).eval()
        for name, parameter in model.named_parameters():
            if name.endswith("sinks"):
                torch.nn.init.normal_(parameter)
    model.set_attn_implementation("eager")
    return model


def alone(model: PreTrainedModel) -> list[Tensor]:
    """Return the log-probs of all tokens but the first, each sequence by itself."""
    found: list[Tensor] = []
    for sequence in SEQUENCES:
        ids = torch.tensor([sequence])
        logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        found.append(logits.log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0])
    return found


def together(model: PreTrainedModel, layout: LayoutName) -> Tensor:
    """Return a row of log-probs for each sequence; the first of a row is none."""
    rows = [MaskedTokens(np.array(row), np.arange(len(row)) > 0) for row in SEQUENCES]
    tokens = LAYOUTS[layout](256).tokens(rows, device=CPU)
    return score(model, tokens, temperature=1.0, head_at_positions=False).logprobs


def gradients(model: PreTrainedModel, loss: Tensor) -> dict[str, Tensor]:
    named = dict(model.named_parameters())
    found = torch.autograd.grad(loss, list(named.values()))
    return dict(zip(named, found, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [WINDOW, 64])
def test_log_probs_and_gradients_are_those_of_single_sequences(
    layout: LayoutName, window: int
) -> None:
    model = gpt_oss(window=window)
    expected = alone(model)
    weights = torch.linspace(-1, 1, sum(map(len, expected)))
    expected_gradients = gradients(model, (torch.cat(expected) * weights).sum())
    model.set_attn_implementation(NAME)
    rows = together(model, layout)
    found = torch.cat([row[: len(one)] for row, one in zip(rows, expected, strict=True)])
    assert torch.allclose(found, torch.cat(expected), rtol=TOLERANCE, atol=TOLERANCE)
    for name, gradient in gradients(model, (found * weights).sum()).items():
        scale = float(expected_gradients[name].norm())
        assert float((gradient - expected_gradients[name]).norm()) <= TOLERANCE * scale, name
        assert scale > 0 or "experts" in name, name
    check_layout(model, LAYOUTS[layout](256))


def test_sinks_and_windows_matter() -> None:
    model = gpt_oss()
    with torch.no_grad():
        before, wider = alone(model)[0], alone(gpt_oss(window=64))[0]
    assert float((before - wider).abs().max()) > 1e-2
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.constant_(parameter, -50.0)
    with torch.no_grad():
        assert float((before - alone(model)[0]).abs().max()) > 1e-2


def test_steps_with_a_cache_and_padding_are_those_of_eager() -> None:
    model = gpt_oss()
    ids = torch.tensor([SEQUENCES[0][:9], (0, 0, 0, *SEQUENCES[2][:6])])
    mask = (ids != 0).long()

    def logits() -> Tensor:
        first = model(input_ids=ids[:, :6], attention_mask=mask[:, :6], use_cache=True)
        found, cache = [first.logits], first.past_key_values
        for place in range(6, 9):
            step = model(
                input_ids=ids[:, place : place + 1],
                attention_mask=mask[:, : place + 1],
                **{name_cache_argument(model.forward): cache},
            )
            found.append(step.logits)
        return torch.cat(found, dim=1)[mask.bool()]

    with torch.no_grad():
        expected = logits()
        model.set_attn_implementation(NAME)
        assert torch.allclose(logits(), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_folder_is_loaded_with_attention_that_has_sinks(tmp_path: Path, dtype: Any) -> None:
    model = gpt_oss()
    model.save_pretrained(tmp_path)
    loaded = load_model(tmp_path, dtype=dtype, device="cpu")
    ids = torch.tensor([SEQUENCES[0]])
    with torch.no_grad():
        expected = model(input_ids=ids).logits.log_softmax(-1)
        found = loaded(input_ids=ids).logits.float().log_softmax(-1)
    tolerance = TOLERANCE if dtype == "float32" else 0.3
    assert float((found - expected).abs().max()) <= tolerance


FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def dequantize(blocks: Tensor, scales: Tensor) -> Tensor:
    """Return what 4-bit numbers stand for, by the definition of MXFP4 (OCP, 2023): the low half of
    a byte is first, 32 numbers share a power of two; rows of files are columns of experts."""
    table = torch.tensor([*FP4, *(-value for value in FP4)])
    values = table[torch.stack((blocks & 15, blocks >> 4), dim=-1).long()].flatten(-2)
    return (values * 2.0 ** (scales.float() - 127)[..., None]).flatten(-2).transpose(1, 2)


def test_experts_in_4_bits_are_read_as_plain_weights(tmp_path: Path) -> None:
    gpt_oss().save_pretrained(tmp_path)
    tensors, random = load_file(tmp_path / "model.safetensors"), torch.Generator().manual_seed(0)
    expected: dict[str, Tensor] = {}
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, columns, rows = tensors.pop(name).shape
        shape = (experts, rows, columns // 32, 16)
        blocks = torch.randint(256, shape, generator=random, dtype=torch.uint8)
        scales = torch.randint(122, 126, shape[:-1], generator=random, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        expected[name] = dequantize(blocks, scales)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    loaded = load_model(tmp_path, dtype="float32", device="cpu")
    weights = loaded.state_dict()
    assert len(expected) == 4
    for name, value in expected.items():
        assert torch.equal(weights[name], value), name
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    loaded.save_pretrained(tmp_path / "saved")
    again = load_model(tmp_path / "saved", dtype="float32", device="cpu")
    assert all(torch.equal(value, weights[name]) for name, value in again.state_dict().items())
