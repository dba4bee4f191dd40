"""The optimised program exchanges what the formula says: each kind, over each axis, each byte."""

import pytest
from tiny import VOCAB, batch_of, gradients_of, new_state, tiny_config

from minigpt.plan.hlo import collectives
from minigpt.plan.traffic import gradient_traffic
from minigpt.train.state import model_spec

MESHES = [
    {"data": 8, "microbatches": 2},
    {"pipe": 8, "microbatches": 8},
    {"pipe": 2, "data": 2, "model": 2, "microbatches": 4, "interleave": 2},
    {"pipe": 4, "model": 2, "microbatches": 4, "schedule": "gpipe", "remat": "layer"},
    {"data": 2, "model": 4, "microbatches": 2, "remat": "layer"},
]


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES, ids=lambda m: "-".join(f"{k}{v}" for k, v in m.items()))
def test_the_program_exchanges_what_the_formula_says(mesh):
    config = tiny_config(
        model={"num_layers": 8, "num_heads": 8, "embed_dim": 32},
        train={"steps": 20, "global_batch_size": 16},
        parallel={"data": 1, **mesh},
    )
    parallel = config.parallel
    state = new_state(config)
    lowered = gradients_of(config).lower(state.params, batch_of(rows=16), state.step)
    found = collectives(lowered.compile().as_text(), condition_holds=parallel.microbatches)
    shape = (parallel.pipe, parallel.data, parallel.model)
    assert found == gradient_traffic(config, shape, model_spec(config, VOCAB).padded_vocab_size)
