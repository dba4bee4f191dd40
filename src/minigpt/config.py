"""What a run is: frozen dataclasses that refuse values which cannot work.

Plain Python on purpose: reading a configuration must not start an accelerator runtime.
Rules about one group are checked in that group, rules that join groups in ``Config``.
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from minigpt.config_parallel import ClusterConfig, ParallelConfig
from minigpt.config_rules import (
    at_least,
    divides,
    fraction,
    nearest_divisor,
    nearest_multiples,
    require,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunConfig:
    """Where a run lives, and what to do when it exists already."""

    name: str = "mini"
    """Name of the run: its files are under DIRECTORY/NAME."""
    directory: str = "runs"
    """Folder of all runs; tokenised corpora are kept in its .tokens folder, compiled programs in
    .compiled."""
    resume: Literal["auto", "never", "must"] = "auto"
    """auto: continue from the newest checkpoint if there is one; never: refuse a run that has
    checkpoints; must: refuse a run that has none."""
    wandb_project: str | None = None
    """Project of Weights & Biases to send metrics and samples to (extra wandb); none: nothing."""

    def __post_init__(self) -> None:
        """Refuse names that would leave the folder of runs."""
        require(
            bool(self.name) and "/" not in self.name and not self.name.startswith("."),
            f"run.name must be a plain folder name that does not start with a dot, "
            f"got {self.name!r}: for example 'mini', and use run.directory for the path",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What text is trained on, and how it becomes rows of tokens."""

    path: str | None = None
    """A UTF-8 text file, a folder of them or a glob; none: the generated sample corpus."""
    tokenizer: Literal["gpt2", "byte"] = "gpt2"
    """gpt2: the 50257 tokens of GPT-2; byte: 256 bytes and end-of-text."""
    max_stories: int | None = None
    """Stop reading after this many stories."""
    val_fraction: float = 0.02
    """Share of the stories that is set aside for validation; 0: none."""
    shuffle: bool = True
    """Visit the rows of each epoch in a new pseudo-random order."""
    layout: Literal["packed", "padded"] = "packed"
    """packed: stories joined and cut into rows; padded: one story in each row."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "data", 1, "max_stories")
        fraction(self, "data", "val_fraction")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The size of the GPT-2 model."""

    num_layers: int = 4
    """Transformer blocks."""
    num_heads: int = 4
    """Attention heads in each block; divides embed_dim."""
    embed_dim: int = 128
    """Width of the residual stream."""
    mlp_dim: int | None = None
    """Hidden units of each MLP; none: 4 x embed_dim."""
    seq_length: int = 64
    """Tokens the model sees at once."""
    dropout: float = 0.0
    """Share of activations dropped in training."""
    tie_embeddings: bool = True
    """Use the token embedding as the output projection too, as GPT-2 does."""

    def __post_init__(self) -> None:
        """Check sizes and that heads divide the width."""
        at_least(self, "model", 1, "num_layers", "num_heads", "embed_dim", "mlp_dim")
        at_least(self, "model", 2, "seq_length")
        fraction(self, "model", "dropout")
        require(
            self.embed_dim % self.num_heads == 0,
            f"model.num_heads must divide model.embed_dim: {self.embed_dim} is not divisible "
            f"by {self.num_heads}; the nearest number of heads that works is "
            f"{nearest_divisor(self.embed_dim, self.num_heads)}",
        )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.embed_dim // self.num_heads

    @property
    def hidden_dim(self) -> int:
        """Hidden units of each MLP."""
        return 4 * self.embed_dim if self.mlp_dim is None else self.mlp_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerConfig:
    """AdamW and its learning-rate schedule."""

    learning_rate: float = 2e-3
    """Highest learning rate, reached after the warm-up."""
    min_learning_rate: float = 2e-4
    """Learning rate at the last step."""
    warmup_steps: int = 20
    """Steps over which the learning rate rises linearly."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate falls after the warm-up."""
    weight_decay: float = 0.1
    """Decoupled weight decay, on matrices only."""
    beta1: float = 0.9
    """Decay of AdamW's mean of gradients."""
    beta2: float = 0.95
    """Decay of AdamW's mean of squared gradients."""
    clip_norm: float = 1.0
    """Largest norm of the whole gradient; 0: no clipping."""

    def __post_init__(self) -> None:
        """Check each field and that the learning rate does not rise at the end."""
        require(
            math.isfinite(self.learning_rate) and self.learning_rate > 0,
            f"optimizer.learning_rate must be above 0 and finite, got {self.learning_rate}: "
            "3e-4 to 3e-3 suits small models",
        )
        at_least(
            self,
            "optimizer",
            0,
            "min_learning_rate",
            "warmup_steps",
            "weight_decay",
            "clip_norm",
        )
        fraction(self, "optimizer", "beta1", "beta2")
        require(
            self.min_learning_rate <= self.learning_rate,
            f"optimizer.min_learning_rate must not exceed optimizer.learning_rate: "
            f"{self.min_learning_rate} > {self.learning_rate}; use "
            f"{self.learning_rate / 10:g}, a tenth of it",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How long to train and what to write on the way."""

    steps: int = 500
    """Optimizer steps in all."""
    global_batch_size: int = 8
    """Sequences in each step, over all devices and microbatches."""
    seed: int = 0
    """Seed of the weights, of the order of rows and of dropout."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Type of the operands of matrix products; weights and sums stay in float32."""
    log_every: int = 20
    """Steps between metrics."""
    eval_every: int = 100
    """Steps between evaluations on the validation rows; 0: none."""
    eval_rows: int = 256
    """Most validation rows an evaluation reads, always the same, evenly spaced; 0: all."""
    sample_every: int = 250
    """Steps between text samples; 0: none."""
    target_loss: float | None = None
    """Stop when the validation loss is this low."""
    peak_flops: float | None = None
    """FLOP/s one device can do in compute_dtype, for MFU; none: the data sheet where known."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "train", 1, "steps", "global_batch_size", "log_every")
        at_least(self, "train", 0, "seed", "eval_every", "eval_rows", "sample_every", "target_loss")
        require(
            self.seed < 2**32,
            f"train.seed must be below 2**32, got {self.seed}",
        )
        require(
            self.peak_flops is None or 0 < self.peak_flops < math.inf,
            f"train.peak_flops must be above 0 and finite, got {self.peak_flops}: for example "
            "312e12 for an A100 in bfloat16",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    """When to save and how many checkpoints to keep."""

    every: int = 100
    """Steps between checkpoints; the last step is always saved. 0: only the last."""
    keep: int = 3
    """Newest checkpoints that are kept."""

    def __post_init__(self) -> None:
        """Check each field by itself."""
        at_least(self, "checkpoint", 0, "every")
        at_least(self, "checkpoint", 1, "keep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """Everything that decides a training run."""

    run: RunConfig = field(default_factory=RunConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)

    def __post_init__(self) -> None:
        """Check the rules that join groups."""
        _check_division(self)
        _check_devices(self)
        require(
            self.train.target_loss is None
            or (self.train.eval_every > 0 and self.data.val_fraction > 0),
            f"train.target_loss is a validation loss and needs an evaluation: it is "
            f"{self.train.target_loss} with train.eval_every {self.train.eval_every} and "
            f"data.val_fraction {self.data.val_fraction}; set both above 0",
        )


def _check_division(config: Config) -> None:
    """The batch, the layers and each layer must be divisible as the mesh divides them."""
    model, parallel, batch = config.model, config.parallel, config.train.global_batch_size
    batch_name, pieces = "train.global_batch_size", parallel.microbatches
    divides(
        "parallel.microbatches",
        (pieces,),
        batch_name,
        batch,
        works=lambda: f"number of microbatches that works is {nearest_divisor(batch, pieces)}",
    )
    groups = max(1, parallel.data)
    divides(
        "parallel.data x parallel.microbatches",
        (groups, pieces),
        batch_name,
        batch,
        works=lambda: f"that works is {nearest_multiples(batch, groups * pieces)}",
    )
    names, chunks = "parallel.pipe x parallel.interleave", (parallel.pipe, parallel.interleave)
    divides(
        names,
        chunks,
        "model.num_layers",
        model.num_layers,
        works=lambda: f"that works is {nearest_multiples(model.num_layers, math.prod(chunks))}",
    )
    for name, size in (("model.num_heads", model.num_heads), ("model.mlp_dim", model.hidden_dim)):
        divides(
            "parallel.model",
            (parallel.model,),
            name,
            size,
            works=partial(_nearest_slices, size, parallel.model),
        )
    if parallel.sequence:
        length, peers = model.seq_length, parallel.model
        divides(
            "with parallel.sequence, parallel.model",
            (peers,),
            "model.seq_length",
            length,
            works=lambda: f"sequence length that works is {nearest_multiples(length, peers)}",
        )


def _nearest_slices(size: int, slices: int) -> str:
    return f"that works is {nearest_divisor(size, slices)}"


def _check_devices(config: Config) -> None:
    """The mesh must use every device of a cluster's workers."""
    parallel, cluster = config.parallel, config.cluster
    devices = cluster.num_workers * cluster.devices_per_worker
    if not devices:
        return
    peers = parallel.pipe * parallel.model
    groups = max(1, parallel.data)
    workers = max(1, peers * groups // cluster.devices_per_worker)
    fits = devices % peers == 0 if parallel.data == -1 else devices == peers * parallel.data
    require(
        fits,
        f"parallel.pipe x parallel.data x parallel.model must use all devices of the cluster: "
        f"{parallel.pipe} x {parallel.data} x {parallel.model} with {cluster.num_workers} worker(s)"
        f" x {cluster.devices_per_worker} device(s); use parallel.data -1 for what is left, or "
        f"cluster.num_workers {workers}",
    )
