"""Words of a command line for one key of a stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydractl.errors import InputError


def check_texts(option: Any, value: object, texts: Sequence[str], where: str) -> None:  # noqa: ANN401 - of a private class of typer's
    """Refuse texts that would have another meaning in a command line than in the file."""
    is_argument, repeats = option.param_type_name == "argument", getattr(option, "multiple", False)
    joins = not (is_argument or repeats) and "," in str(option.metavar).replace("::K=V,...", "")
    if len(texts) != 1 and not (repeats or (texts and (joins or option.nargs != 1))):
        raise InputError(f"{where}: {len(texts)} values are too {'many' if texts else 'few'}")
    if not getattr(option, "is_flag", False) and bool in map(
        type, value if isinstance(value, list) else [value]
    ):
        raise InputError(f"{where}: needs a value")
    for text in texts:
        if "\0" in text or (is_argument and not text):
            raise InputError(f"{where}: {text!r} is empty or has a NUL character")
        if joins and len(texts) > 1 and "," in text:
            raise InputError(f"{where}: `{text}` has a comma, which separates values")
        if is_argument and text.startswith("-") and text != "-":
            raise InputError(
                f"{where}: `{text}` begins with `-`, like an option",
                hint=f"options have their own keys; for a file of that name write `./{text}`",
            )


def typed_option(option: Any, key: str, option_texts: Sequence[str], where: str) -> list[str]:  # noqa: ANN401 - of a private class of typer's
    """Return an option as it is typed."""
    if option.is_flag:
        if option_texts not in (["true"], ["false"]):
            raise InputError(f"{where}: is a flag: write `{key} = true` or `{key} = false`")
        if f"--{key.replace('_', '-')}" in option.secondary_opts:
            option_texts = ["true" if option_texts == ["false"] else "false"]
        names = option.opts if option_texts == ["true"] else option.secondary_opts
        return [names[0]] if names else []
    name = option.opts[0]
    return [
        part
        for text in (option_texts if option.multiple else [",".join(option_texts)])
        for part in ([f"{name}={text}"] if text.startswith("-") and name.startswith("--") else [name, text])
    ]
