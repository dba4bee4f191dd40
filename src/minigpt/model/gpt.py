"""GPT-2 (Radford et al. 2019), as Flax NNX modules.

Pre-LayerNorm blocks, learned positions, tanh-approximated GELU, biases everywhere, output
projection tied to the token embedding.

Weights are stored so that every product contracts the last dimension of both operands
(``[out, in]``, or split dimensions that keep the order): gradients of ``[in, out]`` matrices fall
off XLA:CPU's fast path, 2 times slower in float32 and up to 20 in bfloat16.

Numerics: weights are float32. Operands of matrix products are cast to the compute dtype; the
residual stream, norms, activations, softmax and the loss are float32.

Where tensor-parallel peers also divide the sequence, the residual stream and what is computed on it
position by position (norms, dropout, biases) are of the positions held: "own" in the shapes.

Einsum letters: b batch, t position, d embed, c one of q k v, h head, k head dim, f hidden.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, Key

from minigpt.config import ModelConfig
from minigpt.model.attention import attention_with_dropout, causal_attention
from minigpt.model.dropout import dropout, fold, fold_rows
from minigpt.model.loss import cross_entropy_sum
from minigpt.model.peers import ALONE, Peers
from minigpt.model.pointwise import gelu, normalize
from minigpt.model.sizes import padded_vocabulary

INIT_STD = 0.02
FLOAT32 = jnp.dtype(jnp.float32)

LayerParams = Any
"""Parameters of layers: an nnx.State, or nested dictionaries of arrays."""


@dataclass(frozen=True, kw_only=True)
class GPTSpec:
    """A model configuration joined with what the tokenizer and the training step decide."""

    model: ModelConfig
    vocab_size: int
    compute_dtype: jnp.dtype = FLOAT32
    remat: bool = False
    peers: Peers = ALONE
    """The owners of the other slices of the model, where it is split."""

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding: the vocabulary rounded up to a multiple that divides well."""
        return padded_vocabulary(self.vocab_size)


def _param(rngs: nnx.Rngs, shape: tuple[int, ...], std: float) -> nnx.Param[jax.Array]:
    return nnx.Param(std * jax.random.normal(rngs.params(), shape, jnp.float32))


def _zeros(*shape: int) -> nnx.Param[jax.Array]:
    return nnx.Param(jnp.zeros(shape, jnp.float32))


class LayerNorm(nnx.Module):
    """Normalises the last dimension, in float32 (Ba et al. 2016)."""

    def __init__(self, dim: int) -> None:
        """Scale 1 and bias 0."""
        self.scale = nnx.Param(jnp.ones((dim,), jnp.float32))
        self.bias = _zeros(dim)

    def __call__(self, x: Float[Array, "... embed"]) -> Float[Array, "... embed"]:
        """Zero mean and unit variance, then scale and bias."""
        return normalize(x) * self.scale[...] + self.bias[...]


class Attention(nnx.Module):
    """Multi-head self-attention's projections; ``Block`` and decoding put them together."""

    def __init__(self, spec: GPTSpec, rngs: nnx.Rngs) -> None:
        """Normal weights; the output projection's are scaled down with the depth."""
        model = spec.model
        embed, heads, head_dim = model.embed_dim, model.num_heads, model.head_dim
        self.dtype, self.peers = spec.compute_dtype, spec.peers
        self.qkv_kernel = _param(rngs, (3, heads, head_dim, embed), INIT_STD)
        self.qkv_bias = _zeros(3, heads, head_dim)
        self.out_kernel = _param(rngs, (embed, heads, head_dim), _residual_std(model))
        self.out_bias = _zeros(embed)

    @jax.named_scope("projections")
    def qkv(self, x: Float[Array, "batch own embed"]) -> tuple[Array, Array, Array]:
        """Queries, keys and values, each ``[batch, seq, heads, head_dim]`` in compute dtype."""
        kernel = self.qkv_kernel[...].astype(self.dtype)
        qkv = self.peers.enter("btd,chkd->btchk", x.astype(self.dtype), kernel)
        qkv = (qkv + self.qkv_bias[...]).astype(self.dtype)  # its gradient is a float32 sum
        return qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]

    @jax.named_scope("projections")
    def project(self, heads: Float[Array, "batch seq heads head_dim"]) -> Array:
        """Head outputs back to the residual stream, ``[batch, own, embed]`` in float32."""
        kernel = self.out_kernel[...].astype(self.dtype)
        out = self.peers.leave("bthk,dhk->btd", heads.astype(self.dtype), kernel)
        return out + self.out_bias[...]


class MLP(nnx.Module):
    """Two projections with a GELU between them."""

    def __init__(self, spec: GPTSpec, rngs: nnx.Rngs) -> None:
        """Normal weights; the output projection's are scaled down with the depth."""
        embed, hidden = spec.model.embed_dim, spec.model.hidden_dim
        self.dtype, self.peers = spec.compute_dtype, spec.peers
        self.up_kernel = _param(rngs, (hidden, embed), INIT_STD)
        self.up_bias = _zeros(hidden)
        self.down_kernel = _param(rngs, (embed, hidden), _residual_std(spec.model))
        self.down_bias = _zeros(embed)

    @jax.named_scope("projections")
    def __call__(self, x: Float[Array, "batch own embed"]) -> Float[Array, "batch own embed"]:
        """``gelu(x up + b) down + b``, in float32."""
        up, down = (
            self.up_kernel[...].astype(self.dtype),
            self.down_kernel[...].astype(self.dtype),
        )
        hidden = self.peers.enter("btd,fd->btf", x.astype(self.dtype), up)
        hidden = gelu(hidden, self.up_bias[...])
        out = self.peers.leave("btf,df->btd", hidden.astype(self.dtype), down)
        return out + self.down_bias[...]


class Block(nnx.Module):
    """One Transformer layer: attention and MLP, each around a residual connection."""

    def __init__(self, spec: GPTSpec, rngs: nnx.Rngs) -> None:
        """Create the parts."""
        self.dropout_rate, self.peers = spec.model.dropout, spec.peers
        self.attention_norm = LayerNorm(spec.model.embed_dim)
        self.attention = Attention(spec, rngs)
        self.mlp_norm = LayerNorm(spec.model.embed_dim)
        self.mlp = MLP(spec, rngs)

    def __call__(
        self, x: Float[Array, "batch own embed"], keys: Key[Array, " batch"] | None
    ) -> Float[Array, "batch own embed"]:
        """The residual stream after this layer.

        Args:
            x: the residual stream, float32.
            keys: one dropout key for each row, already specific to this layer; None in
                evaluation.
        """
        rate = self.dropout_rate
        q, k, v = self.attention.qkv(self.attention_norm(x))
        if keys is None or rate == 0.0:
            heads = causal_attention(q, k, v)
        else:
            first_head = self.peers.first_head(q.shape[2])
            heads = attention_with_dropout(q, k, v, rate, fold_rows(keys, 0), first_head)
        x = x + dropout(self.attention.project(heads), rate, fold(keys, 1), self.peers)
        return x + dropout(self.mlp(self.mlp_norm(x)), rate, fold(keys, 2), self.peers)


class GPT(nnx.Module):
    """The whole model; ``blocks`` is one ``Block`` whose parameters carry a leading layer axis."""

    def __init__(self, spec: GPTSpec, rngs: nnx.Rngs) -> None:
        """Initialise as GPT-2: normal(0, 0.02), output projections over sqrt(2 x layers)."""
        model = spec.model
        self.spec = spec
        vocab = spec.padded_vocab_size
        self.token_embedding = _param(rngs, (vocab, model.embed_dim), INIT_STD)
        self.position_embedding = _param(rngs, (model.seq_length, model.embed_dim), INIT_STD)
        self.blocks = _stacked_blocks(spec, rngs)
        self.final_norm = LayerNorm(model.embed_dim)
        if not model.tie_embeddings:
            self.output_embedding = _param(rngs, (vocab, model.embed_dim), INIT_STD)

    @jax.named_scope("embedding")
    def embed(
        self, tokens: Int[Array, "batch seq"], positions: Int[Array, "#batch own"]
    ) -> Float[Array, "batch own embed"]:
        """Token plus position embedding, float32; ``positions`` are those of the tokens held."""
        table, peers = self.token_embedding[...], self.spec.peers
        rows = tokens - peers.first_vocab(table.shape[0])
        held = (rows >= 0) & (rows < table.shape[0])
        found = jnp.where(held[..., None], table[jnp.where(held, rows, 0)], 0.0)
        return peers.sum_hidden(found) + self.position_embedding[...][positions]

    def first_hidden(
        self, tokens: Int[Array, "batch seq"], keys: Key[Array, " batch"] | None
    ) -> Float[Array, "batch own embed"]:
        """What enters the first block: embeddings, with dropout where there are keys."""
        peers = self.spec.peers
        x = self.embed(tokens, peers.own(jnp.arange(tokens.shape[1])[None]))
        return dropout(x, self.spec.model.dropout, fold(keys, 0), peers)

    def hidden(
        self, tokens: Int[Array, "batch seq"], keys: Key[Array, " batch"] | None = None
    ) -> Float[Array, "batch own embed"]:
        """Final hidden states after the last norm.

        Args:
            tokens: at most ``seq_length`` token ids in each row.
            keys: one dropout key for each row; None in evaluation.
        """
        graph, layers = nnx.split(self.blocks)

        def layer(x: Array, numbered: tuple[LayerParams, Array]) -> tuple[Array, None]:
            params, number = numbered
            return run_layer(graph, params, x, keys, number, remat=self.spec.remat), None

        numbers = jnp.arange(self.spec.model.num_layers)
        x, _ = jax.lax.scan(layer, self.first_hidden(tokens, keys), (layers, numbers))
        return self.final_norm(x)

    def loss_sum(
        self,
        tokens: Int[Array, "batch row"],
        weights: Float[Array, "batch seq"],
        keys: Key[Array, " batch"] | None = None,
    ) -> Float[Array, ""]:
        """Sum of the weighted cross-entropies of predicting ``tokens[:, 1:]``, in nats."""
        return self.head_loss_sum(self.hidden(tokens[:, :-1], keys), tokens[:, 1:], weights)

    def head_loss_sum(
        self,
        hidden: Float[Array, "batch own embed"],
        targets: Int[Array, "batch seq"],
        weights: Float[Array, "batch seq"],
    ) -> Float[Array, ""]:
        """Sum of the weighted cross-entropies for final hidden states (after the last norm)."""
        x = hidden.astype(self.spec.compute_dtype)
        spec = self.spec
        return cross_entropy_sum(x, self.head_kernel, targets, weights, spec.vocab_size, spec.peers)

    def logits(self, hidden: Float[Array, "... embed"]) -> Float[Array, "... vocab"]:
        """float32 logits of the valid vocabulary for final hidden states."""
        kernel = self.head_kernel.astype(self.spec.compute_dtype)
        logits = jnp.einsum("...d,vd->...v", hidden.astype(self.spec.compute_dtype), kernel)
        return logits[..., : self.spec.vocab_size].astype(jnp.float32)

    @property
    def head_kernel(self) -> Float[Array, "vocab embed"]:
        """The output projection: the token embedding itself where they are tied."""
        tied = self.spec.model.tie_embeddings
        return self.token_embedding[...] if tied else self.output_embedding[...]


def cast_kernels(params: LayerParams, dtype: jnp.dtype) -> LayerParams:
    """The same parameters with the kernels of layers, and nothing else, in a dtype."""

    def cast(path: tuple[Any, ...], leaf: Array) -> Array:
        return leaf.astype(dtype) if str(path[-1].key).endswith("_kernel") else leaf

    return jax.tree_util.tree_map_with_path(cast, params)


def run_layer(
    graph: nnx.GraphDef[Block],
    params: LayerParams,
    x: Float[Array, "batch own embed"],
    keys: Key[Array, " batch"] | None,
    number: int | Array,
    *,
    remat: bool,
) -> Float[Array, "batch own embed"]:
    """The residual stream after one layer.

    Args:
        graph: the block without arrays.
        params: the layer's parameters.
        x: the residual stream before it.
        keys: one dropout key for each row; None in evaluation.
        number: of the layer in the whole model, for its dropout.
        remat: keep only the input for the backward pass, which computes the rest again.
    """

    def layer(params: LayerParams, x: Array, keys: Key[Array, " batch"] | None) -> Array:
        return nnx.merge(graph, params)(x, keys)

    keys = fold(keys, 1 + number)  # 0 is the embedding's dropout
    return (jax.checkpoint(layer) if remat else layer)(params, x, keys)


def _residual_std(model: ModelConfig) -> float:
    return INIT_STD / (2 * model.num_layers) ** 0.5


def _stacked_blocks(spec: GPTSpec, rngs: nnx.Rngs) -> Block:
    @nnx.split_rngs(splits=spec.model.num_layers)
    @nnx.vmap(in_axes=(0,), out_axes=0)
    def create(layer_rngs: nnx.Rngs) -> Block:
        return Block(spec, layer_rngs)

    return create(rngs)
