"""TFRecords against another decoder: CRC32C bit by bit, and protobuf's own messages."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tamis.pipelines import tfrecord as codec
from tamis.pipelines.build import DataSettings, build
from tamis.pipelines.convert import convert


def crc32c_bitwise(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def unframed(path: Path) -> list[bytes]:
    data, at, found = path.read_bytes(), 0, []

    def check(part: bytes, stored: bytes) -> None:
        crc = crc32c_bitwise(part)
        assert struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32) == stored

    while at < len(data):
        (size,) = struct.unpack("<Q", data[at : at + 8])
        check(data[at : at + 8], data[at + 8 : at + 12])
        found.append(data[at + 12 : at + 12 + size])
        check(found[-1], data[at + 12 + size : at + 16 + size])
        at += 16 + size
    assert at == len(data)
    return found


@pytest.fixture(scope="module")
def example_class() -> Any:
    """tf.train.Example, as tensorflow/core/example/{example,feature}.proto describe it."""
    descriptor_pb2, descriptor_pool, message_factory = (
        pytest.importorskip(f"google.protobuf.{name}")
        for name in ("descriptor_pb2", "descriptor_pool", "message_factory")
    )
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    of = descriptor_pb2.FieldDescriptorProto

    def message(name: str, *fields: tuple[str, int, int, str], repeated: bool = False) -> Any:
        made = file.message_type.add(name=name)
        for field, number, kind, named in fields:
            label = of.LABEL_REPEATED if repeated else of.LABEL_OPTIONAL
            made.field.add(name=field, number=number, type=kind, type_name=named or None, label=label)
        return made

    message("BytesList", ("value", 1, of.TYPE_BYTES, ""), repeated=True)
    message("FloatList", ("value", 1, of.TYPE_FLOAT, ""), repeated=True)
    message("Int64List", ("value", 1, of.TYPE_INT64, ""), repeated=True)
    feature = message(
        "Feature",
        ("bytes_list", 1, of.TYPE_MESSAGE, ".t.BytesList"),
        ("float_list", 2, of.TYPE_MESSAGE, ".t.FloatList"),
        ("int64_list", 3, of.TYPE_MESSAGE, ".t.Int64List"),
    )
    feature.oneof_decl.add(name="kind")
    for one in feature.field:
        one.oneof_index = 0
    features = message("Features", ("feature", 1, of.TYPE_MESSAGE, ".t.Features.Entry"), repeated=True)
    entry = features.nested_type.add(name="Entry")
    entry.field.add(name="key", number=1, type=of.TYPE_STRING, label=of.LABEL_OPTIONAL)
    entry.field.add(
        name="value", number=2, type=of.TYPE_MESSAGE, type_name=".t.Feature", label=of.LABEL_OPTIONAL
    )
    entry.options.map_entry = True
    message("Example", ("features", 1, of.TYPE_MESSAGE, ".t.Features"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def test_another_decoder_reads_the_records(
    settings: DataSettings, tmp_path: Path, example_class: Any
) -> None:
    built = build(settings.model_copy(update={"fields": ["intensity", "normal"]}), tmp_path / "run")
    convert(built.path, tmp_path / "out", "tfrecord")
    for split, (ranges,) in built.splits.items():
        paths = sorted((tmp_path / "out" / split).glob("*.tfrecord"))
        records = [data for path in paths for data in unframed(path)]
        assert len(records) == ranges.rows[1] - ranges.rows[0]
        for row, data in enumerate(records, ranges.rows[0]):
            features = example_class.FromString(data).features.feature
            sample = built.sample(row)
            assert len(features) == 1 + 3 * len(sample.columns)
            for name, values in sample.columns.items():
                (raw,), (dtype,) = (features[key].bytes_list.value for key in (name, f"{name}/dtype"))
                shape = [*features[f"{name}/shape"].int64_list.value]
                assert np.array_equal(np.frombuffer(raw, dtype.decode()).reshape(shape), values)
            (card,) = features["sample/json"].bytes_list.value
            assert json.loads(card)["name"] == sample.name


FEATURE = st.one_of(
    st.lists(st.binary(max_size=9), min_size=1, max_size=3),
    st.lists(st.floats(width=32), min_size=1, max_size=9),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=9),
)
NAME = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)


@given(wanted=st.dictionaries(NAME, FEATURE, max_size=4))
def test_what_protobuf_writes_is_read(example_class: Any, wanted: dict[str, list[Any]]) -> None:
    example = example_class()
    for name, values in wanted.items():
        feature = example.features.feature[name]
        kind = {bytes: "bytes_list", float: "float_list", int: "int64_list"}[type(values[0])]
        getattr(feature, kind).value.extend(values)
    found = codec.features(example.SerializeToString())
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        read = found[name]
        if isinstance(read, list):
            assert read == values
        else:
            assert read.tobytes() == np.array(values, read.dtype).tobytes()
            assert read.dtype == (np.int64 if isinstance(values[0], int) else np.float32)


def test_lists_that_are_not_packed_are_read(tfrecord: SimpleNamespace) -> None:
    floats = b"".join(b"\x0d" + struct.pack("<f", value) for value in (1.5, -2.0))
    ints = b"\x08\x05\x08" + b"\xff" * 9 + b"\x01"
    entries = ((b"f", tfrecord.message(2, floats)), (b"i", tfrecord.message(3, ints)))
    pairs = [tfrecord.message(1, tfrecord.message(1, n) + tfrecord.message(2, v)) for n, v in entries]
    found = codec.features(tfrecord.message(1, b"".join(pairs)))
    assert found["f"].tolist() == [1.5, -2.0]  # type: ignore[union-attr]
    assert found["i"].tolist() == [5, -1]  # type: ignore[union-attr]


@given(data=st.binary(max_size=60))
def test_any_bytes_are_an_example_or_a_value_error(data: bytes) -> None:
    try:
        codec.features(data)
    except ValueError:
        return


@pytest.mark.parametrize("data", [b"\xff" * 1_000_000, b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"])
def test_endless_numbers_are_refused_at_once(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"does not end|is cut"):
        codec.features(data)
