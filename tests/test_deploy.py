"""What `deploy` and the page on clusters say fits Ray's schema, our options, and our files."""

import copy
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from minigpt.commands.options import parse_config
from minigpt.config_file import load_config
from minigpt.data.datasets import dataset

ROOT = Path(__file__).parents[1]
LAUNCHER = {"aws-8x1": "8x1", "aws-2x4": "2x4"}
RAYJOB = ROOT / "deploy" / "kuberay-rayjob.yaml"
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
PLACES = [
    *sorted((ROOT / "recipes").glob("*.yaml")),
    *sorted((ROOT / "deploy").glob("aws-*.yaml")),
    ROOT / "docs" / "clusters.md",
    ROOT / "README.md",
]

# The fields of KubeRay's API that the manifest uses, as in ray-operator/apis/ray/v1.
JOB_FIELDS = {
    "entrypoint",
    "backoffLimit",
    "shutdownAfterJobFinishes",
    "ttlSecondsAfterFinished",
    "rayClusterSpec",
}
CLUSTER_FIELDS = {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"}
GROUP_FIELDS = {
    "groupName",
    "replicas",
    "minReplicas",
    "maxReplicas",
    "rayStartParams",
    "template",
}


def launcher(name):
    return yaml.safe_load((ROOT / "deploy" / f"{name}.yaml").read_text())


def rayjob():
    claim, job = yaml.safe_load_all(RAYJOB.read_text())
    return claim, job


def pinned(package):
    with (ROOT / "pyproject.toml").open("rb") as file:
        pins = tomllib.load(file)["tool"]["uv"]["constraint-dependencies"]
    return next(pin.split("==")[1] for pin in pins if pin.startswith(f"{package}=="))


def train_commands(text):
    """The options of every `minigpt train` in a text, joined where lines are continued."""
    joined = re.sub(r"\\\n[# ]*", "", text)
    return [
        shlex.split(found.rstrip("."), comments=True)
        for found in re.findall(r"minigpt train((?: [^\n`\"&|;]+)?)", joined)
    ]


def check_train(options, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = [option.replace("/opt/minigpt/recipes/", "recipes/") for option in options]
    # The configuration of an imported run is there once it is imported.
    options = [option.replace("runs/gpt2/config", "recipes/gpt2-small") for option in options]
    config = parse_config(options, prog="minigpt train", description="")
    if config.cluster.address is not None:
        assert config.cluster.num_workers > 0
        assert config.cluster.storage_path is not None
    return config


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.stem)
def test_every_training_command_is_understood(place, monkeypatch):
    commands = train_commands(place.read_text())
    assert commands
    for options in commands:
        if not {"...", "--help"} & set(options):
            check_train(options, monkeypatch)


@pytest.mark.ray
@pytest.mark.parametrize("name", LAUNCHER)
def test_the_launcher_accepts_it_as_ray_up_does(name, capsys):
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = launcher(name)
    prepared = prepare_config(copy.deepcopy(config))
    validate_config(prepared)
    for step in ("head_setup_commands", "worker_setup_commands"):
        assert prepared[step] == config["setup_commands"], "a default of Ray's own slipped in"


@pytest.mark.parametrize(("name", "recipe"), LAUNCHER.items())
def test_a_launched_cluster_is_as_large_as_its_recipe(name, recipe):
    config = launcher(name)
    cluster = load_config(ROOT / "recipes" / f"{recipe}.yaml").cluster
    trainer = config["available_node_types"]["trainer"]
    nodes = (trainer["min_workers"], trainer["max_workers"], config["max_workers"])
    assert nodes == (cluster.num_workers,) * 3
    assert trainer["resources"]["GPU"] == cluster.devices_per_worker
    assert config["available_node_types"]["head"]["resources"]["GPU"] == 0
    assert config["cluster_name"] == f"minigpt-{recipe}"


@pytest.mark.parametrize("name", LAUNCHER)
def test_what_is_copied_to_nodes_exists_and_what_is_left_to_fill_in_is_listed(name):
    text = (ROOT / "deploy" / f"{name}.yaml").read_text()
    config = launcher(name)
    for remote, local in config["file_mounts"].items():
        assert Path(remote).name == Path(local).name
        assert local.startswith("~") or (ROOT / local).exists()
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    settings = yaml.safe_dump(config)
    for placeholder in ("REGION", "ZONE", "AMI_ID", "SHARED_HOST"):
        assert re.search(rf"\b{placeholder}\b", settings)
        assert re.search(rf"\b{placeholder}\b", comments)
    assert text.replace(name, "aws-8x1").count("deploy/aws-8x1.yaml") == 4


def test_the_launchers_differ_only_in_size():
    one, other = (launcher(name) for name in LAUNCHER)
    for config in (one, other):
        del config["cluster_name"], config["max_workers"]
        trainer = config["available_node_types"]["trainer"]
        for field in ("min_workers", "max_workers", "resources"):
            del trainer[field]
        del trainer["node_config"]["InstanceType"]
    assert one == other


def test_the_rayjob_has_known_fields_and_enough_nodes(monkeypatch):
    claim, job = rayjob()
    spec = job["spec"]
    cluster = spec["rayClusterSpec"]
    head, (group,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert set(spec) <= JOB_FIELDS
    assert set(cluster) <= CLUSTER_FIELDS
    assert set(head) | set(group) <= GROUP_FIELDS
    assert cluster["rayVersion"] == pinned("ray")

    fetch, train = spec["entrypoint"].split(" && ")
    config = check_train(shlex.split(train)[2:], monkeypatch)
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (
        config.cluster.num_workers,
    ) * 3
    for group_spec in (head, group):
        pod = group_spec["template"]["spec"]
        (container,) = pod["containers"]
        mounts = {mount["name"] for mount in container["volumeMounts"]}
        assert mounts == {volume["name"] for volume in pod["volumes"]}
        claims = [v["persistentVolumeClaim"] for v in pod["volumes"] if v["name"] == "shared"]
        assert claims == [{"claimName": claim["metadata"]["name"]}]
        assert container["resources"]["limits"] == container["resources"]["requests"]
    gpus = group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    assert int(gpus) == config.cluster.devices_per_worker

    words = shlex.split(fetch)
    assert words[:3] == ["minigpt", "data", "fetch"]
    folder = words[words.index("--directory") + 1]
    assert config.data.path in [f"{folder}/{file}" for file in dataset(words[3]).files]
    assert config.data.path.startswith("/shared/")
    assert config.cluster.storage_path.startswith("/shared/")


def test_the_image_has_what_it_copies_and_runs_as_a_user():
    instructions = [line.split() for line in DOCKERFILE.splitlines() if line[:1].isupper()]
    base = next(words[1] for words in instructions if words[0] == "FROM")
    assert base.startswith(f"python:{(ROOT / '.python-version').read_text().strip()}-")
    allowed = (ROOT / "deploy" / "Dockerfile.dockerignore").read_text().split()
    sources = [source for words in instructions if words[0] == "COPY" for source in words[1:-1]]
    assert {"pyproject.toml", "src", "recipes"} <= set(sources)
    for source in sources:
        assert (ROOT / source).exists()
        assert f"!{source}" in allowed
    users = [words[1] for words in instructions if words[0] == "USER"]
    assert users == ["1000"]
    _, job = rayjob()
    pod = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert pod["securityContext"]["runAsUser"] == int(users[0])
