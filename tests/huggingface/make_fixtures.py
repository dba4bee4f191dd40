"""Makes the fixtures: tiny random GPT-2s and their logits, both by transformers.

uv run --no-project --with torch --with transformers python tests/huggingface/make_fixtures.py
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GPT2Config, GPT2LMHeadModel

FIXTURES = Path(__file__).parent / "fixtures"
VOCAB = 257
MODELS = {
    "tied": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32},
    "untied": {
        "n_layer": 3,
        "n_head": 3,
        "n_embd": 24,
        "n_positions": 24,
        "n_inner": 40,
        "tie_word_embeddings": False,
        "activation_function": "gelu_pytorch_tanh",
    },
    "sharded": {"n_layer": 1, "n_head": 4, "n_embd": 32, "n_positions": 48},
}

if __name__ == "__main__":
    torch.manual_seed(0)
    for name, fields in MODELS.items():
        config = GPT2Config(
            vocab_size=VOCAB, initializer_range=0.3, bos_token_id=256, eos_token_id=256, **fields
        )
        model = GPT2LMHeadModel(config).eval()
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") or "ln_" in parameter_name:
                parameter.data += 0.3 * torch.randn_like(parameter)  # all would be 0 or 1
        tokens = torch.randint(0, VOCAB, (1, config.n_positions))
        with torch.no_grad():
            logits = model(tokens).logits
        folder = FIXTURES / name
        size = "40KB" if name == "sharded" else "5GB"
        model.save_pretrained(folder, max_shard_size=size)
        (folder / "generation_config.json").unlink()
        expected = {"tokens": tokens.int(), "logits": logits.contiguous()}
        save_file(expected, folder / "expected.safetensors")
