"""Blocks of real size to schedule: the halves of models of one layer, on meta tensors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import transformers
from torch import nn

import axograph
from axograph.capture.program import Program
from axograph.grid import Grid
from tests.zoo import GPT, MLP

Axes = tuple[int, int, int, int]


@dataclass(frozen=True)
class Block:
    """A model of one layer on a grid."""

    name: str
    grid: Axes
    scheme: str | None = None

    def halves(self) -> list[tuple[str, Program]]:
        """The halves before scheduling, by name; in one chunk, so that the optimum can be proven."""
        with torch.device("meta"):
            model = _model(self.name).to(torch.bfloat16)
            if isinstance(model, MLP):
                inputs = {"x": torch.empty(16, 2048, model.up.in_features, dtype=torch.bfloat16)}
            else:
                tokens = torch.empty(16, 2048, dtype=torch.int64)
                inputs = {"input_ids": tokens, "labels": tokens}
        module = axograph.parallelize(
            model, self.grid, scheme=self.scheme, chunks=1, sample_inputs=inputs, pipeline=_unscheduled
        )
        forward = module.stages["split"].program
        assert forward.backward is not None
        title = f"{self.name} {'x'.join(map(str, self.grid))} {self.scheme or 'search'}"
        return [(f"{title} forward", forward), (f"{title} backward", forward.backward)]

    @property
    def axes(self) -> Grid:
        return Grid(*self.grid)


def _unscheduled(passes: list) -> list:  # type: ignore[type-arg]
    return [step for step in passes if step.name != "schedule"]


def _model(name: str) -> nn.Module:
    kind, _, size = name.partition("-")
    features = int(size)
    if kind == "mlp":
        return MLP(features=features, hidden=4 * features)
    if kind == "gpt":
        return GPT(features=features, heads=16, layers=1, length=2048)
    if kind == "llama":
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                hidden_size=features, intermediate_size=11 * features // 4, num_hidden_layers=1, num_attention_heads=32,
                num_key_value_heads=8, vocab_size=32000, use_cache=False,
            )
        )  # fmt: skip
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            hidden_size=features, intermediate_size=4 * features, num_hidden_layers=1, num_attention_heads=16,
            max_position_embeddings=2048, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


BLOCKS = (
    Block("gpt-4096", (2, 2, 2, 2), "axonn"),
    Block("gpt-4096", (2, 2, 2, 2)),
    Block("gpt-8192", (4, 2, 2, 1), "axonn"),
    Block("gpt-2048", (2, 1, 4, 1), "axonn"),
    Block("gpt-4096", (4, 1, 1, 2)),
    Block("gpt-4096", (1, 1, 8, 2), "axonn"),
    Block("llama-4096", (2, 2, 2, 2)),
    Block("llama-4096", (1, 4, 2, 2), "axonn"),
    Block("bert-1024", (2, 2, 1, 2)),
    Block("mlp-8192", (2, 2, 2, 2), "axonn"),
    Block("mlp-8192", (4, 1, 4, 1)),
)
