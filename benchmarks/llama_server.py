"""llama.cpp's server as a sampler: a Llama as a GGUF file, and requests over HTTP."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from gguf import GGMLQuantizationType, GGUFWriter
from transformers import AutoConfig, AutoTokenizer

from agentrl.runtime import supervisor

START_S = 120.0
WAIT_S = 1200.0
HOST = "127.0.0.1"
NAMES: Mapping[str, str] = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""Names of a layer's weights: here and in GGUF."""


class LlamaServer:
    """A process of `llama-server` with one thread, float caches, and places for all requests."""

    def __init__(
        self, program: str, file: Path, *, slots: int, context_tokens: int, dtype: str
    ) -> None:
        with socket.socket() as free:
            free.bind((HOST, 0))
            self._port: int = free.getsockname()[1]
        cache = {"float32": "f32", "bfloat16": "bf16"}[dtype]
        command = [program, "--model", str(file), "--host", HOST, "--port", str(self._port)]
        command += ["--threads", "1", "--threads-batch", "1", "--parallel", str(slots)]
        command += ["--ctx-size", str(slots * context_tokens), "--no-webui", "--no-warmup"]
        command += ["--cache-type-k", cache, "--cache-type-v", cache, "--threads-http", "4"]
        self._log = file.with_suffix(".log")
        theirs, self._owner = os.pipe()
        supervised = [sys.executable, "-I", str(supervisor.__file__), str(theirs), "", *command]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(supervised, stdout=log, stderr=log, pass_fds=(theirs,))
        os.close(theirs)
        deadline = time.monotonic() + START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise RuntimeError(f"llama-server did not start: {self._log.read_text()[-2000:]}")
            time.sleep(0.05)

    def complete(
        self, prompts: Sequence[tuple[Sequence[int], int]]
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Sample so many tokens after each prompt, asked for at once; return them with log-probs,
        which are nan where they are not told."""

        def ask(asked: tuple[int, tuple[Sequence[int], int]]) -> Any:
            seed, (prompt, tokens) = asked
            body = {
                "prompt": list(prompt),
                "n_predict": tokens,
                "samplers": ["temperature"],
                "temperature": 1.0,
                "seed": seed,
                "ignore_eos": True,
                "return_tokens": True,
                "n_probs": 1,
                "cache_prompt": True,
            }
            return self._call("POST", "/completion", json.dumps(body))

        with ThreadPoolExecutor(max(len(prompts), 1)) as pool:
            replies = list(pool.map(ask, enumerate(prompts)))
        return [_read_reply(reply) for reply in replies]

    def close(self) -> None:
        """End the process, which ends with this one at the latest."""
        os.close(self._owner)
        self._process.wait(30)

    def _is_ready(self) -> bool:
        try:
            return self._call("GET", "/health").get("status") == "ok"
        except (OSError, http.client.HTTPException, RuntimeError):
            return False

    def _call(self, method: str, path: str, body: str | None = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self._port, timeout=WAIT_S)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json"})
            reply = connection.getresponse()
            text = reply.read()
            if reply.status != http.HTTPStatus.OK:
                raise RuntimeError(f"llama-server answers {reply.status}: {text[:500]!r}")
            return json.loads(text)
        finally:
            connection.close()


def _read_reply(reply: Any) -> tuple[tuple[int, ...], tuple[float, ...]]:
    tokens = tuple(reply["tokens"])
    told = [one["logprob"] for one in reply.get("completion_probabilities", ())]
    # It tells none of tokens that end within a character, and not which these are.
    if len(told) != len(tokens):
        told = [float("nan")] * len(tokens)
    return tokens, tuple(told)


def write_gguf(model: Path, weights: Mapping[str, torch.Tensor], file: Path, *, dtype: str) -> None:
    """Write a Llama with the config and the tokenizer of a Hugging Face folder, matrices in
    `dtype` and norms in float32."""
    config: Any = AutoConfig.from_pretrained(model)
    if config.model_type != "llama":
        raise ValueError(f"{model} is a {config.model_type}; only a llama is written as GGUF here")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    writer = GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, model, config.vocab_size)

    def add(name: str, tensor: torch.Tensor) -> None:
        if tensor.ndim > 1 and dtype == "bfloat16":
            raw = tensor.to(torch.bfloat16).contiguous().view(torch.uint8).numpy()
            writer.add_tensor(name, raw, raw_dtype=GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, tensor.float().numpy())

    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    if not config.tie_word_embeddings:
        add("output.weight", weights["lm_head.weight"])
    for layer in range(config.num_hidden_layers):
        for ours, theirs in NAMES.items():
            tensor = weights[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                tensor = _pair_rotations(tensor, heads if theirs == "attn_q" else kv_heads)
            add(f"blk.{layer}.{theirs}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _pair_rotations(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Return rows in llama.cpp's order: what is rotated together lies together."""
    rows, columns = weight.shape
    return weight.view(heads, 2, rows // heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def _add_tokenizer(writer: GGUFWriter, model: Path, vocab_size: int) -> None:
    """Give every id a text; nobody reads it."""
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    known = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), vocab_size))))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([*known, *(f"<unused {at}>" for at in range(len(known), vocab_size))])
    writer.add_token_merges(["Ġ t"])
    writer.add_bos_token_id(tokenizer.bos_token_id or 0)
    writer.add_eos_token_id(tokenizer.eos_token_id or 0)
