"""Checks of architecture options from files and users, before a library sees them.

Constructors of libraries take more than shapes: timm's open a checkpoint, transformers' download the code of
an attention, open_clip's download weights. Therefore each library has a list of allowed options, strings in
values must be plain names, and sizes are limited.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydantic import ValidationError

from hydractl.errors import HydraError, UnsupportedModelError, reason_of
from hydractl.manifest.document import first_error_text
from hydractl.messages import did_you_mean

if TYPE_CHECKING:
    import torch

NAME = re.compile(r"[\w.+ -]*", re.ASCII)
"""Allowed strings in option values. Slashes and colons are excluded, so a value is no path, URL or code."""
LARGEST = 2**20
"""Maximum absolute value of an integer option. Vocabularies have fewer than a million tokens, the largest
size of any supported architecture. If doubled, a header could ask for tensors twice as large before its
weights are checked."""
MOST_MODULES = 10_000
"""Maximum number of modules that a constructor may create. Chosen by hand, to stop constructors whose options
ask for a huge number of layers. If doubled, a bad header is refused after twice the time and memory."""
MAX_SHOWN_CHARACTERS = 60
"""Maximum number of characters of an option value in a message. Chosen by hand so that the message stays
short; a larger value only lengthens messages."""


class OptionsError(UnsupportedModelError):
    """An architecture has an unknown option, or a value unsupported by the library."""


def check_options(
    name: str, options: Mapping[str, object], known_names: Collection[str], *, prefix: str = ""
) -> None:
    """Raise if an architecture has an unknown option or a forbidden value.

    Args:
        name: Name of the architecture, for messages.
        options: The options.
        known_names: Names of the allowed options.
        prefix: Prefix that a reference writes before each name, for messages.

    Raises:
        OptionsError: With the name of the first wrong option.
    """
    for key, value in options.items():
        if key not in known_names:
            hint = did_you_mean(key, known_names)
            raise OptionsError(
                f"`{name}` has no option `{prefix}{key}`", hint=hint and hint.replace("`", f"`{prefix}", 1)
            )
        check_values(name, f"{prefix}{key}", value)


def check_values(name: str, key: str, value: object) -> None:
    """Raise if an option value, at any depth of nesting, is not a plain name or a number in range.

    Integers may be at most `LARGEST` and floats at most 1e30, in absolute value; NaN is refused.

    Raises:
        OptionsError: With the name of the option.
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
    """Raise if an image is smaller than a patch.

    Args:
        name: Name of the architecture, for messages.
        image: Height and width of the images, in pixels.
        patch: Height and width of the patches in pixels, or the side of square patches.

    Raises:
        OptionsError: With both sizes.
    """
    (h, w), (p, q) = image, (patch, patch) if isinstance(patch, int) else patch
    if not (1 <= p <= h and 1 <= q <= w):
        raise OptionsError(f"`{name}`: patches of {p}x{q} pixels do not fit into images of {h}x{w}")


def check_filled(name: str, state: Mapping[str, torch.Tensor]) -> None:
    """Raise if a tensor of an architecture is empty.

    Libraries build empty tables and layers without an error, and fail in the forward pass.

    Args:
        name: Name of the architecture, for messages.
        state: Its state dict.

    Raises:
        OptionsError: With the name of the first empty tensor.
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
    ):  # libraries raise different errors
        return False
    return True


@contextmanager
def building(library: str, name: str) -> Iterator[None]:
    """Turn any error of a library's constructor into an `OptionsError`, and stop endless constructors.

    Errors of hydractl pass unchanged.

    Raises:
        OptionsError: With the constructor's reason, or if it creates more than `MOST_MODULES` modules.
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
        raise OptionsError(f"{library} cannot build `{name}`: {first_error_text(error)}") from error
    except Exception as error:
        raise OptionsError(f"{library} cannot build `{name}`: {reason_of(error)}") from error
    finally:
        hook.remove()
