"""Parameters and model FLOPs, counted from the configuration."""

from minigpt.config import ModelConfig


def num_parameters(model: ModelConfig, vocab_size: int) -> int:
    """Trained parameters for ``vocab_size`` valid tokens, tied ones counted once."""
    embed, hidden = model.embed_dim, model.hidden_dim
    attention = 4 * embed * embed + 4 * embed
    mlp = 2 * embed * hidden + hidden + embed
    block = attention + mlp + 4 * embed  # two norms
    tables = vocab_size * (1 if model.tie_embeddings else 2) + model.seq_length
    return model.num_layers * block + tables * embed + 2 * embed


def train_flops_per_token(model: ModelConfig, vocab_size: int) -> int:
    """Forward and backward FLOPs of one token (Chowdhery et al. 2022, PaLM, appendix B).

    6 for each weight that multiplies activations (the output projection is one, lookups of
    embeddings are none, padding of the vocabulary is not counted), plus 12 x layers x embed_dim
    x seq_length for attention scores and values. Scores above the diagonal count, computed or
    not, and recomputation does not: the convention of published MFU figures.
    """
    embed = model.embed_dim
    block = 4 * embed * embed + 2 * embed * model.hidden_dim
    weights = model.num_layers * block + vocab_size * embed
    return 6 * weights + 12 * model.num_layers * embed * model.seq_length
