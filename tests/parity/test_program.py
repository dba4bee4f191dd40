"""What the compiled step costs: collectives counted in the optimised HLO, memory by XLA."""

import re
from collections import Counter

import jax
import pytest
from tiny import batch_of, gradients_of, new_state, tiny_config

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")


def compiled(**fields):
    parallel = {"data": 1, **fields.pop("parallel", {})}
    model = {"num_layers": 8, "num_heads": 8, "embed_dim": 32, **fields.pop("model", {})}
    config = tiny_config(
        model=model, parallel=parallel, train={"steps": 20, "global_batch_size": 64}
    )
    batch = batch_of(rows=64)
    state = new_state(config)
    lowered = gradients_of(config).lower(state.params, batch, state.step)
    return lowered.compile()


def collectives_by_computation(program):
    """computation -> kind -> count of the operations in it."""
    found, computation = {}, ""
    for line in program.as_text().splitlines():
        if header := re.match(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{", line):
            computation = header[1]
        for kind in COLLECTIVES:
            if re.search(rf"= .*\b{kind}(-start)?\(", line):
                found.setdefault(computation, Counter())[kind] += 1
    return found


def test_tensor_parallel_layers_have_two_all_reduces_each_way():
    """Megatron's minimum. The bodies of the scans over layers hold them: one scan each way."""
    found = collectives_by_computation(compiled(parallel={"model": 8}))
    layers = [dict(counts) for counts in found.values() if counts == Counter({"all-reduce": 2})]
    assert len(layers) == 2
    assert set().union(*found.values()) == {"all-reduce"}


@pytest.mark.parametrize(("remat", "recomputed"), [("none", 0), ("layer", 1)])
def test_sequence_parallel_layers_gather_and_scatter(remat, recomputed):
    """Forward 2 all-gathers and 2 reduce-scatters; backward the mirror image and 2 all-gathers.

    The latter are of the inputs of products, for the gradients of kernels: those that were not
    kept, or where the layer is computed again, those of its forward pass, with the reduce-scatter
    between attention and MLP. Never an all-reduce: what peers hold alike adds up its gradient once,
    after the loops.
    """
    parallel = {"model": 8, "sequence": True, "remat": remat}
    found = collectives_by_computation(compiled(parallel=parallel, model={"dropout": 0.1}))
    forward = {"all-gather": 2, "reduce-scatter": 2}
    backward = {"all-gather": 4, "reduce-scatter": 2 + recomputed}
    # Outside, forward and backward: embedding and final hidden states, each once. Reduced are the
    # loss's maximum and sums, the gradients, and their norm.
    outside = {"all-gather": 2, "reduce-scatter": 2, "all-reduce": 4}
    assert [dict(counts) for counts in found.values()] == [forward, backward, outside]


def test_with_stages_too_sequence_parallel_loops_reduce_nothing():
    parallel = {"pipe": 2, "data": 2, "model": 2, "microbatches": 4, "sequence": True}
    found = collectives_by_computation(compiled(parallel=parallel))
    layers = [counts for counts in found.values() if counts["all-gather"] > 1]
    # Warm-up: a unit forward. Steady: one forward, one backward. Drain: one backward.
    assert sorted(counts["all-gather"] for counts in layers) == [2, 2, 4, 4]
    assert not any(counts["all-reduce"] for counts in layers)


def test_data_parallel_adds_gradients_once():
    """No collective inside any loop: all of them are at the end of the step."""
    found = collectives_by_computation(compiled(parallel={"data": 8, "microbatches": 4}))
    assert len(found) == 1
    assert set(*found.values()) == {"all-reduce"}


def test_pipeline_hops_are_one_permute_each_way():
    found = collectives_by_computation(compiled(parallel={"pipe": 8, "microbatches": 16}))
    permutes = sorted(c["collective-permute"] for c in found.values() if c["collective-permute"])
    assert permutes == [1, 1, 2]  # warm-up forward, drain backward, steady both


@pytest.mark.slow
def test_activation_memory_by_schedule():
    """1F1B does not grow with the number of microbatches; GPipe does."""

    def temporary_bytes(schedule, microbatches):
        parallel = {"pipe": 4, "microbatches": microbatches, "schedule": schedule}
        config = tiny_config(
            model={"num_layers": 4, "embed_dim": 32, "seq_length": 64},
            parallel=parallel,
            train={"steps": 20, "global_batch_size": 2 * microbatches},
        )
        state = new_state(config)
        batch = batch_of(rows=2 * microbatches, seq=64)
        program = gradients_of(config).lower(state.params, batch, state.step).compile()
        return program.memory_analysis().temp_size_in_bytes

    flat = [temporary_bytes("1f1b", m) for m in (8, 32)]
    growing = [temporary_bytes("gpipe", m) for m in (8, 32)]
    assert flat[1] < 1.1 * flat[0]
    assert growing[1] > 1.5 * growing[0]


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["none", "layer"])
def test_sequence_parallel_activations_take_less_memory(remat):
    """Eight peers hold under three fifths of the temporaries: what is left is inside the layers."""

    def temporary_bytes(*, sequence):
        config = tiny_config(
            model={"num_layers": 8, "num_heads": 8, "embed_dim": 128, "seq_length": 256},
            parallel={"model": 8, "sequence": sequence, "remat": remat},
            train={"steps": 20, "global_batch_size": 4},
        )
        state, batch = new_state(config), batch_of(rows=4, seq=256)
        program = gradients_of(config).lower(state.params, batch, state.step).compile()
        return program.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(sequence=True) < 0.6 * temporary_bytes(sequence=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "parallel",
    [
        {"interleave": 2},
        pytest.param({"interleave": 2, "sequence": True}, marks=pytest.mark.long),
        {"interleave": 2, "sequence": True, "remat": "layer"},
    ],
    ids=["plain", "sequence", "sequence-remat"],
)
def test_no_hang_at_a_size_that_hangs_without_a_fixed_order(parallel):
    """Independent collectives without an order deadlock XLA:CPU at such sizes."""
    config = tiny_config(
        model={"num_layers": 8, "num_heads": 4, "embed_dim": 128, "seq_length": 128},
        parallel={"pipe": 2, "data": 2, "model": 2, "microbatches": 4, **parallel},
        train={"steps": 20, "global_batch_size": 16},
    )
    state, run = new_state(config), gradients_of(config)
    for seed in range(5):
        jax.block_until_ready(run(state.params, batch_of(seed, rows=16, seq=128), state.step))
