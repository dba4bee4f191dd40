import json
from io import StringIO

import jax
import pytest
from rich.console import Console
from tiny import VOCAB, tiny_config

from minigpt import bench as module
from minigpt.cli import main
from minigpt.model.flops import num_parameters, train_flops_per_token

KEYS = {
    *("device", "mesh", "jax", "compute_dtype", "num_parameters", "tokens_per_step"),
    *("flops_per_step", "compile_seconds", "step_seconds", "tokens_per_second"),
    *("model_flops_per_second", "matmul_flops_per_second", "ratio_to_matmul"),
    *("argument_bytes", "temporary_bytes"),
    *("platform", "device_memory_bytes"),
    *("device_matmul_flops_per_second", "device_elementwise_bytes_per_second"),
}


@pytest.fixture(autouse=True)
def small_measurements(monkeypatch):
    monkeypatch.setattr(module, "MATMUL_SIZES", (32, 64))
    monkeypatch.setattr(module, "ELEMENTS", 4096)
    monkeypatch.setattr(module, "REPEATS", 2)


@pytest.fixture(scope="module")
def config():
    return tiny_config()


def test_the_numbers_agree_with_each_other(config):
    result = module.bench(config)
    assert set(result) == KEYS
    flops_per_token = train_flops_per_token(config.model, VOCAB)
    assert result["device"] == jax.devices()[0].device_kind
    assert result["num_parameters"] == num_parameters(config.model, VOCAB)
    assert result["tokens_per_step"] == 8 * 32
    assert result["flops_per_step"] == flops_per_token * 8 * 32
    for name, expected in (
        ("tokens_per_second", result["tokens_per_step"] / result["step_seconds"]),
        ("model_flops_per_second", result["tokens_per_second"] * flops_per_token),
        (
            "ratio_to_matmul",
            result["model_flops_per_second"] / result["matmul_flops_per_second"],
        ),
    ):
        assert result[name] == pytest.approx(expected)
    assert result["step_seconds"] > 0
    assert result["compile_seconds"] > 0
    # Parameters and two moments of AdamW, all float32, are the least that a step is given.
    assert result["argument_bytes"] >= 3 * 4 * result["num_parameters"]
    assert result["temporary_bytes"] > 0


def test_every_matrix_size_is_measured():
    rates = module.matmul_flops_per_second("bfloat16")
    assert list(rates) == [32, 64]
    assert all(rate > 0 for rate in rates.values())


def test_the_table():
    result = dict.fromkeys(KEYS, 0) | {
        "device": "TPU v99",
        "compute_dtype": "bfloat16",
        "num_parameters": 124_439_808,
        "compile_seconds": 1.25,
        "step_seconds": 0.5,
        "tokens_per_second": 16384.0,
        "model_flops_per_second": 2e12,
        "matmul_flops_per_second": 4e12,
        "device_elementwise_bytes_per_second": 5e10,
        "ratio_to_matmul": 0.5,
        "argument_bytes": 2**30,
        "temporary_bytes": 2**20,
    }
    console = Console(file=StringIO(), width=100)
    console.print(module.table(result))
    lines = [line.split("│") for line in console.file.getvalue().splitlines()]
    rows = {cells[1].strip(): cells[2].strip() for cells in lines if len(cells) == 4}
    assert "training step, bfloat16, TPU v99" in console.file.getvalue()
    assert rows == {
        "parameters": "124,439,808",
        "compile": "1.2 s",
        "step": "500 ms",
        "tokens/s": "16,384",
        "model FLOP/s": "2,000.0 GFLOP/s",
        "matrix product": "4,000.0 GFLOP/s",
        "elementwise, a device": "50.0 GB/s",
        "ratio": "50.0 %",
        "memory: arguments": "1,024 MiB",
        "memory: temporaries": "1 MiB",
    }


OPTIONS = [
    *("--data.tokenizer", "byte", "--model.num-layers", "2", "--model.num-heads", "2"),
    *("--model.embed-dim", "16", "--model.seq-length", "32", "--train.global-batch-size", "8"),
]


def test_the_command_prints_json(capsys):
    assert main(["bench", *OPTIONS, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert set(result) == KEYS
    assert result["tokens_per_step"] == 8 * 32


def test_the_command_prints_a_table(capsys):
    assert main(["bench", *OPTIONS]) == 0
    assert "matrix product" in capsys.readouterr().out
