"""Judges what was found on the nodes: pure functions from facts to checks."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from minigpt.config import Config
from minigpt.doctor.facts import DeviceFacts, NodeFacts

GIB = 2**30
_SHARED_MEMORY_BYTES = 2 * GIB
_PLATFORMS = {"cpu": "cpu", "cuda": "gpu", "tpu": "tpu"}
_EXTRAS = {
    "cuda": "install jax for CUDA: `pip install 'minigpt[cuda]'`, `uv run --extra cuda`",
    "tpu": "install jax for TPUs: `pip install 'minigpt[tpu]'`, `uv run --extra tpu`",
    "cpu": "unset what makes jax look for other devices, or say which cluster.platform it is",
}


@dataclass(frozen=True)
class Check:
    """One line of the doctor."""

    name: str
    level: Literal["ok", "warning", "error"]
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        """As a line of text."""
        level = self.level if self.level == "warning" else self.level.upper()
        line = f"{level:<8} {self.name:<16} {self.found}"
        return f"{line}; {self.remedy}" if self.remedy else line


def versions(processes: Sequence[NodeFacts]) -> Check:
    """The same packages in all processes; the majority is taken for right."""
    usual = {
        name: Counter(process.versions[name] for process in processes).most_common(1)[0][0]
        for name in processes[0].versions
    }
    differing = [
        f"{name} is {process.versions[name]} for {process.process} but {version} elsewhere"
        for name, version in usual.items()
        for process in processes
        if process.versions[name] != version
    ]
    if differing:
        remedy = "install the same versions everywhere (the tested ones are in pyproject.toml)"
        return Check("versions", "error", ", ".join(differing), remedy)
    shown = ", ".join(f"{name} {version}" for name, version in usual.items())
    equal = f", equal in {len(processes)} processes" if len(processes) > 1 else ""
    return Check("versions", "ok", shown + equal)


def devices(config: Config, workers: Sequence[NodeFacts], found: Sequence[DeviceFacts]) -> Check:
    """The platform and the number of devices of each worker, and no device with two owners."""
    cluster = config.cluster
    if shared := _shared_gpus(workers):
        remedy = "let Ray assign them: one worker for each GPU, or one with all GPUs of a node"
        return Check("devices", "error", f"more than one worker has {shared}", remedy)
    wanted = _PLATFORMS[cluster.platform]
    for worker, facts in zip(workers, found, strict=True):
        here = f"{worker.process} has {facts.count} {facts.platform} device(s) ({facts.kind})"
        # Without a cluster nothing is said about the platform unless it is not the default.
        if facts.platform != wanted and (cluster.num_workers or wanted != "cpu"):
            asked = f"cluster.platform is {cluster.platform}, but {here}"
            return Check("devices", "error", asked, remedy_for(worker, cluster.platform))
        if cluster.num_workers and facts.count != cluster.devices_per_worker:
            asked = f"cluster.devices_per_worker is {cluster.devices_per_worker}, but {here}"
            remedy = f"use cluster.devices_per_worker {facts.count}"
            return Check("devices", "error", asked, remedy)
        if facts.platform == "cpu" and worker.gpus:
            unused = f"{here}, and does not use {len(worker.gpus)} GPU(s): {worker.gpus[0]}"
            return Check("devices", "warning", unused, _EXTRAS["cuda"])
    shown = ", ".join(_runs_of(_owned(w, f) for w, f in zip(workers, found, strict=True)))
    return Check("devices", "ok", shown)


def remedy_for(worker: NodeFacts, platform: str) -> str:
    """How a process comes to devices of a platform that jax did not find."""
    leak = worker.environment.get("JAX_PLATFORMS")
    return f"unset JAX_PLATFORMS, which is {leak}" if leak else _EXTRAS[platform]


def _owned(worker: NodeFacts, facts: DeviceFacts) -> str:
    numbers = f", GPU {' '.join(worker.assigned)}" if worker.assigned else ""
    return f"{worker.process}: {facts.count} {facts.platform} ({facts.kind}{numbers})"


def _shared_gpus(workers: Sequence[NodeFacts]) -> str:
    owners = Counter((worker.node, gpu) for worker in workers for gpu in worker.assigned)
    nodes = {worker.node: worker.process for worker in workers}
    return ", ".join(f"GPU {gpu} of {nodes[node]}" for (node, gpu), n in owners.items() if n > 1)


def gpu_libraries(workers: Sequence[NodeFacts], found: Sequence[DeviceFacts]) -> Iterator[Check]:
    """Driver and cuDNN where jax computes on NVIDIA GPUs."""
    pairs = [(w, f) for w, f in zip(workers, found, strict=True) if f.platform == "gpu"]
    if not pairs:
        return
    drivers = {worker.driver or "none" for worker, _ in pairs}
    if len(drivers) > 1:
        shown = ", ".join(f"{worker.process}: {worker.driver}" for worker, _ in pairs)
        yield Check("driver", "warning", shown, "install the same NVIDIA driver on all nodes")
    elif drivers == {"none"}:
        remedy = "add the NVIDIA utilities to the image to see the driver's version"
        yield Check("driver", "warning", "nvidia-smi does not answer", remedy)
    else:
        yield Check("driver", "ok", f"NVIDIA {drivers.pop()}")
    missing = [worker.process for worker, facts in pairs if facts.cudnn is None]
    strange = [
        f"{worker.process}: {facts.cudnn[1]}"
        for worker, facts in pairs
        if facts.cudnn and "site-packages" not in facts.cudnn[1]
    ]
    if missing:
        yield Check("cuDNN", "error", f"not loaded by {', '.join(missing)}", _EXTRAS["cuda"])
    elif strange:
        remedy = "unset LD_LIBRARY_PATH, so that the libraries installed with jax are used"
        yield Check("cuDNN", "warning", f"not jax's own for {', '.join(strange)}", remedy)
    else:
        shown = ", ".join(sorted({facts.cudnn[0] for _, facts in pairs if facts.cudnn}))
        yield Check("cuDNN", "ok", f"{shown}, jax's own")


def environment(workers: Sequence[NodeFacts], *, cuda: bool) -> Check:
    """Variables that decide in silence what jax computes on, or with which libraries."""
    for worker in workers:
        variables = worker.environment
        if cuda and "LD_LIBRARY_PATH" in variables:
            found = f"LD_LIBRARY_PATH is {variables['LD_LIBRARY_PATH']} for {worker.process}"
            remedy = "unset it, or its CUDA libraries may be loaded instead of jax's"
            return Check("environment", "warning", found, remedy)
        if variables.get("JAX_PLATFORMS") == "cpu" and (worker.gpus or cuda):
            found = f"JAX_PLATFORMS is cpu for {worker.process}, which has GPUs"
            return Check("environment", "warning", found, "unset it to train on them")
    names = sorted({f"{name}={value}" for w in workers for name, value in w.environment.items()})
    return Check("environment", "ok", ", ".join(names) or "nothing set that changes what jax does")


def processor(config: Config, workers: Sequence[NodeFacts], found: Sequence[DeviceFacts]) -> Check:
    """Cores and instruction sets, which matter where the CPU computes."""
    shown = ", ".join(_runs_of(_described(worker) for worker in workers))
    computes = not found or any(facts.platform == "cpu" for facts in found)
    fast = {"avx512_bf16", "amx_bf16", "bf16"}
    slow = [worker.process for worker in workers if not fast & set(worker.instruction_sets)]
    if computes and config.train.compute_dtype == "bfloat16" and slow:
        emulated = f"bfloat16 is emulated by {', '.join(slow)}: {shown}"
        return Check("processor", "warning", emulated, "use train.compute_dtype float32")
    if computes and found:
        for node, members in _by_node(workers).items():
            cores = members[0].num_cores
            pairs = zip(workers, found, strict=True)
            count = sum(facts.count for worker, facts in pairs if worker.node == node)
            if count > cores:
                shown += f"; {count} devices share {cores:g} core(s): right to try, not for speed"
                break
    return Check("processor", "ok", shown)


def _described(worker: NodeFacts) -> str:
    sets = " ".join(worker.instruction_sets) or "no vector instruction sets known"
    return f"{worker.num_cores:g} core(s) of {worker.processor} ({sets})"


def memory(
    config: Config,
    num_parameters: int,
    workers: Sequence[NodeFacts],
    found: Sequence[DeviceFacts],
) -> Check:
    """Room for parameters, gradients and moments, the least that training needs."""
    each = _state_bytes(config, num_parameters, _num_devices(config, workers, found))
    level, parts = "ok", list[str]()
    for node, members in _by_node(workers).items():
        facts = [f for w, f in zip(workers, found, strict=True) if w.node == node] if found else []
        free, room, needed = members[0].available_bytes, members[0].memory_bytes, each
        own = next((f.memory_bytes for f in facts if f.memory_bytes), None)
        if own:
            free, room = own, own
        else:
            needed *= _num_devices(config, members, facts)
        if needed > free:
            level = "error" if needed > room or level == "error" else "warning"
        place = "a device" if own else "a node"
        parts.append(f"{size(free)} of {size(room)} free on {place}, {size(needed)} of state")
    remedy = (
        ""
        if level == "ok"
        else (
            "divide the model over more devices with parallel.model or parallel.pipe, use "
            "parallel.zero 1, or end what else takes memory"
        )
    )
    return Check("memory", level, ", ".join(_runs_of(parts)) + ", without activations", remedy)


def _num_devices(config: Config, workers: Sequence[NodeFacts], found: Sequence[DeviceFacts]) -> int:
    return sum(f.count for f in found) or len(workers) * config.cluster.devices_per_worker


def _state_bytes(config: Config, num_parameters: int, num_devices: int) -> float:
    """Of one device: parameters, gradients and the two moments of AdamW, all float32."""
    peers = config.parallel.pipe * config.parallel.model
    owners = max(1, num_devices // peers) if config.parallel.zero else 1
    return 4 * num_parameters / peers * (2 + 2 / owners)


def shared_memory(workers: Sequence[NodeFacts]) -> Check:
    """Ray's object store and NCCL use /dev/shm."""
    least = min(workers, key=lambda worker: worker.shared_memory_bytes or 0)
    free = least.shared_memory_bytes
    if free is None or free < _SHARED_MEMORY_BYTES:
        shown = "there is none" if free is None else f"{size(free)} free"
        remedy = f"give the container {size(_SHARED_MEMORY_BYTES)} or more (docker --shm-size)"
        return Check("shared memory", "warning", f"/dev/shm of {least.process}: {shown}", remedy)
    return Check("shared memory", "ok", f"/dev/shm: {size(free)} or more free")


def size(num_bytes: float) -> str:
    """Bytes for people."""
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:,.1f} MiB"


def _by_node(workers: Sequence[NodeFacts]) -> dict[str, list[NodeFacts]]:
    nodes: dict[str, list[NodeFacts]] = {}
    for worker in workers:
        nodes.setdefault(worker.node, []).append(worker)
    return nodes


def _runs_of(texts: Iterator[str] | Sequence[str]) -> list[str]:
    """Each text once, with how often it was there."""
    return [f"{n} x {text}" if n > 1 else text for text, n in Counter(texts).items()]
