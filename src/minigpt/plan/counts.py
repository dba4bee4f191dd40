"""Parameters that one device holds."""

import math
from dataclasses import dataclass
from functools import lru_cache

from minigpt.config import Config, ModelConfig


@dataclass(frozen=True, kw_only=True)
class Held:
    """Numbers of parameters on one device.

    Attributes:
        layers: of all its layers.
        matrices: of its layers, without norms and biases.
        vocabulary: of the embedding, and of the output projection where it is another.
        rest: positions and the last norm.
        moments: of one of the optimizer's moments.
        whole: of its layers, those that tensor-parallel peers do not split.
        divided: sizes of the arrays whose moments data groups divide, those of layers as one.
    """

    layers: int
    matrices: int
    vocabulary: int
    rest: int
    moments: int
    whole: int
    divided: tuple[int, ...]

    @property
    def total(self) -> int:
        """All of them."""
        return self.layers + self.vocabulary + self.rest


def held_parameters(config: Config, shape: tuple[int, int, int], padded_vocab: int) -> Held:
    """Of a model on a mesh (pipe, data, model), whose embedding has ``padded_vocab`` rows."""
    pipe, data, tensor = shape
    groups = data if config.parallel.zero else 1
    return _held(config.model, pipe, groups, tensor, padded_vocab)


@lru_cache(maxsize=1024)
def _held(model: ModelConfig, pipe: int, groups: int, tensor: int, padded_vocab: int) -> Held:
    """With moments divided over ``groups``."""
    num_layers = model.num_layers // pipe
    of_layer = _layer(model)
    tables = [_Parameter((padded_vocab, model.embed_dim), 0)] * (1 if model.tie_embeddings else 2)
    rest = [_Parameter((model.seq_length, model.embed_dim)), *[_Parameter((model.embed_dim,))] * 2]
    owners = pipe * tensor
    everything = [
        *((p, tensor, num_layers) for p in of_layer),
        *((p, owners, 1) for p in tables),
        *((p, 1, 1) for p in rest),
    ]
    return Held(
        layers=num_layers * sum(p.held(tensor) for p in of_layer),
        matrices=num_layers * sum(p.held(tensor) for p in of_layer if p.is_matrix),
        vocabulary=sum(p.held(owners) for p in tables),
        rest=sum(p.held(1) for p in rest),
        moments=sum(
            times * p.held(parts) // (groups if p.divides(groups) else 1)
            for p, parts, times in everything
        ),
        whole=num_layers * sum(p.held(1) for p in of_layer if p.split is None),
        divided=tuple(times * p.held(parts) for p, parts, times in everything if p.divides(groups)),
    )


@dataclass(frozen=True)
class _Parameter:
    """A parameter's dims, and which of them is split."""

    dims: tuple[int, ...]
    split: int | None = None
    is_matrix: bool = False

    def held(self, parts: int) -> int:
        return math.prod(self.dims) // (1 if self.split is None else parts)

    def divides(self, groups: int) -> bool:
        """Whether a dim that is not split can be divided over data groups."""
        free = (size for dim, size in enumerate(self.dims) if dim != self.split)
        return any(size % groups == 0 for size in free)


def _layer(model: ModelConfig) -> list[_Parameter]:
    """As ``model.gpt`` makes them and ``parallel.sharding`` splits them."""
    embed, hidden, heads, head_dim = (
        model.embed_dim,
        model.hidden_dim,
        model.num_heads,
        model.head_dim,
    )
    return [
        _Parameter((3, heads, head_dim, embed), 1, is_matrix=True),
        _Parameter((3, heads, head_dim), 1),
        _Parameter((embed, heads, head_dim), 1, is_matrix=True),
        _Parameter((hidden, embed), 0, is_matrix=True),
        _Parameter((hidden,), 0),
        _Parameter((embed, hidden), 1, is_matrix=True),
        *[_Parameter((embed,))] * 6,  # two norms, and the biases of both outputs
    ]
