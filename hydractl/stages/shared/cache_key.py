"""What a command was asked for: the settings that shape its output, and what it reads. Importing it loads no torch."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from hydractl.data.reference import BUILT_IN_IMAGES, BUILT_IN_TEXTS, DataRef
from hydractl.errors import HydraError, InputError
from hydractl.model_source import folder_files, is_index, locate, of_hub, split_options
from hydractl.output.atomic_write import is_stream
from hydractl.parsing import made_of
from hydractl.runtime import digest_file, digest_files, digest_text
from hydractl.settings import KEY, Option, Role, Setting, declared
from hydractl.strict_json import compact

if TYPE_CHECKING:
    from hydractl.data.datasets import Items

ARCH = "arch:"
READ = {Role.MODEL, Role.DATA, Role.FILE}


class Commanded(Protocol):
    """The configuration of a command whose output says what was asked."""

    COMMAND: ClassVar[str]


class Stage(Commanded, Protocol):
    """The configuration of a command that leaves alone what is there already.

    Some have more: `written()`, the paths of all outputs where settings do not name them one by one; `unread`, the settings
    that name an input which this run does not read; `implied`, what settings that are not given come to; `reads`, what it reads
    that no setting's role tells of.
    """

    @property
    def force(self) -> bool:
        """Whether outputs are replaced, whatever they are."""

    @property
    def if_changed(self) -> bool:
        """Whether outputs are left alone if they are what would be written, and replaced if the same command made them."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Something that a command reads."""

    role: Role
    ref: str | Path | DataRef
    labelled: bool = True
    """Whether labels of data are read; else what the items are called is."""
    option: Option | None = field(default=None, compare=False)
    """What named it."""

    @property
    def name(self) -> str:
        """What it is called, with no more of a path than its last part."""
        if isinstance(self.ref, DataRef):
            return self.ref.name
        text = str(self.ref)
        return text if text.startswith(ARCH) else Path(text).name

    @property
    def is_stream(self) -> bool:
        """Whether it can be read but once."""
        return self.ref.endless if isinstance(self.ref, DataRef) else is_stream(Path(self.ref))

    @property
    def is_made(self) -> bool:
        """Whether its name says all of it: random weights, and data that hydractl brings or draws."""
        if isinstance(self.ref, DataRef):
            return self.ref.kind in {*BUILT_IN_IMAGES, *BUILT_IN_TEXTS}
        return self.role is Role.MODEL and str(self.ref).startswith(ARCH)

    def check_there(self) -> None:
        """Refuse a path at which there is nothing; what the Hub has is for who loads it to say.

        Raises:
            InputError: If nothing is there.
        """
        try:
            if isinstance(self.ref, DataRef):
                self.ref.check_there()
            elif self.role is Role.MODEL and not (self.is_stream or self.is_made or of_hub(str(self.ref))):
                locate(str(self.ref))
        except InputError as error:
            if self.option is not None:
                error.hint = self.option.setting.hint(self.option.name, error.hint)
            raise

    def digests(self) -> frozenset[str]:
        """Return what its digest may be, as lineage has it; data may be read as images or as texts.

        Raises:
            InputError: If it cannot be read.
        """
        if isinstance(self.ref, DataRef):
            return _fingerprints(self.ref) if self.labelled else frozenset({_unlabelled(self.ref)})
        text = str(self.ref)
        many = self.role is Role.MODEL or is_index(Path(text))
        return frozenset({digest_files(locate(text).weights if many else (Path(text),))})

    def digest(self) -> str:
        """Return one of them; of what its name says all of, that of the name.

        Raises:
            InputError: As `digests`.
        """
        return digest_text(self.name) if self.is_made else min(self.digests())

    def said(self) -> object:
        """Return what is told of it apart from its digest: its name, and of a model what lies beside weights."""
        if self.role is not Role.MODEL or self.is_stream:
            return self.name
        text = str(self.ref)
        if self.is_made:
            return _content(text)
        folder = Path(text.removeprefix("local-dir:"))
        return [self.name, _content(folder)] if folder.is_dir() else self.name


def asked_of(config: Commanded) -> str:
    """Return the digest of the settings that shape an output, as they were given; what is a default does not count."""
    return digest_text(compact({"command": config.COMMAND, "settings": _said(config)}, sort_keys=True))


def typed_by(config: Commanded) -> tuple[str, ...] | None:
    """Return the arguments of a command line that asks for it, None where a configuration was made otherwise.

    Without names of outputs, what only decides how fast, and the folders that things lie in.
    """
    if (given := made_of(config)) is None:
        return None
    arguments, options = list[str](), list[str]()
    for option, value in given:
        told = option.setting
        if told.role in {Role.OUTPUT, Role.ASIDE} or value == option.default:
            continue
        name = told.option(option.name)
        for item in value if isinstance(value, list | tuple) else [value]:
            if isinstance(item, bool):
                options.append(name if item else told.spelled[0].partition("/")[2])
            elif told.positional:
                arguments.append(without_paths(str(item)))
            else:
                options += [name, without_paths(str(item))]
    return (*arguments, *options)


def without_paths(text: str) -> str:
    """Return a text in which what lies in a folder of this machine has no more of its path than the last part."""
    return "".join(Path(part).name if _is_path(part) else part for part in re.split(r"([=,+:]+)", text))


def _is_path(text: str) -> bool:
    return "/" in text and os.path.isdir(os.path.dirname(text))  # noqa: PTH112, PTH120 - `Path.is_dir` raises where a path is too long


def references(config: object) -> Iterator[Reference]:
    """Yield all that a command reads, in the order of the settings that name it."""
    for option, value in settings_of(config):
        if option.setting.role in READ:
            for one in _references(option.setting.role, value):
                yield replace(one, option=option)
    yield from getattr(config, "reads", ())


def settings_of(config: Any) -> Iterator[tuple[Option, Any]]:  # noqa: ANN401 - a dataclass, as every configuration is
    """Yield what settings hold that are given; those of a part where the part stands."""
    unread: frozenset[str] = getattr(config, "unread", frozenset())
    for f in fields(config):
        told, value = f.metadata.get(KEY), getattr(config, f.name)
        if isinstance(told, Setting):
            if value is not None and f.name not in unread:
                yield Option(f.name, str(f.type), told), value
        elif is_dataclass(value) and declared(type(value)):
            yield from settings_of(value)


def _references(role: Role, value: Any) -> Iterator[Reference]:  # noqa: ANN401 - of any setting's type
    if isinstance(value, tuple):
        for each in value:
            yield from _references(role, each)
    elif hasattr(value, "models"):
        yield from _references(role, value.models)
    elif hasattr(value, "ref"):
        yield from _references(role, value.ref)
    elif isinstance(value, str) and role is Role.DATA:
        yield Reference(role, DataRef.parse(value))
    elif isinstance(value, str | Path | DataRef):
        yield Reference(role, value)


def _said(config: Any) -> dict[str, object]:  # noqa: ANN401 - as above
    said = {}
    implied = getattr(config, "implied", {})
    for f in fields(config):
        told, value = f.metadata.get(KEY), getattr(config, f.name)
        role = told.role if isinstance(told, Setting) else Role.SHAPES
        if (
            f.compare
            and role is not Role.ASIDE
            and value not in (_default(f), implied.get(f.name, _default(f)))
        ):
            said[f.name] = _plain(role, value)
    return said


def _default(of: Field[Any]) -> object:
    return of.default if of.default_factory is MISSING else of.default_factory()


def _plain(role: Role, value: Any) -> object:  # noqa: ANN401 - as above
    """Return a setting's value as JSON has it."""
    if role is Role.OUTPUT:
        return True  # that it is wanted counts, not what it is called
    if role in READ and (found := [*_references(role, value)]):
        return [_called(value), *([one.said(), found.index(one)] for one in found)]
    if role is Role.CONTENT:
        return _content(value)
    if isinstance(value, tuple):
        return [_plain(role, each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(role, each) for key, each in value.items()}
    if is_dataclass(value):
        return _said(value)
    if isinstance(value, Enum):
        return value.value
    return value.name if isinstance(value, Path) else value


def _called(value: Any) -> object:  # noqa: ANN401 - as above
    """Return how what is read is named, and what is made of it before it is used."""
    if isinstance(value, tuple):
        every = [_called(each) for each in value]
        return every if any(every) else None
    rivals = getattr(value, "rivals", ())
    name = getattr(value, "name", None)
    return [name, [each and _said(each) for each in rivals]] if rivals else name


def _content(text: str | Path) -> object:
    """Return what a text says that may name a file or a folder, as the options of an architecture may too."""
    path = Path(text)
    if os.path.isfile(path):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
        return digest_file(path)
    if os.path.isdir(path):  # noqa: PTH112 - as above
        return {str(file.relative_to(path)): digest_file(file) for file in _beside(path)}
    name, _, options = str(text).partition("::")
    if not options:
        return str(text)
    return [
        name,
        *([key, _content(value)] for key, _, value in (o.partition("=") for o in split_options(options))),
    ]


def _beside(folder: Path) -> Iterator[Path]:
    """Yield what a library reads in a folder beside weights: in sub-folders too, as sentence encoders have it."""
    yield from folder_files(folder)
    yield from sorted(folder.glob("*/config.json"))


def _fingerprints(ref: DataRef) -> frozenset[str]:
    """Return the digests of labelled data without what cannot be read, which `--skip-bad` leaves out."""
    found = set()
    for items in _opened(ref, labelled=True):
        read: dict[int, bytes] = {}
        for i in range(len(items)):
            with contextlib.suppress(HydraError):
                read[i] = items.item_digest(i)
        found.add(items.subset([*read]).fingerprint(read.values()))
    return frozenset(found)


def _unlabelled(ref: DataRef) -> str:
    """Return the digest of items whose names count and labels do not, however they may be read."""
    found = []
    for items in _opened(ref, labelled=False):
        every = range(len(items))
        content = replace(items, labels=None).fingerprint(_digest(items, i) for i in every)
        found.append([content, [items.key(i) for i in every]])
    return digest_text(compact(found))


def _digest(items: Items, index: int) -> bytes:
    """Return the digest of an item, or why it cannot be read, which is then all that is told of it."""
    try:
        return items.item_digest(index)
    except HydraError as error:
        return error.message.encode()


def _opened(ref: DataRef, *, labelled: bool) -> list[Items]:
    """Return data as images, as texts, or as both."""
    from hydractl.data.datasets import Content  # noqa: PLC0415 - as above
    from hydractl.data.open_dataset import open_data  # noqa: PLC0415 - built-in data are told by their names

    kinds = [Content.TEXTS] if ref.text else [Content.IMAGES] if ref.image else [*Content]
    found: list[Items] = []
    refused = None
    for wants in kinds:
        try:
            found.append(open_data(ref, content=wants, labelled=labelled))
        except HydraError as error:
            refused = error
    if refused is not None and not found:
        raise refused
    return found
