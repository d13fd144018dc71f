"""The documentation names what there is."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tamis.config import Model, check, keys
from tamis.metrics import BUILD, STREAM, TRAIN
from tamis.samplers.fields import NAMES, REDUCTIONS
from tamis.trainer.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
DOCS = {
    path.name: path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
}


def test_every_key_is_explained_and_no_other() -> None:
    named = set(re.findall(r"`([a-z0-9_.]+)`", DOCS["configuration.md"]))
    known = set(keys(Settings))
    leaves = {key for key in known if not any(other.startswith(f"{key}.") for other in known)} - {"name"}
    for key in leaves:
        section, _, name = key.partition(".")
        written = key if section in ("layout", "model", "trainer") else name.removeprefix("graph.")
        assert written in named, f"{key} is not explained"
    sections = {name.rpartition(".")[0] for name in named if name.count(".") == 1} - {"samplers"}
    for name in named:
        if name.rpartition(".")[0] in sections and not name.startswith("section."):
            assert any(key.endswith(name) for key in known), f"there is no key {name}"


def test_the_example_configuration_is_one(tmp_path: Path) -> None:
    (example,) = re.findall(r"```toml\n(.*?)```", DOCS["configuration.md"], re.DOTALL)
    settings: Model = check(tomllib.loads(example), Settings, where="example", folder=tmp_path)
    assert isinstance(settings, Settings)
    assert settings.data.root == tmp_path / "scans"


def test_every_stage_is_explained() -> None:
    for stage in (*BUILD, *STREAM, *TRAIN):
        assert f"`{stage}`" in DOCS["stages.md"], stage


def test_links_lead_somewhere() -> None:
    for name, text in DOCS.items():
        folder = ROOT if name == "README.md" else ROOT / "docs"
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            assert (folder / target).exists(), f"{name} links to {target}"


@pytest.mark.parametrize(("name", "least"), [("sampling.md", 6), ("choosing.md", 1)])
def test_examples_run(name: str, least: int) -> None:
    examples = list(re.finditer(r"^```python\n(.*?)^```", DOCS[name], re.DOTALL | re.MULTILINE))
    assert len(examples) >= least
    known: dict[str, object] = {}
    for example in examples:  # with the lines of the page, so that a failure tells where
        above = "\n" * (DOCS[name].count("\n", 0, example.start()) + 1)
        exec(compile(above + example.group(1), name, "exec"), known)


def test_every_field_that_is_known_is_listed() -> None:
    for kind, names in NAMES.items():
        (listed,) = re.findall(rf"^\| {kind} \|(.*?)\|", DOCS["sampling.md"], re.MULTILINE)
        assert sorted(re.findall(r"`(.*?)`", listed)) == sorted(names)
    for how in REDUCTIONS:
        assert f'"{how}"' in DOCS["sampling.md"]
