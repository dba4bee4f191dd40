"""Builds a token store with the CPUs of a Ray cluster.

The corpus is read in order by one task on the node that this is called from, so that only this
node must have the text, and handed on as a Ray Dataset of batches of stories. Worker processes
anywhere tokenise them; the batches come back in order to the caller, which alone writes. What is
written is what `build` writes on one machine: reading, writing and naming are its own code.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import astuple
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import ray
import ray.data
from numpy.typing import NDArray
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask
from ray.data.exceptions import ExecutionTimeoutError
from ray.exceptions import RayError, RayTaskError

from minigpt.config import Config
from minigpt.data.build import EncodedBatch, Progress, open_or_build, read_batches
from minigpt.data.corpus import Corpus, ReadCounts
from minigpt.data.store import TokenStore
from minigpt.data.tokenizer import Tokenizer
from minigpt.errors import DataError, MiniGPTError

_BLOCK_BYTES = 1024 * 1024
_FAILED = "tokenising on the Ray cluster failed"
_PATIENCE_SECONDS = 600  # for nodes that are being added, as for the workers of a training


def open_or_build_on_cluster(
    config: Config, storage_path: Path, progress: Progress
) -> tuple[TokenStore, bool]:
    """`build.open_or_build` in ``storage_path``, tokenising on the Ray cluster that is joined.

    ``data.path`` is read on this node alone; ``storage_path`` must be seen by every node that
    will read the rows, and by this one.

    Raises:
        DataError: the corpus cannot be read, is empty, or too small for one batch.
        MiniGPTError: the cluster could not tokenise it.
    """
    return open_or_build(config, progress, directory=storage_path, encode=encode_on_cluster)


def encode_on_cluster(corpus: Corpus, tokenizer: Tokenizer) -> Generator[EncodedBatch, None, None]:
    """Encode a corpus in one worker process per CPU of the cluster, a `build.Encode`.

    The corpus passes through in blocks of about 1 MiB; Ray Data holds the reader back before its
    object store is full.

    Raises:
        DataError: the corpus cannot be read or tokenised.
        MiniGPTError: the cluster failed, or had no CPU for this within ten minutes.
    """
    try:
        # Closed, Ray ends its processes now; else with the garbage, and others lack their CPUs.
        with closing(_encoded(corpus, tokenizer)) as tables:
            for table in tables:
                for row in range(table.num_rows):
                    yield _decode(table, row)
    except (RayError, ExecutionTimeoutError) as error:
        raise MiniGPTError(f"{_FAILED}: {_reason(error)}") from error


def _encoded(corpus: Corpus, tokenizer: Tokenizer) -> Generator[pa.Table]:
    """Tables of `_Encoder`, in order."""
    here = ray.get_runtime_context().get_node_id()
    # The reader takes no CPU of its own, or on a small cluster it would hold the only one.
    stories = ray.data.read_datasource(
        _Stories(corpus), num_cpus=0, label_selector={"ray.io/node-id": here}, override_num_blocks=1
    )
    stories.context.target_max_block_size = _BLOCK_BYTES
    stories.context.execution_options.preserve_order = True
    stories.context.enable_progress_bars = False
    stories.context.execution_no_progress_timeout_s = _PATIENCE_SECONDS
    num_processes = _num_processes(corpus)
    encoded = stories.map_batches(
        _Encoder,
        fn_constructor_args=(tokenizer,),
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=1,
        compute=ray.data.ActorPoolStrategy(
            min_size=1, initial_size=num_processes, max_size=num_processes
        ),
    )
    batches = encoded.iter_batches(batch_size=None, batch_format="pyarrow")
    return cast("Generator[pa.Table]", iter(batches))


def _reason(error: RayError | ExecutionTimeoutError) -> str:
    if isinstance(error, RayError):
        return cause_of(error)
    free, total = ray.available_resources().get("CPU", 0), ray.cluster_resources().get("CPU", 0)
    return (
        f"nothing went on for {_PATIENCE_SECONDS} s; a process needs a CPU of its own, and "
        f"{free:g} of the cluster's {total:g} are free"
    )


def cause_of(error: RayError) -> str:
    """One line that says what went wrong; the text of a failed task is a chain of tracebacks."""
    lines = str(error).partition("\n\nThe above exception")[0].strip().splitlines()
    return lines[-1 if isinstance(error, RayTaskError) else 0]


def _num_processes(corpus: Corpus) -> int:
    """One for each CPU of the cluster, but none without a block of its own."""
    num_cpus = int(ray.cluster_resources().get("CPU", 1))
    return max(1, min(num_cpus, corpus.total_bytes // _BLOCK_BYTES))


_SCHEMA = pa.schema(
    [
        ("text", pa.large_string()),
        ("lengths", pa.list_(pa.int64())),
        ("first", pa.list_(pa.bool_())),
        ("last", pa.list_(pa.bool_())),
        ("counts", pa.list_(pa.int64())),
        ("error", pa.string()),
    ]
)
"""One row is a batch of `read_batches` with its texts joined, or the error that ended reading."""

_ENCODED = {
    "tokens": pa.list_(pa.uint16()),
    "lengths": pa.list_(pa.int64()),
    "error": pa.string(),
}
"""What takes the place of the texts: all tokens, how many each piece has, and what went wrong."""


class _Stories(Datasource):
    """Reads a corpus from beginning to end in one task that hands on blocks as it goes."""

    def __init__(self, corpus: Corpus) -> None:
        super().__init__()
        self._corpus = corpus

    def estimate_inmemory_data_size(self) -> int:
        return self._corpus.total_bytes

    def get_read_tasks(self, *args: object, **kwargs: object) -> list[Any]:  # of ReadTask
        corpus = self._corpus
        metadata = BlockMetadata(None, corpus.total_bytes, input_files=None, exec_stats=None)
        return [ReadTask(lambda: _read(corpus), metadata, schema=_SCHEMA)]


def _read(corpus: Corpus) -> Iterator[pa.Table]:
    try:
        for pieces, counts in read_batches(corpus):
            yield _table(
                "".join([piece.text for piece in pieces]),
                np.array([len(piece.text) for piece in pieces], np.int64),
                np.array([piece.first for piece in pieces], bool),
                np.array([piece.last for piece in pieces], bool),
                astuple(counts),
                None,
            )
    except DataError as error:  # as a row: Ray would report it as a fault of its own
        yield _table("", [], [], [], [], str(error))


def _table(*values: object) -> pa.Table:
    return pa.table([[value] for value in values], schema=_SCHEMA)


class _Encoder:
    """Replaces texts by their tokens; Ray Data makes one in each worker process."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, table: pa.Table) -> pa.Table:
        columns = (table[name].to_pylist() for name in ("text", "lengths", "error"))
        rows = [self._encode(*row) for row in zip(*columns, strict=True)]
        encoded = table.select(["first", "last", "counts"])
        for column, (name, kind) in enumerate(_ENCODED.items()):
            encoded = encoded.append_column(name, pa.array([row[column] for row in rows], kind))
        return encoded

    def _encode(
        self, text: str, lengths: list[int], error: str | None
    ) -> tuple[NDArray[np.uint16], list[int], str | None]:
        ends = np.cumsum(lengths, dtype=np.int64).tolist()
        pieces = [text[end - length : end] for end, length in zip(ends, lengths, strict=True)]
        try:
            tokens = [self._tokenizer.encode(piece) for piece in pieces]
        except Exception as failure:  # noqa: BLE001 - as a row: an error cannot be closed
            tokens, error = [], f"{_FAILED}: {type(failure).__name__}: {failure}"
        return np.concatenate([np.empty(0, np.uint16), *tokens]), [len(t) for t in tokens], error


def _decode(table: pa.Table, row: int) -> EncodedBatch:
    if (error := table["error"][row].as_py()) is not None:
        raise DataError(error)
    tokens = table["tokens"][row].values.to_numpy()
    ends = np.cumsum(table["lengths"][row].values.to_numpy())
    return EncodedBatch(
        np.split(tokens, ends[:-1]) if len(ends) else [],
        table["first"][row].as_py(),
        table["last"][row].as_py(),
        ReadCounts(*table["counts"][row].as_py()),
    )
