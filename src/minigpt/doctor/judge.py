"""From all findings to the doctor's lines."""

from collections.abc import Iterator

from minigpt.config import Config
from minigpt.data.tokenizer import load_tokenizer
from minigpt.doctor import checks, cluster_checks
from minigpt.doctor.checks import Check
from minigpt.doctor.facts import Findings
from minigpt.model.flops import num_parameters


def judge(config: Config, findings: Findings) -> list[Check]:
    """A check for everything that was found, in the order in which to read them."""
    vocab_size = load_tokenizer(config.data.tokenizer).vocab_size
    parameters = num_parameters(config.model, vocab_size)
    return [
        *_of_nodes(config, findings, parameters),
        *_between_nodes(config, findings),
        *_of_devices(config, findings),
    ]


def _of_nodes(config: Config, findings: Findings, parameters: int) -> Iterator[Check]:
    workers, found, cluster = findings.workers, findings.devices, config.cluster
    yield checks.versions(workers if findings.driver in workers else (findings.driver, *workers))
    if workers:
        yield checks.environment(workers, cuda=cluster.platform == "cuda")
        yield checks.processor(config, workers, found)
        yield checks.memory(config, parameters, workers, found)
        if cluster.num_workers or (found and found[0].platform == "gpu"):
            yield checks.shared_memory(workers)
    if findings.storage:
        yield from cluster_checks.storage(config, parameters, findings.storage)


def _between_nodes(config: Config, findings: Findings) -> Iterator[Check]:
    workers, cluster = findings.workers, config.cluster
    if cluster.num_workers == 0:
        return
    if findings.nodes:
        yield cluster_checks.resources(cluster, findings.nodes, findings.free)
    if findings.clock_offsets:
        yield cluster_checks.clock(workers, findings.clock_offsets)
    if findings.unreachable is not None:
        yield cluster_checks.ports(workers, findings.unreachable)
    if findings.devices or findings.failure:
        yield cluster_checks.runtime(workers, findings.failure)


def _of_devices(config: Config, findings: Findings) -> Iterator[Check]:
    workers, found, cluster = findings.workers, findings.devices, config.cluster
    if found:
        yield checks.devices(config, workers, found)
        yield from checks.gpu_libraries(workers, found)
        yield cluster_checks.matrices(config, workers, found)
    elif cluster.num_workers == 0 and findings.failure:
        remedy = checks.remedy_for(findings.driver, cluster.platform)
        yield Check("devices", "error", findings.failure, remedy)
    if findings.mesh_failure:
        yield Check("mesh", "error", findings.mesh_failure)
    for link in findings.links:
        yield cluster_checks.link(link)
