"""Functions of users' own that read files: what they give is built, and what they do wrong is one line."""

from __future__ import annotations

import hashlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest

from tamis.config import check
from tamis.errors import DataError, UsageError
from tamis.pipelines.annotations import stored
from tamis.pipelines.build import build
from tamis.pipelines.readers import ReadSettings, opened
from tamis.pipelines.readers.user import pinned
from tamis.pipelines.settings import DataSettings

_NUMBERS = itertools.count()

PLAIN = """
    import numpy as np

    def read(path):
        print("reading", path.name)
        values = np.frombuffer(path.read_bytes(), "<i4").reshape(-1, 5)
        return {
            "x": values[:, 0] / 100,
            "y": values[:, 1] / 100,
            "z": values[:, 2] / 100,
            "classification": values[:, 3].astype(np.uint8),
            "wide": values[:, 3:5].astype(np.float16),
        }
"""

Write = Callable[..., str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """``module(text)`` writes a module that can be imported, and gives its name, which no other has."""
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def write(text: str, name: str | None = None) -> str:
        name = name or f"reading_{next(_NUMBERS)}"
        (folder / f"{name}.py").write_text(dedent(text))
        return name

    return write


@pytest.fixture
def read(module: Write, tmp_path: Path) -> Callable[[str], Any]:
    """``read(body)``: what a function with this body, of ``path``, gives for a file ``a.own``."""

    def call(body: str) -> Any:
        name = module("import numpy as np\n\ndef read(path):\n    " + body)
        path = tmp_path / "a.own"
        path.write_bytes(b"")
        return opened(path, ReadSettings(function=f"{name}:read"))

    return call


def values_of(seed: int, rows: int) -> Any:
    rng = np.random.default_rng(seed)
    return np.column_stack([rng.integers(-5000, 5000, (rows, 3)), rng.integers(0, 9, (rows, 2))])


def write_files(root: Path) -> dict[str, Any]:
    root.mkdir()
    files = {f"{'abc'[i]}.own": values_of(i, 30 + i) for i in range(3)}
    for name, values in files.items():
        (root / name).write_bytes(values.astype("<i4").tobytes())
    return files


def settings_of(root: Path, function: str, **keys: Any) -> DataSettings:
    values = {
        "root": str(root),
        "files": ["*.own"],
        "classes": {"low": [0, 1, 2, 3], "high": [4, 5]},
        "row_order": "source",
        "split": {"kind": "files", "test": ["c.own"]},
        "workers": 1,
        "read": {"function": function},
        **keys,
    }
    return check(values, DataSettings, where="data")


@pytest.mark.parametrize("workers", [1, 2])
def test_files_of_any_format_are_built(
    tmp_path: Path, module: Write, capfd: pytest.CaptureFixture[str], workers: int
) -> None:
    name = module(PLAIN)
    files = write_files(tmp_path / "raw")
    dataset = build(settings_of(tmp_path / "raw", f"{name}:read", workers=workers), tmp_path)
    assert [dataset.sample(row).source for row in range(3)] == list(files)
    for row, values in enumerate(files.values()):
        sample = dataset.sample(row)
        assert np.abs(sample.columns["xyz"] + sample.origin - values[:, :3] / 100).max() < 5e-4
        numbers = np.select([values[:, 3] < 4, values[:, 3] < 6], [0, 1], -1)
        assert sample.columns["label"].tolist() == numbers.tolist()
        assert sample.columns["wide"].tolist() == values[:, 3:5].tolist()
        assert sample.columns["wide"].dtype == np.float32
    text = (tmp_path / "code" / f"{name}.py").read_bytes()
    recorded = dataset.manifest.configuration["read"]
    assert recorded["function"] == f"{name}:read"
    assert recorded["function_digest"] == hashlib.sha256(text).hexdigest()
    out, err = capfd.readouterr()
    assert out == ""
    assert sorted(re.findall(r"reading (\w\.own)", err)) == list(files)


def test_the_function_of_the_documentation_reads(tmp_path: Path, module: Write) -> None:
    text = (Path(__file__).parents[2] / "docs" / "building.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(def read.*?)```", text, re.DOTALL)
    name = module("import numpy as np\nfrom pathlib import Path\n\n" + code)
    path = tmp_path / "a.scan"
    path.write_bytes(np.array([(1000, 2000, -500)], "<i4").tobytes() + b"\7")
    (scan,) = opened(path, ReadSettings(function=f"{name}:read")).scans
    assert scan.xyz.tolist() == [[1, 2, -0.5]]
    assert scan.fields["classification"].tolist() == [7]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"read raised ValueError: .* at .*\.py:5; mend the function"):
        opened(path, ReadSettings(function=f"{name}:read"))


CLOUDS = """
    import numpy as np

    def read(path):
        for number in range(4):
            xyz = np.full((number, 3), number, np.int16)
            yield {"xyz": xyz, "code": np.full(number, number % 2), "red": xyz[:, 0], "green": xyz[:, 1],
                   "blue": xyz[:, 2]}
"""


def test_clouds_that_are_yielded_stand_for_themselves(tmp_path: Path, module: Write) -> None:
    name = module(CLOUDS)
    root = tmp_path / "raw"
    root.mkdir()
    (root / "some.own").write_bytes(b"")
    split = {"kind": "hash", "test": 0.0}
    keys = {"label": "code", "classes": {"even": [0], "odd": [1]}, "split": split}
    dataset = build(settings_of(root, f"{name}:read", **keys), tmp_path)
    assert [dataset.sample(row).tile for row in range(4)] == [0, 1, 2, 3]
    for row in range(4):
        sample = dataset.sample(row)
        assert (sample.columns["xyz"] + sample.origin).tolist() == [[row] * 3] * row
        assert sample.columns["rgb"].tolist() == [[row] * 3] * row
        assert sample.columns["label"].tolist() == [row % 2] * row
        assert sample.columns["row"].tolist() == list(range([0, 0, 1, 3][row], [0, 1, 3, 6][row]))


def test_clouds_are_made_one_at_a_time_and_again(module: Write, tmp_path: Path) -> None:
    name = module("""
        import numpy as np

        made = []

        def read(path):
            for number in range(3):
                made.append(number)
                yield {"xyz": np.full((1, 3), number, np.float32)}
    """)
    source = opened(tmp_path / "a.own", ReadSettings(function=f"{name}:read"))
    made = sys.modules[name].made
    assert (source.objects, made) == (True, [])
    scans: Iterator[Any] = iter(source.scans)
    assert next(scans).xyz.tolist() == [[0, 0, 0]]
    assert made == [0]
    assert [scan.xyz[0, 0] for scan in scans] == [1, 2]
    assert [scan.first for scan in source.scans] == [0, 1, 2]
    assert made == [0, 1, 2] * 2
    assert len(source.scans) == 3
    assert source.scans[1].xyz.tolist() == source.scans[-2].xyz.tolist() == [[1, 1, 1]]
    with pytest.raises(IndexError):
        source.scans[3]


def test_arrays_may_be_used_again_for_the_next_cloud(read: Callable[[str], Any]) -> None:
    body = """xyz = np.zeros((2, 3))
    pose = np.zeros((1, 16))
    for number in range(3):
        xyz[:], pose[:] = number, number
        yield {"xyz": xyz, "a": xyz[:, 0], "annotations": {"pose": pose}}"""
    for number, scan in enumerate(list(read(body).scans)):
        assert {*scan.xyz.ravel(), *scan.fields["a"], *scan.annotations["pose"].ravel()} == {number}


def test_a_list_of_clouds_and_annotations_are_taken(read: Callable[[str], Any]) -> None:
    body = "return [{'xyz': np.zeros((2, 3)), 'annotations': {'pose': np.eye(4).reshape(1, 16)}}] * 2"
    source = read(body)
    assert source.objects
    assert [scan.annotations["pose"].shape for scan in source.scans] == [(1, 16)] * 2
    assert source.files[0].name == "a.own"
    square = np.arange(16.0).reshape(4, 4)
    square[3] = [0, 0, 0, 1]
    kept = stored(Path("a"), {"pose": square}, DataSettings(files=["a"]))["pose"]
    assert kept.tolist() == [square.ravel().tolist()]
    one = read("return {'xyz': np.zeros((0, 3), '>f4'), 'far': np.memmap(__file__, 'u1', shape=(0,))}")
    assert not one.objects
    assert one.scans[0].xyz.dtype == np.float64
    assert type(one.scans[0].fields["far"]) is np.ndarray


WRONG = {
    "None": "NoneType, not a mapping of arrays",
    "5": "int, not a mapping of arrays",
    "{'a': np.zeros(2)}": "neither 'xyz' nor 'x' (it has 'a')",
    "{}": "neither 'xyz' nor 'x' (it has nothing)",
    "{'x': np.zeros(2), 'y': np.zeros(2)}": "neither 'xyz' nor 'z' (it has 'x', 'y')",
    "{'xyz': [[0, 0, 0]]}": "field 'xyz' as list, not as numpy.ndarray",
    "{'xyz': np.ma.zeros((2, 3))}": "field 'xyz' as MaskedArray, not as numpy.ndarray",
    "{'xyz': np.zeros((2, 2))}": "'xyz' as float64 of shape (2, 2), not numbers (n, 3)",
    "{'xyz': np.zeros((2, 3), bool)}": "'xyz' as bool of shape (2, 3), not numbers (n, 3)",
    "{'xyz': np.zeros((2, 3), object)}": "field 'xyz' of object, not of numbers of up to 64 bits",
    "{'xyz': np.zeros((2, 3)), 'a': np.zeros(2, 'U1')}": "field 'a' of <U1, not of numbers of up to 64 bits",
    "{'xyz': np.zeros((2, 3)), 'a': np.zeros(2, np.longdouble)}": "field 'a' of float128, not of numbers of "
    "up to 64 bits",
    "{'xyz': np.zeros((2, 3)), 'a': np.zeros(3)}": "field 'a' of 3 rows and 'xyz' of 2",
    "{'x': np.zeros(2), 'y': np.zeros(2), 'z': np.zeros(1)}": "field 'z' of 1 rows and 'x' of 2",
    "{'x': np.zeros((2, 1)), 'y': np.zeros(2), 'z': np.zeros(2)}": "'x' as float64 of shape (2, 1), not "
    "numbers (n,)",
    "{'xyz': np.zeros((2, 3)), 'a': np.float32(1)}": "field 'a' as float32, not as numpy.ndarray",
    "{'xyz': np.zeros((2, 3)), 'a': np.array(1)}": "field 'a' as a single number, not one a row",
    "{'xyz': np.zeros((2, 3)), 'a': np.zeros((2, 1, 1))}": "field 'a' of shape (2, 1, 1), not (n,) or (n, w)",
    "{'xyz': np.zeros((2, 3)), 'a': np.zeros((2, 0))}": "field 'a' of shape (2, 0), not (n,) or (n, w)",
    "{'xyz': np.zeros((2, 3)), 5: np.zeros(2)}": "a name that is no printable text (5)",
    "{'xyz': np.zeros((2, 3)), 'a\\n': np.zeros(2)}": "a name that is no printable text ('a\\n')",
    "{'xyz': np.zeros((2, 3)), '\\udc80': np.zeros(2)}": "a name that is no printable text ('\\udc80')",
    "{'xyz': np.zeros((2, 3)), 'annotations': np.zeros(2)}": "'annotations' as ndarray, not as a mapping of "
    "arrays",
    "{'xyz': np.zeros((2, 3)), 'annotations': {'b': [1]}}": "annotation 'b' as list, not as numpy.ndarray",
}


@pytest.mark.parametrize("result", WRONG)
def test_what_does_not_fit_is_refused_by_name(read: Callable[[str], Any], result: str) -> None:
    with pytest.raises(DataError) as caught:
        read(f"return {result}")
    text = re.sub(r"reading_\d+", "MODULE", str(caught.value))
    assert text == f"{caught.value.where}: MODULE:read returned {WRONG[result]}; mend the function"
    assert caught.value.where.endswith("a.own")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("yield from ()", "yielded no cloud"),
        ("yield 5", "yielded, as cloud 0, int, not a mapping of arrays"),
        (
            "for n in (0, 1): yield {'xyz': np.zeros((2, 3)), **({'a': np.zeros(2)} if n else {})}",
            "yielded cloud 1 with field 'a' of float64 (n), cloud 0 with no field 'a'",
        ),
        (
            "for n in (1, 2): yield {'xyz': np.zeros((2, 3)), 'a': np.zeros((2, n))}",
            "yielded cloud 1 with field 'a' of float64 (n, 2), cloud 0 with field 'a' of float64 (n, 1)",
        ),
        (
            "yield {'xyz': np.zeros((2, 3))}; raise ValueError('no\\n good')",
            r"raised ValueError: no good at MODULE.py:4",
        ),
    ],
)
def test_clouds_that_do_not_fit_are_refused_by_number(
    read: Callable[[str], Any], body: str, says: str
) -> None:
    source = read(body)
    with pytest.raises(DataError) as caught:
        list(source.scans)
    text = re.sub(
        r"reading_\d+", "MODULE", str(caught.value).replace(str(Path(caught.value.where).parent), "")
    )
    text = text.replace("/code/", "")
    assert text == f"/a.own: MODULE:read {says}; mend the function"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("raise ValueError('no\\n good')", r"ValueError: no good at \S+/reading_\d+\.py:4"),
        ("import sys; sys.exit(3)", r"SystemExit: 3 at \S+/reading_\d+\.py:4"),
        ("raise StopIteration", r"StopIteration at \S+/reading_\d+\.py:4"),
        ("np.linalg.inv(np.zeros((2, 3)))", r"numpy\.linalg\.LinAlgError: .+ at \S+/reading_\d+\.py:4"),
        ("path.with_name('none').open()", r"FileNotFoundError: .+ at \S+/reading_\d+\.py:4"),
    ],
)
def test_what_a_function_raises_is_told_with_its_line(
    read: Callable[[str], Any], body: str, says: str
) -> None:
    with pytest.raises(DataError) as caught:
        read(body)
    assert re.fullmatch(rf"\S+/a\.own: reading_\d+:read raised {says}; mend the function", str(caught.value))


def test_a_function_of_no_argument_is_told(module: Write, tmp_path: Path) -> None:
    name = module("def read():\n    return {}")
    with pytest.raises(
        DataError, match=r"read raised TypeError: read\(\) takes 0 positional arguments [^/]*;"
    ):
        opened(tmp_path / "a", ReadSettings(function=f"{name}:read"))


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError"])
def test_ctrl_c_and_memory_that_is_short_are_not_the_functions(
    read: Callable[[str], Any], error: str
) -> None:
    with pytest.raises((KeyboardInterrupt, MemoryError)) as caught:
        read(f"raise {error}")
    assert caught.type.__name__ == error


@pytest.mark.parametrize(
    ("text", "function", "says"),
    [
        (PLAIN, "{}:none", r"finds no function 'none' in \S+\.py; correct the name"),
        (PLAIN + "\n    number = 5", "{}:number", r"finds no function 'number' in \S+\.py; correct the name"),
        (
            "1 / 0",
            "{}:read",
            r"cannot import '\w+': ZeroDivisionError: division by zero at \S+\.py:1; see .*",
        ),
        (
            "",
            "no_such_module:read",
            "cannot import 'no_such_module': there is no module of that name; see .*",
        ),
        ("", "no_such.module:read", "cannot import 'no_such.module': ModuleNotFoundError: .*; see .*"),
        ("", "sys:exit", "module 'sys' has no file of its own; write it into a .py file"),
    ],
)
def test_a_function_that_is_not_there_is_refused(
    tmp_path: Path, module: Write, text: str, function: str, says: str
) -> None:
    write_files(tmp_path / "raw")
    function = function.format(module(text))
    with pytest.raises(UsageError) as caught:
        build(settings_of(tmp_path / "raw", function), tmp_path)
    assert re.fullmatch(f"{function}: {says}", str(caught.value))
    assert not (tmp_path / "dataset").exists()


def test_a_changed_function_is_another_dataset(tmp_path: Path, module: Write) -> None:
    name = module(PLAIN)
    root = tmp_path / "raw"
    write_files(root)
    settings = settings_of(root, f"{name}:read")
    first = build(settings, tmp_path)
    assert build(settings, tmp_path).fingerprint == first.fingerprint
    module(PLAIN + "\n    # now it is another", name)
    with pytest.raises(DataError, match=r"was built with another data\.read\.function_digest; choose"):
        build(settings, tmp_path)
    with pytest.raises(DataError, match=r"was built with another data\.read\.function_digest; choose"):
        build(settings, tmp_path, update=True)
    # This process has imported the old one, a new one has not.
    (tmp_path / "new").mkdir()
    with pytest.raises(UsageError, match=rf"{name}\.py has changed since it was imported"):
        build(settings, tmp_path / "new")
    again = build(settings.model_copy(update={"workers": 2}), tmp_path / "new")
    assert again.fingerprint == first.fingerprint


def test_a_sha256_that_is_given_is_kept_to(tmp_path: Path, module: Write) -> None:
    name = module(PLAIN)
    right = hashlib.sha256((tmp_path / "code" / f"{name}.py").read_bytes()).hexdigest()
    settings = ReadSettings(function=f"{name}:read", function_digest=right)
    assert pinned(settings) == settings == pinned(ReadSettings(function=f"{name}:read"))
    wrong = ReadSettings(function=f"{name}:read", function_digest="0" * 64)
    with pytest.raises(UsageError, match=rf"^data\.read\.function_digest: the file .* another: {right}"):
        pinned(wrong)


def test_a_module_may_lie_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"reading_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(dedent(PLAIN))
    files = write_files(tmp_path / "raw")
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.chdir(tmp_path)
    dataset = build(settings_of(tmp_path / "raw", f"{name}:read", workers=2), tmp_path)
    assert dataset.manifest.counts.points == sum(map(len, files.values()))


def test_a_function_that_dies_takes_one_file_with_it(tmp_path: Path, module: Write) -> None:
    name = module(
        dedent(PLAIN).replace(
            'print("reading", path.name)',
            'if path.name == "b.own":\n        import ctypes\n        ctypes.string_at(0)',
        )
    )
    files = write_files(tmp_path / "raw")
    settings = settings_of(tmp_path / "raw", f"{name}:read", workers=2, bad_files="skip")
    dataset = build(settings, tmp_path)
    assert dataset.manifest.counts.points == len(files["a.own"]) + len(files["c.own"])
    (skipped,) = dataset.manifest.skipped.items()
    assert skipped[0] == "b.own"
    assert "killed by SIGSEGV" in skipped[1].reason


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"files": []}, "'read.function' reads the files of 'files', which names none"),
        ({"layout": "modelnet"}, "'layout' says how files are read"),
        ({"text": {}, "classes": {}}, "'text' says how files are read"),
        ({"read": {"function": "a:b", "columns": ["x"]}}, "'columns' is for known formats"),
        ({"read": {"function": "a:b", "surface": 5}}, "'surface' is for known formats"),
        ({"read": {"function": "a:b", "unit": "metre"}}, "'unit' is for known formats"),
        ({"read": {"function": "a.b"}}, r"read\.function"),
        ({"read": {"function_digest": "0" * 64}}, "which is missing"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path: Path, keys: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        settings_of(tmp_path, "a:b", **keys)
    assert "\n" not in str(caught.value)


def test_annotations_of_a_function_are_built(tmp_path: Path, module: Write) -> None:
    name = module("""
        import numpy as np

        def read(path):
            boxes = np.array([[10.0, 20, 1, 4, 2, 1.5, 0.5]])
            annotations = {"boxes": boxes, "box_class": np.array([7]), "image": np.arange(9, dtype=np.uint8)}
            return {"xyz": np.array([[10.0, 20, 0], [12, 22, 0]]), "annotations": annotations}
    """)
    root = tmp_path / "raw"
    root.mkdir()
    (root / "a.own").write_bytes(b"")
    dataset = build(settings_of(root, f"{name}:read", split=None, classes={}), tmp_path)
    sample = dataset.sample(0)
    assert sample.annotations["image"].tolist() == list(range(9))
    assert sample.annotations["box_class"].tolist() == [7]
    (box,) = sample.annotations["boxes"].astype(np.float64)
    assert np.abs(box[:3] + sample.origin - [10, 20, 1]).max() < 1e-6
    assert np.abs(box[3:] - [4, 2, 1.5, 0.5]).max() < 1e-6


@pytest.mark.parametrize("cuts", [{"tiles": {"size": 4}}, {"split": {"kind": "blocks", "size": [4, 4]}}])
def test_clouds_that_stand_for_themselves_are_not_cut(
    tmp_path: Path, module: Write, cuts: dict[str, Any]
) -> None:
    name = module("import numpy as np\n\ndef read(path):\n    return [{'xyz': np.zeros((2, 3))}] * 2")
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.own").write_bytes(b"")
    keys = {"root": str(tmp_path / "raw"), "files": ["*.own"], "read": {"function": f"{name}:read"}, **cuts}
    says = r"cuts ground, the clouds of a\.own stand for themselves; leave it out$"
    with pytest.raises(UsageError, match=rf"^data\.{next(iter(cuts))}: {says}"):
        build(check(keys, DataSettings, where="data"), tmp_path)
