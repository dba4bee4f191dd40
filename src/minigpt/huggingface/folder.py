"""Folders of a Hugging Face GPT-2: ``config.json``, safetensors and the tokenizer's files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from minigpt.config import ModelConfig
from minigpt.data.tokenizer import Tokenizer, vocabulary_files
from minigpt.errors import CheckpointError, ConfigError
from minigpt.huggingface.tensors import params_of, tensors_of
from minigpt.train.state import Params

_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_EPSILON = 1e-5
_TOKENIZER_OF = {50257: "gpt2", 257: "byte"}
_GELU = ("gelu_new", "gelu_pytorch_tanh")  # two spellings of the same function
_FIXED: dict[str, Any] = {
    "layer_norm_epsilon": _EPSILON,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""What MiniGPT's model does; also what a config.json means that does not say."""


@dataclass(frozen=True)
class Gpt2:
    """A model read from a folder."""

    model: ModelConfig
    tokenizer: str
    """Name of the tokenizer that has as many tokens."""
    params: Params


def read_gpt2(place: Path) -> Gpt2:
    """Read a folder with ``config.json`` and safetensors, or the safetensors file itself.

    Raises:
        CheckpointError: it is not there, cannot be read, or is another kind of model.
    """
    folder = place if place.is_dir() else place.parent
    config = _read_json(folder / "config.json")
    model, vocab_size = _model_of(config, folder / "config.json")
    if vocab_size not in _TOKENIZER_OF:
        known = " and ".join(f"{size} ({name})" for size, name in _TOKENIZER_OF.items())
        raise CheckpointError(
            f"{folder / 'config.json'}: vocab_size is {vocab_size}, but MiniGPT's tokenizers "
            f"have {known} tokens"
        )
    tensors = _read_tensors(folder, None if place.is_dir() else place)
    return Gpt2(model, _TOKENIZER_OF[vocab_size], params_of(tensors, model, vocab_size))


def write_gpt2(folder: Path, params: Params, model: ModelConfig, tokenizer: Tokenizer) -> None:
    """Write what ``transformers`` loads by ``from_pretrained``, tokenizer included.

    Raises:
        ConfigError: there is something in the folder.
        CheckpointError: it cannot be written.
    """
    refuse_overwriting(folder)
    end = tokenizer.end_of_text
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": tokenizer.vocab_size,
        "n_positions": model.seq_length,
        "n_ctx": model.seq_length,
        "n_embd": model.embed_dim,
        "n_layer": model.num_layers,
        "n_head": model.num_heads,
        "n_inner": model.mlp_dim,
        "activation_function": _GELU[0],
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), model.dropout),
        "initializer_range": 0.02,
        **_FIXED,
        "tie_word_embeddings": model.tie_embeddings,
        "use_cache": True,
        "bos_token_id": end,
        "eos_token_id": end,
        "torch_dtype": "float32",
    }
    tokenizer_config = {
        "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": model.seq_length,
        "add_prefix_space": False,
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>"),
    }
    tensors = tensors_of(params, model, tokenizer.vocab_size)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, values in (
            ("config.json", config),
            ("generation_config.json", {"bos_token_id": end, "eos_token_id": end}),
            ("tokenizer_config.json", tokenizer_config),
        ):
            (folder / name).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        for name, content in vocabulary_files(tokenizer).items():
            (folder / name).write_bytes(content)
        # Last, and under its name only when it is whole: without it the folder is no model.
        unfinished = folder / f"{_WEIGHTS}.unfinished"
        save_file(tensors, unfinished, metadata={"format": "pt"})
        unfinished.replace(folder / _WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{str(folder)!r} cannot be written: {error}") from error


def refuse_overwriting(folder: Path) -> None:
    """Raise ``ConfigError`` where there is something in the folder, or in its place."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{str(folder)!r} is not empty, and nothing is overwritten: name another")


def _model_of(config: Mapping[str, Any], file: Path) -> tuple[ModelConfig, int]:
    """The model that a ``config.json`` describes, and its vocabulary."""
    kind = config.get("model_type")
    if kind != "gpt2":
        raise CheckpointError(f"{file}: model_type is {kind!r}, only 'gpt2' can be imported")
    activation = config.get("activation_function", _GELU[0])
    if activation not in _GELU:
        raise CheckpointError(
            f"{file}: activation_function is {activation!r}, MiniGPT has {' or '.join(_GELU)}"
        )
    for name, expected in _FIXED.items():
        if config.get(name, expected) != expected:
            raise CheckpointError(
                f"{file}: {name} is {config[name]!r}, MiniGPT's model has {expected!r}"
            )
    missing = [
        name
        for name in ("n_layer", "n_head", "n_embd", "n_positions", "vocab_size")
        if not isinstance(config.get(name), int)
    ]
    if missing:
        raise CheckpointError(f"{file}: {', '.join(missing)} must be there and whole numbers")
    try:
        model = ModelConfig(
            num_layers=config["n_layer"],
            num_heads=config["n_head"],
            embed_dim=config["n_embd"],
            mlp_dim=config.get("n_inner"),
            seq_length=config["n_positions"],
            dropout=float(config.get("resid_pdrop", 0.1)),
            tie_embeddings=bool(config.get("tie_word_embeddings", True)),
        )
    except ConfigError as error:
        raise CheckpointError(f"{file}: {error}") from error
    return model, config["vocab_size"]


def _read_tensors(folder: Path, file: Path | None) -> dict[str, NDArray[Any]]:
    if file is None and (folder / _INDEX).is_file():
        shards: Mapping[str, str] = _read_json(folder / _INDEX).get("weight_map", {})
        files = [folder / name for name in sorted(set(shards.values()))]
    else:
        files = [file or folder / _WEIGHTS]
    tensors: dict[str, NDArray[Any]] = {}
    for path in files:
        if not path.is_file():
            raise CheckpointError(f"{str(path)!r} is not there")
        try:
            with safe_open(path, framework="numpy") as opened:
                for name in opened.keys():  # noqa: SIM118 - not a mapping
                    tensors[name] = np.asarray(opened.get_tensor(name))
        except (OSError, SafetensorError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"{str(path)!r} cannot be read as safetensors: {error}"
            ) from error
    return tensors


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"{str(file)!r} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{str(file)!r} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{str(file)!r} must hold one JSON object")
    return values
