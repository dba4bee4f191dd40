"""The web page of ``minigpt serve``; in a real browser with ``-m long``, where there is one."""

import json
import queue
import re
import shutil
import subprocess
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import minigpt

PAGE = Path(minigpt.__file__).parent / "serve" / "page.html"
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))),
    None,
)
MODEL = {"id": "mini", "step": 1000, "num_parameters": 8_000_000, "limits": {"max_tokens": 120}}
MARKUP = [" <script>", "alert(1)", "</script>", "<b>", "bold", "\n"]

# Leads the page, which stands in a frame as wide as a screen, and reports what it found.
DRIVER = """<!doctype html>
<iframe src="/" style="width:%dpx;height:700px;border:0"></iframe>
<script>
const frame = document.querySelector("iframe"), found = {};
const find = (id) => frame.contentDocument.getElementById(id);
const tokens = () => [...find("text").querySelectorAll(".token")];
async function until(what, holds) {
  for (let tries = 0; !holds(); tries++) {
    if (tries > 500) throw new Error("never: " + what);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}
async function start(prompt) {
  find("prompt").value = prompt;
  find("generate").click();
  await until(prompt + " starts", () => find("generate").disabled && !find("stop").disabled);
}
const idle = () => until("idle", () => !find("generate").disabled && find("stop").disabled);
const press = (key, options) => find("prompt").dispatchEvent(
  new frame.contentWindow.KeyboardEvent("keydown", { key, bubbles: true, ...options }));
const tipOf = (token) => {
  token.dispatchEvent(new frame.contentWindow.PointerEvent("pointerover", { bubbles: true }));
  return find("tip").hidden ? null : find("tip").innerText.split(/\\n+/);
};
const colours = (selector, name) => [...frame.contentDocument.querySelectorAll(selector)]
  .map((element) => getComputedStyle(element)[name]);
addEventListener("load", async () => {
  try {
    await until("the model", () => find("model").textContent === "mini");
    frame.contentWindow.console.error("heard");
    %s
    found.hosts = frame.contentWindow.performance.getEntriesByType("resource")
      .map((entry) => new URL(entry.name).host);
    found.overflow = frame.contentDocument.documentElement.scrollWidth - frame.clientWidth;
  } catch (problem) { found.failed = String(problem); }
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
});
</script>"""


def chunk(text, tokens, finish=None):
    top = [{token: -0.5, " day": -2.0, "\n": -3.0} for token in tokens]
    logprobs = {"tokens": tokens, "token_logprobs": [-0.5] * len(tokens), "top_logprobs": top}
    choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": finish}
    return {"choices": [choice]}


class Mock(ThreadingHTTPServer):
    """Speaks the protocol of the server; the prompt says which case."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.driver = ""
        self.found = queue.Queue()
        self.bodies = []
        self.may_go_on = threading.Semaphore(0)
        self.dropped = threading.Event()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Mock
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/v1/models":
            self.reply(json.dumps({"data": [MODEL]}), "application/json")
        elif self.path == "/go-on":
            self.server.may_go_on.release()
            self.reply("", "text/plain")
        else:
            text = self.server.driver if self.path == "/driver" else PAGE.read_text("utf-8")
            self.reply(text, "text/html; charset=utf-8")

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/found":
            self.reply("", "text/plain")
            self.server.found.put(body)
            return
        self.server.bodies.append(body)
        if body["prompt"] == "refused":
            error = {"error": {"message": "top_k is <i>wrong</i>", "param": "top_k"}}
            self.reply(json.dumps(error), "application/json", 400)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            getattr(self, body["prompt"])()
        except ConnectionError:
            self.server.dropped.set()

    def reply(self, text, kind, status=200):
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def event(self, data, pause=0.0):
        """Send an event; with a pause, byte for byte."""
        text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
        block = f"data: {text}\n\n".encode()
        for part in (bytes([byte]) for byte in block) if pause else (block,):
            self.wfile.write(part)
            time.sleep(pause)

    def stepwise(self):
        for token in (" one", " two", " three"):
            self.event(chunk(token, [token]))
            assert self.server.may_go_on.acquire(timeout=10)
        self.event(chunk("", [], "length"))
        self.event({"choices": [], "usage": {"window_slides": 2}})
        self.event("[DONE]")

    def markup(self):
        for token in MARKUP:
            self.event(chunk(token, [token]))
        self.event(chunk("", ["bytes:\\xc3"]))
        self.event(chunk("é", ["bytes:\\xa9"]), pause=0.002)
        self.event(chunk("!?", ["!", "?"], "stop"))
        self.event("[DONE]")

    def endless(self):
        while not self.server.dropped.wait(0.01):
            self.event(chunk(" on", [" on"]))

    def breaks(self):
        self.event(chunk(" half", [" half"]))
        self.event({"error": {"message": "the model has failed", "param": None}})

    def cut(self):
        self.event(chunk(" half", [" half"]))


@pytest.fixture
def mock():
    server = Mock()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@contextmanager
def browser(url, folder, options):
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += ["--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}"]
    command += ["--remote-debugging-port=0", *options, url]  # a port: so that it stays open
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(timeout=20)


@pytest.fixture
def visit(mock, tmp_path):
    """What a script finds in the page, on a screen of so many pixels, and the console's lines."""

    def lead(script, *options, width=1200):
        mock.driver = DRIVER % (width, script)
        with browser(f"{mock.url}/driver", tmp_path, options):
            found = mock.found.get(timeout=60)
        assert "failed" not in found, found
        assert set(found["hosts"]) == {mock.url.removeprefix("http://")}
        log = (tmp_path / "log").read_text("utf-8", errors="replace")
        lines = re.findall(r"CONSOLE.*", log)
        others = [line for line in lines if '"heard"' not in line]
        assert len(others) < len(lines)
        return found, others

    return lead


def test_the_page_needs_nothing_else():
    text = PAGE.read_text("utf-8")
    assert not re.search(r"https?:|\bsrc=|@import|url\(|innerHTML|outerHTML|insertAdjacent", text)
    assert re.findall(r"<link[^>]*>", text) == ['<link rel="icon" href="data:,">']
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy


def test_each_field_has_a_label():
    text = PAGE.read_text("utf-8")
    fields = re.findall(r'<(?:input|textarea)[^>]* id="([^"]*)"', text)
    assert len(fields) == 7
    assert sorted(fields) == sorted(re.findall(r'<label for="([^"]*)"', text))
    for described in re.findall(r'aria-describedby="([^"]*)"', text):
        assert f' id="{described}"' in text


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome")
def test_tokens_appear_one_after_the_other(visit, mock):
    found, console = visit("""
      found.shown = [];
      find("seed").value = "7";
      await start("stepwise");
      for (const number of [1, 2, 3]) {
        await until("token " + number, () => tokens().length === number);
        found.shown.push(find("text").textContent);
        await fetch("/go-on");
      }
      await idle();
      found.status = find("status").textContent;
    """)
    one, two, three = "stepwise one", "stepwise one two", "stepwise one two three"
    assert found["shown"] == [one, two, three]
    assert re.fullmatch(
        r"3 tokens, [\d.]+ tokens/s, first token after [\d.]+ s, "
        "the limit of new tokens was reached, the text outgrew the model's context and went on .*",
        found["status"],
    )
    assert console == []
    assert mock.bodies == [
        {
            "model": "mini",
            "prompt": "stepwise",
            "stream_options": {"include_usage": True},
            "max_tokens": 120,
            "temperature": 0.8,
            "top_k": 0,
            "top_p": 1,
            "repetition_penalty": 1,
            "seed": 7,
            "logprobs": 5,
            "stream": True,
        }
    ]


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome")
def test_a_models_text_stays_text_and_says_how_likely_it_was(visit):
    script = """
      await start("markup");
      await idle();
      found.tokens = tokens().map((token) => token.textContent);
      found.elements = find("text").querySelectorAll("*").length;
      found.tips = tokens().map(tipOf);
      tokens()[3].focus();
      press("Escape");
      found.escaped = find("tip").hidden;
      found.newline = tokens()[5].getBoundingClientRect().width;
      found.status = find("status").textContent;
    """
    found, console = visit(script, width=360)
    assert found["tokens"] == [*MARKUP, "é", "!", "?"]
    assert found["elements"] == len(found["tokens"]) + 1  # and the prompt
    alternatives = ["␣day", "14 %", "↵", "5.0 %"]
    assert found["tips"][0] == ["␣<script> 61 %", "␣<script>", "61 %", *alternatives]
    assert [line for line in found["tips"][6] if "bytes" in line] == [
        "bytes:\\xc3 61 %",
        "bytes:\\xc3",
        "bytes:\\xa9 61 %",
        "bytes:\\xa9",
    ]
    assert found["escaped"]
    assert found["newline"] > 5  # something to point at
    assert found["status"].endswith("the story ended")
    assert found["overflow"] <= 0
    assert console == []


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome")
@pytest.mark.parametrize("how", ['find("stop").click()', 'press("Escape")'], ids=["button", "key"])
def test_stop_ends_the_request(visit, mock, how):
    found, console = visit(f"""
      find("prompt").value = "endless";
      press("Enter", {{ ctrlKey: true }});
      await until("some text", () => tokens().length > 3);
      {how};
      await idle();
      found.status = find("status").textContent;
      found.error = find("error").textContent;
    """)
    assert mock.dropped.wait(timeout=10)
    assert found["status"].endswith("stopped by you")
    assert found["error"] == ""
    assert console == []


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome")
def test_what_went_wrong_stands_near_the_button(visit, mock):
    script = """
      found.errors = {};
      for (const prompt of ["refused", "breaks", "cut"]) {
        find("prompt").value = prompt;
        find("generate").click();
        await until("an error", () => find("error").textContent);
        await idle();
        found.errors[prompt] = [find("error").textContent, find("text").textContent,
          frame.contentDocument.querySelector("[aria-invalid=true]")?.id];
      }
      find("prompt").value = "stepwise";
      find("seed").value = "seven";
      press("Enter", { metaKey: true });
      await idle();
      found.errors.seed = [find("error").textContent];
    """
    found, console = visit(script, width=360)
    assert found["errors"] == {
        "refused": ["top_k is <i>wrong</i>", "refused", "top_k"],
        "breaks": ["the model has failed", "breaks half", None],
        "cut": ["The server ended the text before it was complete.", "cut half", None],
        "seed": ["The seed has to be a whole number, or empty."],
    }
    assert [body["prompt"] for body in mock.bodies] == ["refused", "breaks", "cut"]
    assert found["overflow"] <= 0
    assert console == []


def contrast(*colours):
    def luminance(colour):
        values = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour]
        return 0.2126 * values[0] + 0.7152 * values[1] + 0.0722 * values[2]

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def over(colour, below=(0, 0, 0)):
    """A colour as a browser writes it, on another, as red, green and blue up to 1."""
    numbers = [float(number) for number in re.findall(r"[\d.]+", colour.replace("srgb", ""))]
    scale = 1 if colour.startswith("color(") else 255
    alpha = numbers[3] if len(numbers) > 3 else 1
    return [alpha * n / scale + (1 - alpha) * b for n, b in zip(numbers, below, strict=False)]


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium or chrome")
@pytest.mark.parametrize("scheme", [0, 1], ids=["dark", "light"])
def test_text_can_be_read_in_the_dark_and_in_the_light(visit, scheme):
    script = """
      await start("markup");
      await idle();
      [found.paper] = colours("body", "backgroundColor");
      [found.card] = colours("#text", "backgroundColor");
      [found.ink] = colours(".token", "color");
      found.tints = colours("#legend b", "backgroundColor");
      found.onPaper = [...colours(".soft, #error, h1, #status", "color")];
      found.onCard = [...colours(".prompt, small, summary, label", "color")];
      found.button = ["color", "backgroundColor"].map((name) => colours("#generate", name)[0]);
    """
    found, _ = visit(script, f"--blink-settings=preferredColorScheme={scheme}")
    paper, card, ink = (over(found[name]) for name in ("paper", "card", "ink"))
    assert (sum(paper) > 2.7) == (scheme == 1)
    assert len(found["tints"]) == 5
    assert all(contrast(ink, over(tint, card)) >= 4.5 for tint in found["tints"])
    assert all(contrast(over(colour), paper) >= 4.5 for colour in found["onPaper"])
    assert all(contrast(over(colour), card) >= 4.5 for colour in found["onCard"])
    assert contrast(*map(over, found["button"])) >= 4.5
