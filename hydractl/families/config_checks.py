"""What an architecture may be told: the gate that every configuration passes before a library sees it.

Constructors take more than shapes: timm's open a checkpoint, transformers' fetch the code of an attention, open_clip's download
weights. So for each library there is a list of the options that an architecture has, a file's or a reference's texts among
their values are plain names, and what is made of them is bounded while nothing but the words of a file stands behind it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hydractl.errors import HydraError, UnsupportedModelError, reason_of
from hydractl.manifest.document import first_problem
from hydractl.messages import did_you_mean

if TYPE_CHECKING:
    import torch

NAME = re.compile(r"[\w.+ -]*", re.ASCII)
LARGEST = 2**20
"""Upper bound of every integer option; vocabularies have less than a million tokens."""
MOST_MODULES = 10_000
MAX_SHOWN_CHARACTERS = 60


class OptionsError(UnsupportedModelError):
    """An architecture with an option that it does not have, or of a value that its library cannot build."""


def check_options(
    name: str, options: Mapping[str, object], known_names: Collection[str], *, prefix: str = ""
) -> None:
    """Refuse what is not to be said of an architecture.

    Args:
        name: The architecture.
        options: What it is told.
        known_names: What it may be told.
        prefix: What a reference writes before each.

    Raises:
        OptionsError: Naming an option that there is not, or whose value is refused.
    """
    for key, value in options.items():
        if key not in known_names:
            hint = did_you_mean(key, known_names)
            raise OptionsError(
                f"`{name}` has no option `{prefix}{key}`", hint=hint and hint.replace("`", f"`{prefix}", 1)
            )
        check_values(name, f"{prefix}{key}", value)


def check_values(name: str, key: str, value: object) -> None:
    """Refuse an option's value that is more than names and numbers, whatever it is nested in.

    Raises:
        OptionsError: Naming the option.
    """
    pending = [value]
    while pending:
        nested = pending.pop()
        if isinstance(nested, Mapping):
            pending += [*nested.keys(), *nested.values()]
        elif isinstance(nested, list | tuple):
            pending += nested
        elif isinstance(nested, str) and not NAME.fullmatch(nested):
            raise OptionsError(
                f"`{name}`: option `{key}` is {nested[:MAX_SHOWN_CHARACTERS]!r}; options of an "
                "architecture may be names and numbers, but no paths, addresses or code"
            )
        elif isinstance(nested, int | float) and not abs(nested) <= (
            LARGEST if isinstance(nested, int) else 1e30
        ):
            raise OptionsError(f"`{name}`: option `{key}` is above {LARGEST}, or not a number")


def check_patches(name: str, *, image: Sequence[int], patch: int | Sequence[int]) -> None:
    """Refuse images that hold no patch.

    Args:
        name: What the message calls the architecture.
        image: Height and width of its images, in pixels.
        patch: Those of its patches, or the side of a square.

    Raises:
        OptionsError: With both sizes.
    """
    (h, w), (p, q) = image, (patch, patch) if isinstance(patch, int) else patch
    if not (1 <= p <= h and 1 <= q <= w):
        raise OptionsError(f"`{name}`: patches of {p}x{q} pixels do not fit into images of {h}x{w}")


def check_filled(name: str, state: Mapping[str, torch.Tensor]) -> None:
    """Refuse an architecture of which a part has no weights: libraries build tables and layers of nothing, and fail to run them.

    Args:
        name: What the message calls the architecture.
        state: Its weights.

    Raises:
        OptionsError: Naming the first such tensor.
    """
    for key, tensor in state.items():
        if not tensor.numel():
            raise OptionsError(
                f"`{name}`: its tensor `{key}` would be empty, with shape {tuple(tensor.shape)}"
            )


def accepts_images(run: Callable[[torch.Tensor], object], size: Sequence[int]) -> bool:
    """Return whether a model on the meta device runs on an image of a size (channels, height, width)."""
    import torch

    try:
        with torch.inference_mode():
            run(torch.zeros(1, *size, device="meta"))
    except (
        AssertionError,
        IndexError,
        RuntimeError,
        ValueError,
    ):  # libraries differ in the errors that they raise
        return False
    return True


@contextmanager
def building(library: str, name: str) -> Iterator[None]:
    """Say in words what comes of a library's constructor, whatever it raises, and end one that makes modules without end.

    Raises:
        OptionsError: With the constructor's reason.
    """
    from torch.nn.modules.module import register_module_module_registration_hook

    module_count = 0

    def count(*_: object) -> None:
        nonlocal module_count
        module_count += 1
        if module_count > MOST_MODULES:
            raise ValueError(f"it has more than {MOST_MODULES} modules")

    hook = register_module_module_registration_hook(count)
    try:
        yield
    except HydraError:
        raise
    except ValidationError as error:
        raise OptionsError(f"{library} cannot build `{name}`: {first_problem(error)}") from error
    except Exception as error:
        raise OptionsError(f"{library} cannot build `{name}`: {reason_of(error)}") from error
    finally:
        hook.remove()
