"""Common part of the configurations of commands: inputs, outputs, and a digest of all settings.

`--if-changed`, lineage and provenance of outputs use this module. Importing it does not load torch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from hydractl.data.reference import BUILT_IN_IMAGES, BUILT_IN_TEXTS, DataRef
from hydractl.errors import HydraError, InputError
from hydractl.model_source import folder_files, is_index, locate, of_hub, split_options
from hydractl.output.publish import is_stream
from hydractl.progress import SILENT, reporting
from hydractl.runtime import digest_file, digest_files, digest_text
from hydractl.settings import KEY, Extension, Option, Role, Setting, options_of, typed_options
from hydractl.strict_json import compact

if TYPE_CHECKING:
    from hydractl.data.datasets import Dataset


ARCH = "arch:"
INPUT_ROLES = {Role.MODEL, Role.DATA, Role.FILE}


class CommandConfig:
    """Base class of the configurations of commands.

    Attributes:
        COMMAND: Name of the command in the provenance of its outputs.
        COMMON: Names of the 8 to 12 options in `--help`; `--help --all` shows all. If empty, `--help` shows all.
    """

    __slots__ = ()
    COMMAND: ClassVar[str]
    COMMON: ClassVar[tuple[str, ...]] = ()

    out: Path | None = None
    """Path of the first output."""
    force: bool = False
    """Whether to replace existing outputs of any origin."""
    if_changed: bool = False
    """Whether to keep up-to-date outputs, and replace other outputs of the same command."""
    wait: bool | None = None
    """Whether to wait for another command that writes the same outputs. None if the command has no such
    option."""

    @property
    def unread(self) -> frozenset[str]:
        """Names of settings for inputs not read in this run."""
        return frozenset()

    @property
    def implied(self) -> Mapping[str, object]:
        """Values for settings that were not given, implied by other settings; by name.

        Empty unless a subclass overrides the property.
        """
        return {}

    @property
    def further_inputs(self) -> tuple[InputRef, ...]:
        """Inputs without a setting."""
        return ()

    def outputs(self) -> tuple[Path, ...]:
        """Return the paths of all outputs for later commands."""
        return () if self.out is None else (self.out,)

    def output_files(self) -> tuple[Path, ...]:
        """Return the paths of all files written by the command."""
        written = ((o.name, path) for o, path in given_settings(self) if o.setting.role is Role.OUTPUT)
        return tuple(
            path
            for name, path_of_setting in written
            for path in (self.outputs() if name == "out" else (path_of_setting,))
        )


class NamedInputs:
    """Base class for values of settings that refer to inputs.

    Attributes:
        name: Name of the inputs in tables.
        ref: The input; None for models.
        models: References of models.
    """

    __slots__ = ()
    name: str
    ref: Path | DataRef | None = None
    models: tuple[str, ...] = ()

    def identity(self) -> object:
        """Return the value's part of the configuration digest, without the digests of inputs."""
        return self.name


@dataclass(frozen=True, slots=True)
class InputRef:
    """An input of a command."""

    role: Role
    """`Role.MODEL`, `Role.DATA` or `Role.FILE`."""
    ref: str | Path | DataRef
    """Reference of a model, path of a file, or parsed data reference."""
    labelled: bool = True
    """Whether the labels of data are read, instead of the names of the items."""
    option: Option | None = field(default=None, compare=False)
    """Option that named the input."""

    @property
    def name(self) -> str:
        """Name of the input. A path is shortened to the last part."""
        if isinstance(self.ref, DataRef):
            return self.ref.name
        text = str(self.ref)
        return text if text.startswith(ARCH) else Path(text).name

    @property
    def is_stream(self) -> bool:
        """Whether the input can be read only once."""
        return not isinstance(self.ref, DataRef) and is_stream(Path(self.ref))

    @property
    def is_generated(self) -> bool:
        """Whether the name determines the content: random weights, and data sets of hydractl."""
        if isinstance(self.ref, DataRef):
            return self.ref.kind in {*BUILT_IN_IMAGES, *BUILT_IN_TEXTS}
        return self.role is Role.MODEL and str(self.ref).startswith(ARCH)

    def check_exists(self) -> None:
        """Check that local data or a local model exists. Other files and the Hub are checked during loading.

        Raises:
            InputError: If the data or the model does not exist.
        """
        try:
            if isinstance(self.ref, DataRef):
                self.ref.check_there()
            elif self.role is Role.MODEL and not (
                self.is_stream or self.is_generated or of_hub(str(self.ref))
            ):
                locate(str(self.ref))
        except InputError as error:
            if self.option is not None:
                error.hint = self.option.setting.hint(self.option.name, error.hint)
            raise

    def digests(self) -> frozenset[str]:
        """Return the possible digests of the input in provenance records; see `_possible_digests` for data.

        Raises:
            InputError: If the input cannot be read.
        """
        if isinstance(self.ref, DataRef):
            return _possible_digests(self.ref, labelled=self.labelled)
        text = str(self.ref)
        has_shards = self.role is Role.MODEL or is_index(Path(text))
        return frozenset({digest_files(locate(text).weights if has_shards else (Path(text),))})

    def digest(self) -> str:
        """Return the smallest possible digest. For generated inputs, this is the digest of the name.

        Raises:
            InputError: If the input cannot be read.
        """
        return digest_text(self.name) if self.is_generated else min(self.digests())

    def identity(self) -> object:
        """Return the input's part of the configuration digest.

        This is the name, and for models in folders also the content of the files next to the weights.
        """
        if self.role is not Role.MODEL or self.is_stream:
            return self.name
        text = str(self.ref)
        if self.is_generated:
            return _content(text)
        folder = Path(text.removeprefix("local-dir:"))
        return [self.name, _content(folder)] if folder.is_dir() else self.name


def config_digest(command: CommandConfig) -> str:
    """Return the digest of all settings with an influence on outputs, except settings with default values."""
    settings = shaping_settings(command, command.implied)
    return digest_text(compact({"command": command.COMMAND, "settings": settings}, sort_keys=True))


def recorded_argv(command: object) -> tuple[str, ...] | None:
    """Return the command line of a configuration for provenance records.

    Outputs, default values, options with an effect on speed only, and folder names are left out.

    Returns:
        None if the configuration was not created from a command line.
    """
    if (option_values := typed_options(command)) is None:
        return None
    arguments, options = list[str](), list[str]()
    for option, option_value in option_values:
        setting = option.setting
        if setting.role in {Role.OUTPUT, Role.EXECUTION} or option_value == option.default:
            continue
        name = setting.option(option.name)
        for word in option_value if isinstance(option_value, list | tuple) else [option_value]:
            if isinstance(word, bool):
                options.append(name if word else setting.option_names[0].partition("/")[2])
            elif setting.positional:
                arguments.append(without_paths(str(word)))
            else:
                options += [name, without_paths(str(word))]
    return (*arguments, *options)


def without_paths(text: str) -> str:
    """Shorten each path in a text to the last part if the folder exists on this machine."""
    return "".join(
        Path(part).name if "/" in part and os.path.isdir(os.path.dirname(part)) else part  # noqa: PTH112, PTH120 - `Path.is_dir` raises where a path is too long
        for part in re.split(r"([=,+:]+)", text)
    )


def input_refs(command: CommandConfig) -> Iterator[InputRef]:
    """Yield all inputs of a command in the order of their settings."""
    for option, setting_value in given_settings(command, command.unread):
        if option.setting.role in INPUT_ROLES:
            for ref in _refs_in(option.setting.role, setting_value):
                yield replace(ref, option=option)
    yield from command.further_inputs


def given_settings(command: Any, unread: frozenset[str] = frozenset()) -> Iterator[tuple[Option, Any]]:  # noqa: ANN401 - a dataclass, as every configuration is
    """Yield each option with a value other than None, together with the value.

    Options of nested configurations come at the position of their field. Options named in `unread` are left
    out.
    """
    for f in fields(command):
        setting, setting_value = f.metadata.get(KEY), getattr(command, f.name)
        if isinstance(setting, Setting):
            if setting_value is not None and f.name not in unread:
                yield Option(f.name, str(f.type), setting), setting_value
            continue
        for part in setting_value if isinstance(setting_value, tuple) else (setting_value,):
            if is_dataclass(part) and options_of(type(part)):
                yield from given_settings(part)


def _refs_in(role: Role, setting_value: Any) -> Iterator[InputRef]:  # noqa: ANN401 - of any setting's type
    if isinstance(setting_value, NamedInputs):
        setting_value = setting_value.models or setting_value.ref
    if isinstance(setting_value, tuple):
        for part in setting_value:
            yield from _refs_in(role, part)
    elif isinstance(setting_value, str) and role is Role.DATA:
        yield InputRef(role, DataRef.parse(setting_value))
    elif isinstance(setting_value, str | Path | DataRef):
        yield InputRef(role, setting_value)


def shaping_settings(command: Any, implied: Mapping[str, object] = MappingProxyType({})) -> dict[str, object]:  # noqa: ANN401 - as above
    """Return the settings of a (nested) configuration with an influence on outputs, without default values."""
    settings: dict[str, object] = {}
    for f in fields(command):
        setting, setting_value = f.metadata.get(KEY), getattr(command, f.name)
        role = setting.role if isinstance(setting, Setting) else Role.SHAPES
        if isinstance(setting_value, tuple) and any(isinstance(part, Extension) for part in setting_value):
            for extension in setting_value:
                settings |= shaping_settings(extension)
            continue
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if (
            f.compare
            and role is not Role.EXECUTION
            and setting_value not in (default, implied.get(f.name, default))
        ):
            settings[f.name] = _to_json(role, setting_value)
    return settings


def _to_json(role: Role, setting_value: Any) -> object:  # noqa: ANN401 - as above
    if role is Role.OUTPUT:
        return True  # the presence of an output matters, not the name
    if role in INPUT_ROLES and (refs := [*_refs_in(role, setting_value)]):
        return [_input_names(setting_value), *([ref.identity(), refs.index(ref)] for ref in refs)]
    if role is Role.CONTENT:
        return _content(setting_value)
    if isinstance(setting_value, tuple):
        return [_to_json(role, part) for part in setting_value]
    if isinstance(setting_value, Mapping):
        return {str(key): _to_json(role, part) for key, part in setting_value.items()}
    if is_dataclass(setting_value):
        return shaping_settings(setting_value)
    if isinstance(setting_value, Enum):
        return setting_value.value
    return setting_value.name if isinstance(setting_value, Path) else setting_value


def _input_names(setting_value: object) -> object:
    """Return the names of inputs, and the changes that are applied to the inputs before use."""
    if isinstance(setting_value, tuple):
        names = [_input_names(part) for part in setting_value]
        return names if any(names) else None
    if isinstance(setting_value, NamedInputs):
        return setting_value.identity()
    return setting_value.name if isinstance(setting_value, DataRef | Path) else None


def _content(text: str | Path) -> object:
    """Replace a path by digests of its files, also in the options of an architecture."""
    path = Path(text)
    if os.path.isfile(path):  # noqa: PTH113 - `Path.is_file` raises where a path is too long
        return digest_file(path)
    if os.path.isdir(path):  # noqa: PTH112 - as above
        # Libraries read configurations next to the weights. Sentence encoders store configurations in
        # subfolders too.
        files = (*folder_files(path), *sorted(path.glob("*/config.json")))
        return {str(file.relative_to(path)): digest_file(file) for file in files}
    name, _, options = str(text).partition("::")
    if not options:
        return str(text)
    pairs = (option.partition("=") for option in split_options(options))
    return [name, *([key, _content(content)] for key, _, content in pairs)]


def _possible_digests(ref: DataRef, *, labelled: bool) -> frozenset[str]:
    """Return the possible digests of data.

    Args:
        ref: The data.
        labelled: If True, images and texts have separate digests over labels and readable items, because
            `--skip-bad` leaves out all other items. If False, a single digest covers all items with their
            names, without labels.

    Raises:
        HydraError: If the data are neither images nor texts.
    """
    readings = open_readings(ref, labelled=labelled)
    if labelled:
        return frozenset(map(_labelled_digest, readings))
    return frozenset({digest_text(compact([_unlabelled_digest(dataset) for dataset in readings]))})


def _labelled_digest(dataset: Dataset) -> str:
    digests = {i: digest for i, digest in enumerate(_item_digests(dataset)) if isinstance(digest, bytes)}
    return dataset.subset([*digests]).fingerprint(digests.values())


def _unlabelled_digest(dataset: Dataset) -> list[object]:
    from hydractl.data.decoding import SAMPLE_BYTES  # noqa: PLC0415 - loads Pillow

    digests = (
        d if isinstance(d, bytes) else d.encode() + bytes(SAMPLE_BYTES) for d in _item_digests(dataset)
    )
    content = replace(dataset, labels=None).fingerprint(digests)
    return [content, [dataset.key(i) for i in range(len(dataset))]]


def _item_digests(dataset: Dataset) -> Iterator[bytes | str]:
    """Yield the digest of each item, or the error message if the item cannot be read."""
    for i in range(len(dataset)):
        try:
            yield dataset.item_digest(i)
        except HydraError as error:
            yield error.message


def open_readings(ref: DataRef, *, labelled: bool) -> list[Dataset]:
    """Return data opened as texts, as images, or both if both are possible.

    Raises:
        HydraError: If neither is possible.
    """
    from hydractl.data.datasets import Content  # noqa: PLC0415 - not needed for built-in data
    from hydractl.data.open_dataset import open_data  # noqa: PLC0415 - as above

    readings: list[Dataset] = []
    refusals: list[HydraError] = []
    for content in [Content.TEXTS] if ref.text else [Content.IMAGES] if ref.image else [*Content]:
        try:
            with reporting(SILENT):  # the stage itself reports on the data
                readings.append(open_data(ref, content=content, labelled=labelled))
        except HydraError as error:
            refusals.append(error)
    if not readings:
        raise refusals[-1]
    return readings


IF_CHANGED = Setting(
    "Do nothing if the output is up to date: same inputs, options and versions; else overwrite it.",
    panel="Output",
    role=Role.EXECUTION,
)
IF_CHANGED_BESIDE = replace(IF_CHANGED, help=f"{IF_CHANGED.help} A file beside it records what made it.")
