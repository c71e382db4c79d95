"""Train a small Llama on four ranks, then in one process, and compare the two loss curves.

    python examples/01_train_llama.py                    # launches its own four ranks on this machine
    python examples/01_train_llama.py --grid 2,2,1,1 --steps 50 --text my_book.txt

The model is the unmodified one of `transformers`, built from a configuration with random weights. The text is
Python's own manual, read as bytes: each byte is a token.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pydoc_data.topics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from transformers import LlamaConfig, LlamaForCausalLM

import axograph


def build_model(seed: int) -> LlamaForCausalLM:
    """A Llama of 3.3 million parameters, the same for the same seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def read_tokens(path: Path | None) -> torch.Tensor:
    """The bytes of a file, or of Python's manual, as one long row of tokens."""
    text = path.read_text(encoding="utf-8") if path else "\n".join(pydoc_data.topics.topics.values())
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8).long()


def batches(options: argparse.Namespace) -> Iterator[torch.Tensor]:
    """The global batches, [batch, sequence] each: random windows of the text, the same for the same seed."""
    tokens = read_tokens(options.text)
    generator = torch.Generator().manual_seed(options.seed)
    for _ in range(options.steps):
        starts = torch.randint(len(tokens) - options.sequence, (options.batch,), generator=generator)
        yield torch.stack([tokens[start : start + options.sequence] for start in starts.tolist()])


def train(model: torch.nn.Module, options: argparse.Namespace, report: Callable[[float], None]) -> list[float]:
    """The usual training loop: nothing in it knows whether the model is a distributed one."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for tokens in batches(options):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        report(losses[-1])
    return losses


def train_with_progress(model: torch.nn.Module, options: argparse.Namespace, title: str, quiet: bool) -> list[float]:
    """Train, with a progress bar that shows the loss and the speed since the end of the first step."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[state]}"), disable=quiet) as progress:
        task = progress.add_task(f"{title:<18}", total=options.steps, state="compiling")
        ends: list[float] = []

        def report(loss: float) -> None:
            ends.append(time.perf_counter())
            step_s = (ends[-1] - ends[0]) / max(1, len(ends) - 1)
            speed = f"{options.batch * options.sequence / step_s:,.0f} tokens/s" if step_s else ""
            progress.update(task, advance=1, state=f"loss {loss:.4f}  {speed}")

        return train(model, options, report)


def train_as_rank(options: argparse.Namespace) -> None:
    """One rank of the distributed run; the first writes the losses down."""
    torch.distributed.init_process_group("gloo")
    first = torch.distributed.get_rank() == 0
    model = axograph.parallelize(build_model(options.seed), grid=options.grid)
    losses = train_with_progress(model, options, f"grid {options.grid}", quiet=not first)
    if first:
        options.losses.write_text(json.dumps(losses), encoding="utf-8")
    torch.distributed.destroy_process_group()


def train_on_ranks(options: argparse.Namespace) -> list[float]:
    """Launch this program once per rank, and read the losses that the first rank wrote down."""
    ranks = math.prod(options.grid)
    with tempfile.TemporaryDirectory() as folder:
        losses = Path(folder) / "losses.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [*torchrun, __file__, *sys.argv[1:], f"--losses={losses}"]
        subprocess.run(command, check=True, env={"OMP_NUM_THREADS": "1"} | os.environ)
        return json.loads(losses.read_text(encoding="utf-8"))


def compare(distributed: list[float], plain: list[float]) -> None:
    """Print both curves at a few steps, and the largest difference at any step."""
    print("\n  step  distributed      plain")
    for step in sorted({*range(0, len(plain), max(1, len(plain) // 5)), len(plain) - 1}):
        print(f"{step + 1:>6}  {distributed[step]:>11.6f}  {plain[step]:>9.6f}")
    difference, step = max((abs(a - b), step) for step, (a, b) in enumerate(zip(distributed, plain, strict=True)))
    print(f"largest difference of the losses: {difference:.1e}, at step {step + 1} of {len(plain)}")


def sizes(text: str) -> tuple[int, ...]:
    """The integers of "2,1,2,1"."""
    return tuple(int(size) for size in text.split(","))


def parse_options() -> argparse.Namespace:
    """The command line; `--losses` is how the first rank hands its losses to the program that launched it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=sizes, default="2,1,2,1", help="sizes of x,y,z,data (%(default)s)")
    parser.add_argument("--steps", type=int, default=100, help="training steps (%(default)s)")
    parser.add_argument("--batch", type=int, default=8, help="sequences in a global batch (%(default)s)")
    parser.add_argument("--sequence", type=int, default=128, help="tokens in a sequence (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the weights and the batches (%(default)s)")
    parser.add_argument("--text", type=Path, help="a text to learn, instead of Python's manual")
    parser.add_argument("--losses", type=Path, default=Path(os.devnull), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Launch the ranks and compare; under torchrun, be one of them."""
    options = parse_options()
    if torch.distributed.is_torchelastic_launched():
        train_as_rank(options)
    else:
        distributed = train_on_ranks(options)
        compare(distributed, train_with_progress(build_model(options.seed), options, "one plain process", quiet=False))


if __name__ == "__main__":
    main()
