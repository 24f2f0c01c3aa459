"""Translation of typer's parser errors into errors of hydractl."""

from __future__ import annotations

import re
from typing import Any

import typer

from hydractl.errors import UsageError
from hydractl.messages import did_you_mean

SYNONYMS = {"--learning-rate": "--lr", "--num-epochs": "--epochs", "--train-batch-size": "--batch-size"}
"""Names of options in transformers' `TrainingArguments`, for suggestions."""
REMOVED = {
    "--estimate": "the progress bar of a run shows the remaining time",
    "--provenance": "`hydractl inspect MODEL --lineage --json` prints how a model was made",
    "--plot": "`hydractl inspect FILE` prints which heads a model or a mask keeps",
    **dict.fromkeys(("--doubt", "--recheck", "--swaps"), "`--search exact` evaluates every head"),
    "lineage": "type `hydractl inspect MODEL --lineage`, or `hydractl inspect MODEL --verify FILE...`",
}
"""Commands and options of earlier releases, with their replacements."""
RENAMED = {
    "bench --data": "`--train`",
    "bench --freeze-blocks": "`--trunk`",
    "bench --hydra": "`--hydra-model`",
    "bench --last-blocks": "`--trunk N`, the number of frozen blocks: all blocks but the trained ones",
    "demo --keep": "`--save-pipeline`",
    "eval --fit": "`--train`",
    "eval --store": "`--save-model`",
    "export --report": "`--save-report`",
    "finetune --data": "`--train`, and the former `--train` is now `--train-parts`",
    "finetune --freeze-blocks": "`--trunk`",
    "finetune --last-blocks": "`--trunk N`, the number of frozen blocks: all blocks but the trained ones",
    "fuse --data": "`--val`, which also chooses the trunk; add `--mlp merge` for the former result",
    "fuse --fit": "`--train`, and `--val` now also chooses the trunk; add `--mlp merge` for the former result",
    "fuse --max-loss": "`--max-nll-increase`",
    "fuse --merge-trunk": "`--trunk`; for `auto` the default of `--max-nll-increase` is now 0.01",
    "fuse --own-from": "`--trunk N --own-blocks`",
    "make --keep": "`--save-pipeline`",
    "make --max-loss": "`--max-nll-increase`",
    "predict --fit": "`--train`",
    "prune --diverge-from": "`--trunk`",
    "prune --keep": "`--keep-heads`",
    "score --keep": "`--keep-heads`",
    "score --temperature": "`--gate-temperature`",
    "score --trained": "`--save-model`",
}
"""New name of each renamed option, by command and former name."""


def renaming(command: str, option: str) -> str | None:
    """Return the message for the former name of an option; None for other options.

    Args:
        command: Name of the command.
        option: Option with dashes.
    """
    new = RENAMED.get(f"{command} {option}")
    return None if new is None else f"`{option}` is now {new}"


def usage_error(error: Exception) -> UsageError | None:
    """Translate an error of the parser. None for other exceptions, and for a command without arguments."""
    refusal = typer.BadParameter.__bases__[0]  # typer has no public name for this class.
    if not isinstance(error, refusal) or type(error).__name__ == "NoArgsIsHelpError":
        return None
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command = "hydractl" if context is None else context.command_path
    message = str(getattr(error, "message", "")).rstrip(".")
    message = re.sub(r"'([^'\s]*)'", r"`\1`", f"{message[:1].lower()}{message[1:]}")
    hint = None
    if parameter is not None:
        missing = type(error).__name__ == "MissingParameter"
        message = f"{name_of(parameter)} is missing" if missing else f"{name_of(parameter)}: {message}"
    elif type(error).__name__ == "NoSuchOption":
        option = str(getattr(error, "option_name", ""))
        if renamed := renaming(command.rpartition(" ")[-1], option):
            return UsageError(renamed)
        message = f"`{option}` is not an option of `{command}`"
        known_options = (
            name
            for parameter in (() if context is None else context.command.params)
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("-")
        )
        if option in REMOVED:
            return UsageError(f"`{option}` was removed from `{command}`", hint=REMOVED[option])
        hint = did_you_mean(SYNONYMS.get(option.replace("_", "-"), option), known_options)
    return UsageError(message, hint=hint or help_of(command))


def name_of(parameter: Any) -> str:  # noqa: ANN401 - of a private class of typer's
    """Return the name of an option or an argument for messages."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return f"`{'/'.join((*parameter.opts, *parameter.secondary_opts))}`"


def help_of(command: str) -> str:
    """Return a hint with the command for help."""
    return f"see `{command} --help`"
