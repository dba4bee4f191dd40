"""The compiled programs of generation: prompts in one pass, and one token for every row."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Bool, Int

from minigpt.generate.sampling import Drawn, Settings, draw
from minigpt.model.decode import (
    Cache,
    decode_step,
    decoding_params,
    decoding_spec,
    empty_cache,
    prefill,
    write_rows,
)
from minigpt.model.gpt import GPT, GPTSpec
from minigpt.train.state import Params, model_graph


class Texts(NamedTuple):
    """What lies on the devices of the texts in the rows."""

    cache: Cache
    seen: Bool[Array, "rows vocab"]
    """Tokens that the text of each row has."""


class Draws(NamedTuple):
    """How the next token of each row of a batch is to be drawn.

    Its key comes from the seed, the number of the text and how many tokens that has drawn before:
    what else is in the batch has no influence.
    """

    seeds: Int[Any, " batch"]
    numbers: Int[Any, " batch"]
    steps: Int[Any, " batch"]
    settings: Settings


class Prompts(NamedTuple):
    """What is to be read into rows.

    Attributes:
        rows: where each prompt goes; those beyond the last only fill up the batch.
        tokens: padded at the end.
        lengths: of each prompt, at least 1.
        seen: tokens that each whole text has, of which the prompt may be the end.
    """

    rows: Int[Any, " batch"]
    tokens: Int[Any, "batch width"]
    lengths: Int[Any, " batch"]
    seen: Bool[Any, "batch vocab"]


class Programs:
    """The programs of one model, compiled once for each shape they are called with.

    On a mesh, heads, hidden units and vocabulary stay divided as the parameters are, and what is
    computed from them follows; the rows of the cache are divided over ``data`` where it divides
    them.
    """

    def __init__(self, spec: GPTSpec, mesh: Mesh | None, rows: int) -> None:
        """Compile nothing yet.

        Args:
            spec: the model.
            mesh: where its parameters lie; None: on one device.
            rows: texts that are continued together.
        """
        self.rows, self.window = rows, spec.model.seq_length
        graph = model_graph(decoding_spec(spec))
        texts, everywhere = None, None
        if mesh is not None:
            by_data = "data" if rows % mesh.shape["data"] == 0 else None
            cache: Any = NamedSharding(mesh, P(None, by_data, "model"))
            everywhere: Any = NamedSharding(mesh, P())
            texts = Texts(Cache(cache, cache), everywhere)
        self.ready = jax.jit(partial(decoding_params, spec))
        """Parameters as the other programs take them."""
        self.empty = jax.jit(partial(_empty, spec, rows), out_shardings=texts)
        compiled = partial(jax.jit, donate_argnums=1, out_shardings=(texts, everywhere))
        self.prefill = compiled(partial(_prefill, graph))
        """As ``_prefill`` without the graph; consumes the texts."""
        self.decode = compiled(partial(_decode, graph), static_argnames="visible")
        """As ``_decode`` without the graph; consumes the texts."""


def _empty(spec: GPTSpec, rows: int) -> Texts:
    return Texts(empty_cache(spec, rows), jnp.zeros((rows, spec.vocab_size), bool))


def _prefill(
    graph: nnx.GraphDef[GPT], params: Params, texts: Texts, prompts: Prompts, draws: Draws
) -> tuple[Texts, Drawn]:
    """Put prompts into rows, and draw the next token of each."""
    rows, tokens, lengths, seen = prompts
    logits, prefilled = prefill(nnx.merge(graph, params), tokens, lengths)
    drawn = draw(logits, seen, _keys(draws), draws.settings)
    seen = seen.at[jnp.arange(tokens.shape[0]), drawn.tokens].set(True)
    cache = write_rows(texts.cache, rows, prefilled)
    return Texts(cache, texts.seen.at[rows].set(seen, mode="drop")), drawn


def _decode(
    graph: nnx.GraphDef[GPT],
    params: Params,
    texts: Texts,
    tokens: Int[Array, " batch"],
    positions: Int[Array, " batch"],
    draws: Draws,
    *,
    visible: int,
) -> tuple[Texts, Drawn]:
    """Draw the token after ``tokens``, which stand at ``positions`` of the first rows.

    Shapes and ``visible`` as in ``decode_step``.
    """
    model = nnx.merge(graph, params)
    logits, cache = decode_step(model, tokens, positions, texts.cache, visible)
    batch = tokens.shape[0]
    drawn = draw(logits, texts.seen[:batch], _keys(draws), draws.settings)
    seen = texts.seen.at[jnp.arange(batch), drawn.tokens].set(True)
    return Texts(cache, seen), drawn


def _keys(draws: Draws) -> Array:
    def key(seed: Array, number: Array, step: Array) -> Array:
        return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), number), step)

    return jax.vmap(key)(draws.seeds, draws.numbers, draws.steps)
