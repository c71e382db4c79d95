"""The runtime on real process groups: numbers, stored parameters, and errors on every rank without a hang."""

from typing import Any

import pytest

Found = list[dict[str, Any]]


@pytest.mark.parametrize(
    "scenario",
    ["gpt on x and z", "gpt2 on y and data", "llama on x and y", "mlp on z and data", "gpt fsdp", "odd on x and data"],
)
def test_training_equals_the_unmodified_model(found: Found, scenario: str) -> None:
    for rank in found:
        worst = rank[scenario]["worst"]
        assert {"loss", "gradients", "gradient norm", "parameters"} <= worst.keys()
        assert all(value < 1e-5 for value in worst.values()), worst


@pytest.mark.parametrize("scenario", ["gpt on x and z", "llama on x and y", "gpt fsdp", "odd on x and data"])
def test_parameters_are_sharded_dtensors_under_the_models_names(found: Found, scenario: str) -> None:
    for rank in found:
        assert rank[scenario]["parameters"] == ["DTensor"]
        assert rank[scenario]["sharded"]
        assert rank[scenario]["names"]


def test_outputs_are_dtensors_beside_a_loss_and_full_tensors_without(found: Found) -> None:
    for rank in found:
        assert rank["outputs"]["with loss"] == "DTensor"
        assert rank["outputs"]["without"] == "Tensor"
        assert rank["outputs"]["difference"] < 1e-5
        assert rank["outputs"]["type"] == "CausalLMOutputWithCrossAttentions"


def test_an_optimizer_made_before_the_first_call_trains(found: Found) -> None:
    for rank in found:
        first, *_, last = rank["optimizer made first"]["losses"]
        assert last < first
        assert rank["optimizer made first"] == found[0]["optimizer made first"]


def test_all_ranks_start_from_the_weights_of_rank_0(found: Found) -> None:
    assert all(rank["different start"]["difference"] == 0 for rank in found)


def test_masks_are_those_that_rank_0_draws(found: Found) -> None:
    for rank in found:
        for step in rank["dropout"]["steps"]:
            assert step["difference"] < 1e-6
            assert 0.05 < step["dropped"] < 0.4


def test_reshards_over_groups_equal_the_parts_of_the_whole(found: Found) -> None:
    for rank in found:
        assert len(rank["reshards"]) == 13
        assert set(rank["reshards"].values()) == {0.0}, rank["reshards"]


def test_exchanges_equal_the_collectives_that_they_replace(found: Found) -> None:
    for rank in found:
        assert max(rank["exchanges"]["differences"]) < 1e-12, rank["exchanges"]
        assert rank["exchanges"]["replaced"] == ["reduce_scatter_tensor", "all_to_all_single"]


def test_one_rank_searches_and_all_receive_its_plan(found: Found) -> None:
    assert [rank["one rank searches"]["count"] for rank in found] == [1, 0, 0, 0]
    assert all(rank["one rank searches"]["error"]["kind"] == "none" for rank in found)
    plan = found[0]["one rank searches"]["plan"]
    assert plan["0"].endswith("n/x")
    assert all(rank["one rank searches"]["plan"] == plan for rank in found)
    assert "runner-up: m" in found[0]["one rank searches"]["explained"]
    assert len({rank["one rank searches"]["explained"] for rank in found}) == 1


def test_a_search_that_fails_raises_on_every_rank(found: Found) -> None:
    assert [rank["the search fails"]["count"] for rank in found] == [1, 0, 0, 0]
    errors = [rank["the search fails"]["error"] for rank in found]
    assert [error["kind"] for error in errors] == ["ValueError", *["AgreementError"] * 3]
    assert all("the search fails" in error["text"] and error["time_s"] < 30 for error in errors)


def test_a_grid_of_another_size_is_refused_on_every_rank(found: Found) -> None:
    for rank in found:
        error = rank["world size"]
        assert error["kind"] == "GridError"
        assert "8 ranks and the process group 4" in error["text"]
        assert error["time_s"] < 10


def test_programs_that_differ_are_refused_on_every_rank(found: Found) -> None:
    for rank in found:
        error = rank["different programs"]
        assert error["kind"] == "AgreementError"
        assert "rank 2 compiled another program" in error["text"]
        assert "tanh" in error["text"]
        assert error["time_s"] < 30


def test_a_rank_that_fails_tells_the_others(found: Found) -> None:
    kinds = [rank["one fails"]["kind"] for rank in found]
    assert kinds == ["AgreementError", "CaptureError", "AgreementError", "AgreementError"]
    assert all("only rank 1 fails" in rank["one fails"]["text"] for rank in found)


def test_inputs_that_differ_are_refused_on_every_rank(found: Found) -> None:
    for rank in found:
        error = rank["different inputs"]
        assert error["kind"] == "AgreementError"
        assert "rank 3 passes other inputs" in error["text"]


def test_overlap_changes_no_bit_of_training(found: Found) -> None:
    """Losses, gradients in hooks and after them, and weights of twenty steps, some of them tied."""
    for rank in found:
        assert rank["overlap"]["seen"] == 20 * (1 + 7) + 7
        assert rank["overlap"]["different"] == 0
        assert rank["overlap"]["worst"] < 1e-9


def test_all_ranks_of_a_group_issue_the_same_collectives_in_the_same_order(found: Found) -> None:
    by_rank = [rank["overlap"] for rank in found]
    for way in ("on", "off"):
        groups = {tuple(group) for calls in by_rank for _, group, _ in calls[way]}
        assert len(groups) >= 4
        for group in groups:
            orders = [[call for call in by_rank[rank][way] if tuple(call[1]) == group] for rank in group]
            assert orders == [orders[0]] * len(group)
    for calls in by_rank:
        assert calls["on"] != calls["off"]
        assert sorted(calls["on"]) == sorted(calls["off"])


def test_compiled_compute_changes_neither_numbers_nor_the_order_of_collectives(found: Found) -> None:
    for rank in found:
        assert rank["compiled"]["worst"] < 1e-12
        assert len(rank["compiled"]["with"]) >= 8
        assert rank["compiled"]["with"] == rank["compiled"]["without"]


def test_the_program_does_not_depend_on_the_hashes_of_strings(found: Found) -> None:
    assert len({rank["each searches"]["hash"] for rank in found}) == 4
