"""Scan of torch pickles: calls, memory and sizes are checked without running code of the file."""

from __future__ import annotations

import argparse
import collections
import io
import pickle
import zipfile
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hydractl.errors import CheckpointError
from hydractl.importing import pickle_file
from hydractl.importing.pickle_file import MOST_BYTES, NeedsCodeError, TooMuchError, check_pickles
from hydractl.importing.weights import read_weights

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


class Calls:
    """Object whose pickle calls a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def saved(tmp_path, value, *, old=False):
    torch.save(value, tmp_path / "w.pth", _use_new_zipfile_serialization=not old)
    return tmp_path / "w.pth"


def rewrite_pickle(path, change):
    """Rewrite the pickle inside an archive with `change`."""
    with zipfile.ZipFile(path) as archive:
        records = {r.filename: archive.read(r) for r in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in records.items():
            archive.writestr(name, change(data) if name.endswith("data.pkl") else data)


forms = pytest.mark.parametrize("old", [False, True], ids=["archive", "old"])


@forms
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Calls(bytearray, 10**11), "builtins.bytearray"),
        (Calls(torch.UntypedStorage, 10**11), "torch.storage.UntypedStorage"),
        (Calls(torch.Tensor, 10**5, 10**6), "torch.Tensor"),
        (Calls(collections.Counter, range(10**11)), "builtins.range"),
        (Calls(torch._utils._rebuild_qtensor, 0, 0, (10**11,)), "torch._utils._rebuild_qtensor"),
        (Calls(torch._tensor._rebuild_from_type_v2, torch.UntypedStorage, torch.Tensor, (10**11,), {}), "torch._tensor._rebuild_from"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_takes_memory_is_not_called(tmp_path, monkeypatch, call, name, old):
    path = saved(tmp_path, WEIGHTS | {"x": call}, old=old)
    monkeypatch.setattr(torch, "load", lambda *_, **__: pytest.fail("torch was asked"))

    with pytest.raises(CheckpointError, match=rf"cannot be read without running code \(`{name}"):
        read_weights((path,), ema=False)


def shaped(shape, strides, *, requires_grad=False):
    return Calls(
        torch._utils._rebuild_tensor_v2,
        torch.zeros(4).storage(),
        0,
        shape,
        strides,
        requires_grad,
        collections.OrderedDict(),
    )


@forms
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@pytest.mark.parametrize(
    "shape", [((10**11,), (1,)), ((10**11,), (0,)), ((5,), (1,)), ((2, 3), (3, 1))], ids=str
)
def test_tensors_are_no_longer_than_their_storages(tmp_path, shape, old):
    with pytest.raises(
        CheckpointError, match=r"declares tensors that are larger than the file: a tensor of shape"
    ):
        read_weights((saved(tmp_path, {"x": shaped(*shape)}, old=old),), ema=False)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_tensors_of_a_class_are_no_longer_either(tmp_path):
    own = shaped((5,), (1,)).call[1]
    call = Calls(torch._tensor._rebuild_from_type_v2, torch._utils._rebuild_tensor_v2, torch.Tensor, own, {})
    with pytest.raises(
        CheckpointError, match=r"declares tensors that are larger than the file: a tensor of shape"
    ):
        read_weights((saved(tmp_path, {"x": call}),), ema=False)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_a_tensor_may_be_spread_over_a_few_numbers(tmp_path):
    """Expanded buffers are stored with stride 0."""
    path = saved(tmp_path, {"x": shaped((1000, 4), (0, 1))})
    assert read_weights((path,), ema=False).tensors["x"].shape == (1000, 4)


@forms
def test_storages_are_no_longer_than_their_file(tmp_path, old):
    path = saved(tmp_path, {"x": torch.zeros(77777)}, old=old)
    raw, lie = (77777).to_bytes(4, "little"), (2**31 - 1).to_bytes(4, "little")
    if old:
        path.write_bytes(path.read_bytes().replace(b"J" + raw, b"J" + lie))
    else:
        rewrite_pickle(path, lambda data: data.replace(b"J" + raw, b"J" + lie))

    with pytest.raises(
        CheckpointError, match="declares tensors that are larger than the file: storages of 8589934588 bytes"
    ):
        read_weights((path,), ema=False)


def test_what_unpacks_to_many_times_its_size_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(pickle_file, "SPARE_BYTES", 1000)
    with zipfile.ZipFile(tmp_path / "w.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("w/data/0", bytes(10**6))
    with pytest.raises(CheckpointError, match="records decompress to more than 4 times the size of the file"):
        read_weights((tmp_path / "w.pth",), ema=False)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_records_of_one_name_are_refused(tmp_path):
    path = saved(tmp_path, WEIGHTS)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("W/DATA.PKL", b"")
    with pytest.raises(CheckpointError, match="has two records with the same name"):
        read_weights((path,), ema=False)


def test_a_pickle_that_is_too_long_is_said(tmp_path, monkeypatch):
    path = saved(tmp_path, WEIGHTS | {"epochs": [*range(1000)]})
    monkeypatch.setattr(pickle_file, "MOST_BYTES", 500)
    with pytest.raises(CheckpointError, match="a pickle of more than 500 bytes"):
        read_weights((path,), ema=False)


def test_keys_whose_hash_takes_for_ever_are_refused():
    # A pickle stores a repeated tuple once, but its hash visits 2 ** 60 tuples.
    deep = (1,)
    for _ in range(60):
        deep = (deep, deep)
    body = pickle.dumps(deep, protocol=2)[2:-1]
    # The tuple is the key of SETITEM (`s`) and SETITEMS (`u`).
    for keyed in (b"}" + body + b"Ns", b"}(" + body + b"Nu"):
        with pytest.raises(NeedsCodeError):
            check_pickles(b"\x80\x02" + keyed + b".", 0, 1)


@pytest.mark.newer  # torch 2.5 does not load sets
@forms
def test_what_training_scripts_save_beside_weights_is_let_through(tmp_path, old):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])
    value = {
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": schedule.state_dict(), "epoch": 3,
        "args": argparse.Namespace(lr=0.1, betas=(0.9, 0.99), sizes=torch.Size([1, 2])), "tags": {"a", "b"}, "raw": b"\x00\xff",
        "parameter": torch.nn.Parameter(torch.ones(2)), "device": torch.device("cpu"), "dtype": torch.float16, ("a", 1): 2**70,
        "half": torch.zeros(2, dtype=torch.float16), "view": torch.arange(6).reshape(2, 3).t(), "complex": 1j,
    }  # fmt: skip
    found = read_weights((saved(tmp_path, value, old=old),), ema=False)
    assert torch.equal(found.tensors["weight"], model.weight)


@forms
def test_an_ordered_dict_may_be_called_with_its_pairs(tmp_path, old):
    """Pickles of Python 2 contain such calls."""
    call = Calls(collections.OrderedDict, [[name, tensor] for name, tensor in WEIGHTS.items()])
    weights = read_weights((saved(tmp_path, call, old=old),), ema=False)
    assert weights.tensors.keys() == WEIGHTS.keys()
    assert all(torch.equal(weights.tensors[name], tensor) for name, tensor in WEIGHTS.items())


@settings(max_examples=100)
@given(data=st.data())
def test_any_change_of_a_pickle_is_met_in_words(data):
    """Pickles below `MOST_BYTES` raise only three known errors, for any content."""
    buffer = io.BytesIO()
    torch.save(WEIGHTS, buffer)
    with zipfile.ZipFile(buffer) as archive:
        raw = bytearray(archive.read("archive/data.pkl"))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    assert len(raw) < MOST_BYTES
    with suppress(NeedsCodeError, TooMuchError, ValueError):
        check_pickles(bytes(raw), 100, 1)
