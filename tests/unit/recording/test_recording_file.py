"""Recording files: their content and limits, and the records and damaged parts that are read."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exchange_samples import EXCHANGES, OUTCOMES, TEXTS, comparable, exchange_of, sample_exchange
from infergate import __version__
from infergate.codecs.protos import SCHEMA
from infergate.codecs.protos.wire_scanner import MalformedMessageError
from infergate.core.datatypes import Datatype
from infergate.core.exchange import Exchange, Outcome
from infergate.core.messages import InferRequest
from infergate.core.sequences import SequenceKey
from infergate.core.tensor import Tensor
from infergate.recording import encoding, writer
from infergate.recording import format as layout
from infergate.recording.encoding import (
    RecordedExchange,
    UnrecordableError,
    decode_exchange,
    encode_exchange,
)
from infergate.recording.format import (
    FILE_HEADER_BYTES,
    FrameHeader,
    RecordingError,
    pack_file_header,
    pack_frame_header,
    zstd,
)
from infergate.recording.reader import DamagedPart, read_recording
from infergate.recording.writer import RecordingFile
from infergate.testing.strategies import corrupted_bytes

ID = b"12345678"
RECORD = b"".join(encode_exchange(sample_exchange()))
"""An encoded exchange."""


def write_file(path: Path, *exchanges: Exchange) -> Path:
    file = RecordingFile(path)
    for exchange in exchanges:
        file.append(encode_exchange(exchange))
    file.close()
    return path


def frame(record: bytes, **changes: int) -> bytes:
    payload = zstd.compress(record)
    header = FrameHeader(len(payload), len(record), zlib.crc32(payload))._replace(**changes)
    return pack_frame_header(ID, header) + payload


def read_bytes(path: Path, data: bytes) -> list[RecordedExchange | DamagedPart]:
    path.write_bytes(data)
    return list(read_recording(path))


def records(parts: Sequence[RecordedExchange | DamagedPart]) -> list[Any]:
    return [comparable(part.exchange) for part in parts if isinstance(part, RecordedExchange)]


def damage(parts: Sequence[RecordedExchange | DamagedPart]) -> list[DamagedPart]:
    return [part for part in parts if isinstance(part, DamagedPart)]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    return write_file(tmp_path / "recording", *map(sample_exchange, range(3)))


# ---- round trips


@given(
    st.lists(
        st.tuples(EXCHANGES, st.dictionaries(TEXTS, OUTCOMES, max_size=2), st.lists(TEXTS)),
        max_size=3,
    )
)
def test_every_exchange_is_read_bit_by_bit_as_it_was_written(
    entries: list[tuple[Exchange, Mapping[str, Outcome], list[str]]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = RecordingFile(f"{folder}/file")
        sizes = [file.append(encode_exchange(*entry)) for entry in entries]
        file.close()
        parts = [
            part for part in read_recording(f"{folder}/file") if isinstance(part, RecordedExchange)
        ]
        assert Path(folder, "file").stat().st_size == FILE_HEADER_BYTES + sum(sizes)
    read = [(part.exchange, part.further_outcomes, list(part.redacted)) for part in parts]
    assert comparable(read) == comparable(entries)
    assert [part.length for part in parts] == sizes


@pytest.mark.parametrize("size", [0, 1 << 16, (1 << 16) + 1, 1 << 20, (1 << 20) + 1, (5 << 20) + 3])
@pytest.mark.parametrize("content", ["zeros", "random"])
def test_tensors_of_any_size_keep_their_bits(tmp_path: Path, size: int, content: str) -> None:
    data = bytes(size) if content == "zeros" else os.urandom(size)
    tensors = [Tensor("x", Datatype.UINT8, (size,), data), Tensor("y", Datatype.UINT8, (1,), b"y")]
    exchange = Exchange(InferRequest("m", inputs=tuple(tensors)), Outcome())
    path = write_file(tmp_path / "file", sample_exchange(), exchange, sample_exchange(1))
    exchanges = [comparable(part.exchange) for part in read_recording(path)]  # type: ignore[union-attr]
    assert exchanges == [
        comparable(each) for each in (sample_exchange(), exchange, sample_exchange(1))
    ]


def test_tensors_are_written_as_views_of_the_exchange() -> None:
    data = memoryview(bytearray(1000))
    assert any(part is data for part in encode_exchange(exchange_of(data)))


def test_tensors_are_read_as_views_of_the_record() -> None:
    record = b"".join(encode_exchange(sample_exchange(size=1000)))
    (tensor,) = decode_exchange(record).exchange.request.inputs
    assert isinstance(tensor.data, memoryview)
    assert tensor.data.obj is record


def test_a_record_is_a_protobuf_message_of_the_published_schema() -> None:
    message = SCHEMA.message_class("infergate.recording.Record").FromString(
        b"".join(encode_exchange(sample_exchange(7, size=3)))
    )
    assert message.gateway_version == __version__
    assert message.format_version == layout.FORMAT_VERSION
    assert message.request.inputs[0].datatype == "UINT8"
    assert list(message.tensor_data) == [bytes([7, 8, 9])] * 2


def test_a_record_has_the_id_of_its_sequence() -> None:
    data = b"".join(encode_exchange(sample_exchange(sequence_id=2**64 - 1)))
    assert decode_exchange(data).sequence == SequenceKey("m", 2**64 - 1)
    assert decode_exchange(RECORD).sequence is None


@pytest.mark.parametrize(
    "value", [b"bytes", {1}, object(), 10**5000], ids=["bytes", "set", "object", "integer"]
)
def test_a_parameter_that_is_not_json_cannot_be_recorded(value: object) -> None:
    with pytest.raises(UnrecordableError, match="a value cannot be recorded"):
        encode_exchange(sample_exchange(p=[value]))


def test_a_sequence_id_that_no_codec_accepts_cannot_be_recorded() -> None:
    with pytest.raises(UnrecordableError, match="sequence_id"):
        encode_exchange(sample_exchange(sequence_id=1.5))


def test_a_record_over_the_limits_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnrecordableError, match=r"without its tensors has .* limit is 4194304"):
        encode_exchange(sample_exchange(text="x" * (4 << 20)))
    monkeypatch.setattr(encoding, "MAX_RECORD_BYTES", 1000)
    with pytest.raises(UnrecordableError, match="the limit is 1000"):
        encode_exchange(sample_exchange(size=500))


# ---- damage


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, list[tuple[int, int]]]:
    """Return a file and the spans of its frames. Its second record contains a recording."""
    folder = tmp_path_factory.mktemp("reference")
    inner = write_file(folder / "inner", *map(sample_exchange, range(2))).read_bytes()
    path = write_file(folder / "outer", sample_exchange(0), exchange_of(inner), sample_exchange(2))
    return path.read_bytes(), [
        (part.position, part.position + part.length) for part in read_recording(path)
    ]


@given(st.data())
def test_a_changed_removed_or_added_byte_loses_only_its_record(
    reference: tuple[bytes, list[tuple[int, int]]], data: st.DataObject
) -> None:
    content, spans = reference
    position = data.draw(st.integers(0, len(content) - 1))
    other = bytes([content[position] ^ data.draw(st.integers(1, 255))])
    new = data.draw(st.sampled_from([other, b"", other + content[position : position + 1]]))
    changed = content[:position] + new + content[position + 1 :]
    with tempfile.TemporaryDirectory() as folder:
        original = read_bytes(Path(folder, "original"), content)
        parts = read_bytes(Path(folder, "changed"), changed)
    lost = [index for index, (start, end) in enumerate(spans) if start <= position < end]
    if new == other + content[position : position + 1]:
        lost = [index for index in lost if spans[index][0] < position]  # added before the frame
    assert records(parts) == [
        record for index, record in enumerate(records(original)) if index not in lost
    ]
    (damaged,) = damage(parts)
    assert damaged.reason
    _assert_complete(parts, len(changed))


def _assert_complete(parts: Sequence[RecordedExchange | DamagedPart], size: int) -> None:
    """Check that records and damaged parts cover the complete file without gaps."""
    position = parts[0].position
    assert position in {0, FILE_HEADER_BYTES}
    for part in parts:
        assert part.position == position
        position += part.length
    assert position == size


def test_a_truncated_file_loses_only_its_last_record(recording: Path, tmp_path: Path) -> None:
    content = recording.read_bytes()
    ends = [part.position + part.length for part in read_recording(recording)]
    for size in range(FILE_HEADER_BYTES, len(content)):
        parts = read_bytes(tmp_path / "cut", content[:size])
        complete = sum(end <= size for end in ends)
        assert len(records(parts)) == complete
        assert len(damage(parts)) == (size not in {FILE_HEADER_BYTES, *ends})


def test_the_reason_of_a_truncated_record_names_the_missing_bytes(recording: Path) -> None:
    content = recording.read_bytes()
    *_, last = read_recording(recording)
    *_, damaged = read_bytes(recording, content[:-5])
    assert damaged == DamagedPart(
        last.position, last.length - 5, "the file ends 5 bytes before the end of the record"
    )


def test_zeros_after_the_last_record_are_one_damaged_part(recording: Path) -> None:
    content = recording.read_bytes()
    parts = read_bytes(recording, content + bytes(3 << 20))
    assert len(records(parts)) == 3
    assert damage(parts) == [DamagedPart(len(content), 3 << 20, "there is no valid frame header")]


def test_a_frame_is_found_across_the_pieces_of_a_search(tmp_path: Path) -> None:
    for shift in range(-14, 3):
        gap = bytes((1 << 20) + shift)
        parts = read_bytes(tmp_path / "file", pack_file_header(ID) + gap + frame(RECORD))
        assert [type(part) for part in parts] == [DamagedPart, RecordedExchange]


def message(**fields: Any) -> bytes:
    data: bytes = SCHEMA.message_class("infergate.recording.Record")(**fields).SerializeToString()
    return data


def with_input(datatype: str, *tensor_data: bytes) -> bytes:
    inputs = [{"name": b"x", "datatype": datatype}]
    return message(request={"inputs": inputs}, tensor_data=tensor_data)


def with_parameter(name: bytes, **value: Any) -> bytes:
    return message(request={"parameters": {"entries": [{"name": name, **value}]}})


def check_damaged_frame(path: Path, damaged: bytes, reason: str) -> None:
    """Check that the reader reports ``damaged``, and reads the next frame."""
    first, second = read_bytes(path, pack_file_header(ID) + damaged + frame(RECORD))
    assert isinstance(first, DamagedPart)
    assert reason in first.reason
    assert isinstance(second, RecordedExchange)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"record_bytes": 10}, "its size differs from the 10 bytes"),
        ({"record_bytes": 1 << 20}, "its size differs from the 1048576 bytes"),
        ({"record_bytes": 1 << 40}, "the record has 1099511627776 bytes; the limit is 1073741824"),
        ({"payload_bytes": 1 << 40}, "the record has 1099511627776 bytes; the limit is"),
        ({"payload_crc": 0}, "the checksum of the record is wrong"),
    ],
)
def test_a_header_that_does_not_match_its_record_is_reported(
    tmp_path: Path, changes: dict[str, int], reason: str
) -> None:
    check_damaged_frame(tmp_path / "file", frame(RECORD, **changes), reason)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"\xff", "does not end"),
        (with_input("FP32"), "'x' is missing"),
        (with_input("FP9", b""), "unknown datatype FP9"),
        (with_input("FP32", b"1"), "needs 4 bytes, but the data holds 1"),
        (message(tensor_data=[b""]), "data for more tensors than it describes"),
        (message(outcome={"error": {"kind": "nonsense"}}), "nonsense"),
        (message(route=b"\xff"), "can't decode"),
        (with_parameter(b"p", json_value=b"[" * 100_000), "recursion"),
        (with_parameter(b"sequence_id", bool_value=True), "sequence_id"),
        (message(gateway_version="x" * (5 << 20)), "the limit is 4194304"),
    ],
)
def test_a_record_that_infergate_cannot_have_written_is_reported(
    tmp_path: Path, record: bytes, reason: str
) -> None:
    check_damaged_frame(tmp_path / "file", frame(record), reason)


def test_a_window_over_the_limit_is_not_allocated(tmp_path: Path) -> None:
    options = {zstd.CompressionParameter.window_log: 27}
    compressor = zstd.ZstdCompressor(options=options)
    payload = compressor.compress(bytes(1 << 20)) + compressor.flush()
    header = FrameHeader(len(payload), 1 << 20, zlib.crc32(payload))
    data = pack_file_header(ID) + pack_frame_header(ID, header) + payload
    (part,) = read_bytes(tmp_path / "file", data)
    assert isinstance(part, DamagedPart)
    assert "too much memory" in part.reason


def test_a_file_of_overlapping_damaged_frames_is_rejected(tmp_path: Path) -> None:
    header = pack_frame_header(ID, FrameHeader(100_000, 100_000, 0))
    path = tmp_path / "file"
    path.write_bytes(pack_file_header(ID) + header * 10_000 + bytes(100_000))
    with pytest.raises(RecordingError, match=r"byte \d+: too many frames are damaged"):
        list(read_recording(path, max_record_bytes=100_000))


@given(st.data())
def test_any_damage_hides_records_but_changes_none(
    reference: tuple[bytes, list[tuple[int, int]]], data: st.DataObject
) -> None:
    content, _ = reference
    with tempfile.TemporaryDirectory() as folder:
        original = records(read_bytes(Path(folder, "original"), content))
        try:
            survivors = records(
                read_bytes(Path(folder, "damaged"), data.draw(corrupted_bytes(content)))
            )
        except RecordingError:
            survivors = []
    originals = iter(original * 3)  # a change may repeat a part of the file
    assert all(record in originals for record in survivors)


@given(EXCHANGES, st.data())
def test_a_record_of_any_bytes_is_read_or_reported(exchange: Exchange, data: st.DataObject) -> None:
    """The bytes have a valid checksum, as in a file that another program wrote."""
    record = b"".join(encode_exchange(exchange))
    with contextlib.suppress(MalformedMessageError):
        decode_exchange(data.draw(corrupted_bytes(record)))


# ---- foreign files and versions


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\3\4", b"\x89IGREC\r\n", bytes(range(256)) * 9000],
    ids=["empty", "ZIP", "magic", "long"],
)
def test_a_foreign_file_is_an_error_with_its_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "foreign.bin"
    with pytest.raises(
        RecordingError, match=r"foreign\.bin: byte 0: this is not an infergate recording"
    ):
        read_bytes(path, content)


def test_a_file_of_a_newer_version_is_an_error_with_the_position(recording: Path) -> None:
    header = struct.pack("<8sI8s", b"\x89IGREC\r\n", 2, ID)
    content = header + struct.pack("<I", zlib.crc32(header)) + recording.read_bytes()[24:]
    with pytest.raises(RecordingError, match=r"byte 8: the format version is 2; .* up to 1"):
        read_bytes(recording, content)


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list(read_recording(tmp_path / "absent"))


def test_the_layout_is_the_documented_one(tmp_path: Path) -> None:
    """The byte offsets of docs/recording.md, read without infergate's reader."""
    content = write_file(tmp_path / "file", sample_exchange()).read_bytes()
    magic, version, file_id, crc = struct.unpack_from("<8sI8sI", content)
    assert (magic, version, crc) == (b"\x89IGREC\r\n", 1, zlib.crc32(content[:20]))
    frame_header = struct.unpack_from("<4s8sQQII", content, 24)
    marker, frame_id, payload_bytes, record_bytes, payload_crc, header_crc = frame_header
    payload = content[60:]
    assert (marker, frame_id) == (b"\x89IGF", file_id)
    assert (payload_bytes, payload_crc) == (len(payload), zlib.crc32(payload))
    assert header_crc == zlib.crc32(content[24:56])
    record = zstd.decompress(payload)
    assert (len(record), record) == (record_bytes, RECORD)


# ---- writing


def test_only_the_owner_may_read_a_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "file")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        RecordingFile(path)
    assert path.read_bytes() == b"precious"


class _Disk:
    """Lets ``capacity`` bytes be written, in short pieces, and then fails."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capacity: int, error: int) -> None:
        self._write, self._left, self._error = os.pwrite, capacity, error
        monkeypatch.setattr(writer.os, "pwrite", self.pwrite)

    def pwrite(self, descriptor: int, data: memoryview, position: int) -> int:
        count = min(len(data), self._left, 1000)
        if not count:
            raise OSError(self._error, os.strerror(self._error))
        self._left -= count
        return self._write(descriptor, data[:count], position)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("size", [10, 300_000])
def test_a_write_that_fails_leaves_only_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int, size: int
) -> None:
    path = tmp_path / "file"
    _Disk(monkeypatch, 40_000 + 2 * size, error)
    file, flushed = RecordingFile(path), 0
    with pytest.raises(OSError, match=os.strerror(error)):  # noqa: PT012 - the loop must end
        while True:
            file.append(encode_exchange(exchange_of(os.urandom(size))))
            file.flush()
            flushed += 1
    file.close()
    parts = list(read_recording(path))
    assert len(parts) == len(records(parts)) == flushed


def test_a_new_file_is_removed_if_its_header_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _Disk(monkeypatch, 10, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        RecordingFile(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_large_record_that_is_being_written_does_not_hide_earlier_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a kill, a file may end with part of a large record, whose header is not written yet."""
    path = tmp_path / "file"
    file = RecordingFile(path)
    file.append(encode_exchange(sample_exchange()))
    states: list[bytes] = []
    write = os.pwrite

    def watch(descriptor: int, data: memoryview, position: int) -> int:
        states.append(path.read_bytes())
        return write(descriptor, data, position)

    monkeypatch.setattr(writer.os, "pwrite", watch)
    file.append(encode_exchange(exchange_of(os.urandom(3 << 20))))
    monkeypatch.undo()
    file.close()
    assert len(states) > 3
    for state in states[1:]:
        first, second = read_bytes(tmp_path / "state", state)
        assert comparable(first.exchange) == comparable(sample_exchange())  # type: ignore[union-attr]
        assert isinstance(second, DamagedPart)
