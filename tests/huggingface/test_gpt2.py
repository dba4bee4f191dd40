"""Weights of transformers give its logits, and go back as they came."""

import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from tiny import tiny_config

from minigpt import cli
from minigpt.config import ParallelConfig
from minigpt.data.tokenizer import ByteTokenizer, Gpt2Tokenizer, vocabulary_files
from minigpt.errors import CheckpointError, ConfigError
from minigpt.generate.run import sample_run
from minigpt.generate.sampling import SamplingConfig
from minigpt.huggingface.folder import read_gpt2, write_gpt2
from minigpt.huggingface.runs import export_run, import_run
from minigpt.launch.local import train
from minigpt.model.gpt import GPTSpec
from minigpt.train.console import make_console
from minigpt.train.run_directory import RunDirectory
from minigpt.train.state import model_graph

FIXTURES = Path(__file__).parent / "fixtures"
NAMES = ["tied", "untied", "sharded"]


def tensors_in(folder):
    files = [file for file in folder.glob("*.safetensors") if file.name != "expected.safetensors"]
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def changed(tmp_path, name="tied", *, tensors=None, **fields):
    """A copy of a fixture with other fields of config.json or other tensors."""
    folder = tmp_path / "changed"
    shutil.copytree(FIXTURES / name, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    if tensors is not None:
        save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_transformers(name):
    found = read_gpt2(FIXTURES / name)
    expected = load_file(FIXTURES / name / "expected.safetensors")
    model = nnx.merge(
        model_graph(GPTSpec(model=found.model, vocab_size=257)), jax.device_put(found.params)
    )
    logits = jax.jit(lambda tokens: model.logits(model.hidden(tokens)))(expected["tokens"])
    assert np.abs(expected["logits"]).max() > 3
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_exported_is_what_was_imported(tmp_path, name):
    import_run(FIXTURES / name, tmp_path / "run")
    assert export_run(tmp_path / "run", tmp_path / "out", print) == 0
    before, after = tensors_in(FIXTURES / name), tensors_in(tmp_path / "out")
    assert before.keys() == after.keys()
    for tensor, value in before.items():
        np.testing.assert_array_equal(after[tensor], value)
    old, new = (
        json.loads((folder / "config.json").read_text())
        for folder in (FIXTURES / name, tmp_path / "out")
    )
    decides = ("model_type", "vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
    decides += ("layer_norm_epsilon", "tie_word_embeddings", "eos_token_id", "architectures")
    assert {key: new[key] for key in decides} == {key: old[key] for key in decides}
    assert new["n_inner"] == old["n_inner"]
    assert not list((tmp_path / "out").glob("*.unfinished"))


def test_what_a_mesh_trained_is_exported_without_padding(tmp_path):
    config = tiny_config(
        tmp_path,
        train={"steps": 2},
        parallel={"pipe": 2, "model": 2, "data": 2, "microbatches": 2},
    )
    train(config, make_console())
    export_run(tmp_path / "tiny", tmp_path / "out", print)
    assert tensors_in(tmp_path / "out")["transformer.wte.weight"].shape == (257, 16)
    again = read_gpt2(tmp_path / "out")
    assert again.model == config.model
    assert np.asarray(again.params["token_embedding"]).shape == (384, 16)


def test_an_imported_run_is_continued_on_a_mesh_and_sampled(tmp_path, story_file):
    run = tmp_path / "gpt2"
    import_run(FIXTURES / "tied", run)
    settings = SamplingConfig(max_tokens=4)
    pieces = sample_run(run, ["Once"], settings, ParallelConfig(data=1, model=2), lambda text: None)
    assert [number for number, _ in pieces] == [0] * 4
    config, identity = RunDirectory(run).read_config()
    assert (identity, config.model.num_layers, config.data.tokenizer) == ({}, 2, "byte")
    told = tiny_config(
        tmp_path,
        story_file,
        run={"name": "gpt2"},
        train={"steps": 2, "eval_every": 2},
        parallel={"data": 2, "model": 2},
    )
    other = tiny_config(tmp_path, story_file, run={"name": "gpt2"}, model={"num_layers": 4})
    with pytest.raises(ConfigError, match="belongs to another run") as refused:
        train(other, make_console())
    assert "model.num_layers: 2 there, 4 here" in str(refused.value)
    train(told, make_console())
    assert RunDirectory(run).newest_step() == 2
    lines = (run / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    (before,) = [r["loss"] for r in records if r["split"] == "val" and r["step"] == 0]
    assert before > 6  # a fresh model's is log(257) = 5.55
    with pytest.raises(ConfigError, match="built-in corpus"):
        train(tiny_config(tmp_path, run={"name": "gpt2"}), make_console())


def test_a_safetensors_file_and_half_precision_are_read(tmp_path):
    halves = {
        name: tensor.astype(np.float16) for name, tensor in tensors_in(FIXTURES / "tied").items()
    }
    folder = changed(
        tmp_path, tensors={n.removeprefix("transformer."): t for n, t in halves.items()}
    )
    found = read_gpt2(folder / "model.safetensors")
    embedding = found.params["token_embedding"]
    assert embedding.dtype == np.float32
    np.testing.assert_array_equal(embedding[:257], halves["transformer.wte.weight"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama', only 'gpt2'"),
        ({"activation_function": "relu"}, "activation_function is 'relu', MiniGPT has gelu_new"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon is 1e-06, MiniGPT's model has 1e-05"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True"),
        ({"n_layer": "two"}, "n_layer must be there and whole numbers"),
        ({"n_head": 3}, "model.num_heads must divide model.embed_dim"),
        ({"vocab_size": 300}, "vocab_size is 300, but MiniGPT's tokenizers have 50257 (gpt2)"),
        ({"n_layer": 3}, "missing: h.2.ln_1.weight, .* and 8 more"),
        ({"n_layer": 1}, "unknown: h.1.attn.c_attn.bias, .* and 8 more"),
        ({"n_inner": 32}, r"h.0.mlp.c_fc.weight is \(16, 64\), should be \(16, 32\)"),
        ({"tie_word_embeddings": False}, "missing: lm_head.weight"),
    ],
)
def test_other_models_are_refused(tmp_path, fields, message):
    with pytest.raises(CheckpointError, match=message.replace("(gpt2)", r"\(gpt2\)")):
        import_run(changed(tmp_path, **fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_head_of_its_own_is_refused_where_it_should_be_tied(tmp_path):
    tensors = tensors_in(FIXTURES / "tied")
    same = {**tensors, "lm_head.weight": tensors["transformer.wte.weight"]}
    read_gpt2(changed(tmp_path / "same", tensors=same))
    other = {**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}
    with pytest.raises(CheckpointError, match=r"lm_head\.weight differs from wte\.weight"):
        read_gpt2(changed(tmp_path / "other", tensors=other))


def test_damaged_and_missing_files_are_named(tmp_path, capsys):
    folder = changed(tmp_path)
    (folder / "model.safetensors").write_bytes(b"nonsense")
    assert cli.main(["import", str(folder), "--run", str(tmp_path / "run")]) != 0
    assert "model.safetensors' cannot be read as safetensors" in capsys.readouterr().err
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors' is not there"):
        read_gpt2(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json' is not JSON"):
        read_gpt2(folder)
    with pytest.raises(CheckpointError, match=r"config\.json' cannot be read: No such file"):
        read_gpt2(tmp_path / "nowhere")


def test_nothing_is_overwritten(tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["import", str(FIXTURES / "tied"), "--run", str(run)]) == 0
    assert f"minigpt train --config {run}/config.yaml" in capsys.readouterr().out
    assert cli.main(["import", str(FIXTURES / "tied"), "--run", str(run)]) == 2
    assert "is not empty, and nothing is overwritten" in capsys.readouterr().err
    assert cli.main(["export", str(run), str(tmp_path / "out")]) == 0
    assert "from_pretrained" in capsys.readouterr().out
    assert cli.main(["export", str(run), str(tmp_path / "out")]) == 2
    found = read_gpt2(tmp_path / "out")
    with pytest.raises(ConfigError, match="is not empty"):
        write_gpt2(run, found.params, found.model, ByteTokenizer())


def test_vocabularies_are_as_gpt2_writes_them():
    files = vocabulary_files(ByteTokenizer())
    ids = json.loads(files["vocab.json"])
    assert (len(ids), ids["A"], ids["Ġ"], ids["<|endoftext|>"]) == (257, 65, 32, 256)
    assert sorted(ids.values()) == list(range(257))
    files = vocabulary_files(Gpt2Tokenizer())
    ids = json.loads(files["vocab.json"])
    assert (len(ids), ids["Ġthe"], ids["<|endoftext|>"]) == (50257, 262, 50256)
    assert len(files["merges.txt"].decode().splitlines()) == 50001
