"""The generator against the known answers of its authors (Random123, `kat_vectors`, philox4x32 10)."""

import pytest
import torch

from axograph.capture.philox import philox

_ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((_ONES,) * 4, (_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
@pytest.mark.parametrize("as_tensors", [True, False])
def test_words_are_those_that_the_authors_give(
    counter: tuple[int, ...], key: tuple[int, ...], words: tuple[int, ...], as_tensors: bool
) -> None:
    tensors = tuple(torch.tensor([n]) for n in counter)
    given = tensors if as_tensors else (*tensors[:2], *counter[2:])
    k0, k1 = (torch.tensor(n) for n in key)
    assert tuple(int(word) for word in philox(given, (k0, k1))) == words  # type: ignore[arg-type]
