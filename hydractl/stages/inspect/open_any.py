"""Local files, opened as what they hold: the content answers, not the name; of a checkpoint only the header is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from hydractl.checkpoint import Checkpoint, ScratchFolder
from hydractl.errors import CheckpointError, InputError, ManifestError
from hydractl.manifest.document import Document
from hydractl.manifest.report import DOCUMENTS
from hydractl.model_source import HUB_ID, Located, locate
from hydractl.output.publish import is_stream
from hydractl.runtime import CHUNK_BYTES
from hydractl.strict_json import MAX_BYTES, NotJSONError, opened, parse, read_exactly, read_limited
from hydractl.training.resume import NAME, StateFile
from hydractl.version import UPGRADE

PICKLE_STARTS = (b"PK\x03\x04", b"\x80")
TEXT_STARTS = b"\xef\xbb\xbf \t\r\n"


def open_local(file: str) -> tuple[Checkpoint | Document, Located]:
    """Open a file or folder, and say where it was found.

    Raises:
        CheckpointError: If a checkpoint is missing or malformed.
        ManifestError: If a JSON file is none of ours, or malformed.
        InputError: If it is neither, or cannot be read.
    """
    path = Path(file.removeprefix("local-dir:"))
    is_id = HUB_ID.match(file) and path.suffix not in {".st", ".safetensors", ".json"}
    if is_id and not path.exists():
        raise CheckpointError(
            f"{file}: no such file or folder",
            hint="for a Hub id: `hf download ID --local-dir FOLDER`, then inspect the folder",
        )
    if (path / NAME).is_file():
        return StateFile.read(path / NAME), Located(reference=file, path=path, weights=())
    located = locate(file)
    if located.path.is_dir():
        return Checkpoint.open(located.path, shards=located.weights), located
    return open_any(located.path), located


def open_any(path: Path) -> Checkpoint | Document:
    """Open a checkpoint, or read a JSON file of ours.

    A stream is read to its end, so that its writer never meets a closed pipe; of a checkpoint that comes this way
    nothing but the header can be read afterwards.

    Args:
        path: A file, a FIFO, or `-` for standard input.

    Raises:
        CheckpointError: If it is a malformed checkpoint, or a pickle.
        ManifestError: If it is JSON but none of our files, or a malformed one.
        InputError: If it is neither, or cannot be read.
    """
    try:
        with opened(path) as source:
            begin = read_exactly(source, 8)
            if b"\0" in begin:  # the length of a safetensors header; a JSON text holds no zero byte
                return _checkpoint(path, begin, source)
            return _document(str(path), _text(str(path), begin, source))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error


def _checkpoint(path: Path, begin: bytes, source: BinaryIO) -> Checkpoint:
    if not is_stream(path):
        return Checkpoint.open(path)
    length = min(int.from_bytes(begin, "little"), MAX_BYTES)
    folder = ScratchFolder()
    hollow = folder.path / "header.safetensors"
    with folder.file(hollow.name) as file:
        size = file.write(begin) + file.write(read_exactly(source, length))
        while piece := source.read(CHUNK_BYTES):
            size += len(piece)
        file.truncate(size)
    try:
        return Checkpoint.open(path, shards=[hollow])
    except CheckpointError as error:
        raise CheckpointError(error.message.replace(str(hollow), str(path)), hint=error.hint) from error


def _text(where: str, begin: bytes, source: BinaryIO) -> str:
    if not begin:
        raise InputError(f"{where}: is empty", hint="check whether the command that writes it failed")
    if begin.startswith(PICKLE_STARTS):
        raise CheckpointError(
            f"{where}: is a pickle or an archive, but hydractl reads only safetensors",
            hint="convert it to a base: `hydractl import WEIGHTS --arch NAME -o base.st`",
        )
    if begin.lstrip(TEXT_STARTS)[:1] not in {b"{", b""}:
        raise InputError(
            f"{where}: is neither a safetensors file nor a JSON file of hydractl",
            hint="give a checkpoint, scores, a head mask or a report",
        )
    try:
        return (begin + read_limited(source)).decode()
    except UnicodeDecodeError as error:
        raise ManifestError(f"{where}: is not UTF-8 text") from error
    except NotJSONError as error:
        raise ManifestError(f"{where}: {error}") from error


def _document(where: str, text: str) -> Document:
    try:
        raw = parse(text, keys_once=True)
    except NotJSONError as error:
        raise ManifestError(f"{where}: is not JSON: {error}") from error
    classes_by_schema = {cls.schema_name(): cls for cls in DOCUMENTS.values()}
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if not isinstance(schema, str) or schema not in classes_by_schema:
        raise ManifestError(
            f"{where}: has the unknown schema {json.dumps(schema)}",
            hint=f"known schemas: {', '.join(f'`{name}`' for name in classes_by_schema)}; {UPGRADE}",
        )
    return classes_by_schema[schema].from_json(text, where=where)
