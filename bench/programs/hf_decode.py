"""Times decoding by a Llama of random weights, tensor parallel by transformers' own plan.

A layer has two all_reduces, after its row-wise products. A step is captured into a CUDA graph and
replayed. Rank 0 prints a JSON line a batch size: microseconds a step, tokens a second, a hash of
the tokens, and whether all ranks have the same hash. same-bits compares variants by it. Needs
transformers 5.17.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import StaticCache
from transformers.distributed import DistributedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from bench.lib.torch_jobs import join, replays_after_eager

MODELS = {  # hidden, layers, heads, key and value heads, intermediate, words
    "tiny": (256, 2, 8, 4, 512, 1024),
    "1b": (2048, 16, 32, 8, 8192, 32768),
    "8b": (4096, 32, 32, 8, 14336, 128256),
    "70b": (8192, 80, 64, 8, 28672, 128256),  # 141 GB in bf16
}


def config_of(name: str) -> LlamaConfig:
    hidden, layers, heads, kv_heads, inner, words = MODELS[name]
    config = LlamaConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        vocab_size=words,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
    )
    config._attn_implementation = "sdpa"
    return config


def sharded_model(config: LlamaConfig, device: torch.device) -> LlamaForCausalLM:
    """Returns the model with a shard of random weights on each rank; replicated weights are equal
    on all ranks."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    with torch.device("meta"):
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
        model = LlamaForCausalLM(config).to(dtype).eval()
    mesh = dist.device_mesh.init_device_mesh(device.type, (ranks,), mesh_dim_names=("tp",))
    plan = DistributedConfig(tp_size=ranks, tp_plan="auto")
    model = LlamaForCausalLM.maybe_distribute_model(model, plan, mesh)
    model.to_empty(device=device)
    model.model.rotary_emb = LlamaRotaryEmbedding(config=config, device=device)
    for name, parameter in model.named_parameters():
        is_sharded = any(one.is_shard() for one in getattr(parameter, "placements", ()))
        whose = f"{name}/{rank if is_sharded else 'all'}"
        seed = int(hashlib.sha256(whose.encode()).hexdigest()[:8], 16)
        data = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        with torch.no_grad():
            if name.endswith("norm.weight"):
                data.fill_(1)
            else:
                data.normal_(0, 0.02, generator=torch.Generator(device).manual_seed(seed))
    return model


class Decoder:
    """Greedy decoding of one batch after a prompt."""

    def __init__(
        self, model: LlamaForCausalLM, batch: int, prompt: int, steps: int, device: torch.device
    ) -> None:
        self.model, self.prompt = model, prompt
        self.cache = StaticCache(config=model.config, max_cache_len=prompt + steps + 8)
        shape, words = (batch, prompt), model.config.vocab_size
        tokens = torch.randint(0, words, shape, generator=torch.Generator().manual_seed(7))
        self.token = self._next(tokens.to(device))
        self.history = [self.token.clone()]

    def _next(self, tokens: torch.Tensor) -> torch.Tensor:
        out = self.model(
            input_ids=tokens, past_key_values=self.cache, use_cache=True, logits_to_keep=1
        )
        return out.logits[:, -1].argmax(-1, keepdim=True)

    def step(self) -> None:
        self.token.copy_(self._next(self.token))

    def captured(self) -> Callable[[], None]:
        """Captures a step after three eager steps, and returns the replay."""

        def step() -> None:
            self.step()
            if not torch.cuda.is_current_stream_capturing():
                self.history.append(self.token.clone())

        return replays_after_eager(step).replay

    def rewind(self) -> None:
        """Resets the cache to the prompt's end. The position is a tensor, which graphs read."""
        for layer in self.cache.layers:
            layer.cumulative_length.fill_(self.prompt)


@torch.inference_mode()
def decode(
    model: LlamaForCausalLM, batch: int, given: SimpleNamespace, device: torch.device
) -> tuple[float, str]:
    """Returns (seconds a step, a hash of the tokens)."""
    on_gpu = device.type == "cuda"
    decoder = Decoder(model, batch, given.prompt, given.steps, device)
    run = decoder.captured() if on_gpu and not given.eager else decoder.step
    while len(decoder.history) < given.steps:
        run()
        decoder.history.append(decoder.token.clone())
    rounds, count = (3, min(64, given.steps)) if on_gpu else (1, min(8, given.steps))
    if on_gpu:
        torch.cuda.synchronize()
    dist.barrier()
    begin = time.perf_counter()
    for _ in range(rounds):
        decoder.rewind()
        for _ in range(count):
            run()
    if on_gpu:
        torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / rounds / count
    tokens = torch.cat(decoder.history, 1).cpu().numpy().tobytes()
    return seconds, hashlib.sha256(tokens).hexdigest()[:12]


def run(given: SimpleNamespace) -> None:
    device = join(given.backend, given.cpu)
    model = sharded_model(config_of(given.model), device)
    for batch in map(int, given.batches.split(",")):
        seconds, digest = decode(model, batch, given, device)
        digests: list[str | None] = [None] * dist.get_world_size()
        dist.all_gather_object(digests, digest)
        row = {
            "variant": given.variant,
            "model": given.model,
            "ranks": len(digests),
            "batch": batch,
            "us_a_step": round(seconds * 1e6, 1),
            "tokens_a_s": round(batch / seconds, 1),
            "hash": digest,
            "equal_on_ranks": len(set(digests)) == 1,
        }
        if dist.get_rank() == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()
