"""Options that an architecture is given and does not have, told in words."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from types import ModuleType

from hydractl.errors import UnsupportedModelError
from hydractl.progress import did_you_mean

_UNEXPECTED = re.compile(
    r"(?P<maker>\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(?P<key>\w+)'"
)


def check_known(name: str, error: Exception, modules: Iterable[ModuleType]) -> None:
    """Raise in words if it was an unknown option that a library's constructor refused; return otherwise.

    Args:
        name: The architecture.
        error: What the constructor raised.
        modules: Where the class stands that Python's message names.

    Raises:
        UnsupportedModelError: Naming the option, and the nearest that there is.
    """
    found = _UNEXPECTED.search(str(error)) if isinstance(error, TypeError) else None
    if found is None:
        return
    maker = next((made for module in modules if (made := getattr(module, found["maker"], None))), None)
    known = inspect.signature(maker).parameters if callable(maker) else {}
    raise UnsupportedModelError(
        f"`{name}` has no option `{found['key']}`", hint=did_you_mean(found["key"], known)
    ) from error
