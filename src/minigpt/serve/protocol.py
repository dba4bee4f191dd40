"""The wire format: requests and answers of OpenAI's completions, with vLLM's names for the rest."""

import difflib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import ConfigError, MiniGPTError
from minigpt.generate.sampling import NUM_CANDIDATES, SamplingConfig
from minigpt.generate.text import Choice, Piece

_MAX_CHOICES = 16
_MAX_STOPS = 4


class RequestError(MiniGPTError):
    """A request that is refused; ``status`` is HTTP's, ``param`` the field at fault."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str | None = None
    ) -> None:
        """With what the client is told."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code

    def as_json(self) -> dict[str, Any]:
        """The body of the answer."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        fields = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": fields}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for."""

    context_length: int
    """Tokens of a prompt."""
    max_tokens: int
    """New tokens of each text."""


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    """A request whose every field can be obeyed."""

    prompts: tuple[str, ...]
    choices_per_prompt: int
    sampling: SamplingConfig
    logprobs: int | None
    """Candidates to tell for each token; None: no probabilities."""
    stream: bool
    usage_in_stream: bool


def parse_request(body: Any, model: str, limits: Limits) -> CompletionRequest:  # noqa: ANN401
    """Read the JSON of a request.

    Raises:
        RequestError: a field is unknown, of another type, out of range, or asks for what MiniGPT
            does not do; names it.
    """
    if not isinstance(body, dict):
        raise RequestError(f"the body must be a JSON object, got {_kind(body)}")
    body = cast("dict[str, Any]", body)
    fields = {name: value for name, value in body.items() if value is not None}
    for name in fields:
        if name not in _FIELDS:
            close = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(_FIELDS)}"
            raise RequestError(f"unknown field {name!r}; {hint}", param=name)
        _check(name, fields[name])
    check_model(fields.get("model", model), model, param="model")
    prompt = fields.get("prompt", "")
    prompts = (prompt,) if isinstance(prompt, str) else tuple(prompt)
    number = fields.get("n", 1)
    if not 1 <= len(prompts) * number <= _MAX_CHOICES:
        raise RequestError(
            f"the number of prompts x n must be between 1 and {_MAX_CHOICES}, got "
            f"{len(prompts)} x {number}",
            param="n" if number > 1 else "prompt",
        )
    return CompletionRequest(
        prompts=prompts,
        choices_per_prompt=number,
        sampling=_sampling(fields, limits),
        logprobs=fields.get("logprobs"),
        stream=fields.get("stream", False),
        usage_in_stream=bool(fields.get("stream_options", {}).get("include_usage", False)),
    )


def check_model(asked: str, served: str, *, param: str | None = None) -> None:
    """Raise ``RequestError`` where another model is asked for than the one there is."""
    if asked != served:
        raise RequestError(
            f"the model {asked!r} is not served here; {served!r} is",
            status=404,
            param=param,
            code="model_not_found",
        )


def _sampling(fields: Mapping[str, Any], limits: Limits) -> SamplingConfig:
    """How to draw; the defaults are OpenAI's."""
    stop = fields.get("stop", ())
    max_tokens = fields.get("max_tokens", 16)
    if max_tokens > limits.max_tokens:
        raise RequestError(
            f"max_tokens must be at most {limits.max_tokens}, got {max_tokens}", param="max_tokens"
        )
    try:
        return SamplingConfig(
            max_tokens=max_tokens,
            temperature=float(fields.get("temperature", 1.0)),
            top_k=max(fields.get("top_k", 0), 0),  # vLLM's clients write -1 for all
            top_p=float(fields.get("top_p", 1.0)),
            repetition_penalty=float(fields.get("repetition_penalty", 1.0)),
            seed=fields.get("seed", secrets.randbits(32)),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
        )
    except ConfigError as error:
        raise RequestError(str(error), param=str(error).split()[0]) from error


def _kind(value: object) -> str:
    names: dict[type, str] = {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
    }
    return names.get(type(value), "null" if value is None else f"the number {value}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_Rule = tuple[str, Callable[[Any], bool]]
_STRING: _Rule = ("a string", lambda value: isinstance(value, str))
_NUMBER: _Rule = ("a number", _is_number)
_INTEGER: _Rule = ("an integer", _is_integer)
_FLAG: _Rule = ("true or false", lambda value: isinstance(value, bool))
_NONE: _Rule = ("left out or 0: MiniGPT does not have it", lambda value: value in (0, "", {}))
_FIELDS: dict[str, _Rule] = {
    "model": _STRING,
    "prompt": (
        "a string or a list of strings",
        lambda value: isinstance(value, str) or _is_texts(value),
    ),
    "max_tokens": _INTEGER,
    "temperature": _NUMBER,
    "top_k": _INTEGER,
    "top_p": _NUMBER,
    "repetition_penalty": _NUMBER,
    "seed": _INTEGER,
    "stop": (
        f"a string or a list of at most {_MAX_STOPS} strings",
        lambda value: isinstance(value, str) or (_is_texts(value) and len(value) <= _MAX_STOPS),
    ),
    "n": ("an integer from 1 on", lambda value: _is_integer(value) and value >= 1),
    "logprobs": (
        f"an integer from 0 to {NUM_CANDIDATES}",
        lambda value: _is_integer(value) and 0 <= value <= NUM_CANDIDATES,
    ),
    "stream": _FLAG,
    "stream_options": ("an object", lambda value: isinstance(value, dict)),
    "user": _STRING,
    "best_of": ("1", lambda value: _is_integer(value) and value == 1),
    "echo": ("false", lambda value: value is False),
    "suffix": _NONE,
    "logit_bias": _NONE,
    "presence_penalty": _NONE,
    "frequency_penalty": _NONE,
}
"""What each field must be."""


def _check(name: str, value: object) -> None:
    rule, valid = _FIELDS[name]
    if not valid(value):
        raise RequestError(f"{name} must be {rule}, got {_kind(value)}", param=name)


class ChoiceText:
    """One text of an answer, and its probabilities."""

    def __init__(self, index: int, offset: int, tokenizer: Tokenizer, logprobs: int | None) -> None:
        """Empty.

        Args:
            index: of the choice in the answer.
            offset: characters of the prompt.
            tokenizer: of the model.
            logprobs: candidates to tell of each token; None: no probabilities.
        """
        self._index, self._offset = index, offset
        self._tokenizer, self._num_candidates = tokenizer, logprobs
        self._text = ""
        self._pieces: list[dict[str, Any]] = []
        self._reason: str | None = None
        self.num_tokens = 0

    def add(self, piece: Piece) -> dict[str, Any]:
        """Take a piece; what a stream tells of it."""
        logprobs = self._logprobs(piece.choice)
        self.num_tokens += 1
        self._text += piece.text
        self._reason = piece.reason
        if logprobs is not None:
            self._pieces.append(logprobs)
        return self._as_json(piece.text, logprobs)

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        logprobs = None
        if self._num_candidates is not None:
            logprobs = {
                name: [value for piece in self._pieces for value in piece[name]]
                for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
            }
        return self._as_json(self._text, logprobs)

    def _as_json(self, text: str, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "index": self._index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": self._reason,
        }

    def _logprobs(self, choice: Choice) -> dict[str, Any] | None:
        if self._num_candidates is None:
            return None
        best = {
            self._name(token): logprob
            for token, logprob in choice.candidates[: self._num_candidates]
        }
        return {
            "tokens": [self._name(choice.token)],
            "token_logprobs": [choice.logprob],
            "top_logprobs": [best],
            "text_offset": [self._offset + len(self._text)],
        }

    def _name(self, token: int) -> str:
        data = self._tokenizer.token_bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
