"""Samples of operators that work element by element, with broadcasting."""

from __future__ import annotations

import torch

from tests.passes.sharding.rules.one_operator import booleans, floats, integers, positive, sample

aten = torch.ops.aten

SAMPLES = (
    sample("d0 d1, d0 d1 -> d0 d1; 0 1", aten.add.Tensor, floats(4, 8), floats(4, 8), alpha=2),
    sample("d0 d1 d2, d2 -> d0 d1 d2; 0 1", aten.add.Tensor, floats(4, 2, 8), floats(8)),
    sample("d0 d1 -> d0 d1", aten.add.Tensor, floats(4, 8), 1.5),
    sample("d0 d1, d0 1 -> d0 d1", aten.add.Tensor, integers(9, 4, 8), integers(9, 4, 1)),
    sample("d0 1, 1 d1 -> d0 d1; 0 1", aten.sub.Tensor, floats(4, 1), floats(1, 8)),
    sample("d0 d1, d1 -> d0 d1; 0; 1", aten.mul.Tensor, floats(4, 8), floats(8)),
    sample("d0 d1, d0 d1 -> d0 d1", aten.mul.Tensor, floats(4, 8), booleans(4, 8)),
    sample("d0 d1, d0 1 -> d0 d1; 0; 1", aten.mul.Tensor, floats(24, 2), floats(24, 1), divided={0: (3, 4, 2, 2)}),
    sample("d0 d1 -> d0 d1; 0", aten.mul.Scalar, floats(4, 8), 3),
    sample("d0 d1, d1 -> d0 d1; 0", aten.div.Tensor, floats(4, 8), positive(8)),
    sample("d0 d1 -> d0 d1; 0", aten.div.Scalar, floats(4, 8), 3),
    sample("d0 d1 -> d0 d1; 0", aten.neg.default, floats(4, 8)),
    sample("d0 d1 -> d0 d1", aten.rsub.Scalar, floats(4, 8), 1),
    sample("d0 d1, d1 -> d0 d1", aten.rsub.Tensor, floats(4, 8), floats(8)),
    sample("d0 d1 -> d0 d1", aten.floor_divide.default, integers(99, 4, 8), 3),
    sample("d0 d1 -> d0 d1", aten.pow.Tensor_Scalar, floats(4, 8), 2),
    sample("d0 d1 -> d0 d1", aten.exp.default, floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1", aten.maximum.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1 -> d0 d1", aten.clamp.default, floats(4, 8), 0.0, 1.0),
    sample("d1, d0 1, d0 d1 -> d0 d1", aten.addcmul.default, floats(8), floats(4, 1), floats(4, 8)),
    sample("d0 d1, d0 d1, d0 1 -> d0 d1", aten.lerp.Tensor, floats(4, 8), floats(4, 8), floats(4, 1)),
    sample("d0 d1 -> d0 d1", aten.gelu.default, floats(4, 8), approximate="tanh"),
    sample("d0 d1 -> d0 d1", aten.eq.Scalar, integers(3, 4, 8), 1),
    sample("d0 1, d1 -> d0 d1", aten.le.Tensor, floats(4, 1), floats(8)),
    sample("d0 d1, d1 -> d0 d1", aten.logical_and.default, booleans(4, 8), booleans(8)),
    sample("d0 d1, d0 d1,  -> d0 d1; 1 2", aten.where.self, booleans(4, 8), floats(4, 8), floats()),
    sample("d0 1, d1, d0 d1 -> d0 d1", aten.where.self, booleans(4, 1), integers(9, 8), integers(9, 4, 8)),
    sample("d0 d1, d0 1 -> d0 d1; 0", aten.masked_fill.Scalar, floats(4, 8), booleans(4, 1), 0),
    sample("d0 d1, d1 -> d0 d1", aten.masked_fill.Scalar, floats(4, 8), booleans(8), -1.0),
    sample("d0 d1, d0 d1,  -> d0 d1", aten.masked_fill.Tensor, floats(4, 8), booleans(4, 8), floats()),
    sample("d0 d1 -> d0 d1", aten._to_copy.default, floats(4, 8), dtype=torch.float32, tolerance=1e-6),
    sample(
        "d0 d1 -> d0 d1; 0",
        aten._to_copy.default,
        floats(4, 8, dtype=torch.float32),
        dtype=torch.float64,
        tolerance=1e-6,
    ),
    sample("d0 d1 -> d0 d1", aten._to_copy.default, booleans(4, 8), dtype=torch.float64),
    sample("d0 d1 -> d0 d1", aten.hardswish.default, floats(4, 8)),
    sample("d0 d1 -> d0 d1, d0 d1", aten.log_sigmoid_forward.default, floats(4, 8)),
    sample(
        "d0 d1, d0 d1, d0 d1 -> d0 d1; 0", aten.log_sigmoid_backward.default, floats(4, 8), floats(4, 8), positive(4, 8)
    ),
    sample("d0 d1, 1 d1 -> d0 d1", aten._prelu_kernel.default, floats(4, 8), floats(1, 8)),
    sample(
        "d0 d1, d0 d1, 1 d1 -> d0 d1, d0 d1; 0",
        aten._prelu_kernel_backward.default,
        floats(4, 8),
        floats(4, 8),
        floats(1, 8),
    ),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.elu_backward.default, floats(4, 8), 1.0, 1, 1, False, floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.gelu_backward.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.hardsigmoid_backward.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.hardswish_backward.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.hardtanh_backward.default, floats(4, 8), floats(4, 8), -1.0, 1.0),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.leaky_relu_backward.default, floats(4, 8), floats(4, 8), 0.1, False),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.mish_backward.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.sigmoid_backward.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.silu_backward.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.softplus_backward.default, floats(4, 8), floats(4, 8), 1.0, 20.0),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.tanh_backward.default, floats(4, 8), floats(4, 8)),
    sample("d0 d1, d0 d1 -> d0 d1; 0", aten.threshold_backward.default, floats(4, 8), floats(4, 8), 0),
    sample("d0 ([half] d1) -> d0 d1", aten.glu.default, floats(4, 16)),
    sample("([half] d0) d1 -> d0 d1", aten.glu.default, floats(16, 4), 0),
    sample("d0 d1, d0 ([half] d1) -> d0 ([half] d1); 0", aten.glu_backward.default, floats(4, 8), floats(4, 16), -1),
)
