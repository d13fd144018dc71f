"""Datasets in an object store: a real S3 server on the loopback."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import from_url

from tamis import cli
from tamis.errors import DataError, UsageError
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.dataset import Dataset
from tamis.pipelines.remote import check, pull, push


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    urllib.request.urlopen(urllib.request.Request(f"{url}/data", method="PUT")).close()
    yield url
    server.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    return f"s3://data/{request.node.name}"


@pytest.fixture
def built(settings: DataSettings, tmp_path: Path) -> Path:
    return build(settings, tmp_path / "run").path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")}


def test_a_dataset_goes_there_and_comes_back(bucket: str, built: Path, tmp_path: Path) -> None:
    push(built, bucket)
    assert check(bucket).fingerprint == Dataset(built).manifest.fingerprint
    pull(bucket, tmp_path / "back")
    assert content(tmp_path / "back") == content(built)
    back = Dataset(tmp_path / "back")
    assert len(back) == len(Dataset(built))
    push(built, bucket)
    pull(bucket, tmp_path / "back")


def test_the_manifest_comes_last_and_what_is_there_is_not_sent_again(
    bucket: str, built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, sent = obstore.put, list[str]()

    def failing(store: Any, name: str, *rest: Any, **more: Any) -> Any:
        if name == "dataset.json" and not sent.count("again"):
            raise obstore.exceptions.GenericError("the line is cut")
        sent.append(name)
        return put(store, name, *rest, **more)

    monkeypatch.setattr(obstore, "put", failing)
    with pytest.raises(DataError, match=r"the store refused: the line is cut; .* it continues"):
        push(built, bucket)
    assert {*sent} == {*Dataset(built).manifest.files}
    with pytest.raises(DataError, match=r"holds no dataset\.json"):
        check(bucket)
    shard = next(name for name in sent if name.startswith("shard"))
    size = (built / shard).stat().st_size
    put(from_url(bucket), shard, bytes(size))  # as large, but another's
    sent[:] = ["again"]
    push(built, bucket)
    assert sorted(sent) == sorted(["again", shard, "dataset.json"])
    check(bucket)


def test_other_things_there_are_not_written_over(bucket: str, built: Path) -> None:
    store = from_url(bucket)
    obstore.put(store, "notes.txt", b"mine")
    with pytest.raises(DataError, match=r"holds notes\.txt, which is not of this dataset"):
        push(built, bucket)
    obstore.delete(store, "notes.txt")
    obstore.put(store, "dataset.json", b"{}")
    with pytest.raises(DataError, match="holds another dataset"):
        push(built, bucket)


def _cut(store: Any, name: str) -> None:
    obstore.put(store, name, bytes(obstore.get(store, name).bytes())[:-1])


def _flip(store: Any, name: str) -> None:
    data = bytearray(obstore.get(store, name).bytes())
    data[len(data) // 2] ^= 4
    obstore.put(store, name, bytes(data))


@pytest.mark.parametrize(
    ("harm", "cause"),
    [(_cut, "bytes, the manifest"), (_flip, "is damaged"), (obstore.delete, "is missing")],
)
def test_damage_there_is_told_by_name(
    harm: Callable[[Any, str], None], cause: str, bucket: str, built: Path, tmp_path: Path
) -> None:
    push(built, bucket)
    harm(from_url(bucket), "shard-00000.arrow")
    for read in (lambda: check(bucket), lambda: pull(bucket, tmp_path / "back")):
        with pytest.raises(DataError, match=rf"{bucket}/shard-00000\.arrow: .*{cause}".replace("[", r"\[")):
            read()
    assert not (tmp_path / "back" / "dataset.json").exists()
    assert not (tmp_path / "back" / "shard-00000.arrow").exists()


def test_a_damaged_dataset_is_not_pushed(bucket: str, built: Path) -> None:
    shard = built / "shard-00000.arrow"
    shard.write_bytes(shard.read_bytes()[:-8] + bytes(8))
    with pytest.raises(DataError, match=r"shard-00000\.arrow: is damaged"):
        push(built, bucket)


def test_a_pull_that_was_cut_goes_on(bucket: str, built: Path, tmp_path: Path) -> None:
    push(built, bucket)
    pull(bucket, tmp_path / "back")
    (tmp_path / "back" / "dataset.json").unlink()
    kept = (tmp_path / "back" / "index.arrow").stat().st_mtime_ns
    (tmp_path / "back" / "shard-00000.arrow").write_bytes(b"half")
    pull(bucket, tmp_path / "back")
    assert content(tmp_path / "back") == content(built)
    assert (tmp_path / "back" / "index.arrow").stat().st_mtime_ns == kept
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "dataset.json").write_text("{}")
    with pytest.raises(DataError, match="holds another dataset"):
        pull(bucket, tmp_path / "other")


def test_wrong_places_are_one_line(bucket: str, built: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no dataset\.json"):
        pull(bucket, tmp_path / "back")
    with pytest.raises(DataError, match=r"the store refused: .*404"):
        push(built, "s3://no-such-bucket/x")
    with pytest.raises(DataError, match="there is no such folder; correct the URL"):
        pull((tmp_path / "gone").as_uri(), tmp_path / "back")
    with pytest.raises(UsageError, match="names no object store"):
        push(built, "ftp://somewhere/x")
    with pytest.raises(UsageError, match="can only be read"):
        push(built, "https://example.com/x")
    with pytest.raises(DataError, match=r"holds no dataset\.json; name the folder of a dataset"):
        push(tmp_path, bucket)


def test_a_web_server_will_do_for_reading(
    built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(built)]
    child = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert child.stdout
        port = child.stdout.readline().split("port ")[1].split()[0]
        url = f"http://127.0.0.1:{port}"
        pull(url, tmp_path / "back")
        assert content(tmp_path / "back") == content(built)
    finally:
        child.kill()
        child.communicate()


PUSH = """
import sys
from pathlib import Path
from tamis.pipelines.remote import push
push(Path(sys.argv[1]), sys.argv[2])
"""


def test_a_push_that_is_killed_goes_on(bucket: str, built: Path, tmp_path: Path) -> None:
    for _ in range(3):
        child = subprocess.Popen([sys.executable, "-c", PUSH, str(built), bucket])
        store, end = from_url(bucket), time.monotonic() + 30
        while child.poll() is None and time.monotonic() < end:
            if any(obstore.list(store)):  # something has arrived
                break
            time.sleep(0.002)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    push(built, bucket)
    pull(bucket, tmp_path / "back")
    assert content(tmp_path / "back") == content(built)


def test_a_folder_is_a_store_too(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "mounted" / "first one"
    url = f"file://{tmp_path}/mounted/first%20one"
    push(built, url)
    assert content(place) == content(built)
    shard = next(place.glob("shard*"))
    (place / "dataset.json").unlink()
    (place / shard.name).write_bytes(bytes(shard.stat().st_size))  # as large, but another's
    put, sent = obstore.put, list[str]()

    def noting(store: Any, name: str, *rest: Any) -> Any:
        sent.append(name)
        return put(store, name, *rest)

    monkeypatch.setattr(obstore, "put", noting)
    push(built, url)
    assert sent == [shard.name, "dataset.json"]
    check(url)
    pull(url, tmp_path / "back")
    assert content(tmp_path / "back") == content(built)


def _configured(settings: DataSettings, folder: Path) -> Path:
    path = folder / "c.toml"
    text = f'name = "c"\n[data]\nroot = "{settings.root}"\nworkers = 1\nrow_order = "source"\nshard_mb = 1\n'
    path.write_text(text)
    return path


def test_a_build_goes_where_it_is_told(
    bucket: str,
    settings: DataSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["tamis", "build", str(_configured(settings, tmp_path)), *arguments])
        with pytest.raises(SystemExit) as exit:
            cli.main()
        return int(exit.value.code or 0), *capsys.readouterr()

    out = tmp_path / "run"
    for url in ("http://127.0.0.1/there", "somewhere", "file://here", "s4://data/there"):
        code, _, told = run("--out", str(out), "--to", url)
        assert (code, told.startswith(f"tamis: {url}: ")) == (2, True)
    assert not out.exists(), "it was built before the URL was looked at"
    put = obstore.put

    def cut(store: Any, name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("shard"):
            raise obstore.exceptions.GenericError("the line is cut")
        return put(store, name, *rest, **more)

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "put", cut)
        code, _, told = run("--out", str(out), "--to", bucket)
    assert (code, "the store refused: the line is cut" in told) == (1, True)
    with pytest.raises(DataError, match=r"holds no dataset\.json"):
        check(bucket)
    before = content(out / "dataset")
    code, told, _ = run("--out", str(out), "--to", bucket)
    assert (code, told.splitlines()[-1]) == (0, f"{bucket}: the dataset is there")
    assert content(out / "dataset") == before
    assert check(bucket).fingerprint == Dataset(out).fingerprint


@pytest.mark.slow
def test_a_build_killed_on_its_way_there_goes_on(bucket: str, settings: DataSettings, tmp_path: Path) -> None:
    code = (
        "import obstore, os, sys, tamis.cli as cli\n"
        "put = obstore.put\n"
        "def killed(store, name, *rest, **more):\n"
        "    if name.startswith('shard'): os.kill(os.getpid(), 9)\n"
        "    return put(store, name, *rest, **more)\n"
        "if sys.argv.pop() == 'kill': obstore.put = killed\n"
        "cli.main()"
    )
    command = [sys.executable, "-c", code, "build", str(_configured(settings, tmp_path))]
    command += ["--out", str(tmp_path / "run"), "--to", bucket]
    assert subprocess.run([*command, "kill"], check=False, capture_output=True).returncode == -signal.SIGKILL
    with pytest.raises(DataError, match=r"holds no dataset\.json"):
        check(bucket)
    subprocess.run([*command, "go on"], check=True, capture_output=True)
    assert check(bucket).fingerprint == Dataset(tmp_path / "run").fingerprint
