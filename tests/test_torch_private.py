"""The private parts of torch are where we expect them."""

import pytest
import torch

from axograph import torch_private


def test_every_private_name_still_works() -> None:
    assert torch_private.self_test() == []


def test_the_tested_release_is_the_installed_one() -> None:
    assert torch.__version__.startswith(torch_private.TESTED_TORCH + ".")


def test_a_name_that_goes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._functorch._aot_autograd import descriptors

    monkeypatch.delattr(descriptors, "GradAOTOutput")
    assert torch_private.self_test() == ["descriptors has no GradAOTOutput"]
