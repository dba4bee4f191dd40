"""Each check on facts that are right, doubtful and wrong."""

import pytest
from doctor.made_up import GIB, VERSIONS, cluster_of, device, node, said
from tiny import with_fields

from minigpt.config import Config, TrainConfig
from minigpt.doctor import checks
from minigpt.doctor.checks import Check


def test_a_check_is_a_line():
    assert str(Check("clock", "ok", "equal")) == "OK       clock            equal"
    line = str(Check("clock", "warning", "2 s apart", "use chrony"))
    assert line == "warning  clock            2 s apart; use chrony"
    assert str(Check("clock", "error", "x", "y")).startswith("ERROR    clock")


def test_versions():
    same = [node(rank) for rank in range(3)]
    said(checks.versions(same), "ok", "python 3.12.1, jax 0.12.0", "equal in 3 processes")
    other = node(3, versions=VERSIONS | {"jax": "0.11.2"})
    wrong = checks.versions([other, *same])
    said(wrong, "error", "jax is 0.11.2 for worker 3 on 10.0.0.3 but 0.12.0 elsewhere", "install")
    assert "python" not in wrong.found


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_fall_back_to_the_cpu(platform, workers):
    config = cluster_of(workers, platform=platform)
    nodes = [node(rank) for rank in range(workers or 1)]
    found = [device("cpu")] * len(nodes)
    check = checks.devices(config, nodes, found)
    said(check, "error", f"cluster.platform is {platform}", "worker 0", "has 1 cpu")
    assert f"minigpt[{platform}]" in check.remedy
    leaked = [node(rank, environment={"JAX_PLATFORMS": "cpu"}) for rank in range(len(nodes))]
    assert "unset JAX_PLATFORMS" in checks.devices(config, leaked, found).remedy


def test_devices_of_workers():
    nodes = [node(0, assigned=("0", "1")), node(1, assigned=("0", "1"))]
    right = [device("gpu", 2)] * 2
    config = cluster_of(2, 2, "cuda")
    shown = "worker 0 on 10.0.0.0: 2 gpu (NVIDIA H200, GPU 0 1), worker 1 on 10.0.0.1: 2 gpu"
    said(checks.devices(config, nodes, right), "ok", shown)
    few = [device("gpu", 2), device("gpu", 1)]
    fragments = ("devices_per_worker is 2", "worker 1", "has 1 gpu", "devices_per_worker 1")
    said(checks.devices(config, nodes, few), "error", *fragments)


def test_a_gpu_with_two_owners():
    same_node = [node(0, "a", assigned=("0",)), node(1, "a", assigned=("0",))]
    check = checks.devices(cluster_of(2, 1, "cuda"), same_node, [device("gpu")] * 2)
    said(check, "error", "more than one worker has GPU 0 of worker 1 on a")


def test_devices_without_a_cluster():
    said(checks.devices(Config(), [node()], [device("gpu", 2)]), "ok", "2 gpu")
    said(checks.devices(Config(), [node()], [device()]), "ok", "1 cpu")
    idle = checks.devices(Config(), [node(gpus=("H200", "H200"))], [device()])
    said(idle, "warning", "does not use 2 GPU(s): H200", "--extra cuda")


def test_gpu_libraries():
    def judged(*pairs):
        nodes = [node(rank, driver=driver) for rank, (driver, _) in enumerate(pairs)]
        found = [device("gpu", cudnn=cudnn) for _, cudnn in pairs]
        return list(checks.gpu_libraries(nodes, found))

    own = ("9.10.2", "/venv/site-packages/nvidia/cudnn/lib/libcudnn.so.9")
    strange = ("9.1.0", "/usr/lib/libcudnn.so.9")
    driver, cudnn = judged(("580.1", own), ("580.1", own))
    said(driver, "ok", "NVIDIA 580.1")
    said(cudnn, "ok", "9.10.2")
    driver, cudnn = judged(("580.1", own), ("570.2", strange))
    said(driver, "warning", "worker 1 on 10.0.0.1: 570.2")
    said(cudnn, "warning", "/usr/lib/libcudnn.so.9", "unset LD_LIBRARY_PATH")
    driver, cudnn = judged((None, None))
    said(driver, "warning", "nvidia-smi")
    said(cudnn, "error", "not loaded by worker 0")
    assert not list(checks.gpu_libraries([node()], [device()]))


def test_environment():
    said(checks.environment([node()], cuda=True), "ok", "nothing")
    library = {"LD_LIBRARY_PATH": "/usr/lib"}
    leak = [node(0), node(1, environment=library)]
    said(checks.environment(leak, cuda=True), "warning", "worker 1", "/usr/lib", "unset")
    said(checks.environment(leak, cuda=False), "ok", "LD_LIBRARY_PATH=/usr/lib")
    on_cpu = {"JAX_PLATFORMS": "cpu"}
    said(checks.environment([node(environment=on_cpu)], cuda=False), "ok", "JAX_PLATFORMS=cpu")
    idle = [node(environment=on_cpu, gpus=("H200",))]
    said(checks.environment(idle, cuda=False), "warning", "JAX_PLATFORMS is cpu", "unset")


def test_processor():
    check = checks.processor(Config(), [node(0), node(1)], [device()] * 2)
    said(check, "ok", "2 x 8 core(s) of EPYC (avx2)")
    assert "share" not in check.found
    many = checks.processor(Config(), [node(0, "a"), node(1, "a")], [device(count=5)] * 2)
    said(many, "ok", "10 devices share 8 core(s)")
    half = Config(train=TrainConfig(compute_dtype="bfloat16"))
    emulated = checks.processor(half, [node()], [device()])
    said(emulated, "warning", "bfloat16 is emulated by worker 0", "float32")
    said(checks.processor(half, [node(instruction_sets=("amx_bf16",))], [device()]), "ok")
    said(checks.processor(half, [node()], [device("gpu", 99)]), "ok")


def test_memory_of_nodes():
    """10**9 parameters are 16e9 bytes of state, 14.9 GiB."""
    config = cluster_of(2)
    right = [node(rank, available_bytes=15 * GIB) for rank in range(2)]
    said(checks.memory(config, 10**9, right, [device()] * 2), "ok", "2 x 15.0 GiB of 16.0 GiB")
    tight = checks.memory(config, 10**9, [node(0), node(1)], [])
    said(
        tight, "warning", "8.0 GiB of 16.0 GiB free on a node, 14.9 GiB of state", "parallel.model"
    )
    # Two workers of one node share its memory.
    together = [node(rank, "a", available_bytes=15 * GIB) for rank in range(2)]
    said(checks.memory(config, 10**9, together, [device()] * 2), "error", "29.8 GiB of state")


def test_memory_of_devices_and_what_is_divided():
    def judged(parallel, room):
        config = with_fields(cluster_of(4, platform="cuda"), parallel=parallel)
        nodes = [node(rank, available_bytes=1) for rank in range(4)]
        return checks.memory(config, 10**9, nodes, [device("gpu", memory_bytes=room)] * 4)

    said(judged({}, 15 * GIB), "ok", "4 x 15.0 GiB of 15.0 GiB free on a device")
    said(judged({}, 14 * GIB), "error", "14.9 GiB of state")
    said(judged({"model": 2}, 8 * GIB), "ok", "7.5 GiB of state")
    said(judged({"model": 2, "zero": 1}, 8 * GIB), "ok", "5.6 GiB of state")


def test_shared_memory():
    said(checks.shared_memory([node(0), node(1)]), "ok", "4.0 GiB or more")
    small = [node(0), node(1, shared_memory_bytes=64 * 2**20)]
    said(checks.shared_memory(small), "warning", "worker 1", "64.0 MiB free", "--shm-size")
    none = [node(0), node(1, shared_memory_bytes=None)]
    said(checks.shared_memory(none), "warning", "worker 1", "there is none")
