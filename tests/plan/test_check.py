"""The optimised program takes the memory and exchanges the bytes that the formulas say."""

import pytest
from tiny import tiny_config

from minigpt.plan.check import check

# What a mesh can do, each at least once; the widths keep one layer's arrays from being a trifle.
CASES = [
    {"microbatches": 2, "dropout": 0.1},
    {"data": 8, "microbatches": 2, "zero": 1},
    {"model": 2, "data": 2, "remat": "layer", "compute_dtype": "bfloat16"},
    {"model": 4, "data": 2, "sequence": True, "microbatches": 2},
    {"pipe": 4, "microbatches": 8},
    {"pipe": 4, "microbatches": 8, "compute_dtype": "bfloat16"},
    {"pipe": 2, "data": 2, "microbatches": 4, "dropout": 0.1},
    {"pipe": 2, "data": 2, "model": 2, "microbatches": 4},
    {"pipe": 4, "model": 2, "microbatches": 4, "schedule": "gpipe", "remat": "layer"},
    {"pipe": 2, "data": 2, "model": 2, "microbatches": 2, "interleave": 2, "sequence": True}
    | {"zero": 1, "compute_dtype": "bfloat16"},
]


def checked(*, dropout=0.0, compute_dtype="float32", **mesh):
    config = tiny_config(
        model={
            "num_layers": 8,
            "num_heads": 4,
            "embed_dim": 128,
            "seq_length": 128,
            "dropout": dropout,
        },
        train={"global_batch_size": 32, "compute_dtype": compute_dtype},
        parallel={"data": 1, **mesh},
    )
    return check(config, 1000)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(f"{k}{v}" for k, v in c.items()))
def test_the_program_is_what_the_formulas_say(case):
    found = checked(**case)
    assert found.found == found.traffic
    assert found.memory.total == pytest.approx(
        found.argument_bytes + found.temporary_bytes, rel=0.05
    )
    state = found.memory.parameters + found.memory.optimizer
    assert state == pytest.approx(found.argument_bytes, rel=0.01)  # and the rows
