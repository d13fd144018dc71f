"""Datasets in an object store (S3, Google Cloud, Azure), or behind a web server for reading, through obstore.

Objects appear whole or not at all, each with the SHA-256 of its bytes beside it, and ``dataset.json`` is the
last: where it is, everything is. A mounted folder, as in "file:///mnt/share/first", is a store as well; as
nothing can stand beside a file, its bytes are read instead. Keys and regions come from the environment, as
the stores' own tools have them (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, GOOGLE_APPLICATION_CREDENTIALS,
AZURE_STORAGE_ACCOUNT_NAME, ...).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from ..errors import DataError, UsageError, system_error
from ..files import atomic, locked, sync, write_atomic
from .checks import file_sha256
from .manifest import FileDigest, Manifest, unseal

log = logging.getLogger(__name__)

MANIFEST = "dataset.json"
_SHA256 = "tamis-sha256"
_PARALLEL = 4
"""Files on the way at once: one connection seldom fills a line."""
_CHUNK = 1 << 20


def is_url(text: str) -> bool:
    """Whether a destination is a store's, as in "s3://bucket/folder"."""
    return "://" in text


def push(folder: Path, url: str) -> None:
    """Copy the dataset in ``folder`` to ``url``; one that was cut is gone on with.

    What is there already, whole and the same, is not sent again. Raises DataError for a dataset that is
    damaged, for a place that holds another one or other objects, and for a store that fails; UsageError for
    a URL that names no store that can be written to.
    """
    data = _local_manifest(folder)
    manifest = unseal(folder / MANIFEST, data)
    check_writable(url)
    store = _store(url, make=True)
    with _told(url):
        there = _bytes(store, MANIFEST)
        if there == data:
            log.info("%s: is there already", url)
            return
        if there is not None:
            raise DataError(url, "holds another dataset", "choose another place, or remove it there")
        sizes = _sizes(store)
        for name in sorted(sizes.keys() - manifest.files.keys()):
            raise DataError(url, f"holds {name}, which is not of this dataset", "choose an empty place")
        _each(partial(_send, store, folder, sizes), manifest.files.items())
        _put(store, MANIFEST, data, hashlib.sha256(data).hexdigest())
    log.info("%s: %d files", url, len(manifest.files) + 1)


def check_writable(url: str) -> None:
    """Raise UsageError for a URL that names no store that can be written to, before any work is done."""
    if not is_url(url) or url.startswith(("http://", "https://")):
        cause = "can only be read" if is_url(url) else "is no URL"
        raise UsageError(url, cause, "push to s3://, gs://, az:// or file:///FOLDER")
    if not url.startswith("file:///"):  # a folder is made when there is something to put in
        _store(url)


def pull(url: str, folder: Path) -> None:
    """Copy the dataset at ``url`` into ``folder``, every byte checked; one that was cut is gone on with.

    Raises DataError for a place without a dataset, for one whose bytes are not those its manifest names, for
    a folder that holds something else, and for a store or disk that fails.
    """
    store = _store(url)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder), _told(url):
            data = _remote_manifest(store, url)
            if (folder / MANIFEST).exists() and _local_manifest(folder) != data:
                raise DataError(folder, "holds another dataset", "choose another folder")
            part = folder / f".{MANIFEST}.part"
            write_atomic(part, data)
            manifest = unseal(part, data)
            _each(partial(_fetch, store, url, folder), manifest.files.items())
            part.rename(folder / MANIFEST)
            sync(folder)
    except OSError as error:
        raise system_error(error, folder) from None


def check(url: str) -> Manifest:
    """Compare every byte of the dataset at ``url`` with its manifest; raises DataError as `pull` does."""
    store = _store(url)
    with _told(url):
        manifest = unseal(Path(MANIFEST), _remote_manifest(store, url))

        def compare(name: str, digest: FileDigest) -> None:
            for _ in _checked(store, url, name, digest):
                pass

        _each(compare, manifest.files.items())
    return manifest


def _send(store: Any, folder: Path, sizes: dict[str, int], name: str, digest: FileDigest) -> None:
    path = folder / name
    if sizes.get(name) == digest.bytes:
        if _sha256_of(store, name) == digest.sha256:
            return
        log.info("%s: is another's, it is sent again", name)
    if file_sha256(path) != digest.sha256:
        raise DataError(path, "is damaged", "see `tamis verify`; build the dataset again")
    _put(store, name, path, digest.sha256)


def _put(store: Any, name: str, data: bytes | Path, sha256: str) -> None:
    about = {} if _is_folder(store) else {"attributes": {_SHA256: sha256}}
    import_module("obstore").put(store, name, data, **about)


def _sha256_of(store: Any, name: str) -> str | None:
    """What stands beside an object; in a folder, where nothing can, of its bytes."""
    found = import_module("obstore").get(store, name)
    if not _is_folder(store):
        known: str | None = found.attributes.get(_SHA256)
        return known
    sha256 = hashlib.sha256()
    for chunk in found.stream(min_chunk_size=_CHUNK):
        sha256.update(chunk)
    return sha256.hexdigest()


def _is_folder(store: Any) -> bool:
    return isinstance(store, import_module("obstore.store").LocalStore)


def _fetch(store: Any, url: str, folder: Path, name: str, digest: FileDigest) -> None:
    path = folder / name
    if path.is_file() and path.stat().st_size == digest.bytes and file_sha256(path) == digest.sha256:
        return
    with atomic(path) as temporary, temporary.open("wb") as file:
        for chunk in _checked(store, url, name, digest):
            file.write(chunk)


def _checked(store: Any, url: str, name: str, digest: FileDigest) -> Iterator[Any]:
    """The bytes of an object; DataError at their end if they are not the right ones."""
    sha256, size = hashlib.sha256(), 0
    try:
        for chunk in import_module("obstore").get(store, name).stream(min_chunk_size=_CHUNK):
            sha256.update(chunk)
            size += len(chunk)
            yield chunk
    except FileNotFoundError:
        raise DataError(f"{url}/{name}", "is missing", "push the dataset again") from None
    if (size, sha256.hexdigest()) != (digest.bytes, digest.sha256):
        cause = f"has {size} bytes, the manifest {digest.bytes}" if size != digest.bytes else "is damaged"
        raise DataError(f"{url}/{name}", cause, "push the dataset again")


def _each(work: Any, files: Iterable[tuple[str, FileDigest]]) -> None:
    """``work(name, digest)`` for each file, some at once; the first error is raised, and ends the rest."""
    with ThreadPoolExecutor(_PARALLEL) as pool:
        jobs = [pool.submit(work, name, digest) for name, digest in files]
        try:
            for job in jobs:
                job.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _store(url: str, *, make: bool = False) -> Any:
    plain: dict[str, Any] = {"client_options": {"allow_http": True}} if url.startswith("http://") else {}
    if url.startswith("file://"):
        plain = {"mkdir": make}
        if not make and not Path(url2pathname(urlsplit(url).path)).is_dir():
            raise DataError(url, "there is no such folder", "correct the URL")
    try:
        return import_module("obstore.store").from_url(url, **plain)
    except Exception as error:  # each kind of store has errors of its own
        if isinstance(error, ImportError):
            raise
        raise UsageError(
            url, f"names no object store ({_first_line(error)})", "as in s3://bucket/folder"
        ) from None


def _bytes(store: Any, name: str) -> bytes | None:
    try:
        return bytes(import_module("obstore").get(store, name).bytes())
    except FileNotFoundError:
        return None


def _remote_manifest(store: Any, url: str) -> bytes:
    data = _bytes(store, MANIFEST)
    if data is None:
        raise DataError(url, f"holds no {MANIFEST}", "correct the URL, or push the dataset again")
    return data


def _sizes(store: Any) -> dict[str, int]:
    listed = import_module("obstore").list(store)
    return {found["path"]: found["size"] for page in listed for found in page}


def _local_manifest(folder: Path) -> bytes:
    try:
        return (folder / MANIFEST).read_bytes()
    except OSError:
        raise DataError(folder, f"holds no {MANIFEST}", "name the folder of a dataset") from None


@contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn what a store refuses into one line."""
    base = import_module("obstore.exceptions").BaseError
    try:
        yield
    except base as error:
        fix = "see to the network, the keys and the bucket, and run it again: it continues"
        raise DataError(url, f"the store refused: {_first_line(error)}", fix) from None


def _first_line(error: Exception) -> str:
    return str(error).split("\n")[0].rstrip(": ")
