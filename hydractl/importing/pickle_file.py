"""Reading of a .pth: a pickle of torch is checked before torch loads it, and objects of other classes become records.

torch runs no code of a pickle, but lets it call functions that take memory, such as `bytearray(10**11)` or a storage of any
length, and makes tensors longer than their file. So each pickle is first read with stand-ins: it may contain any name, call a
few of them, and the arguments of these calls are compared with the size of the file. Objects of other classes, which training
scripts save beside weights, are read as records of their arguments and state.
"""

from __future__ import annotations

import argparse
import math
import pickle
import re
import sys
import warnings
import zipfile
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np
import torch

from hydractl.errors import CheckpointError
from hydractl.strict_json import NOT_UTF8

DATA = frozenset(
    {
        *(f"builtins.{name}" for name in ("bool", "dict", "float", "frozenset", "int", "list", "object", "str", "tuple")),
        *(f"collections.{name}" for name in ("ChainMap", "UserDict", "UserList", "defaultdict", "deque")),
        *(f"datetime.{name}" for name in ("date", "datetime", "time", "timedelta", "timezone")),
        *(
            f"{module}.{pure}{system}Path"
            for module in ("pathlib", "pathlib._local")
            for pure, system in (("", ""), ("", "Posix"), ("", "Windows"), ("Pure", ""), ("Pure", "Posix"), ("Pure", "Windows"))
        ),
        *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
        "numpy.dtype", "numpy.ndarray", "decimal.Decimal", "fractions.Fraction", "types.SimpleNamespace", "typing.Any",
        "uuid.UUID",
        *(f"numpy.{name}" for name in ("bool_", "float32", "float64", "int32", "int64")),
    }
)  # fmt: skip
"""Data classes of the standard library and numpy."""
NUMERIC = re.compile(r"b1|[iu][1248]|f[248]")
CONTENT, VALUE = "_content", "_val"
"""Attributes in which OmegaConf keeps the items of a dictionary and the value of an item."""
DEEPEST, MOST_ITEMS = 3, 64
"""Limit of converted objects: an object may contain itself, or others many times."""


def is_data(name: str) -> bool:
    """Return whether objects of a name are read as data: classes of scripts and of other packages, and those of `DATA`.

    All else of Python, numpy and torch runs code, or makes what a file of weights has no use for.
    """
    return name in DATA or (may_be_named(name) and name.partition(".")[0] not in {"numpy", "torch"})


def may_be_named(name: str) -> bool:
    """Return whether a name may stand in a file, be it of a class that no object is made of: not those of Python, beside `DATA`."""
    return name in DATA or name.partition(".")[0] not in sys.stdlib_module_names


class PickleRecord:
    """An object of a class that is not loaded.

    Attributes:
        args: What it was made with.
        state: What it was given then, None where nothing was.
    """

    args: tuple[object, ...]
    state: object

    def __new__(cls, *args: object) -> Any:  # noqa: ANN401, D102 - a class of a dictionary makes no record
        self = super().__new__(cls)
        self.args, self.state = args, None
        return self

    def __setstate__(self, state: object) -> None:
        self.state = state

    @property
    def name(self) -> str:
        """Module and name of the class."""
        return f"{type(self).__module__}.{type(self).__qualname__}"


def record_class(name: str, container: type) -> type:
    """Return what stands for a class that is not loaded.

    Args:
        name: Module and name of the class.
        container: `dict` or `list` where its objects are filled as such, else `object`; such objects become plain ones.
    """
    module, _, last = name.rpartition(".")
    body: dict[str, Any] = {"__module__": module, "__qualname__": last}
    if container is not object:
        body["__new__"] = lambda _cls, *_args: OrderedDict() if container is dict else []
    return type(last, (PickleRecord,), body)


def attributes(value: object) -> Mapping[str, object]:
    """Return the named values of a dictionary, a namespace, or an object of another class; of anything else none."""
    if isinstance(value, argparse.Namespace):
        return vars(value)
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, PickleRecord):
        parts = value.state if isinstance(value.state, tuple) else (value.state,)
        fields = {str(k): item for part in parts if isinstance(part, dict) for k, item in part.items()}
        return attributes(fields[CONTENT]) if isinstance(fields.get(CONTENT), Mapping) else fields
    return {}


def to_plain(value: object, *, depth: int = DEEPEST) -> object:
    """Return a value as numbers, texts, lists and dictionaries: of numpy, of paths and of enumerations.

    A record that holds something else, and what is large or nested deep, is returned as it is.
    """
    if isinstance(value, Mapping | list | tuple) and (not depth or len(value) > MOST_ITEMS):
        return value
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, depth=depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, depth=depth - 1) for item in value]
    if not isinstance(value, PickleRecord):
        return value
    if value.name.endswith(".multiarray.scalar"):
        numbers = _numbers(value.args)
        return numbers[0] if numbers else value
    if value.name.endswith(".multiarray._reconstruct") and isinstance(value.state, tuple):
        numbers = _numbers(value.state[-3::2]) if len(value.state) == 5 else []
        return numbers or value
    if isinstance(value.state, dict) and VALUE in value.state and depth:
        return to_plain(value.state[VALUE], depth=depth - 1)
    if value.name.endswith("Path"):
        return "/".join(map(str, value.args)).replace("//", "/")
    is_enumeration = len(value.args) == 1 and value.state is None
    return to_plain(value.args[0], depth=depth - 1) if is_enumeration and depth else value


def _numbers(parts: tuple[object, ...]) -> list[Any]:
    """Return the numbers that bytes hold: `parts` are a dtype of numpy, as a record, and the bytes."""
    match parts:
        case (PickleRecord(args=(str(code), *_), state=(_, str(order), *_)), bytes(raw)) if NUMERIC.fullmatch(
            code
        ):
            dtype = np.dtype((">" if order == ">" else "<") + code)
            numbers: list[Any] = np.frombuffer(
                raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype
            ).tolist()
            return numbers
    return []


MOST_BYTES = 8_000_000
"""Size limit of a pickle without its tensors, in bytes. Those of the largest models with their optimizers
take a tenth of it.
"""
SPARE_BYTES = 64_000_000
TIMES = 4
"""Limit of the total size of tensors, as a multiple of the file size, plus `SPARE_BYTES`. Tensors may share storage."""
ZIP_START = b"PK\x03\x04"
WIDTHS = {
    "ComplexDouble": 16, "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "QInt32": 4, "Half": 2, "BFloat16": 2,
    "Short": 2,
}  # fmt: skip
"""Bytes per element of a storage by the prefix of its class name; one for all others."""
MOST_CLASSES = 100
"""Classes whose objects are read as records."""
MAX_SHOWN_CHARACTERS = 80
PICKLES = 5
"""Pickles in a file of the format before archives: magic number, version, machine, object, names of storages."""


class NeedsCodeError(pickle.UnpicklingError):
    """A pickle calls what it may not, or makes objects of classes; as a text it is what."""


class TooMuchError(pickle.UnpicklingError):
    """A pickle asks for more memory than its file has bytes; as a text it says what for."""


def most(size: int) -> int:
    """Return how many bytes a file of `size` bytes may become."""
    return TIMES * size + SPARE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    width: int
    count: int


class _Placeholder:
    """What a call that was let through would have made."""


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """What a pickle has by a name, in the place of the thing itself."""

    name: str
    reader: _Rehearsal

    def __call__(self, *args: object) -> object:
        allowed = CALLS.get(self.name)
        if not (is_data(self.name) if allowed is None else allowed(self.reader, args)):
            raise NeedsCodeError(self.name[:MAX_SHOWN_CHARACTERS])
        return _Container(self.name) if allowed is None or self.name in CONTAINERS else _Placeholder()


@dataclass(frozen=True, slots=True, eq=False)
class _Container(_Placeholder):
    name: str


class _Rehearsal(pickle._Unpickler):  # C's own sizes its memory by numbers in the pickle
    """Reads one pickle."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, encoding="latin1")
        self.size = size
        self.stored: dict[object, int] = {}
        self.taken = 0
        self.classes: dict[str, type] = {}

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        named = _Named(f"{module}.{name}", self)
        if named.name not in CALLS:
            if not may_be_named(named.name):
                raise NeedsCodeError(named.name[:MAX_SHOWN_CHARACTERS])
            self.classes.setdefault(named.name, dict if named.name in FILLED else object)
        if len(self.classes) > MOST_CLASSES:
            raise TooMuchError(f"more than {MOST_CLASSES} classes")
        return named

    def persistent_load(self, pid: Any) -> object:  # noqa: ANN401 - as above
        match pid:
            case (_, _Named(name=name), key, _, int(count), *_) if count >= 0:
                kind = name.rpartition(".")[2].removesuffix("Storage")
                storage = _Storage(WIDTHS.get(kind, 1), count)
                self.stored[key] = storage.width * count
                if sum(self.stored.values()) > self.size:
                    raise TooMuchError(f"storages of {sum(self.stored.values())} bytes")
                return storage
        raise pickle.UnpicklingError

    def tensor(self, args: tuple[Any, ...]) -> bool:
        """Return whether a tensor lies in its storage, and leaves room for others: storage, offset, shape, strides."""
        storage, offset, shape, strides = args[:4]
        numbers = (offset, *shape, *strides)
        if not isinstance(storage, _Storage) or any(type(n) is not int or n < 0 for n in numbers):
            raise pickle.UnpicklingError
        count = math.prod(shape)
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if count else offset - 1
        self.taken += storage.width * count
        if last >= storage.count or self.taken > most(self.size):
            raise TooMuchError(f"a tensor of shape {shape}"[:MAX_SHOWN_CHARACTERS])
        return True

    def _set_item(self) -> None:
        _, key = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self._check_keys([key])

    def _check_keys(self, keys: list[object]) -> None:
        holder = self.stack[-1]  # type: ignore[attr-defined]
        if not isinstance(holder, dict | _Container) or not all(map(_is_plain, keys)):
            raise NeedsCodeError("dict")
        self._filled(holder, dict)

    def _extend(self, items: list[object]) -> None:
        holder = self.stack[-1]  # type: ignore[attr-defined]
        if isinstance(holder, list):
            holder.extend(items)
        elif not isinstance(holder, _Container):
            raise NeedsCodeError("list")
        self._filled(holder, list)

    def _filled(self, holder: object, kind: type) -> None:
        """Note that objects of a class are filled as dictionaries or lists are."""
        if isinstance(holder, _Container) and holder.name in self.classes:
            self.classes[holder.name] = kind

    def _build(self) -> None:
        self.stack.pop()  # type: ignore[attr-defined]
        if not isinstance(self.stack[-1], _Container):  # type: ignore[attr-defined]
            raise NeedsCodeError("__setstate__")

    def _new(self) -> None:
        args, cls = self.stack.pop(), self.stack.pop()  # type: ignore[attr-defined]
        self.append(cls(*args))  # type: ignore[attr-defined]


_OPERATIONS: Mapping[bytes, Callable[[Any], None]] = {
    pickle.SETITEMS: lambda reader: reader._check_keys(reader.pop_mark()[::2]),
    pickle.SETITEM: _Rehearsal._set_item,
    pickle.APPENDS: lambda reader: reader._extend(reader.pop_mark()),
    pickle.APPEND: lambda reader: reader._extend([reader.stack.pop()]),
    pickle.BUILD: _Rehearsal._build,
    pickle.NEWOBJ: _Rehearsal._new,
}
for _operation, _method in _OPERATIONS.items():
    _Rehearsal.dispatch[_operation[0]] = _method
for _operation in (
    pickle.BYTEARRAY8,
    pickle.ADDITEMS,
    pickle.FROZENSET,
    pickle.NEWOBJ_EX,
    pickle.OBJ,
    pickle.INST,
):
    del _Rehearsal.dispatch[_operation[0]]  # torch has none of them


def _is_plain(value: object) -> bool:
    """Return whether a value can be a key in no time: the hash of tuples in tuples may take for ever."""
    simple = (str, bytes, int, float, type(None), _Named, _Placeholder)
    return isinstance(value, simple) or (
        isinstance(value, tuple) and all(isinstance(item, simple) for item in value)
    )


FILLED = frozenset({"builtins.dict", "collections.defaultdict"})
CONTAINERS = frozenset({"collections.OrderedDict", "collections.Counter", "argparse.Namespace"})
TENSORS = frozenset(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
CALLS: Mapping[str, Callable[[_Rehearsal, tuple[Any, ...]], bool]] = {
    **dict.fromkeys(TENSORS, _Rehearsal.tensor),
    # a tensor of a class of its own: function, class, arguments of the function
    "torch._tensor._rebuild_from_type_v2": lambda _, args: (
        isinstance(args[0], _Named) and args[0].name in TENSORS and bool(args[0](*args[2]))
    ),
    **dict.fromkeys(
        (
            "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state",
            "torch._utils._rebuild_sparse_tensor", "torch._utils._rebuild_meta_tensor_no_storage",
            "torch.serialization._get_layout", "torch.Size", "torch.device", "builtins.complex",
        ),
        lambda _, args: True,  # noqa: ARG005 - called as all are
    ),
    "_codecs.encode": lambda _, args: args[1:] == ("latin1",),
    "builtins.set": lambda _, args: not args or (isinstance(args[0], list) and all(map(_is_plain, args[0]))),
    "collections.OrderedDict": lambda _, args: (
        not args or all(len(pair) == 2 and _is_plain(pair[0]) for pair in args[0])
    ),
    "collections.Counter": lambda _, args: not args or isinstance(args[0], dict),
    "argparse.Namespace": lambda _, args: not args,
}  # fmt: skip
"""Callables that a pickle may use, with their arguments."""


def rehearse(begin: bytes, size: int, pickles: int) -> dict[str, type]:
    """Go through a pickle, or several one after another.

    Args:
        begin: The first `MOST_BYTES` of the pickles, and of what follows them.
        size: How many bytes there are for tensors.
        pickles: How many.

    Returns:
        The classes whose objects become records, by module and name, and how these are filled; see `record_class`.

    Raises:
        NeedsCodeError: If it calls what it may not.
        TooMuchError: If it asks for more than there is, or is too long itself.
        ValueError: If it is no pickle, or is cut off.
    """
    file = BytesIO(begin)
    classes: dict[str, type] = {}
    try:
        for _ in range(pickles):
            reader = _Rehearsal(file, size)
            reader.load()
            classes |= reader.classes
    except (NeedsCodeError, TooMuchError):
        raise
    except Exception as error:  # a pickle is a program, and a broken one fails as it likes
        if len(begin) == MOST_BYTES:
            raise TooMuchError(f"a pickle of more than {MOST_BYTES} bytes") from error
        raise ValueError("not a pickle, or truncated") from error
    return classes


def read_pickle(path: Path) -> object:
    """Read a file of `torch.save` without running code in it.

    `argparse.Namespace` is loaded, as timm does: most training scripts save their options in one, and it only holds
    values. Objects of other classes become `PickleRecord`. Tensors of an uncompressed archive stay on disk.

    Raises:
        CheckpointError: If it is no such file, is malformed, or can only be read by running code.
    """
    with path.open("rb") as file:
        is_archive = file.read(len(ZIP_START)) == ZIP_START
    # torch maps no file whose name is not UTF-8
    on_disk = is_archive and _is_plain_archive(path) and not NOT_UTF8.search(str(path))
    try:
        if is_archive:
            with zipfile.ZipFile(path) as archive:
                records = archive.infolist()
                name = next((r.filename for r in records if r.filename.endswith("/data.pkl")), "data.pkl")
                with archive.open(name) as file:
                    classes = rehearse(file.read(MOST_BYTES), sum(r.file_size for r in records), 1)
        else:
            with path.open("rb") as file:
                classes = rehearse(file.read(MOST_BYTES), path.stat().st_size, PICKLES)
        stand_ins = [record_class(name, container) for name, container in classes.items()]
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace, *stand_ins]):
            warnings.simplefilter("ignore")  # about forms of files; errors report all that matters
            return torch.load(path, map_location="cpu", weights_only=True, mmap=on_disk)  # noqa: TID251 - data only
    except TooMuchError as error:
        raise CheckpointError(
            f"{path}: declares tensors that are larger than the file: {error}",
            hint="copy or download it again",
        ) from error
    except pickle.UnpicklingError as error:
        reason = f" (`{error}`)" if isinstance(error, NeedsCodeError) else ""
        raise CheckpointError(
            f"{path}: cannot be read without running code{reason}, or is not a torch file; no code in it was run",
            hint=(
                "if you trust the file, save its tensors again: `torch.save(model.state_dict(), 'weights.pth')`"
            ),
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # a pickle is a program, and a broken one may raise anything
        raise CheckpointError(
            f"{path}: is not a file of torch weights, or is truncated",
            hint="copy or download it again; `import` reads what `torch.save` writes, and safetensors",
        ) from error


def _is_plain_archive(path: Path) -> bool:
    """Return whether the records of an archive are uncompressed.

    Raises:
        CheckpointError: If it is TorchScript, no archive, or decompresses to much more than its size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            records = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise CheckpointError(
            f"{path}: is not a readable archive, or is truncated", hint="copy or download it again"
        ) from error
    if any(record.filename.endswith("/constants.pkl") for record in records):
        raise CheckpointError(
            f"{path}: is TorchScript, which contains a program",
            hint="if you trust the file: `torch.save(torch.jit.load(path).state_dict(), 'weights.pth')`",
        )
    names = [record.filename.casefold() for record in records]
    if len({*names}) != len(names):  # readers differ in which of two equal names they read
        raise CheckpointError(f"{path}: has two records with the same name", hint="copy or download it again")
    if sum(record.file_size for record in records) > most(path.stat().st_size):
        raise CheckpointError(
            f"{path}: its records decompress to more than {TIMES} times the size of the file",
            hint="save it again without compression",
        )
    return all(record.compress_type == zipfile.ZIP_STORED for record in records)
