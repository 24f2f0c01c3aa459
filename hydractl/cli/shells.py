"""Tab completion: scripts for shells, and suggestions for a word."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer
import typer.core

from hydractl.cli.helptext import HELP, HELP_SUMMARY, Command, Parameter
from hydractl.cli.output import Terminal, written_out
from hydractl.cli.summaries import SUMMARIES

BASH = r"""# bash completion for hydractl
# shellcheck shell=bash

_hydractl() {
    local cur=${COMP_WORDS[COMP_CWORD]} word before suffixes name pattern
    # --option=value arrives as three words
    [[ -z ${cur//[=:]/} ]] && cur=''
    COMPREPLY=()
    while IFS=$'\t' read -r word before suffixes; do
        if [[ $word != / ]]; then
            [[ $word == *: ]] && compopt -o nospace 2>/dev/null
            COMPREPLY+=("$word")
            continue
        fi
        pattern="\\.($suffixes)$"
        while IFS= read -r name; do
            if [[ -d ${name/#\~/$HOME} || -z $suffixes || $name =~ $pattern ]]; then
                COMPREPLY+=("${cur:0:before}$name")
                compopt -o filenames 2>/dev/null
            fi
        done < <(compgen -f -- "${cur:before}")
    done < <(_HYDRACTL_COMPLETE=bash "${1/#\~/$HOME}" "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}

complete -F _hydractl hydractl
"""
ZSH = r"""#compdef hydractl

_hydractl() {
  local word note before suffixes ret=1
  local -a candidates
  while IFS=$'\t' read -r word note suffixes; do
    if [[ $word == / ]]; then
      before=$note
      break
    fi
    candidates+=("${word//:/\\:}${note:+:$note}")
  done < <(_HYDRACTL_COMPLETE=zsh ${~words[1]} "${(@Q)words[2,CURRENT-1]}" "${(Q)PREFIX}" 2>/dev/null)
  (( $#candidates )) && _describe -t words word candidates && ret=0
  if [[ -n $before ]]; then
    compset -p $before
    # parentheses that end a pattern would be read as qualifiers of what it finds
    _files ${suffixes:+-g "*.($suffixes)(-.)"} && ret=0
  fi
  return ret
}

if [[ $funcstack[1] == _hydractl ]]; then
  _hydractl "$@"
else
  compdef _hydractl hydractl
fi
"""
FISH = r"""# fish completion for hydractl

function __hydractl_offers
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program (string replace -r '^~' $HOME -- $words[1])
    for line in (env _HYDRACTL_COMPLETE=fish $program $words[2..-1] "$current" 2>/dev/null)
        set -l fields (string split \t -- $line)
        if test "$fields[1]" != /
            printf '%s\n' $line
            continue
        end
        set -l before (string sub -l $fields[2] -- "$current")
        set -l path (string sub -s (math $fields[2] + 1) -- "$current")
        set -l ending ''
        test -n "$fields[3]"; and set ending "\\.(?:$fields[3])"
        # what an unknown command may be followed by is any file
        for name in (complete -C "__hydractl_unknown $path" | string match -r -- "^.*(?:/|$ending)\$")
            printf '%s\n' "$before$name"
        end
    end
end

complete -c hydractl -f -a '(__hydractl_offers)'
"""
SCRIPTS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
"""Completion script of each shell."""


Shell: TypeAlias = Literal["bash", "zsh", "fish"]


def completion(
    shell: Annotated[Shell, typer.Argument(help="Shell of the script.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print the script in one JSON document.")] = False,
) -> None:
    """Print a script that completes command lines in your shell.

    The script calls hydractl at each Tab, so an update needs no new script.

    Examples:
      eval "$(hydractl completion bash)"   # in ~/.bashrc
      eval "$(hydractl completion zsh)"    # in ~/.zshrc, after `compinit`
      hydractl completion fish > ~/.config/fish/completions/hydractl.fish
    """
    terminal = Terminal(as_json=json)
    script = SCRIPTS[shell]
    if json:
        terminal.document({"script": script, "shell": shell})
    elif terminal.speaks:
        with written_out():
            sys.stdout.write(script)


FILES = "/"
"""Marker for file names in suggestions. It is never a suggestion itself."""
CHECKPOINTS = ("st", "safetensors")
ROWS = "NAME=MODEL[,MODEL...]"
SUFFIXES: Mapping[str, Sequence[str]] = {
    "MODEL": CHECKPOINTS,
    "MODEL...": CHECKPOINTS,
    "MODEL[,...]": CHECKPOINTS,
    ROWS: CHECKPOINTS,
    "FILE...": (*CHECKPOINTS, "json"),
    "MODEL [FILE...]": (*CHECKPOINTS, "json"),
    "WEIGHTS": ("pth", "pt", "bin", "ckpt", "tar", "safetensors", "json"),
    "JSON": ("json",),
    "REPORT...": ("json",),
    "X|REPORT|none": ("json",),
    **dict.fromkeys(("DATA[::K=V,...]", "DATA...", "NAME=DATA", "DATA|NUMBER"), ()),
    **dict.fromkeys(("PATH", "DIR", "[NAME=]FILE", "A,B,...|FILE"), ()),
}
"""File name suffixes of a value, by metavar. An empty tuple permits any file."""


def suggestions(tree: typer.core.TyperGroup, words: Sequence[str], *, shell: str) -> Iterator[str]:
    """Yield a line for each possible last word: the word and, after a tab, a description.

    File names are completed by the shell. This line requests file names: `/`, the number of characters of the
    last word before the path, and the permitted suffixes separated by bars, each separated by tabs.

    Args:
        tree: The program.
        words: Words after the program's name up to the cursor, as split by the shell.
        shell: Name of the shell.
    """
    in_bash = shell == "bash"
    *previous, current = _rejoined(words) if in_bash else words
    split_characters = len(current) - len("" if in_bash and _is_break(words[-1]) else words[-1])
    name = next((word for word in previous if not word.startswith("-") and word != HELP), None)
    command = tree if name is None else tree.commands.get(name)
    if not isinstance(command, Command):
        return
    root = typer.Context(tree, info_name="hydractl", **tree.context_settings)
    context = root if command is tree else typer.Context(command, info_name=name, parent=root)
    option, separator, text = current.partition("=")
    parameter: Parameter | None
    if current.startswith("-") and separator:
        parameter = _options(command).get(option)
    elif current.startswith("-") or command is tree:
        yield from _commands_and_options(command, context, current)
        return
    else:
        parameter, text = _expected(command, previous), current
    if parameter is not None:
        yield from _values(parameter, context, current=current, text=text, parted=split_characters)


def _is_break(word: str) -> bool:
    """Return whether a word consists of separators at which bash splits words."""
    return bool(word) and not word.strip("=:")


def _rejoined(words: Iterable[str]) -> list[str]:
    """Join words that bash has split at `=` and `:`."""
    joined: list[str] = []
    last = ""
    for word in words:
        if joined and (_is_break(word) or _is_break(last)):
            joined[-1] += word
        else:
            joined.append(word)
        last = word
    return joined


def _commands_and_options(command: Command, context: typer.Context, current: str) -> Iterator[str]:
    """Yield matching commands and options. Without a command, options are suggested for an empty word too."""
    if isinstance(command, typer.core.TyperGroup):
        summaries = {name: SUMMARIES.get(name) for name in command.commands} | {HELP: HELP_SUMMARY}
        names = (name for name in summaries if name.startswith(current))
        yield from (f"{name}\t{_sentence(summaries[name])}" for name in names)
    if current.startswith("-") or not current:
        options = command.shell_complete(context, current or "-")
        yield from (f"{option.value}\t{_sentence(option.help)}" for option in options)


def _options(command: Command) -> dict[str, typer.core.TyperOption]:
    """Return the options with a value, by each of their names."""
    options = [p for p in command.params if isinstance(p, typer.core.TyperOption) and not p.is_flag]
    return {spelling: option for option in options for spelling in option.opts}


def _expected(command: Command, previous: Sequence[str]) -> Parameter | None:
    """Return the parameter of the next word: an option that still needs a value, else the next argument.

    None if the command has no more arguments.
    """
    options = _options(command)
    option, place = None, -1  # The command's name comes first and is not an argument.
    for word in previous:
        if option is not None:
            option = None
        elif word.startswith("-") and word != "-":
            option = options.get(word)
        else:
            place += 1
    arguments = [p for p in command.params if isinstance(p, typer.core.TyperArgument)]
    if option is not None or not arguments:
        return option
    if place < len(arguments):
        return arguments[place]
    return arguments[-1] if arguments[-1].nargs < 0 else None


def _values(
    parameter: Parameter, context: typer.Context, *, current: str, text: str, parted: int
) -> Iterator[str]:
    """Yield the possible values of a parameter, and a line for file names.

    Args:
        parameter: The option or argument.
        context: Context of the command.
        current: The joined last word.
        text: The value in `current`.
        parted: Number of leading characters of `current` that are separate words for the shell.
    """
    metavar = parameter.metavar or ""
    # Of several values separated by commas, complete the last, without `NAME=`.
    marks = "" if "::" in metavar else [mark for mark in "=," if mark in metavar]
    unfinished = text[1 + max(map(text.rfind, marks), default=-1) :]
    before = current[: len(current) - len(unfinished)]
    yield from ((before + word.value)[parted:] for word in parameter.shell_complete(context, unfinished))
    is_path = parameter.type_descriptor.annotation in {Path, list[Path]}
    if (suffixes := SUFFIXES.get(metavar, () if is_path else None)) is not None:
        path = unfinished.rpartition(":")[2] if metavar == ROWS else unfinished
        yield f"{FILES}\t{max(len(current) - len(path) - parted, 0)}\t{'|'.join(suffixes)}"


def _sentence(text: str | None) -> str:
    """Return the first sentence of a help text, on one line."""
    paragraph = " ".join((text or "").strip().split("\n\n")[0].split())
    return paragraph.split(". ")[0].removesuffix(".")
