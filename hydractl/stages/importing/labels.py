"""The names of classes that `import` is given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hydractl.errors import CheckpointError, UsageError
from hydractl.jsonfile import parse
from hydractl.progress import counted

if TYPE_CHECKING:
    from hydractl.manifest import Header


def read_labels(given: str | None) -> tuple[str, ...]:
    """Return the names of the classes, from a file or as they are.

    Raises:
        CheckpointError: If a file cannot be read as names.
        UsageError: If a name is empty.
    """
    if given is None:
        return ()
    path = Path(given)
    if are_names(given):
        names: object = given.split(",")
    else:
        try:
            text = path.read_text(encoding="utf-8")
            names = parse(text) if path.suffix == ".json" else text.splitlines()
        except FileNotFoundError as error:
            hint = "a file with a name a line, a JSON list, or the names: `--labels cat,dog`"
            raise CheckpointError(f"{given}: no such file of labels", hint=hint) from error
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{given}: cannot be read as labels: {error}") from error
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and n.strip() for n in names):
        raise UsageError(
            f"`--labels {given}`: labels are names, none of them empty",
            hint="a file with a name a line, a JSON list, or `a,b,c`",
        )
    return tuple(str(name).strip() for name in names)


def are_names(labels: str) -> bool:
    """Return whether `--labels` are names and no file of them; many names look like one very long path."""
    try:
        return "," in labels and not Path(labels).is_file()
    except OSError:
        return True


def labelled(header: Header, labels: tuple[str, ...]) -> Header:
    """Return a header with names of its classes.

    Raises:
        UsageError: If there are more or fewer than classes.
    """
    number = header.architecture.num_classes
    if len(labels) != number:
        raise UsageError(
            f"`--labels`: {counted(len(labels), 'name')} for {counted(number, 'class', 'classes')}",
            hint=f"give {counted(number, 'label')}, one a class",
        )
    return header.model_copy(update={"labels": labels})
