"""Objects that training scripts save beside weights, read as data: what they were made of, and nothing of what they do."""

from __future__ import annotations

import argparse
import re
import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
    kinds: dict[type, Callable[[], object]] = {dict: OrderedDict, list: list}
    make_container = kinds.get(container)
    module, _, last = name.rpartition(".")
    body: dict[str, Any] = {"__module__": module, "__qualname__": last}
    if make_container is not None:
        body["__new__"] = lambda _cls, *_args: make_container()
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
