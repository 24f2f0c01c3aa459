"""Objects saved with weights (numpy values, paths, times, enums) are read as data; no code runs."""

from __future__ import annotations

import argparse
import builtins
import collections
import dataclasses
import datetime
import decimal
import enum
import functools
import importlib
import io
import operator
import os
import subprocess
import types
import uuid
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
import timm
import torch

from hydractl.errors import CheckpointError
from hydractl.importing.pickle_file import PickleRecord, attributes, read_pickle, record_class, to_plain

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3)}


class Colour(enum.Enum):
    RED = "red"


class Attributes(dict):
    """Dictionary like Lightning's `AttributeDict`."""


@dataclasses.dataclass
class Config:
    depth: int = 2
    colour: Colour = Colour.RED


@dataclasses.dataclass(slots=True)
class Slots:
    depth: int = 2


class Calls:
    """Object whose pickle calls a function."""

    def __init__(self, function, *args):
        self.call = (function, args)

    def __reduce__(self):
        return self.call


def loaded(folder, value, *, old):
    path = folder / "w.pth"
    torch.save({"state_dict": WEIGHTS, "x": value}, path, _use_new_zipfile_serialization=not old)
    return read_pickle(path)["x"]


def sample_defaultdict():
    found = collections.defaultdict(list)
    found["a"].append(1)
    return found


forms = pytest.mark.parametrize("old", [False, True], ids=["archive", "old"])
PLAIN = {
    "float64": (np.float64(2.5), 2.5),
    "float16": (np.float16(0.5), 0.5),
    "int64": (np.int64(-7), -7),
    "bool": (np.bool_(True), True),  # noqa: FBT003 - as numpy has it
    "big endian": (np.array([1, 2], dtype=">i4"), [1, 2]),
    "array": (np.array([0.25, 0.5]), [0.25, 0.5]),
    "path": (Path("/a/b"), "/a/b"),
    "pure path": (PurePosixPath("x/y"), "x/y"),
    "enumeration": (Colour.RED, "red"),
    "defaultdict": (sample_defaultdict(), {"a": [1]}),
    "class of a dictionary": (Attributes(x=np.int32(1)), {"x": 1}),
    "deque": (collections.deque([1, 2], 3), [1, 2]),
    "nested": ([(np.float64(1), {"k": Path("p")})], [[1.0, {"k": "p"}]]),
}


@forms
@pytest.mark.parametrize(("value", "plain"), PLAIN.values(), ids=PLAIN)
def test_values_are_what_they_were(tmp_path, value, plain, old):
    assert to_plain(loaded(tmp_path, value, old=old)) == plain


@forms
@pytest.mark.parametrize(
    "value",
    [
        datetime.datetime.now(datetime.UTC), datetime.timedelta(1), uuid.uuid4(), decimal.Decimal("1.5"),
        np.random.default_rng(0).bytes(3), np.str_("x"), np.random.RandomState(0).get_state(), Config, torch.optim.Adam,
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_objects_of_no_use_are_passed_over(tmp_path, value, old):
    loaded(tmp_path, value, old=old)


@forms
@pytest.mark.parametrize(
    "value",
    [Config(), Slots(), types.SimpleNamespace(depth=2), argparse.Namespace(depth=2), Attributes(depth=2)],
    ids=lambda value: type(value).__name__,
)
def test_options_are_read_by_name(tmp_path, value, old):
    found = loaded(tmp_path, value, old=old)
    assert attributes(found)["depth"] == 2
    assert type(found).__name__ not in {"Config", "Slots"} or isinstance(found, PickleRecord)


HOSTILE = {
    "system": (os.system, "touch pwned"),
    "mkdir": (os.mkdir, "pwned"),
    "eval": (eval, "open('pwned', 'w')"),
    "exec": (exec, "open('pwned', 'w')"),
    "getattr": (getattr, "x", "upper"),
    "import": (builtins.__import__, "os"),
    "open": (open, "pwned", "w"),
    "Popen": (subprocess.Popen, "touch pwned"),
    "call": (subprocess.call, "touch pwned"),
    "partial": (functools.partial, os.system, "touch pwned"),
    "methodcaller": (operator.methodcaller, "system", "touch pwned"),
    "import_module": (importlib.import_module, "os"),
    "text stream": (io.StringIO, "x"),
    "numpy.load": (np.load, "pwned"),
    "numpy.save": (np.save, "pwned", [1]),
    "numpy.fromfile": (np.fromfile, "pwned"),
    "numpy.memmap": (np.memmap, "pwned", "uint8", "w+", 0, (4,)),
    "torch.load": (torch.load, "pwned"),  # noqa: TID251 - that it is not called
    "torch.save": (torch.save, WEIGHTS, "pwned"),
    "torch.hub": (torch.hub.load, "x", "y"),
}


@forms
@pytest.mark.parametrize("call", HOSTILE.values(), ids=HOSTILE)
def test_nothing_runs(tmp_path, monkeypatch, call, old):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="cannot be read without running code"):
        loaded(tmp_path, Calls(*call), old=old)
    assert [path.name for path in tmp_path.iterdir()] == ["w.pth"]


@forms
@pytest.mark.parametrize("function", [os.system, eval, subprocess.Popen, functools.partial])
def test_functions_of_python_are_not_even_named(tmp_path, function, old):
    with pytest.raises(CheckpointError, match="cannot be read without running code"):
        loaded(tmp_path, function, old=old)


@forms
def test_functions_of_other_packages_become_records(tmp_path, monkeypatch, old):
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: pytest.fail("a function of the file ran"))
    found = loaded(tmp_path, Calls(timm.models.create_model, "vit_tiny_patch16_224"), old=old)
    assert isinstance(found, PickleRecord)
    assert found.args == ("vit_tiny_patch16_224",)


@pytest.mark.parametrize("dtype", ["f9", "O8", "V8", "U4", "M8[ns]"])
def test_numbers_of_no_such_type_stay_records(tmp_path, dtype):
    kind = Calls(np.dtype, dtype, False, True)  # noqa: FBT003 - as numpy pickles it
    scalar = Calls(np.float64(1).__reduce__()[0], kind, b"\0" * 8)
    assert isinstance(to_plain(loaded(tmp_path, scalar, old=False)), PickleRecord)


@pytest.mark.parametrize("order", ["<", ">", "|", "=", "<>", ""])
def test_every_order_of_bytes(order):
    kind = record_class("numpy.dtype", object)("f4", False, True)  # noqa: FBT003 - as numpy pickles it
    kind.__setstate__((3, order, None, None, None, -1, -1, 0))
    scalar = record_class("numpy._core.multiarray.scalar", object)(kind, b"\0\0\0\0")
    assert to_plain(scalar) == 0.0


def test_objects_that_hold_themselves_and_one_another(tmp_path):
    ring = []
    ring.append(ring)
    deep = [1]
    for _ in range(60):
        deep = [deep] * 60
    for value in (ring, deep):
        to_plain(loaded(tmp_path, value, old=False))


def test_classes_without_end_are_refused(tmp_path):
    many = [type(f"C{i}", (), {"__module__": "elsewhere"}) for i in range(200)]
    module = types.ModuleType("elsewhere")
    for one in many:
        setattr(module, one.__name__, one)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "elsewhere", module)
        with pytest.raises(CheckpointError, match="more than 100 classes"):
            loaded(tmp_path, many, old=False)
