"""Reading of `.pth` files: every pickle is checked before loading.

`torch.load(weights_only=True)` runs no code of a pickle. But the pickle can allocate memory, for example by
`bytearray(10**11)` or a storage of any length, and can create tensors larger than the file. Therefore each
pickle is read first with placeholders. The pickle may contain any class name and call a few functions, whose
arguments are compared with the size of the file. Training scripts save objects of other classes together with
weights. These objects become records of arguments and state.
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
"""Attributes in which OmegaConf stores the items of a dictionary and the value of an item."""
DEEPEST, MOST_ITEMS = 3, 64
"""Limits of converted values: depth, and items per container. An object may contain itself, or contain
another object many times. Chosen by hand; twice the depth squares the number of items in the worst case."""


def is_data(name: str) -> bool:
    """Return whether objects of a class are read as data: classes in `DATA`, of scripts and of most packages.

    All other classes of Python, numpy and torch could run code, or have no use in a weight file.
    """
    return name in DATA or (may_be_named(name) and name.partition(".")[0] not in {"numpy", "torch"})


def may_be_named(name: str) -> bool:
    """Return whether a pickle may contain the full name of this class or function.

    Names of the standard library are rejected, except those in `DATA`. Callers accept names in `CALLS`
    separately. `is_data` decides whether the pickle may also create objects of the class.
    """
    return name in DATA or name.partition(".")[0] not in sys.stdlib_module_names


class PickleRecord:
    """An object of a class that must not be loaded.

    Attributes:
        args: Arguments of the constructor.
        state: State set after construction, or None.
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
    """Return a substitute for a class that must not be loaded.

    Args:
        name: Module and name of the replaced class.
        container: `dict` or `list` if the pickle fills the objects like a dictionary or list; each becomes an
            OrderedDict or a list. Otherwise `object`; each becomes a `PickleRecord`.
    """
    module, _, last = name.rpartition(".")
    body: dict[str, Any] = {"__module__": module, "__qualname__": last}
    if container is not object:
        body["__new__"] = lambda _cls, *_args: OrderedDict() if container is dict else []
    return type(last, (PickleRecord,), body)


def attributes(value: object) -> Mapping[str, object]:
    """Return the named values of a dictionary, a namespace or a `PickleRecord`; empty for other objects."""
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
    """Convert scalars and arrays of numpy, paths and enumerations to numbers, strings, lists and dicts.

    Other records, containers with more than `MOST_ITEMS` items, and containers nested deeper than `depth` are
    returned unchanged.
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
    """Decode the bytes of a numpy array; empty if the dtype is not numeric.

    Args:
        parts: The dtype as a record, and the bytes.
    """
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
"""Size limit of a pickle without its tensors, in bytes. Pickles of the largest models with their optimizers
need a tenth. Twice the limit doubles the time that a crafted pickle can take."""
SPARE_BYTES = 64_000_000
"""Part of the size limit of tensors that does not depend on the file, in bytes. Chosen by hand; tensors of
small files may share storage too. Twice the value lets a small crafted file claim twice the memory."""
TIMES = 4
"""Limit of the total size of tensors: this multiple of the file size, plus `SPARE_BYTES`. Tensors may share
storage, so their total can exceed the file. Chosen by hand; twice the factor lets a crafted file claim twice
the memory."""
ZIP_START = b"PK\x03\x04"
WIDTHS = {
    "ComplexDouble": 16, "Double": 8, "Long": 8, "ComplexFloat": 8, "Float": 4, "Int": 4, "QInt32": 4, "Half": 2, "BFloat16": 2,
    "Short": 2,
}  # fmt: skip
"""Bytes per element of a storage, by the prefix of its class name. All other storages have 1 byte per
element."""
MOST_CLASSES = 100
"""Maximum number of classes whose objects are read as records. Chosen by hand; each class creates a Python
type, so twice the limit permits twice as many."""
MAX_SHOWN_CHARACTERS = 80
"""Maximum number of characters of a pickle's names in a message. Chosen by hand; twice the number adds a line
of a terminal."""
PICKLES = 5
"""Number of pickles in a file of torch's format before archives: magic number, version, machine, object,
names of storages."""


class NeedsCodeError(pickle.UnpicklingError):
    """A pickle that calls a forbidden function or creates objects of a forbidden class.

    The message is the name.
    """


class TooMuchError(pickle.UnpicklingError):
    """A pickle with requests for more memory than the bytes of the file. The message describes the request."""


def max_tensor_bytes(size: int) -> int:
    """Return the maximum size of the tensors of a file of `size` bytes."""
    return TIMES * size + SPARE_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class _Storage:
    width: int
    count: int


class _Placeholder:
    """The result of a permitted call."""


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """A function or class named in a pickle.

    Nothing is imported; calls are checked and return placeholders.
    """

    name: str
    reader: _DryRunUnpickler

    def __call__(self, *args: object) -> object:
        allowed = CALLS.get(self.name)
        if not (is_data(self.name) if allowed is None else allowed(self.reader, args)):
            raise NeedsCodeError(self.name[:MAX_SHOWN_CHARACTERS])
        return _Container(self.name) if allowed is None or self.name in CONTAINERS else _Placeholder()


@dataclass(frozen=True, slots=True, eq=False)
class _Container(_Placeholder):
    name: str


# The C implementation allocates memory by numbers in the pickle, before any check.
class _DryRunUnpickler(pickle._Unpickler):
    """Dry run of a pickle: runs all operations with placeholders instead of objects."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    def __init__(self, file: BinaryIO, size: int) -> None:
        super().__init__(file, encoding="latin1")
        self.size = size
        self.stored: dict[object, int] = {}
        self.tensor_bytes = 0
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
        """Check the size of a tensor against the storage, and the size of all tensors against the limit.

        Args:
            args: Storage, offset, shape and strides.

        Returns:
            True.

        Raises:
            pickle.UnpicklingError: If an argument has the wrong type.
            TooMuchError: If the tensor is too large.
        """
        storage, offset, shape, strides = args[:4]
        numbers = (offset, *shape, *strides)
        if not isinstance(storage, _Storage) or any(type(n) is not int or n < 0 for n in numbers):
            raise pickle.UnpicklingError
        count = math.prod(shape)
        last = offset + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if count else offset - 1
        self.tensor_bytes += storage.width * count
        if last >= storage.count or self.tensor_bytes > max_tensor_bytes(self.size):
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
        """Record whether the pickle fills objects of a class like dictionaries or like lists.

        Args:
            holder: The filled object. Objects without a recorded class are ignored.
            kind: `dict` or `list`.
        """
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
    pickle.SETITEM: _DryRunUnpickler._set_item,
    pickle.APPENDS: lambda reader: reader._extend(reader.pop_mark()),
    pickle.APPEND: lambda reader: reader._extend([reader.stack.pop()]),
    pickle.BUILD: _DryRunUnpickler._build,
    pickle.NEWOBJ: _DryRunUnpickler._new,
}
for _operation, _method in _OPERATIONS.items():
    _DryRunUnpickler.dispatch[_operation[0]] = _method
for _operation in (
    pickle.BYTEARRAY8,
    pickle.ADDITEMS,
    pickle.FROZENSET,
    pickle.NEWOBJ_EX,
    pickle.OBJ,
    pickle.INST,
):
    # The unpickler of torch for weights does not have these operations.
    del _DryRunUnpickler.dispatch[_operation[0]]


def _is_plain(value: object) -> bool:
    """Return whether a dictionary key can be hashed quickly. Nested tuples could take exponential time."""
    simple = (str, bytes, int, float, type(None), _Named, _Placeholder)
    return isinstance(value, simple) or (
        isinstance(value, tuple) and all(isinstance(item, simple) for item in value)
    )


FILLED = frozenset({"builtins.dict", "collections.defaultdict"})
CONTAINERS = frozenset({"collections.OrderedDict", "collections.Counter", "argparse.Namespace"})
TENSORS = frozenset(f"torch._utils._rebuild_tensor{version}" for version in ("", "_v2", "_v3"))
CALLS: Mapping[str, Callable[[_DryRunUnpickler, tuple[Any, ...]], bool]] = {
    **dict.fromkeys(TENSORS, _DryRunUnpickler.tensor),
    # A tensor subclass. The arguments are function, class, and arguments of the function.
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
"""Functions and classes that a pickle may call, with a check of the arguments."""


def check_pickles(begin: bytes, size: int, pickles: int) -> dict[str, type]:
    """Check one or several consecutive pickles without creating objects.

    Args:
        begin: The first `MOST_BYTES` bytes of the pickles, perhaps followed by other data.
        size: Bytes available for tensors.
        pickles: Number of pickles.

    Returns:
        The classes whose objects become records: module and name, and the container for `record_class`.

    Raises:
        NeedsCodeError: If a pickle calls a forbidden function.
        TooMuchError: If a pickle requests more memory than `size` permits, or is too long.
        ValueError: If a pickle is malformed or truncated.
    """
    file = BytesIO(begin)
    classes: dict[str, type] = {}
    try:
        for _ in range(pickles):
            reader = _DryRunUnpickler(file, size)
            reader.load()
            classes |= reader.classes
    except (NeedsCodeError, TooMuchError):
        raise
    except Exception as error:  # A pickle is a program, so a broken pickle can raise any error.
        if len(begin) == MOST_BYTES:
            raise TooMuchError(f"a pickle of more than {MOST_BYTES} bytes") from error
        raise ValueError("not a pickle, or truncated") from error
    return classes


def read_pickle(path: Path) -> object:
    """Read a file of `torch.save` without running code in the file.

    `argparse.Namespace` is loaded, like in timm: most training scripts save options in a namespace, an object
    with values only. Objects of other classes become `PickleRecord`. Tensors of an uncompressed archive stay
    on disk.

    Raises:
        CheckpointError: If the file was not written by `torch.save`, is malformed, or can only be read by
            running code.
    """
    with path.open("rb") as file:
        is_archive = file.read(len(ZIP_START)) == ZIP_START
    # torch cannot memory-map a file whose name is not valid UTF-8.
    on_disk = is_archive and _is_plain_archive(path) and not NOT_UTF8.search(str(path))
    try:
        if is_archive:
            with zipfile.ZipFile(path) as archive:
                records = archive.infolist()
                name = next((r.filename for r in records if r.filename.endswith("/data.pkl")), "data.pkl")
                with archive.open(name) as file:
                    classes = check_pickles(file.read(MOST_BYTES), sum(r.file_size for r in records), 1)
        else:
            with path.open("rb") as file:
                classes = check_pickles(file.read(MOST_BYTES), path.stat().st_size, PICKLES)
        stand_ins = [record_class(name, container) for name, container in classes.items()]
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace, *stand_ins]):
            # These warnings concern old file formats. Errors report all real problems.
            warnings.simplefilter("ignore")
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
    except Exception as error:  # A pickle is a program, so a broken pickle can raise any error.
        raise CheckpointError(
            f"{path}: is not a file of torch weights, or is truncated",
            hint="copy or download it again; `import` reads what `torch.save` writes, and safetensors",
        ) from error


def _is_plain_archive(path: Path) -> bool:
    """Return whether the records of an archive are uncompressed.

    Raises:
        CheckpointError: If the archive is unreadable, contains TorchScript or two records with the same name,
            or decompresses to more than the size limit.
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
    # Of two records with the same name, some readers read the first and others the last.
    if len({*names}) != len(names):
        raise CheckpointError(f"{path}: has two records with the same name", hint="copy or download it again")
    if sum(record.file_size for record in records) > max_tensor_bytes(path.stat().st_size):
        raise CheckpointError(
            f"{path}: its records decompress to more than {TIMES} times the size of the file",
            hint="save it again without compression",
        )
    return all(record.compress_type == zipfile.ZIP_STORED for record in records)
