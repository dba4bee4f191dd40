"""The server over real connections, with OpenAI's own client."""

import asyncio
import dataclasses
import http.client
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import openai
import pytest
import uvicorn
from saved_run import params_of, run_config

from minigpt.data.tokenizer import ByteTokenizer
from minigpt.generate.generator import Generator
from minigpt.generate.sampling import SamplingConfig
from minigpt.serve.app import Service, make_app
from minigpt.serve.batcher import Batcher
from minigpt.serve.protocol import Limits
from minigpt.train.state import model_spec

WINDOW, MAX_TOKENS, MAX_BODY = 16, 3000, 5000


class Served:
    """A server on a free port, and what it serves."""

    def __init__(self, generator, params, **changes):
        self.generator, self.params = generator, params
        self.engine = generator.engine(params, 4)
        self.batcher = Batcher(self.engine)
        service = Service(
            model="tiny",
            step=7,
            created=1,
            num_parameters=1000,
            generator=generator,
            tokenizer=ByteTokenizer(),
            batcher=self.batcher,
            limits=Limits(context_length=WINDOW, max_tokens=MAX_TOKENS),
            max_requests=40,
            max_body_bytes=MAX_BODY,
        )
        app = make_app(dataclasses.replace(service, **changes))
        self.server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.thread = threading.Thread(
            target=lambda: asyncio.run(self.server.serve(sockets=[self.listener]))
        )

    def __enter__(self):
        self.batcher.__enter__()
        self.thread.start()
        self.client = openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0, timeout=60
        )
        return self

    def __exit__(self, *_):
        self.client.close()
        self.server.should_exit = True
        self.thread.join()
        self.batcher.__exit__()
        self.listener.close()

    def complete(self, **fields):
        defaults = {"model": "tiny", "prompt": "ab", "seed": 3, "max_tokens": 9}
        extra = {name: fields.pop(name) for name in ("top_k", "repetition_penalty") & fields.keys()}
        return self.client.completions.create(**defaults | fields, extra_body=extra)

    def expected(self, *prompts, **fields):
        """What the generator says; the defaults of ``complete``."""
        defaults = {"seed": 3, "max_tokens": 9, "temperature": 1.0}
        config = SamplingConfig(**defaults | fields)
        return self.generator.generate(self.params, prompts, config)

    def raw(self, method, path, body=None):
        """(status, JSON or text)"""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        is_json = answer.headers["content-type"] == "application/json"
        return answer.status, json.loads(text) if is_json else text

    def metric(self, name):
        lines = self.raw("GET", "/metrics")[1].splitlines()
        found = [line.split()[-1] for line in lines if line.startswith(name + " ")]
        return float(found[0]) if found else 0.0

    def wait_for(self, name, value):
        for _ in range(500):
            if self.metric(name) == value:
                return
            time.sleep(0.02)
        raise AssertionError(f"{name} is {self.metric(name)}, not {value}")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    config = run_config(tmp_path_factory.mktemp("runs"))
    tokenizer = ByteTokenizer()
    generator = Generator(model_spec(config, tokenizer.vocab_size), tokenizer, "packed")
    return generator, jax.device_put(params_of(config, 1))


@pytest.fixture(scope="module")
def served(model):
    with Served(*model) as served:
        yield served


# Answers


def test_an_answer_is_what_the_generator_says(served):
    answer = served.complete(temperature=0)
    (choice,) = answer.choices
    assert choice.text == served.expected("ab", temperature=0)[0]
    assert choice.finish_reason == "length"
    assert choice.logprobs is None
    assert (answer.model, answer.object) == ("tiny", "text_completion")
    usage = answer.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (3, 9, 12)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.7, "top_p": 0.8},
        {"temperature": 1.5, "top_k": 5},
        {"temperature": 0.0, "repetition_penalty": 1.5},
        {"seed": 2**32 - 1},
        {"max_tokens": 40},
    ],
)
def test_every_setting_is_obeyed(served, fields):
    (choice,) = served.complete(**fields).choices
    assert choice.text == served.expected("ab", **fields)[0]


def test_prompts_and_choices_follow_each_other(served):
    answer = served.complete(prompt=["ab", "xyz"], n=2)
    texts = [choice.text for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert texts == served.expected("ab", "ab", "xyz", "xyz")
    assert len(set(texts)) == 4
    assert answer.usage.prompt_tokens == 3 + 4


def test_a_stream_is_the_answer_token_by_token(served):
    chunks = list(
        served.complete(
            prompt=["ab", "c"], stream=True, stream_options={"include_usage": True}, max_tokens=12
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 24
    texts, reasons = ["", ""], [[], []]
    for chunk in chunks[:-1]:
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index].append(choice.finish_reason)
    assert texts == served.expected("ab", "c", max_tokens=12)
    assert reasons == [[None] * 11 + ["length"]] * 2
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(list(served.complete(stream=True))) == 9  # without usage, tokens alone


def test_a_stream_is_not_kept_back(served, monkeypatch):
    """The first token arrives while the engine may not draw the third."""
    go_on, step, count = threading.Event(), served.engine.step, iter(range(1000))

    def slow():
        if next(count) >= 2:
            assert go_on.wait(20)
        return step()

    monkeypatch.setattr(served.engine, "step", slow)
    stream = served.complete(stream=True)
    first = next(stream)
    go_on.set()
    rest = list(stream)
    text = "".join(chunk.choices[0].text for chunk in [first, *rest])
    assert text == served.expected("ab")[0]


def test_without_a_seed_texts_differ(served):
    texts = {served.complete(seed=openai.NOT_GIVEN).choices[0].text for _ in range(4)}
    assert len(texts) == 4
    assert served.complete().choices == served.complete().choices


def test_probabilities_are_told(served):
    plain = served.complete(temperature=0)
    (choice,) = served.complete(temperature=0, logprobs=3).choices
    told = choice.logprobs
    assert choice.text == plain.choices[0].text
    assert len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == 9
    assert told.text_offset[0] == 2
    for token, logprob, best in zip(
        told.tokens, told.token_logprobs, told.top_logprobs, strict=True
    ):
        assert len(best) == 3
        assert max(best, key=best.get) == token
        assert best[token] == pytest.approx(logprob)
        assert logprob < 0
    (choice,) = served.complete(logprobs=0, max_tokens=2).choices
    assert choice.logprobs.top_logprobs == [{}, {}]
    chunks = list(served.complete(temperature=0, logprobs=3, stream=True))
    assert [chunk.choices[0].logprobs.tokens[0] for chunk in chunks] == told.tokens


def test_part_of_a_character_is_told_as_bytes(served):
    answer = served.complete(temperature=1.5, logprobs=0, max_tokens=200)
    tokens = answer.choices[0].logprobs.tokens
    odd = [token for token in tokens if token.startswith("bytes:\\x")]
    assert odd
    assert all(len(token) == len("bytes:\\xff") for token in odd)


def test_a_stop_text_ends_the_answer(served):
    whole = served.expected("ab", max_tokens=40)[0]
    stop = whole[20:22]
    (choice,) = served.complete(max_tokens=40, stop=stop).choices
    assert choice.text == whole[: whole.index(stop)]
    assert choice.finish_reason == "stop"
    (choice,) = served.complete(max_tokens=40, stop=["never there", stop]).choices
    assert choice.text == whole[: whole.index(stop)]


def test_the_window_slides_and_is_told(served):
    answer = served.complete(max_tokens=40)
    assert answer.usage.window_slides > 0
    assert served.complete(max_tokens=5).usage.window_slides == 0


def test_many_at_once_get_what_each_gets_alone(served):
    """More than there are rows, with settings, lengths and seeds of their own."""
    asked = [
        {
            "prompt": "abcdefgh"[: number % 8],
            "seed": number,
            "temperature": number % 3 / 2,
            "max_tokens": 1 + 7 * number % 23,
        }
        for number in range(24)
    ]
    with ThreadPoolExecutor(24) as pool:
        texts = list(pool.map(lambda fields: served.complete(**fields).choices[0].text, asked))
    for fields, text in zip(asked, texts, strict=True):
        settings = {name: value for name, value in fields.items() if name != "prompt"}
        assert text == served.expected(fields["prompt"], **settings)[0]
    assert served.metric("minigpt_requests_in_flight") == 0


# Refusals


@pytest.mark.parametrize(
    ("fields", "status", "param", "message"),
    [
        ({"prompt": 7}, 400, "prompt", "prompt must be a string or a list of strings, got the nu"),
        ({"prompt": ["a", 1]}, 400, "prompt", "list of strings, got a list"),
        ({"prompt": []}, 400, "prompt", "between 1 and 16, got 0 x 1"),
        ({"prompt": "x" * 16}, 400, "prompt", "has 17 tokens; the model's context is 16"),
        ({"n": 17}, 400, "n", "between 1 and 16, got 1 x 17"),
        ({"n": 0}, 400, "n", "n must be an integer from 1 on, got the number 0"),
        ({"max_tokens": 3001}, 400, "max_tokens", "must be at most 3000, got 3001"),
        ({"max_tokens": 0}, 400, "max_tokens", "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 2.5}, 400, "max_tokens", "must be an integer, got the number 2.5"),
        ({"max_tokens": True}, 400, "max_tokens", "must be an integer, got true or false"),
        ({"temperature": -1}, 400, "temperature", "temperature must be at least 0"),
        ({"temperature": "hot"}, 400, "temperature", "must be a number, got a string"),
        ({"top_p": 0}, 400, "top_p", "top_p must be above 0"),
        ({"seed": -1}, 400, "seed", "seed must be at least 0 and below"),
        ({"logprobs": 6}, 400, "logprobs", "from 0 to 5, got the number 6"),
        ({"stop": ["a"] * 5}, 400, "stop", "at most 4 strings"),
        ({"stop": ""}, 400, "stop", "stop must be texts that are not empty"),
        ({"stream": "yes"}, 400, "stream", "must be true or false, got a string"),
        ({"echo": True}, 400, "echo", "echo must be false, got true or false"),
        ({"suffix": "x"}, 400, "suffix", "MiniGPT does not have it"),
        ({"presence_penalty": 0.5}, 400, "presence_penalty", "MiniGPT does not have it"),
        ({"temprature": 1}, 400, "temprature", "unknown field 'temprature'; did you mean 'tempe"),
        ({"model": "gpt-4"}, 404, "model", "'gpt-4' is not served here; 'tiny' is"),
    ],
)
def test_bad_fields_are_refused(served, fields, status, param, message):
    found, body = served.raw(
        "POST", "/v1/completions", json.dumps({"model": "tiny", "prompt": "a"} | fields)
    )
    assert found == status
    assert body["error"]["param"] == param
    assert message in body["error"]["message"]
    assert body["error"]["type"] == "invalid_request_error"


def test_the_client_raises_its_own_errors(served):
    with pytest.raises(openai.BadRequestError, match="top_p must be above 0"):
        served.complete(top_p=0)
    with pytest.raises(openai.NotFoundError, match="not served here"):
        served.complete(model="other")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "/v1/completions", b"{", 400, "the body is not JSON: "),
        ("POST", "/v1/completions", b"\xff\xfe", 400, "the body is not JSON: "),
        ("POST", "/v1/completions", b"[1]", 400, "must be a JSON object, got a list"),
        ("POST", "/v1/completions", b" " * (MAX_BODY + 1), 413, "over 5000 bytes"),
        ("GET", "/v1/completions", None, 405, "Method Not Allowed"),
        ("GET", "/v1/nothing", None, 404, "Not Found"),
        ("GET", "/v1/models/other", None, 404, "'other' is not served here"),
    ],
)
def test_bad_requests_are_refused(served, method, path, body, status, message):
    found, answer = served.raw(method, path, body)
    assert found == status
    assert message in answer["error"]["message"]


def test_a_body_without_a_length_is_limited_too(served):
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    chunks = (b" " * 1000 for _ in range(20))
    connection.request("POST", "/v1/completions", chunks, encode_chunked=True)
    assert connection.getresponse().status == 413
    connection.close()


def test_more_requests_than_allowed_are_refused(model):
    with Served(*model, max_requests=2) as served:
        streams = [served.complete(max_tokens=MAX_TOKENS, stream=True) for _ in range(2)]
        with pytest.raises(openai.RateLimitError, match="2 requests are being answered"):
            served.complete()
        for stream in streams:
            stream.close()
        served.wait_for("minigpt_requests_in_flight", 0)
        assert served.complete().choices[0].text == served.expected("ab")[0]
        assert served.metric('minigpt_requests_total{outcome="overloaded"}') == 1


# What goes wrong


@pytest.mark.parametrize("stream", [True, False])
def test_a_dropped_connection_frees_its_rows(model, stream):
    with Served(*model) as served:
        fields = {"model": "tiny", "max_tokens": MAX_TOKENS, "n": 4, "stream": stream}
        body = json.dumps(fields).encode()
        with socket.create_connection(("127.0.0.1", served.port)) as connection:
            head = (
                f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
            while served.metric("minigpt_generated_tokens_total") < 4:
                time.sleep(0.01)
        served.wait_for('minigpt_requests_total{outcome="disconnected"}', 1)
        served.wait_for("minigpt_requests_in_flight", 0)
        assert served.complete().choices[0].text == served.expected("ab")[0]
        assert not served.engine.busy


def test_a_failing_engine_is_told(model, monkeypatch):
    with Served(*model) as served:
        assert served.raw("GET", "/healthz") == (200, {"status": "ok"})
        stream = served.complete(stream=True, max_tokens=MAX_TOKENS)
        next(stream)

        def fail():
            raise RuntimeError("out of memory")

        monkeypatch.setattr(served.engine, "step", fail)
        with pytest.raises(openai.APIError, match="generation failed: out of memory"):
            list(stream)
        with pytest.raises(openai.InternalServerError, match="out of memory"):
            served.complete()
        status, body = served.raw("GET", "/healthz")
        assert (status, body) == (503, {"status": "generation failed: out of memory"})
        assert served.metric('minigpt_requests_total{outcome="failed"}') == 2
        assert served.metric("minigpt_requests_in_flight") == 0


# What there is beside completions


def test_the_model_is_described(served):
    (listed,) = served.client.models.list().data
    assert listed == served.client.models.retrieve("tiny")
    assert (listed.id, listed.owned_by, listed.created) == ("tiny", "minigpt", 1)
    assert (listed.context_length, listed.step, listed.num_parameters) == (16, 7, 1000)
    assert listed.limits == {"max_tokens": MAX_TOKENS}


def test_the_page_is_served(served):
    status, text = served.raw("GET", "/")
    assert status == 200
    assert text.startswith("<!doctype html>")


def test_metrics_count(model):
    with Served(*model) as served:
        served.complete(n=2)
        served.raw("POST", "/v1/completions", b"{")
        assert served.metric("minigpt_prompt_tokens_total") == 3
        assert served.metric("minigpt_generated_tokens_total") == 18
        assert served.metric('minigpt_requests_total{outcome="completed"}') == 1
        assert served.metric('minigpt_requests_total{outcome="refused"}') == 1
        assert served.metric("minigpt_time_to_first_token_seconds_count") == 1
        assert served.metric("minigpt_request_seconds_count") == 1
