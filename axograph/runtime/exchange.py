"""Collectives over gloo as one exchange between ranks, where that is quicker than gloo's own.

Measured with torch 2.13, two hosts, 16 MiB at 200 Mbit/s: gloo's reduce-scatter sends as much as an all-reduce, its
all-gather fills 64 % of a link and its all-to-all 49 %. Here each rank sends every other one the part that this one
needs, straight from where it lies: the least bytes, 94 to 97 % of the link, in one round, in the order of the starts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from axograph.torch_private import collective_op

MOST_RANKS = {
    "all_reduce": 2,
    "all_gather_into_tensor": 2,
    "reduce_scatter_tensor": 6,
    "all_to_all_single": 64,
}
"""The largest group in which an exchange is no slower. A larger one would send the same bytes more than once over the
links between hosts of several ranks, where rings do so less: each rank to each, against neighbour to neighbour."""

_REDUCTIONS: dict[str, Callable[..., torch.Tensor]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}

_FIRST_TAG, _TAGS = 2**30, 2**30
"""Tags of messages: far from those of the user's own messages on the same group."""


@dataclass(slots=True)
class Pending:
    """An exchange under way. It holds what is sent."""

    works: list[dist.Work]
    sent: torch.Tensor
    received: Callable[[], torch.Tensor]
    """The result, once all has arrived."""


def wait(pending: Pending) -> torch.Tensor:
    """The result of an exchange."""
    for work in pending.works:
        work.wait()
    return pending.received()


def over_gloo(group: dist.ProcessGroup, device: torch.device) -> bool:
    """Whether tensors on this device travel over gloo, from the memory of the host."""
    return device.type == "cpu" and "cpu:gloo" in dist.get_backend_config(group)


class Exchange:
    """Collectives of one process group, with the arguments of the functional ones but the group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.count = dist.get_world_size(group)
        self._messages = itertools.count()
        made: dict[str, Callable[..., Pending]] = {
            "all_reduce": self.all_reduce,
            "all_gather_into_tensor": self.all_gather,
            "reduce_scatter_tensor": self.reduce_scatter,
            "all_to_all_single": self.all_to_all,
        }
        self._quicker = {collective_op(name): made[name] for name, most in MOST_RANKS.items() if self.count <= most}

    def instead_of(self, op: Any, arguments: Sequence[Any]) -> Callable[..., Pending] | None:
        """What replaces a collective with these arguments; None where gloo's own is as good."""
        reduction = arguments[1] if isinstance(arguments[1], str) else "sum"
        return self._quicker.get(op) if reduction in _REDUCTIONS else None

    def all_reduce(self, sent: torch.Tensor, reduction: str) -> Pending:
        """The tensors of all ranks, reduced in the order of ranks."""
        sent = sent.contiguous()
        return self._reduced([sent] * self.count, sent, reduction)

    def reduce_scatter(self, sent: torch.Tensor, reduction: str, count: int) -> Pending:
        """This rank's part, along dim 0, of the tensors of all ranks, reduced in the order of ranks."""
        sent = sent.contiguous()
        return self._reduced(sent.chunk(count), sent, reduction)

    def all_gather(self, sent: torch.Tensor, count: int) -> Pending:
        """The tensors of all ranks one after the other along dim 0."""
        whole = sent.new_empty((count * sent.shape[0], *sent.shape[1:]))
        return self._exchanged([sent.contiguous()] * count, whole.chunk(count), whole)

    def all_to_all(self, sent: torch.Tensor, got: Sequence[int], given: Sequence[int]) -> Pending:
        """From every rank the part, along dim 0, that it has for this one; sizes of the parts by rank."""
        whole = sent.new_empty((sum(got), *sent.shape[1:]))
        return self._exchanged(sent.contiguous().split_with_sizes(given), whole.split_with_sizes(got), whole)

    def _reduced(self, parts: Sequence[torch.Tensor], sent: torch.Tensor, reduction: str) -> Pending:
        own, reduce = parts[self.rank], _REDUCTIONS[reduction]
        theirs = [own if rank == self.rank else own.new_empty(own.shape) for rank in range(self.count)]

        def received() -> torch.Tensor:
            total = reduce(theirs[0], theirs[1], out=theirs[1 if self.rank == 0 else 0])
            for part in theirs[2:]:
                total = reduce(total, part, out=total)
            return total

        return Pending(self._messages_of(parts, theirs), sent, received)

    def _exchanged(self, parts: Sequence[torch.Tensor], places: Sequence[torch.Tensor], whole: torch.Tensor) -> Pending:
        works = self._messages_of(parts, places)
        places[self.rank].copy_(parts[self.rank])
        return Pending(works, parts[0], lambda: whole)

    def _messages_of(self, given: Sequence[torch.Tensor], taken: Sequence[torch.Tensor]) -> list[dist.Work]:
        """Send to every other rank, and receive from it.

        Receives come first: gloo tells the sender of each over the connection that it sends on, and behind a message
        on its way there the two directions would take turns.
        """
        tag = _FIRST_TAG + next(self._messages) % _TAGS
        others = [(self.rank + step) % self.count for step in range(1, self.count)]
        works = [dist.irecv(taken[r], group=self.group, group_src=r, tag=tag) for r in reversed(others)]
        works += [dist.isend(given[r], group=self.group, group_dst=r, tag=tag) for r in others]
        return [work for work in works if work is not None]
