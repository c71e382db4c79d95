"""Operators that draw random numbers, in terms of the one that makes them from a key, a site and an index.

They are taken apart while a model is captured, at first without key and site; `give_sites` gives each draw both. Those
that draw inside (attention, recurrent layers) are taken apart before.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx

from axograph.capture.program import Input
from axograph.capture.random_numbers import random

aten = torch.ops.aten

DRAW = torch.ops.axograph.random.default
"""The operator that makes random numbers; its first argument is the key, its second the site."""


def _draw(
    shape: Sequence[int], dtype: torch.dtype | None, device: torch.device | None, kind: str, keep: float = 0.0
) -> torch.Tensor:
    """Random numbers that have no site yet."""
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    dtype = dtype if dtype is not None else torch.get_default_dtype()
    device = torch.device(device if device is not None else "cpu")
    made: torch.Tensor = random(None, -1, None, list(shape), strides, kind, keep, dtype, device)
    return made


def _alike(x: torch.Tensor, kind: str) -> torch.Tensor:
    return _draw(x.shape, x.dtype, x.device, kind)


def _kept(x: torch.Tensor, probability: float) -> torch.Tensor:
    """A mask of the shape of a tensor."""
    return _draw(x.shape, torch.bool, x.device, "keep", probability)


# -- dropout ----------------------------------------------------------------------------------------------------------


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> tuple[torch.Tensor, torch.Tensor]:
    """What is kept of a tensor, scaled so that its mean stays, and the mask."""
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    mask = _kept(x, 1 - p)
    return native_dropout_backward(x, mask, 0.0 if p == 1 else 1 / (1 - p)), mask


def native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    """The gradient of what was kept: the same product."""
    return grad * mask * scale


# -- distributions ----------------------------------------------------------------------------------------------------


def bernoulli_p(x: torch.Tensor, p: float = 0.5) -> torch.Tensor:
    """1 with probability p, else 0."""
    return _kept(x, p).to(x.dtype)


def bernoulli(probability: torch.Tensor) -> torch.Tensor:
    """1 with the probability that each element is."""
    return (_alike(probability, "uniform") < probability).to(probability.dtype)


def bernoulli_tensor(x: torch.Tensor, probability: torch.Tensor) -> torch.Tensor:
    """1 with the probabilities of another tensor, in the shape and type of the first."""
    return (_draw(x.shape, probability.dtype, x.device, "uniform") < probability).to(x.dtype)


def uniform(x: torch.Tensor, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """From `low` to `high`, without `high`."""
    return _alike(x, "uniform") * (high - low) + low


def normal(x: torch.Tensor, mean: float = 0.0, std: float = 1.0) -> torch.Tensor:
    """Of this mean and deviation."""
    return _alike(x, "normal") * std + mean


def normal_numbers(mean: float, std: float, size: Sequence[int], **options: Any) -> torch.Tensor:
    """Of this mean and deviation, and this shape."""
    return _draw(size, options.get("dtype"), options.get("device"), "normal") * std + mean


def normal_around(mean: Any, std: Any = 1.0) -> Any:
    """Of means or deviations that are tensors."""
    return _alike(mean + 0 * std, "normal") * std + mean


def exponential(x: torch.Tensor, rate: float = 1.0) -> torch.Tensor:
    """Of this rate. Never 0, as in torch: its logarithm is Gumbel noise."""
    return -torch.log1p(-_alike(x, "uniform")).clamp_max(-torch.finfo(x.dtype).eps / 2) / rate


def log_normal(x: torch.Tensor, mean: float = 1.0, std: float = 2.0) -> torch.Tensor:
    """The exponential of what is normal."""
    return torch.exp(normal(x, mean, std))


def rrelu(
    x: torch.Tensor, noise: torch.Tensor, low: float, high: float, training: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """A slope for each negative element, and the slopes."""
    if not training:
        return torch.nn.functional.leaky_relu(x, (low + high) / 2), noise
    slopes = torch.where(x <= 0, uniform(x, low, high), 1.0)
    return x * slopes, slopes


# -- tensors of a given shape -----------------------------------------------------------------------------------------


def _filled(kind: str) -> Callable[..., torch.Tensor]:
    def fill(size: Sequence[int], *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
        return _draw(size, dtype, device, kind)

    return fill


def _filled_like(kind: str) -> Callable[..., torch.Tensor]:
    def fill(x: torch.Tensor, *, dtype: Any = None, device: Any = None, **_: Any) -> torch.Tensor:
        return _draw(x.shape, dtype or x.dtype, device or x.device, kind)

    return fill


def integers(low: int, high: int, size: Sequence[int], **options: Any) -> Any:
    """From `low` to `high`, without `high`; each as often as 2**32 numbers can be divided."""
    if high - low > 2**32:
        return NotImplemented
    parts = _draw(size, torch.float64, options.get("device"), "uniform")
    return (parts * (high - low)).floor().to(options.get("dtype") or torch.int64) + low


def integers_like(x: torch.Tensor, low: int, high: int, **options: Any) -> Any:
    """The same, in the shape and type of a tensor."""
    given = {name: value for name, value in options.items() if value is not None}
    return integers(low, high, x.shape, **{"dtype": x.dtype, "device": x.device} | given)


def _of_torch(made: Callable[..., Any]) -> Callable[..., Any]:
    """A draw from a generator of the user's own is not taken apart, so that it is refused."""

    @functools.wraps(made)
    def without_generator(*args: Any, generator: Any = None, **kwargs: Any) -> Any:
        return made(*args, **kwargs) if generator is None else NotImplemented

    return without_generator


_DRAWS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout.default: native_dropout,
    aten.bernoulli.p: bernoulli_p,
    aten.bernoulli.default: bernoulli,
    aten.bernoulli.Tensor: bernoulli_tensor,
    aten.uniform.default: uniform,
    aten.normal_functional.default: normal,
    aten.normal.float_float: normal_numbers,
    aten.normal.Tensor_float: normal_around,
    aten.normal.float_Tensor: normal_around,
    aten.normal.Tensor_Tensor: normal_around,
    aten.exponential.default: exponential,
    aten.log_normal.default: log_normal,
    aten.rrelu_with_noise_functional.default: rrelu,
    aten.rand.default: _filled("uniform"),
    aten.randn.default: _filled("normal"),
    aten.rand_like.default: _filled_like("uniform"),
    aten.randn_like.default: _filled_like("normal"),
    aten.randint.default: lambda high, size, **options: integers(0, high, size, **options),
    aten.randint.low: integers,
    aten.randint_like.default: lambda x, high, **options: integers_like(x, 0, high, **options),
    aten.randint_like.low_dtype: integers_like,
}
DRAWS: dict[Any, Callable[..., Any]] = {
    aten.native_dropout_backward.default: native_dropout_backward,
    **{op: _of_torch(made) for op, made in _DRAWS.items()},
}
"""How each operator of aten that draws is taken apart."""


# -- operators that draw inside ---------------------------------------------------------------------------------------


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *args: Any,
    attn_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """Attention step by step, with its weights as a tensor that dropout can take from."""
    mask = mask if mask is not None else attn_mask
    if mask is not None and mask.dtype == torch.bool:  # the operator adds it to the scores
        mask = torch.where(mask, 0.0, -torch.inf).to(query.dtype)
    attended: torch.Tensor = aten._scaled_dot_product_attention_math.default(query, key, value, mask, *args, **kwargs)[
        0
    ]
    return attended


def _recurrent(op: Any) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Recurrent layers one by one. (Torch 2.13 traces several as one operator, and leaves out the dropout between.)"""

    def run(
        x: torch.Tensor,
        state: Any,
        parameters: Sequence[torch.Tensor],
        biased: bool,
        layers: int,
        p: float,
        train: bool,
        *rest: Any,
    ) -> tuple[torch.Tensor, ...]:
        states = state if isinstance(state, list | tuple) else [state]
        each, rows = len(parameters) // layers, states[0].shape[0] // layers
        last: list[Sequence[torch.Tensor]] = []
        for i in range(layers):
            own = [part[i * rows : (i + 1) * rows] for part in states]
            first = own if states is state else own[0]
            x = torch.dropout(x, p, train) if i > 0 else x
            x, *after = op(x, first, parameters[i * each : (i + 1) * each], biased, 1, 0.0, train, *rest)
            last.append(after)
        return (x, *(torch.cat(parts) for parts in zip(*last, strict=True)))

    return run


_INSIDE = {
    aten.scaled_dot_product_attention.default: _attention,
    **{op: _recurrent(op) for op in (aten.lstm.input, aten.gru.input, aten.rnn_tanh.input, aten.rnn_relu.input)},
}


def show_draws(exported: fx.GraphModule) -> fx.GraphModule:
    """Take apart the operators that draw inside, in place."""
    for node in exported.graph.nodes:
        step_by_step = _INSIDE.get(node.target)
        if step_by_step is not None and (_given(node, "dropout_p") or _given(node, "dropout")):
            node.target = step_by_step
    exported.recompile()
    return exported


def _given(node: fx.Node, name: str) -> Any:
    names = [declared.name for declared in node.target._schema.arguments]  # type: ignore[union-attr]
    at = names.index(name) if name in names else len(node.args)
    return node.args[at] if at < len(node.args) else node.kwargs.get(name)


# -- sites ------------------------------------------------------------------------------------------------------------


def declare_key(joint: fx.Graph, graph: fx.Graph) -> tuple[fx.Node | None, list[Input]]:
    """The input that brings the key of a call, where the program draws."""
    draw = next((node for node in joint.nodes if node.target is DRAW), None)
    if draw is None:
        return None, []
    key = graph.placeholder("random_key")
    with getattr(draw.meta["val"], "fake_mode", nullcontext()):
        key.meta["val"] = torch.empty((), dtype=torch.int64, device=draw.meta["val"].device)
    return key, [Input(kind="random", target="key")]


def give_sites(graph: fx.Graph, key: fx.Node | None) -> None:
    """Number the draws of a program in its order, and give them its key."""
    draws = [node for node in graph.nodes if node.target is DRAW]
    for site, node in enumerate(draws):
        node.args = (key, site, *node.args[2:])
