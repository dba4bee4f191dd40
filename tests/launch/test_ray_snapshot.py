import json

from minigpt.launch.ray_snapshot import own_snapshot


def write(run, steps):
    results = [{"checkpoint_dir_name": f"checkpoints/{step}", "metrics": {}} for step in steps]
    snapshot = {
        "checkpoint_results": results,
        "checkpoint_report_indices": list(range(len(steps))),
        "latest_checkpoint_result": results[-1],
    }
    (run / "checkpoint_manager_snapshot.json").write_text(json.dumps(snapshot))


def read(run):
    snapshot = json.loads((run / "checkpoint_manager_snapshot.json").read_text())
    latest = snapshot["latest_checkpoint_result"]
    return (
        [result["checkpoint_dir_name"] for result in snapshot["checkpoint_results"]],
        snapshot["checkpoint_report_indices"],
        latest and latest["checkpoint_dir_name"],
    )


def test_the_list_begins_empty_and_ends_with_what_is_there(tmp_path):
    write(tmp_path, [1])
    for step in (4, 6):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    with own_snapshot(tmp_path):
        assert not (tmp_path / "checkpoint_manager_snapshot.json").exists()
        write(tmp_path, [2, 4, 6])
    assert read(tmp_path) == (["checkpoints/4", "checkpoints/6"], [1, 2], "checkpoints/6")


def test_a_latest_checkpoint_that_is_gone_is_not_the_latest(tmp_path):
    (tmp_path / "checkpoints" / "2").mkdir(parents=True)
    with own_snapshot(tmp_path):
        write(tmp_path, [2, 4])
    assert read(tmp_path) == (["checkpoints/2"], [0], "checkpoints/2")
    with own_snapshot(tmp_path):
        write(tmp_path, [4])
    assert read(tmp_path) == ([], [], None)


def test_a_run_that_ray_did_not_begin_has_no_list(tmp_path):
    with own_snapshot(tmp_path / "new"):
        pass
    assert not (tmp_path / "new").exists()
