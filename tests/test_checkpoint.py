"""Safetensors files: bytes are a function of content, and malformed files raise with the reason."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from hydractl.checkpoint import (
    DTYPE_NAMES,
    ITEM_BYTES,
    Checkpoint,
    ScratchFolder,
    TensorSpec,
    digest_together,
    spec_of,
    tensor_bytes,
    write_checkpoint,
    write_tensors,
)
from hydractl.errors import CheckpointError
from hydractl.runtime import CHUNK_BYTES
from hydractl.strict_json import MAX_BYTES
from support.builders import base

DTYPES = [getattr(torch, name) for name in DTYPE_NAMES]
GOLDEN = Path(__file__).parent / "golden"


def written(tensors, *, header=None) -> bytes:
    out = io.BytesIO()
    write_tensors(out, tensors, header=header)
    return out.getvalue()


def make(dtype, shape, seed):
    raw = torch.randint(0, 256, (max(1, ITEM_BYTES[DTYPE_NAMES[str(dtype)[6:]]]) * torch.Size(shape).numel(),),
                        dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))  # fmt: skip
    if dtype == torch.bool:
        raw = raw % 2
    return raw.view(dtype).reshape(shape)


@st.composite
def states(draw):
    names = draw(st.lists(st.text(min_size=1, max_size=12).filter(encodable), max_size=6, unique=True))
    shape = st.lists(st.integers(0, 4), max_size=3)
    return {
        name: make(draw(st.sampled_from(DTYPES)), draw(shape), draw(st.integers(0, 99)))
        for name in names
        if name != "__metadata__"
    }


def encodable(text):
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def same(a, b):
    """Compare dtype, shape and bits. Random bits may be NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and bytes(tensor_bytes(a)) == bytes(tensor_bytes(b))


@given(state=states(), data=st.data())
@settings(max_examples=60)
def test_round_trip_whatever_the_order(tmp_path_factory, state, data):
    path = tmp_path_factory.mktemp("st") / "a.st"
    shuffled = dict(data.draw(st.permutations(list(state.items()))))
    path.write_bytes(written(state))

    assert written(shuffled) == path.read_bytes()
    opened = Checkpoint.open(path)
    assert opened.specs == {name: spec_of(tensor) for name, tensor in state.items()}
    found = opened.tensors()
    assert all(same(found[name], tensor) for name, tensor in state.items())
    assert opened.size_bytes == sum(t.numel() * t.element_size() for t in state.values())


@given(state=states())
@settings(max_examples=30)
def test_safetensors_reads_the_same(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("st") / "a.st"
    path.write_bytes(written(state))
    with safe_open(path, framework="pt") as file:
        assert set(file.keys()) == set(state)
        assert all(same(file.get_tensor(name), tensor) for name, tensor in state.items())
        assert file.metadata() == {"format": "pt"}


def test_what_safetensors_wrote_reads_the_same(tmp_path):
    state = base().state
    save_file(state, tmp_path / "a.safetensors", metadata={"format": "pt", "b": "1", "a": "2"})
    opened = Checkpoint.open(tmp_path / "a.safetensors")
    assert all(same(opened.tensor(name), tensor) for name, tensor in state.items())
    assert opened.header is None
    assert opened.metadata == {"format": "pt", "b": "1", "a": "2"}


def test_header_round_trip_and_its_alignment(tmp_path):
    sample = base()
    data = written(sample.state, header=sample.header)
    (tmp_path / "a.st").write_bytes(data)
    assert Checkpoint.open(tmp_path / "a.st").header == sample.header
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert list(json.loads(data[8 : 8 + length])["__metadata__"]) == ["format", "hydractl"]


def test_tensors_lie_by_size_of_element_and_name():
    data = written(
        {"b": torch.zeros(1), "a": torch.zeros(1), "c": torch.zeros(1).double(), "d": torch.zeros(1).half()}
    )
    table = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert [name for name in table if name != "__metadata__"] == ["c", "a", "b", "d"]


def test_a_view_is_written_as_what_it_shows(tmp_path):
    whole = torch.arange(12.0).reshape(3, 4)
    (tmp_path / "a.st").write_bytes(written({"t": whole.T, "row": whole[1]}))
    opened = Checkpoint.open(tmp_path / "a.st")
    assert torch.equal(opened.tensor("t"), whole.T)
    assert torch.equal(opened.tensor("row"), whole[1])


def test_tensors_larger_than_a_chunk_are_read_whole(tmp_path):
    big = torch.arange(CHUNK_BYTES // 4 + 3, dtype=torch.int32)
    (tmp_path / "a.st").write_bytes(written({"big": big, "small": torch.ones(2)}))
    opened = Checkpoint.open(tmp_path / "a.st")
    assert [len(c) for c in opened.spans["big"].pieces()] == [CHUNK_BYTES, 12]
    assert torch.equal(opened.tensor("big"), big)


def test_a_writer_that_yields_too_little_is_our_bug():
    with pytest.raises(ValueError, match="tensor a: 3 bytes were written, its spec says 4"):
        write_checkpoint(io.BytesIO(), {"a": TensorSpec("F32", (1,))}, lambda _: [b"abc"], header=None)


def test_reading_a_tensor_that_is_not_there_names_it(tmp_path):
    (tmp_path / "a.st").write_bytes(written({"a": torch.zeros(1)}))
    with pytest.raises(CheckpointError, match="has no tensor `b`"):
        Checkpoint.open(tmp_path / "a.st").tensor("b")


def test_a_dtype_that_torch_lacks_is_named_when_it_is_read(tmp_path):
    (tmp_path / "a.st").write_bytes(file_of({"a": entry("U64", [1], 0, 8)}, b"12345678"))
    opened = Checkpoint.open(tmp_path / "a.st")
    with pytest.raises(CheckpointError, match="tensor `a` has dtype U64, which torch does not support"):
        opened.tensor("a")


def test_a_file_cut_while_it_is_read_is_said(tmp_path):
    path = tmp_path / "a.st"
    path.write_bytes(written({"a": torch.zeros(8)}))
    opened = Checkpoint.open(path)
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(CheckpointError, match="tensor `a` ends early"):
        opened.tensor("a")


# --- malformed files -------------------------------------------------------------------------------------------


def entry(dtype="F32", shape=(1,), begin=0, end=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def raw_file(text: bytes, data: bytes = b"") -> bytes:
    return len(text).to_bytes(8, "little") + text + data


def file_of(table, data: bytes = b"") -> bytes:
    return raw_file(json.dumps(table).encode(), data)


GOOD = file_of({"a": entry(), "b": entry("I8", [3], 4, 7)}, b"1234567")
MALFORMED = {
    "empty": (b"", "0 bytes are too few for its header"),
    "short": (b"\x01\x02\x03", "3 bytes are too few for its header"),
    "length-only": ((2).to_bytes(8, "little"), "8 bytes are too few for its header"),
    "huge-length": ((2**63).to_bytes(8, "little") + b"{}", "10 bytes are too few for its header"),
    "length-over-limit": ((MAX_BYTES + 1).to_bytes(8, "little") + b"{}", "are too few for its header"),
    "not-json": (raw_file(b"{nope"), "is not a valid safetensors file: Expecting"),
    "no-header": (raw_file(b""), "is not a valid safetensors file"),
    "bad-utf8": (raw_file(b'{"\xff\xfe": 1}'), "is not a valid safetensors file: 'utf-8' codec"),
    "utf-16": (raw_file('{"a": 1}'.encode("utf-16")), "is not a valid safetensors file"),
    "list": (raw_file(b"[]"), "the header is not a JSON object"),
    "deep": (raw_file(b"[" * 200_000), "is not a valid safetensors file"),
    "huge-number": (raw_file(b'{"a": ' + b"9" * 5000 + b"}"), "is not a valid safetensors file"),
    "many-tensors": (raw_file(b"{" + b'"a":{"data_offsets"' * 50_001), "lists more than 50000 tensors"),
    "trailing": (GOOD + b"x", "the header describes 7 bytes of data, but the file has 8"),
    "json": (b'{"schema": "hydractl.report/1"}', "is a JSON file, not a checkpoint"),
    "truncated": (GOOD[:-1], "the header describes 7 bytes of data, but the file has 6; it may be truncated"),
    "overlap": (file_of({"a": entry(), "b": entry(begin=2, end=6)}, b"123456"), "tensor `b` begins at 2, expected 4"),
    "hole": (file_of({"a": entry(), "b": entry(begin=8, end=12)}, b"x" * 12), "tensor `b` begins at 8, expected 4"),
    "hole-first": (file_of({"a": entry(begin=4, end=8)}, b"x" * 8), "tensor `a` begins at 4, expected 0"),
    "unknown-dtype": (file_of({"a": entry("F31")}, b"1234"), "tensor `a` has the unknown dtype F31"),
    "duplicate-tensor": (raw_file(b'{"a":{},"a":{}}'), "key `a` appears twice"),
    "duplicate-metadata": (raw_file(b'{"__metadata__":{"k":"1","k":"2"}}'), "key `k` appears twice"),
    "metadata-number": (file_of({"__metadata__": {"k": 1}}), "__metadata__ must map names to strings"),
    "metadata-list": (file_of({"__metadata__": ["k"]}), "__metadata__ must map names to strings"),
    "metadata-null": (file_of({"__metadata__": None}), "__metadata__ must map names to strings"),
    "negative-shape": (file_of({"a": entry(shape=[-1])}, b"1234"), "tensor `a` has shape [-1]"),
    "negative-twice": (file_of({"a": entry(shape=[-1, -1])}, b"1234"), "tensor `a` has shape [-1, -1]"),
    "bool-shape": (file_of({"a": entry(shape=[True])}, b"1234"), "tensor `a` has shape [True]"),
    "float-shape": (file_of({"a": entry(shape=[1.0])}, b"1234"), "tensor `a` has shape [1.0]"),
    "enormous-shape": (file_of({"a": entry(shape=[2**62, 2**62])}, b"1234"), "its shape"),
    "wrong-size": (file_of({"a": entry(shape=[2])}, b"1234"), "tensor `a` takes 4 bytes, but its shape [2] needs 8"),
    "backwards": (file_of({"a": entry(shape=[0], begin=4, end=0)}, b"1234"), "tensor `a` takes -4 bytes"),
    "negative-offset": (file_of({"a": entry(begin=-4, end=0)}, b""), "tensor `a` takes 4 bytes"),
    "bool-offset": (file_of({"a": entry("I8", begin=False, end=True)}, b"1"), "tensor `a` has data_offsets [False, True]"),
    "three-offsets": (file_of({"a": entry() | {"data_offsets": [0, 2, 4]}}, b"1234"), "tensor `a` needs exactly"),
    "no-dtype": (file_of({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"1234"), "tensor `a` needs exactly"),
    "extra-key": (file_of({"a": entry() | {"x": 1}}, b"1234"), "tensor `a` needs exactly"),
    "entry-is-text": (file_of({"a": "F32"}), "tensor `a` needs exactly"),
    "pickle": (pickle.dumps({"a": 1}), (
        "copy or download it again; convert a `.pth` or `.bin` file "
        "with `hydractl import"
    )),
    "zip": (b"PK\x03\x04" + b"\0" * 60, "is not a safetensors file"),
}  # fmt: skip


@pytest.mark.parametrize(("data", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_files_are_refused_with_the_reason(tmp_path, data, reason):
    path = tmp_path / "bad.st"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.open(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in f"{caught.value} {caught.value.hint}"
    assert caught.value.exit_code == 3


def test_every_truncation_is_refused(tmp_path):
    sample = {"a": torch.arange(3.0), "b": torch.arange(5, dtype=torch.int8), "e": torch.empty(0)}
    data = written(sample)
    path = tmp_path / "cut.st"
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CheckpointError):
            Checkpoint.open(path)
    path.write_bytes(data)
    Checkpoint.open(path)


@given(position=st.integers(0, 400), value=st.integers(0, 255))
@settings(max_examples=300)
def test_a_changed_byte_gives_an_error_or_a_file_never_a_traceback(tmp_path_factory, position, value):
    sample = base()
    data = bytearray(written({"a": torch.arange(3.0), "é": torch.ones(2)}, header=sample.header))
    data[position % len(data)] = value
    path = tmp_path_factory.mktemp("st") / "a.st"
    path.write_bytes(data)
    with contextlib.suppress(CheckpointError):
        opened = Checkpoint.open(path)
        _ = opened.header
        opened.tensors()


def test_a_pickle_is_never_run(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    torch.save(Bomb(), tmp_path / "a.st")
    with pytest.raises(CheckpointError):
        Checkpoint.open(tmp_path / "a.st")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("entry_text", "reason"),
    [
        ("{", "metadata.hydractl: is not JSON"),
        ("[]", "metadata.hydractl: document: "),
        (
            '{"schema": "hydractl.checkpoint/9"}',
            'schema is "hydractl.checkpoint/9", expected `hydractl.checkpoint/1`',
        ),
        ('{"schema": "hydractl.checkpoint/1"}', "is missing"),
    ],
)
def test_a_bad_entry_of_ours_is_a_checkpoint_error(tmp_path, entry_text, reason):
    (tmp_path / "a.st").write_bytes(file_of({"__metadata__": {"hydractl": entry_text}}))
    opened = Checkpoint.open(tmp_path / "a.st")
    with pytest.raises(CheckpointError) as caught:
        _ = opened.header
    assert reason in str(caught.value)


# --- places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "reason"),
    [(lambda _: None, "no such file"), (lambda p: p.mkdir(), "cannot be read: Is a directory")],
    ids=["missing", "folder"],
)
def test_places_without_a_file(tmp_path, make, reason):
    make(tmp_path / "a.st")
    with pytest.raises(CheckpointError, match=reason):
        Checkpoint.open(tmp_path / "a.st")


def test_a_fifo_is_spooled(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    state = {"a": torch.arange(4.0)}
    writer = threading.Thread(target=lambda: fifo.write_bytes(written(state)))
    writer.start()
    opened = Checkpoint.open(fifo)
    writer.join(timeout=100)
    assert torch.equal(opened.tensor("a"), state["a"])


def test_a_malformed_stream_is_called_by_its_name(tmp_path):
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    writer = threading.Thread(target=lambda: fifo.write_bytes(b"nope"))
    writer.start()
    with pytest.raises(CheckpointError, match=f"^{fifo}: is not a safetensors file"):
        Checkpoint.open(fifo)
    writer.join(timeout=100)


def test_standard_input_to_standard_output():
    code = (
        "import sys\nfrom pathlib import Path\nfrom hydractl.checkpoint import *\nfrom hydractl.output.publish import publish\n"
        "c = Checkpoint.open(Path('-'))\n"
        "with publish(Path('-')) as f:\n    write_checkpoint(f, c.specs, lambda n: c.spans[n].pieces(), header=c.header)\n"
        "assert 'torch' not in sys.modules\n"
    )
    sample = base()
    data = written(sample.state, header=sample.header)
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout == data


def test_shards_are_one_model(tmp_path):
    state = base().state
    names = sorted(state)
    shards = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    save_file({n: state[n] for n in names[::2]}, shards[0])
    save_file({n: state[n] for n in names[1::2]}, shards[1])
    opened = Checkpoint.open(tmp_path, shards=shards)
    assert all(same(opened.tensor(n), t) for n, t in state.items())
    assert opened.digest != Checkpoint.open(shards[0]).digest
    assert opened.digest == Checkpoint.open(tmp_path, shards=shards).digest


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    for name in ("1", "2"):
        save_file({"a": torch.zeros(1)}, tmp_path / name)
    with pytest.raises(CheckpointError, match="tensor `a` is also in another shard"):
        Checkpoint.open(tmp_path, shards=[tmp_path / "1", tmp_path / "2"])


def test_digests_are_those_of_the_bytes(tmp_path):
    import hashlib

    paths = [tmp_path / "a.st", tmp_path / "b.st"]
    for i, path in enumerate(paths):
        path.write_bytes(written({"a": torch.full((2,), float(i))}))
    opened = [Checkpoint.open(p) for p in paths]
    digest_together(opened)
    assert [c.digest for c in opened] == [
        f"sha256:{hashlib.sha256(p.read_bytes()).hexdigest()}" for p in paths
    ]


def test_opening_a_checkpoint_does_not_load_torch(tmp_path):
    sample = base()
    sample.save(tmp_path / "a.st")
    code = (
        "import sys; from pathlib import Path; from hydractl.checkpoint import Checkpoint\n"
        "assert Checkpoint.open(Path(sys.argv[1])).header.architecture.name; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.st")], check=True)


def test_golden_header_still_reads():
    """Files of the format `hydractl.checkpoint/1` must stay readable."""
    from hydractl.manifest.header import Fate, Header, Kind

    text = (GOLDEN / "checkpoint-1.json").read_text(encoding="utf-8")
    header = Header.from_json(text, place="golden")
    assert header.to_json() == text
    assert (header.kind, len(header.masks)) == (Kind.HYDRA, 2)
    assert header.plan is not None
    assert set(header.plan.fates.values()) == set(Fate)
    assert header.made_by is not None
    assert header.made_by.inputs[0].made_by is not None


def test_temporary_folders_of_killed_processes_go_and_no_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = ScratchFolder()
    others = [
        "hydractl-demo",
        "hydractl-0123456789abcdef",
        "hydractl-held-0123456789abcdef.mine",
        "mine-0123456789abcdef",
    ]
    for name in (*others, "hydractl-held-0123456789abcdef"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tensors.st").write_text("half")
    (tmp_path / "hydractl-held-fedcba9876543210").symlink_to(tmp_path / "mine-0123456789abcdef")

    later = ScratchFolder()

    assert {p.name for p in tmp_path.iterdir()} == {
        *others, living.path.name, later.path.name, "hydractl-held-fedcba9876543210",
    }  # fmt: skip
    assert all((tmp_path / name / "tensors.st").exists() for name in others)
