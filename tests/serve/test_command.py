"""``minigpt serve`` as a process."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import openai
import pytest
from saved_run import params_of, run_config, save_run

from minigpt.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = run_config(tmp_path_factory.mktemp("runs"))
    return save_run(config, {5: params_of(config, 1)})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_answers_end_and_ends_the_server(run, number):
    command = [sys.executable, "-m", "minigpt", "serve", str(run), "--port", "0", "--rows", "2"]
    mesh = ["--parallel.model", "2"] if number == signal.SIGTERM else []
    with subprocess.Popen([*command, *mesh], stderr=subprocess.PIPE, text=True) as server:
        try:
            said = ""
            while not (found := re.search(r"http://127.0.0.1:(\d+)", said)):
                line = server.stderr.readline()
                assert line, said
                said += line
            url = f"http://127.0.0.1:{found[1]}"
            health = json.loads(urllib.request.urlopen(f"{url}/healthz", timeout=30).read())
            assert health == {"status": "ok"}
            with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
                stream = client.completions.create(
                    model=run.name, prompt="a", max_tokens=1000, temperature=0, stream=True
                )
                pieces = [next(stream)]
                server.send_signal(number)
                pieces += list(stream)
            assert len(pieces) == 1000
            assert pieces[-1].choices[0].finish_reason == "length"
            assert server.wait(30) == 0
            assert server.stderr.read().splitlines()[-1] == "stopped"
        finally:
            server.kill()


def test_a_port_that_is_taken_is_said(run, capsys):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", str(run), "--port", str(port)]) == 2
    assert f"nothing can listen at --host 127.0.0.1 --port {port}: " in capsys.readouterr().err


def test_a_missing_run_is_said(tmp_path, capsys):
    assert main(["serve", str(tmp_path / "none"), "--port", "0"]) == 2
    assert "is not a run directory" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rows", "0"], "serve.rows must be at least 1, got 0"),
        (["--port", "70000"], "--port must be between 0 and 65535, got 70000"),
    ],
)
def test_options_are_checked(run, capsys, options, message):
    with pytest.raises(SystemExit) as ended:
        main(["serve", str(run), *options])
    assert ended.value.code == 2
    assert message in " ".join(capsys.readouterr().err.split())
