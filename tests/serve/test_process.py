"""The process: what it refuses to start with, how it ends, and that SIGKILL loses nothing that was said to be read."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx
import pytest
import typer

from longspan.bundled import FOLDER
from longspan.cli.commands import app
from longspan.errors import LongspanError
from longspan.install import pip_install
from longspan.serve.host import Host
from longspan.serve.run import serve
from longspan.serve.settings import ServerSettings
from longspan.serve.sockets import bound
from support.command_line import run  # noqa: F401  a fixture
from support.serving import QUESTION, chat, events, wait_for
from support.serving_process import Process
from support.sessions import hangups

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--host", "0.0.0.0"], "--api-key"),
        (["--memory", "much"], "--memory must be a size"),
        (["--layout", "x"], "--layout must be auto, "),
        (["--kv-dir", "/nowhere/at/all"], "--kv-dir /nowhere/at/all is not a folder"),
        (["--kv-disk", "1G"], "--kv-disk limits --kv-dir, which is not given"),
        (["--method", "none-such"], "none-such"),
        (["--documents", "/dev/null/x"], "/dev/null"),
        (["--kv-tier", "tape"], "kv_tier"),
        (["--calibration", "/nowhere.safetensors"], "/nowhere.safetensors"),
        (["--documents", ""], "--documents"),  # which would be the current folder
        (["--kv-dir", " "], "the name is empty"),
        (["--port", "99999"], "--port"),
        (["--host", "no-such-name.invalid", "--api-key", "k"], "--host no-such-name.invalid"),
        (["--log-format", "xml"], "--log-format must be text or json"),
        (["--api-keys", "/dev/null"], "--api-keys /dev/null has no key"),
        (["--api-keys", "/nowhere.txt"], "--api-keys"),
    ],
)
def test_what_it_refuses_is_one_line(run, args, words):  # noqa: F811
    ran = run("serve", "bundled", "--port", "0", *args)
    assert ran.code != 0 and words in ran.err and ran.err.strip().splitlines()[-1].startswith("longspan: error: ")
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(("tier", "more"), [("device", []), ("host", []), ("disk", ["--kv-dir"])])
def test_how_the_model_is_extended(run, monkeypatch, tmp_path, tier, more):  # noqa: F811
    hosts = []
    monkeypatch.setattr("longspan.serve.run.serve", lambda host, sockets, demo: hosts.append(host))
    words = ["--method", "esa", "--calibration", FOLDER / "calibration.safetensors", "--kv-tier", tier]
    ran = run("serve", "bundled", "--port", "0", *words, *(word for one in more for word in (one, tmp_path)))
    assert ran.code == 0, ran.err
    report = hosts[0].attachment.report
    assert (report.kv_tier, report.kv_dir) == (tier, tmp_path if more else None)
    assert report.method.name == "esa" and report.calibration.startswith("scores reduced to ")


def test_a_tier_that_auto_chooses_has_its_files_in_the_folder(run, monkeypatch, tmp_path):  # noqa: F811
    hosts = []
    monkeypatch.setattr("longspan.serve.run.serve", lambda host, sockets, demo: hosts.append(host))
    monkeypatch.setattr("longspan.hf.prepare.free_memory", lambda device: 1000)
    ran = run("serve", "bundled", "--port", "0", "--length", "8192", "--kv-dir", tmp_path)
    assert ran.code == 0, ran.err
    report = hosts[0].attachment.report
    assert (report.kv_tier, report.kv_dir) == ("disk", tmp_path)


def test_what_a_user_should_know_of_the_method_is_said(run, monkeypatch):  # noqa: F811
    monkeypatch.setattr("longspan.serve.run.serve", lambda host, sockets, demo: None)
    ran = run("serve", "bundled", "--port", "0", "--method", "string")
    assert "\nnote: STRING keeps positions inside the window" in ran.err


def test_keys_of_a_file_are_added(run, monkeypatch, tmp_path):  # noqa: F811
    hosts = []
    monkeypatch.setattr("longspan.serve.run.serve", lambda host, sockets, demo: hosts.append(host))
    (tmp_path / "keys").write_text("one\n\n two \n")
    ran = run("serve", "bundled", "--port", "0", "--api-key", "zero", "--api-keys", tmp_path / "keys")
    assert ran.code == 0 and hosts[0].settings.api_keys == ("zero", "one", "two")


@pytest.mark.parametrize("args", [["--kv-tier", "tape"], ["--calibration", "/nowhere.safetensors"]])
def test_what_needs_no_model_is_refused_before_it_is_loaded(run, monkeypatch, args):  # noqa: F811
    monkeypatch.setattr("longspan.cli.serve.load_model", lambda *_, **__: pytest.fail("it loads the model"))
    ran = run("serve", "bundled", "--quiet", "--port", "0", *args)
    assert ran.code == 1 and args[1] in ran.err and len(ran.err.splitlines()) == 1


def test_a_port_that_is_taken_is_told_before_the_model_is_loaded(run, monkeypatch):  # noqa: F811
    monkeypatch.setattr("longspan.cli.serve.load_model", lambda *_, **__: pytest.fail("it loads the model"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        ran = run("serve", "bundled", "--quiet", "--port", port)
    assert ran.code == 1 and f"cannot listen on 127.0.0.1:{port}: " in ran.err and "--port" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_nobody_is_accepted_while_the_model_is_loaded():
    with bound("127.0.0.1", 0) as (one,), pytest.raises(ConnectionRefusedError):
        socket.create_connection(one.getsockname(), timeout=5)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two processes bind a port before they listen")
def test_a_port_that_is_taken_meanwhile_is_told(bundled, tmp_path):
    with bound("127.0.0.1", 0) as sockets:
        port = sockets[0].getsockname()[1]
        host = Host(*bundled, ServerSettings(model="x", source="x", documents=tmp_path / "documents", port=port))
        with socket.create_server(("127.0.0.1", port)), pytest.raises(LongspanError, match=f"127.0.0.1:{port}: "):
            serve(host, sockets)


@pytest.mark.long
def test_sigterm_while_the_model_is_loaded_ends_it(tmp_path):
    code = (
        "import longspan.cli, longspan.cli.serve as s, time; "
        "s.load_model = lambda *_, **__: (print('loads', flush=True), time.sleep(60)); longspan.cli.main()"
    )
    command = [sys.executable, "-c", code, "serve", "bundled", "--documents", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "loads\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 143 and said.splitlines()[-1] == "longspan: terminated"


def test_without_its_packages_it_says_which_to_install(run, monkeypatch):  # noqa: F811
    monkeypatch.setattr("longspan.cli.serve.find_spec", lambda _: None)
    ran = run("serve", "bundled")
    assert ran.code == 1 and pip_install("serve") in ran.err and len(ran.err.splitlines()) == 1


def test_options_by_environment(run, monkeypatch):  # noqa: F811
    monkeypatch.setenv("LONGSPAN_HOST", "0.0.0.0")
    assert "--host 0.0.0.0 can be reached" in run("serve", "bundled").err


def test_every_option_has_an_environment_variable(run, monkeypatch):  # noqa: F811
    own = [option for option in typer.main.get_command(app).commands["serve"].params if option.name != "help"]
    assert {option.name: option.envvar for option in own} == {
        option.name: f"LONGSPAN_{option.name.upper()}" for option in own
    }
    monkeypatch.setenv("LONGSPAN_QUIET", "1")
    monkeypatch.setenv("LONGSPAN_HOST", "0.0.0.0")
    assert len(run("serve", "bundled").err.splitlines()) == 1  # without what becomes of the documents


@pytest.mark.long
def test_sigterm_answers_what_was_asked_and_ends(tmp_path):
    served = Process(tmp_path / "documents", "--max-running", "2")
    answers = []

    def ask():
        body = chat("The road", model="bundled", max_tokens=150, stream=True)
        with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
            answers.append(events(response)[-1]["choices"][0]["finish_reason"])

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    metrics = "longspan_requests_running 2.0", "longspan_requests_waiting 2.0"
    wait_for(lambda: all(line in served.http.get("/metrics").text for line in metrics))
    served.process.send_signal(signal.SIGTERM)
    wait_for(lambda: served.http.get("/health/ready").status_code == 503)
    assert served.http.get("/health").status_code == 503
    assert served.http.post("/v1/chat/completions", json=chat("x", model="bundled")).status_code == 503
    assert served.http.post("/v1/documents", files={"file": ("x.txt", b"x")}).status_code == 503
    for thread in threads:
        thread.join()
    assert answers == ["length"] * 4
    assert served.wait() == (0, "")


@pytest.mark.long
def test_a_closed_terminal_ends_it(tmp_path):
    with hangups(signal.SIG_DFL):
        served = Process(tmp_path / "documents")
    served.process.send_signal(signal.SIGHUP)
    assert served.wait() == (0, "")


@pytest.mark.long
def test_under_nohup_it_outlives_its_terminal(tmp_path):
    with hangups(signal.SIG_IGN):
        served = Process(tmp_path / "documents")
    served.process.send_signal(signal.SIGHUP)
    answer = served.http.post("/v1/chat/completions", json=chat("The road", model="bundled"))
    assert answer.status_code == 200 and served.http.get("/health/ready").status_code == 200
    assert served.end() == (0, "")


@pytest.mark.long
def test_a_second_signal_ends_at_once(tmp_path):
    served = Process(tmp_path / "documents")
    body = chat("The road", model="bundled", max_tokens=100_000, stream=True)
    with served.http.stream("POST", "/v1/chat/completions", json=body) as response:
        next(response.iter_lines())
        served.process.send_signal(signal.SIGINT)
        wait_for(lambda: served.http.get("/health/ready").status_code == 503)
        served.process.send_signal(signal.SIGINT)
        code, said = served.wait()
    assert code == 0 and "Traceback" not in said


@pytest.mark.long
def test_a_second_signal_tells_those_who_wait(tmp_path):
    """A whole answer is a 503; a stream breaks off without an end, which would be taken for the answer's."""
    served = Process(tmp_path / "documents")
    told = []

    def ask():
        told.append(served.http.post("/v1/chat/completions", json=chat("x", model="bundled", max_tokens=100_000)))

    body, thread = chat("The road", model="bundled", max_tokens=100_000, stream=True), threading.Thread(target=ask)
    thread.start()
    with pytest.raises(httpx.RemoteProtocolError), served.http.stream("POST", "/v1/chat/completions", json=body) as one:
        for number, _ in enumerate(one.iter_lines()):
            if number == 10:
                served.process.send_signal(signal.SIGTERM)
                wait_for(lambda: served.http.get("/health/ready").status_code == 503)
                served.process.send_signal(signal.SIGTERM)
    thread.join()
    code, said = served.wait()
    assert code == 0 and "Traceback" not in said
    assert told[0].status_code == 503 and told[0].json()["error"]["code"] == "shutting_down"


@pytest.mark.long
@pytest.mark.parametrize("end", ["kill", "end"])
def test_conversations_leave_nothing_in_kv_dir(tmp_path, end):
    """They end with the process, as the documentation says: a restarted server reads them again."""
    kept = tmp_path / "kv"
    kept.mkdir()
    question = {"role": "user", "content": "Once upon a time there was a road. " * 30}
    for _ in range(2):
        served = Process(tmp_path / "documents", "--memory", "0", "--kv-dir", str(kept))
        messages = [question]
        for reused in (False, True):
            body = chat(messages, model="bundled", max_tokens=2)
            answer = served.http.post("/v1/chat/completions", json=body).json()
            assert (answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 100) == reused
            said = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            messages = [question, said, {"role": "user", "content": "What then?"}]
        assert "longspan_conversations 1.0" in served.http.get("/metrics").text
        getattr(served, end)()
        assert list(kept.iterdir()) == []


@pytest.mark.long
def test_sigkill_loses_nothing(tmp_path, book):
    """Killed at random moments, until all of it is read: what was ready stays so, and readings go on."""
    place, draw = tmp_path / "documents", random.Random(0)
    names, ready, most = ["a.txt", "b.txt"], set(), {}
    served = Process(place, "--prefill-chunk", "64")
    for name in names:
        served.http.post("/v1/documents", files={"file": (name, book)})
    for _ in range(6):
        time.sleep(draw.uniform(0, 2))
        told = {one["name"]: one for one in served.documents()}
        served.kill()
        assert told.keys() == set(names) and all(one["status"] != "failed" for one in told.values())
        ready |= {name for name, one in told.items() if one["status"] == "ready"}
        served = Process(place, "--prefill-chunk", "64")
        wait_for(lambda: served.http.get("/health/ready").status_code == 200)  # noqa: B023
        now = {one["name"]: one for one in served.documents()}
        assert {name for name, one in now.items() if one["status"] == "ready"} >= ready
        for name, one in told.items():
            most[name] = max(most.get(name, 0), one["tokens_read"])
    wait_for(lambda: all(one["status"] == "ready" for one in served.documents()))
    answers = set()
    for one in served.documents():
        assert one["tokens"] >= most[one["name"]]
        body = chat(QUESTION, model="bundled", document=one["id"], max_tokens=8)
        answers.add(served.http.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]["content"])
    assert len(answers) == 1 and "71428" in answers.pop()
    assert served.end() == (0, "")


@pytest.mark.long
def test_the_demo(tmp_path):
    served = Process(tmp_path / "documents", "--demo")
    (one,) = served.documents()
    assert one["status"] == "ready" and one["tokens"] > 12 * 512
    body = chat(QUESTION, model="bundled", document=one["id"], max_tokens=8)
    assert "71428" in served.http.post("/v1/chat/completions", json=body).text
    assert served.end() == (0, "")
