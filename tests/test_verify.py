from dataclasses import replace

from minigpt.cli import main
from minigpt.config import ParallelConfig
from minigpt.train import gradients
from minigpt.verify import TOLERANCES, all_meshes, describe

MESH = ["--parallel.pipe", "2", "--parallel.data", "1", "--parallel.model", "2"]


def test_a_sound_mesh_is_proved(capsys):
    assert main(["verify", *MESH, "--parallel.microbatches", "2", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("equal") == len(TOLERANCES)
    assert "1 mesh(es) train what one device trains" in out


def test_a_mesh_that_divides_the_sequence_is_proved(capsys):
    assert main(["verify", *MESH, "--parallel.sequence", "--steps", "3"]) == 0
    out = capsys.readouterr().out
    assert out.count("equal") == len(TOLERANCES)
    assert "1 chunk(s), sequence" in out


def test_a_fault_is_found(capsys, monkeypatch):
    """Tensor-parallel peers that use the dropout masks of the first heads."""
    sound = gradients.peers_on
    monkeypatch.setattr(
        gradients, "peers_on", lambda axes: replace(sound(axes), first_head=lambda num_held: 0)
    )
    assert main(["verify", *MESH, "--steps", "2", "--dropout", "0.3"]) == 1
    captured = capsys.readouterr()
    assert "DIFFERS" in captured.out
    assert "1 mesh(es) train something else: 2 pipe x 1 data x 2 model" in captured.err


def test_a_mesh_that_does_not_fit_is_refused(capsys):
    assert main(["verify", "--parallel.pipe", "16", "--parallel.data", "1"]) == 2
    assert "must not exceed the number of devices: 16 x 1 x 1 = 16" in capsys.readouterr().err


def test_all_meshes_of_eight_devices():
    meshes = list(all_meshes(8, 4))
    assert len(set(meshes)) == len(meshes)
    assert all(mesh.pipe * mesh.data * mesh.model == 8 for mesh in meshes)
    shapes = {(mesh.pipe, mesh.data, mesh.model) for mesh in meshes}
    assert len(shapes) == 10
    assert ParallelConfig(pipe=2, data=2, model=2, microbatches=4, interleave=2) in meshes
    assert ParallelConfig(pipe=8, data=1, microbatches=4, schedule="gpipe") in meshes
    assert ParallelConfig(data=8, microbatches=4, zero=1) in meshes
    divided = [mesh for mesh in meshes if mesh.sequence]
    assert len(divided) == sum(shape[2] > 1 for shape in shapes)
    assert describe(divided[0]) == "1 pipe x 4 data x 2 model, sequence"
