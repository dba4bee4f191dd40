"""The loss on a text is that of a loop that predicts one token after the other."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from saved_run import SEQ, damage, params_of, run_config, save_run
from tiny import VOCAB

from minigpt.cli import main
from minigpt.train.state import model_graph, model_spec

END = 256
STORIES = (
    "Once upon a time there was a dog. It ran to the sea.",
    "No.",
    "Ein Bär, größer als zwei!",
    "fifteen letters",
    "A",
)
SHORT = ("Hi",)
STRIDES = (SEQ, SEQ // 2, 5, 1)


@pytest.fixture(scope="module", params=["packed", "padded"])
def run(request, tmp_path_factory):
    config = run_config(tmp_path_factory.mktemp(request.param), request.param)
    return save_run(config, {3: params_of(config, 3), 7: params_of(config, 7)})


@pytest.fixture(scope="module")
def packed_run(tmp_path_factory):
    config = run_config(tmp_path_factory.mktemp("runs"))
    return save_run(config, {3: params_of(config, 3), 7: params_of(config, 7)})


@pytest.fixture
def evaluate(capsys, tmp_path):
    """Runs the command on stories: exit code, output and messages."""

    def run(where, stories, *options):
        file = tmp_path / "text.txt"
        file.write_text("<|endoftext|>".join(stories))
        capsys.readouterr()
        code = main(["eval", str(where), "--data", str(file), *map(str, options)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def found(evaluate):
    """The JSON of an evaluation that works."""

    def run(*arguments):
        code, out, err = evaluate(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return run


class Reference:
    """Nats of tokens, each predicted by itself from its context, the model on one device."""

    def __init__(self, seed=7):
        config = run_config("runs")
        model = nnx.merge(model_graph(model_spec(config, VOCAB)), params_of(config, seed))

        def nats(context, length, target):
            logits = model.logits(model.hidden(context[None]))[0, length - 1]
            return jax.nn.logsumexp(logits) - logits[target]

        self._nats = jax.jit(jax.vmap(nats))

    def loss(self, streams, stride):
        """(nats, tokens) of all tokens of streams but the first of each."""
        cases = [case for stream in streams for case in self._cases(stream, stride)]
        total = 0.0
        for start in range(0, len(cases), 64):  # one shape, one program
            some = cases[start : start + 64]
            contexts, lengths, targets = zip(*some + [some[0]] * (64 - len(some)), strict=True)
            nats = self._nats(jnp.array(contexts), jnp.array(lengths), jnp.array(targets))
            total += float(np.asarray(nats, np.float64)[: len(some)].sum())
        return total, len(cases)

    def _cases(self, stream, stride):
        for place in range(1, len(stream)):
            start = 0
            while start + SEQ < place:  # the first window with this target
                start += stride
            context = stream[start:place]
            yield context + [0] * (SEQ - len(context)), len(context), stream[place]


@pytest.fixture(scope="module")
def reference():
    return Reference()


def streams_of(run, stories):
    ids = [[*story.encode(), END] for story in stories]
    is_padded = "layout: padded" in (run / "config.yaml").read_text()
    return ids if is_padded else [[END, *(token for story in ids for token in story)]]


@pytest.mark.parametrize(
    ("stories", "stride"), [*((STORIES, stride) for stride in STRIDES), (SHORT, SEQ), (SHORT, 1)]
)
def test_the_loss_is_that_of_one_token_after_the_other(run, found, reference, stories, stride):
    streams = streams_of(run, stories)
    nats, num_tokens = reference.loss(streams, stride)
    result = found(run, stories, "--stride", stride)
    num_bytes = sum(len(story.encode()) for story in stories)
    assert nats / num_tokens > 5
    assert result["num_tokens"] == num_tokens == sum(map(len, streams)) - len(streams)
    assert result["loss"] == pytest.approx(nats / num_tokens, rel=1e-6)
    assert result["perplexity"] == pytest.approx(math.exp(nats / num_tokens), rel=1e-5)
    assert result["bits_per_byte"] == pytest.approx(nats / math.log(2) / num_bytes, rel=1e-6)
    assert (result["step"], result["num_bytes"]) == (7, num_bytes)
    assert (result["num_stories"], result["stride_tokens"]) == (len(stories), stride)
    padded = result["layout"] == "padded"
    assert result["num_first_tokens"] == padded * len(stories)


def test_windows_do_not_overlap_unless_asked(packed_run, found):
    result = found(packed_run, STORIES)
    assert result["stride_tokens"] == result["window_tokens"] == SEQ
    assert result["loss"] == found(packed_run, STORIES, "--stride", SEQ)["loss"]
    assert abs(result["loss"] - found(packed_run, STORIES, "--stride", 1)["loss"]) > 1e-3


MESHES = [
    "--parallel.pipe 2",
    "--parallel.data 2",
    "--parallel.model 2",
    "--parallel.pipe 2 --parallel.data 2 --parallel.model 2 --parallel.microbatches 2",
    "--parallel.pipe 2 --parallel.interleave 2",
    "--parallel.data 3 --parallel.model 2 --parallel.sequence --parallel.microbatches 3",
    "--parallel.data -1 --parallel.pipe 2 --parallel.model 4 --parallel.sequence",
]


@pytest.mark.parametrize("mesh", MESHES)
def test_every_mesh_finds_the_same(packed_run, found, reference, mesh):
    nats, num_tokens = reference.loss(streams_of(packed_run, STORIES), 5)
    result = found(packed_run, STORIES, "--stride", 5, "--batch-size", 3, *mesh.split())
    assert result["loss"] == pytest.approx(nats / num_tokens, rel=1e-6)
    assert result["num_tokens"] == num_tokens


def test_files_of_a_folder_are_stories(packed_run, found, tmp_path):
    expected = found(packed_run, STORIES[:2])
    (tmp_path / "more").mkdir()
    for number, story in enumerate(STORIES[:2]):
        (tmp_path / "more" / f"{number}.txt").write_text(story + "\n")
    result = found(packed_run, STORIES, "--data", tmp_path / "more")
    assert result["loss"] == expected["loss"]


def test_a_person_is_told_what_was_counted(run, evaluate):
    code, out, err = evaluate(run, STORIES, "--stride", 4)
    assert (code, "100 %" in err) == (0, True)
    assert f"{run} at step 7 on " in " ".join(out.split())
    for fragment in ("nats per token", "perplexity", "bits per byte", "at least 13 tokens before"):
        assert fragment in out
    streams = {
        "packed": "end-of-text before the first story and after every story",
        "padded": "but the first of each story (5 in all, whose bytes are counted) counts once",
    }
    assert streams[run.parent.name.rstrip("0")] in out


def test_an_unreadable_newer_checkpoint_is_told_of(tmp_path, evaluate):
    config = run_config(tmp_path)
    run = save_run(config, {3: params_of(config, 3), 7: params_of(config, 7)})
    damage(run / "checkpoints" / "7")
    code, out, err = evaluate(run, SHORT, "--json")
    assert code == 0
    assert "the checkpoint of step 7 cannot be read; using an older one" in err
    nats, num_tokens = Reference(seed=3).loss(streams_of(run, SHORT), SEQ)
    assert json.loads(out)["step"] == 3
    assert json.loads(out)["loss"] == pytest.approx(nats / num_tokens, rel=1e-6)


def test_characters_that_are_not_utf8_are_told_of(packed_run, evaluate, tmp_path):
    (tmp_path / "latin").write_bytes("Bär".encode("latin-1"))
    code, out, err = evaluate(packed_run, STORIES, "--data", tmp_path / "latin", "--json")
    assert (code, json.loads(out)["num_bytes"]) == (0, 5)
    assert "latin: 1 characters were not UTF-8 and were replaced" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--stride", "0"],
            "eval.stride must be at least 1 and at most the run's model.seq_length",
        ),
        (["--stride", "17"], "seq_length 16, got 17"),
        (["--data", "nowhere.txt"], "data.path 'nowhere.txt' does not exist"),
        (["--parallel.model", "3"], "parallel.model must divide model.num_heads: 4"),
        (["--parallel.data", "9"], "must not exceed the number of devices: 1 x 9 x 1"),
    ],
)
def test_what_cannot_work_is_refused(packed_run, evaluate, options, message):
    code, out, err = evaluate(packed_run, STORIES, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_a_batch_of_nothing_is_refused(packed_run, evaluate, capsys):
    with pytest.raises(SystemExit) as refused:
        evaluate(packed_run, STORIES, "--batch-size", 0)
    assert refused.value.code == 2
    assert "eval.batch_size must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "message"), [("", "is empty"), (" \n ", "but white space")])
def test_no_text_is_refused(packed_run, evaluate, text, message):
    code, out, err = evaluate(packed_run, [text])
    assert (code, out) == (2, "")
    assert message in err


def test_a_run_without_checkpoints_is_refused(tmp_path, evaluate):
    run = save_run(run_config(tmp_path), {})
    code, _, err = evaluate(run, STORIES)
    assert code == 2
    assert "there is no complete checkpoint" in err
    code, _, err = evaluate(tmp_path / "other", STORIES)
    assert code == 2
    assert "is not a run directory; runs there: tiny" in err


def test_weights_that_are_not_finite_are_refused(tmp_path, evaluate):
    config = run_config(tmp_path)
    params = jax.tree.map(lambda leaf: leaf * jnp.nan, params_of(config, 0))
    code, out, err = evaluate(save_run(config, {1: params}), STORIES)
    assert (code, out) == (3, "")
    assert "is nan nats per token: the weights of step 1" in err
