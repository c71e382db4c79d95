"""The backward products of each matmul."""

from __future__ import annotations

import torch
from torch import nn

from axograph.capture import capture, facts
from axograph.grid import Grid
from axograph.passes.normalize import Normalize
from axograph.passes.sharding.arguments import tensor_arguments
from axograph.passes.sharding.schemes import Scheme
from axograph.passes.sharding.survey import Survey


class Shared(nn.Module):
    """One layer used twice, on square weights: shapes alone do not tell what belongs together."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8, bias=False)
        self.second = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.first(x))
        return torch.relu(self.second(torch.relu(self.first(x)))).sum()


def test_each_backward_product_follows_its_forward_one() -> None:
    program = Normalize().run(capture(Shared(), (torch.ones(8, 8),)))
    survey = Survey(program, Grid(2, 2, 1, 1), Scheme.named(None), {0: 0})
    products = [node for node in survey.nodes if node.target is torch.ops.aten.mm.default]
    backward = [node for node in products if facts(node).phase == "backward"]
    assert len(products) - len(backward) == 3
    assert len(backward) == 5  # the first product's input takes no gradient
    assert set(survey.partners) == set(backward)
    for node, partner in survey.partners.items():
        assert facts(partner.forward).phase == "forward"
        assert facts(partner.forward).path == facts(node).path
        factors = {mine.factor: theirs.factor for mine, theirs in partner.units.items()}
        assert sorted(factors) == sorted(factors.values()) == ["k", "m", "n"]
        # the factor that a backward product sums is one that its result does not have
        summed = next(mine for mine, theirs in factors.items() if theirs == "k")
        assert summed in ("m", "n")
        assert len(tensor_arguments(node)) == 2
