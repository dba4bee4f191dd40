"""Between MiniGPT's parameters and the tensors of a Hugging Face GPT-2.

GPT-2's linear layers keep their weights as ``[in, out]``, MiniGPT as ``[out, in]`` with the heads
told apart; everything else has the same numbers in the same order.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minigpt.config import ModelConfig
from minigpt.errors import CheckpointError
from minigpt.model.sizes import padded_vocabulary
from minigpt.train.state import Params

Tensors = Mapping[str, NDArray[Any]]

PREFIX = "transformer."
"""Before every name but the head's where the tensors are those of a language model."""

_BUFFERS = (".attn.bias", ".attn.masked_bias")  # the causal mask that older versions saved
_NUM_LISTED = 4


@dataclass(frozen=True)
class _Tensor:
    """Where a tensor belongs."""

    path: tuple[str, ...]
    """Of the parameter; of one layer, within ``blocks``."""
    shape: tuple[int, ...]
    """As GPT-2 has it."""
    ours: tuple[int, ...]
    transposed: bool = False

    def load(self, tensor: NDArray[Any]) -> NDArray[np.float32]:
        """As MiniGPT has it."""
        tensor = tensor.astype(np.float32)
        return (tensor.T if self.transposed else tensor).reshape(self.ours)

    def save(self, parameter: NDArray[np.float32]) -> NDArray[np.float32]:
        """As GPT-2 has it."""
        if self.transposed:
            return np.ascontiguousarray(parameter.reshape(self.shape[::-1]).T)
        return parameter.reshape(self.shape)


def params_of(tensors: Tensors, model: ModelConfig, vocab_size: int) -> Params:
    """MiniGPT's parameters, float32, with layers ``[layers, ...]`` and a padded vocabulary.

    Raises:
        CheckpointError: tensors are missing, unknown or of another shape; the message names them.
    """
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in tensors.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if not name.endswith(_BUFFERS)}
    if model.tie_embeddings and "lm_head.weight" in tensors and "wte.weight" in tensors:
        head = tensors.pop("lm_head.weight")
        if not np.array_equal(head, tensors["wte.weight"]):
            raise CheckpointError(
                "lm_head.weight differs from wte.weight, but tie_word_embeddings is true in "
                "config.json: it must be false for them to be two parameters"
            )
    whole, layer = _whole(model, vocab_size), _layer(model)
    expected = {name: tensor.shape for name, tensor in whole.items()}
    for number in range(model.num_layers):
        expected |= {f"h.{number}.{name}": tensor.shape for name, tensor in layer.items()}
    _check(expected, {name: tensor.shape for name, tensor in tensors.items()})

    params: Params = {}
    padding = padded_vocabulary(vocab_size) - vocab_size
    for name, tensor in whole.items():
        parameter = tensor.load(tensors[name])
        if tensor.path[-1] in ("token_embedding", "output_embedding"):
            parameter = np.pad(parameter, ((0, padding), (0, 0)))
        _put(params, tensor.path, parameter)
    for name, tensor in layer.items():
        layers = range(model.num_layers)
        stacked = np.stack([tensor.load(tensors[f"h.{number}.{name}"]) for number in layers])
        _put(params, ("blocks", *tensor.path), stacked)
    return params


def tensors_of(params: Params, model: ModelConfig, vocab_size: int) -> dict[str, NDArray[Any]]:
    """The tensors of a ``GPT2LMHeadModel``, without the padding of the vocabulary."""
    tensors: dict[str, NDArray[Any]] = {}
    for name, tensor in _whole(model, vocab_size).items():
        parameter = np.asarray(_get(params, tensor.path))[: tensor.shape[0]]
        tensors[name if name.startswith("lm_head") else PREFIX + name] = tensor.save(parameter)
    for name, tensor in _layer(model).items():
        stacked = np.asarray(_get(params, ("blocks", *tensor.path)))
        for number in range(model.num_layers):
            tensors[f"{PREFIX}h.{number}.{name}"] = tensor.save(stacked[number])
    return tensors


def _whole(model: ModelConfig, vocab_size: int) -> dict[str, _Tensor]:
    """Tensors that are there once."""
    embed = model.embed_dim
    words, norm = (vocab_size, embed), (embed,)
    positions = (model.seq_length, embed)
    tensors = {
        "wte.weight": _Tensor(("token_embedding",), words, words),
        "wpe.weight": _Tensor(("position_embedding",), positions, positions),
        "ln_f.weight": _Tensor(("final_norm", "scale"), norm, norm),
        "ln_f.bias": _Tensor(("final_norm", "bias"), norm, norm),
    }
    if not model.tie_embeddings:
        tensors["lm_head.weight"] = _Tensor(("output_embedding",), words, words)
    return tensors


def _layer(model: ModelConfig) -> dict[str, _Tensor]:
    """Tensors of each layer."""
    hidden, norm = (model.hidden_dim,), (model.embed_dim,)
    heads = (model.num_heads, model.head_dim)

    def linear(
        theirs: str, module: str, name: str, into: tuple[int, ...], out: tuple[int, ...]
    ) -> dict[str, _Tensor]:
        """A weight and a bias."""
        shape, weight = (math.prod(into), math.prod(out)), (module, f"{name}_kernel")
        return {
            f"{theirs}.weight": _Tensor(weight, shape, (*out, *into), transposed=True),
            f"{theirs}.bias": _Tensor((module, f"{name}_bias"), shape[1:], out),
        }

    return {
        "ln_1.weight": _Tensor(("attention_norm", "scale"), norm, norm),
        "ln_1.bias": _Tensor(("attention_norm", "bias"), norm, norm),
        **linear("attn.c_attn", "attention", "qkv", norm, (3, *heads)),
        **linear("attn.c_proj", "attention", "out", heads, norm),
        "ln_2.weight": _Tensor(("mlp_norm", "scale"), norm, norm),
        "ln_2.bias": _Tensor(("mlp_norm", "bias"), norm, norm),
        **linear("mlp.c_fc", "mlp", "up", norm, hidden),
        **linear("mlp.c_proj", "mlp", "down", hidden, norm),
    }


def _check(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]) -> None:
    faults = [
        f"{what}: {_listed(names)}"
        for what, names in (
            ("missing", [name for name in expected if name not in found]),
            ("unknown", [name for name in found if name not in expected]),
            (
                "of another shape",
                [
                    f"{name} is {found[name]}, should be {expected[name]}"
                    for name in expected
                    if name in found and found[name] != expected[name]
                ],
            ),
        )
        if names
    ]
    if faults:
        raise CheckpointError(
            "these are not the tensors of the GPT-2 that config.json describes; "
            + "; ".join(faults)
        )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _NUM_LISTED
    return ", ".join(names[:_NUM_LISTED]) + (f" and {more} more" if more > 0 else "")


def _put(params: Params, path: tuple[str, ...], parameter: NDArray[np.float32]) -> None:
    for name in path[:-1]:
        params = params.setdefault(name, {})
    params[path[-1]] = parameter


def _get(params: Params, path: tuple[str, ...]) -> Any:  # noqa: ANN401 - an array
    value: Any = params
    for name in path:
        value = value[name]
    return value
