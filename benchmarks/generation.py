"""Speed of generation and of the server, on the model of the other figures, as JSON.

    uv run python benchmarks/generation.py [generate | serve ...]      (default: both)

``generate``  new tokens/s with the cache and without, and seconds to the first token, for 1 text
              and 16, float32 and bfloat16; the two ways take turns and are greedy
``serve``     200 requests to ``minigpt serve``, 16 in flight, and 20 one after the other: latencies
              and tokens/s
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import openai
from flax import nnx
from step_profile import STEP, VOCAB

from minigpt.config import Config, RunConfig
from minigpt.data.tokenizer import Gpt2Tokenizer
from minigpt.generate.generator import Generator
from minigpt.generate.sampling import SamplingConfig
from minigpt.model.gpt import GPTSpec
from minigpt.train.restore import write_run
from minigpt.train.state import Params, init_params, model_graph

NEW_TOKENS, ROUNDS = 64, 3
PROMPT = "Once upon a time there was a little girl who lived in a small house near the big woods."
REQUESTS, IN_FLIGHT, ONE_BY_ONE = 200, 16, 20


class Cached:
    """The engine, as ``sample`` and ``serve`` use it."""

    def __init__(self, spec: GPTSpec, params: Params, num_texts: int) -> None:
        self.generator = Generator(spec, Gpt2Tokenizer(), "packed")
        self.engine = self.generator.engine(params, num_texts)
        self.num_texts = num_texts

    def run(self) -> tuple[list[list[int]], float, float]:
        """New tokens of each text, seconds to the first of them, and in all."""
        config = SamplingConfig(max_tokens=NEW_TOKENS, temperature=0)
        texts = [self.generator.continuation(PROMPT, config) for _ in range(self.num_texts)]
        started = time.perf_counter()
        for text in texts:
            self.engine.add(text)
        self.engine.step()
        first = time.perf_counter() - started
        while self.engine.busy:
            self.engine.step()
        seconds = time.perf_counter() - started
        return [text.context[-NEW_TOKENS:] for text in texts], first, seconds


class Uncached:
    """The whole text through the whole model for each token, padded to a power of 2."""

    def __init__(self, spec: GPTSpec, params: Params, num_texts: int) -> None:
        graph = model_graph(spec)

        def next_tokens(params: Params, tokens: jax.Array, length: jax.Array) -> jax.Array:
            model = nnx.merge(graph, params)
            last = jnp.take(model.hidden(tokens), length - 1, axis=1)
            return model.logits(last).argmax(-1)

        self.next_tokens, self.params = jax.jit(next_tokens), params
        end = Gpt2Tokenizer.end_of_text
        self.prompts = [[end, *Gpt2Tokenizer().encode(PROMPT).tolist()]] * num_texts

    def run(self) -> tuple[list[list[int]], float, float]:
        """As ``Cached.run``."""
        contexts, first = [list(prompt) for prompt in self.prompts], 0.0
        started = time.perf_counter()
        for number in range(NEW_TOKENS):
            length = len(contexts[0])
            tokens = np.zeros((len(contexts), 1 << (length - 1).bit_length()), np.int32)
            tokens[:, :length] = contexts
            new = jax.device_get(self.next_tokens(self.params, tokens, np.int32(length)))
            for context, token in zip(contexts, new.tolist(), strict=True):
                context.append(token)
            if number == 0:
                first = time.perf_counter() - started
        seconds = time.perf_counter() - started
        return [context[-NEW_TOKENS:] for context in contexts], first, seconds


def generate() -> dict[str, Any]:
    """By dtype and number of texts."""
    found: dict[str, Any] = {}
    for dtype in ("float32", "bfloat16"):
        spec = GPTSpec(model=STEP, vocab_size=VOCAB, compute_dtype=jnp.dtype(dtype))
        params = init_params(spec, 0)
        for num_texts in (1, 16):
            ways = [Cached(spec, params, num_texts), Uncached(spec, params, num_texts)]
            runs = [[way.run() for way in ways] for _ in range(1 + ROUNDS)][1:]
            cached, without = zip(*runs, strict=True)
            num_tokens = num_texts * NEW_TOKENS
            rate, plain = (num_tokens / min(run[2] for run in way) for way in (cached, without))
            found[f"{dtype}, {num_texts} text(s)"] = {
                "tokens_per_second": rate,
                "without_cache": plain,
                "ratio": rate / plain,
                "seconds_to_first_token": min(run[1] for run in cached),
                "equal_tokens": f"{np.sum(np.equal(cached[0][0], without[0][0]))} of {num_tokens}",
            }
    return found


def serve() -> dict[str, Any]:
    """Of a run with random weights; every request has a prompt, a seed and a length of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run = _random_run(Path(folder))
        command = [sys.executable, "-m", "minigpt", "serve", str(run), "--port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            lines = iter(server.stderr.readline, "")
            url = next(m[0] for m in (re.search(r"http://[\d.:]+", line) for line in lines) if m)
            try:
                with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                    return _load(client)
            finally:
                server.terminate()


def _random_run(folder: Path) -> Path:
    config = Config(model=STEP, run=RunConfig(name="random", directory=str(folder)))
    params = init_params(GPTSpec(model=STEP, vocab_size=VOCAB), 0)
    return write_run(config, params).path


def _load(client: openai.OpenAI) -> dict[str, Any]:
    def ask(number: int) -> tuple[float, int]:
        """Seconds, and tokens of the answer."""
        words = PROMPT.split()[: 1 + number % 18]
        started = time.perf_counter()
        answer = client.completions.create(
            model="random", prompt=" ".join(words), max_tokens=16 + 16 * (number % 4), seed=number
        )
        assert answer.usage is not None
        return time.perf_counter() - started, answer.usage.completion_tokens

    def rate(answers: list[tuple[float, int]], seconds: float) -> float:
        return sum(tokens for _, tokens in answers) / seconds

    started = time.perf_counter()
    alone = [ask(number) for number in range(ONE_BY_ONE)]
    alone_rate = rate(alone, time.perf_counter() - started)
    started = time.perf_counter()
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        together = list(pool.map(ask, range(REQUESTS)))
    together_rate = rate(together, time.perf_counter() - started)
    p50, p95 = np.percentile([seconds for seconds, _ in together], (50, 95))
    return {
        "answered": f"{len(together)} of {REQUESTS}",
        "p50_seconds": p50,
        "p95_seconds": p95,
        "tokens_per_second": together_rate,
        "one_by_one_p50_seconds": float(np.median([seconds for seconds, _ in alone])),
        "one_by_one_tokens_per_second": alone_rate,
        "ratio": together_rate / alone_rate,
    }


if __name__ == "__main__":
    for name in sys.argv[1:] or ("generate", "serve"):
        print(
            json.dumps({name: {"generate": generate, "serve": serve}[name]()}, indent=1), flush=True
        )
