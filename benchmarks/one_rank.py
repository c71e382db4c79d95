"""The cost of compiling for a single rank: training steps on grid (1, 1, 1, 1) against the plain model.

    python benchmarks/one_rank.py                       # all models, against eager
    python benchmarks/one_rank.py --models llama --steps 30
    python benchmarks/one_rank.py --compile             # compile=True against torch.compile

Steps of both are interleaved in one run, so that a noisy machine is noisy for both; the ratio of medians is printed, of
seconds on the clock and of those that this process computed, which other processes disturb less.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import axograph


def llama() -> nn.Module:
    """The Llama of `make demo`: 3.3 million parameters."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=256, hidden_size=256, intermediate_size=768, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=4, use_cache=False,
        )
    )  # fmt: skip


def gpt2(dropout: float = 0.0) -> nn.Module:
    """A GPT-2 of 4 layers of 256 features and a vocabulary of 8192."""
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=8192, n_embd=256, n_layer=4, n_head=8, resid_pdrop=dropout, embd_pdrop=dropout,
            attn_pdrop=dropout, use_cache=False, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


class MLP(nn.Module):
    """Four layers of 1024 features, and their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 1024)
        self.layers = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(4))
        self.norm = nn.LayerNorm(1024)
        self.head = nn.Linear(1024, 256)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(input_ids)
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(self.norm(x)))
        return {"loss": nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())}


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": MLP,
    "gpt2": gpt2,
    "gpt2-dropout": lambda: gpt2(0.1),
    "llama": llama,
}


def step_s(model: nn.Module, optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> tuple[float, float]:
    """Seconds of one training step: on the clock, and computed by this process."""
    start_s = time.perf_counter(), time.process_time()
    loss = model(input_ids=tokens, labels=tokens)["loss"]
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - start_s[0], time.process_time() - start_s[1]


def compare(name: str, options: argparse.Namespace) -> None:
    """Interleave steps of the plain model and ours, and print their medians and ratios."""
    torch.manual_seed(0)
    plain = MODELS[name]()
    ours = axograph.parallelize(copy.deepcopy(plain), grid=(1, 1, 1, 1), compile=options.compile)
    tokens = torch.randint(256, (options.batch, options.sequence))
    runs = [(model, torch.optim.AdamW(model.parameters(), lr=1e-3)) for model in (plain, ours)]
    if options.compile:
        runs[0] = torch.compile(plain), runs[0][1]
    first_s = [step_s(*run, tokens)[0] for run in runs]
    times: list[list[tuple[float, float]]] = [[], []]
    for step in range(options.steps + 2):
        for which in (0, 1) if step % 2 else (1, 0):
            times[which].append(step_s(*runs[which], tokens))
    medians = [[statistics.median(each) for each in zip(*t[2:], strict=True)] for t in times]
    (theirs_s, theirs_cpu_s), (ours_s, ours_cpu_s) = medians
    print(f"{name:<12} {'torch.compile' if options.compile else 'eager'} {theirs_s * 1e3:8.1f} ms   axograph"
          f" {ours_s * 1e3:8.1f} ms   ratio {ours_s / theirs_s:.3f}, of time computed {ours_cpu_s / theirs_cpu_s:.3f}"
          f"   first step {first_s[0]:.1f} and {first_s[1]:.1f} s", flush=True)  # fmt: skip


def main() -> None:
    """Compare each model asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--compile", action="store_true", help="compile=True, against torch.compile of the plain model")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.models:
        compare(name, options)


if __name__ == "__main__":
    main()
