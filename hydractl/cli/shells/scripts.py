"""The three shells' ways to say what may be typed; pure functions from commands to text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Completes:
    """What may be typed for an option's value or an argument.

    Attributes:
        words: Known words.
        files: Whether files and folders are offered.
        suffixes: Of those files; any if empty.
    """

    words: tuple[str, ...] = ()
    files: bool = False
    suffixes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShellOption:
    """One option: its spellings, what it means, and its value; None for a flag."""

    spellings: tuple[str, ...]
    help: str
    value: Completes | None = None
    metavar: str = ""
    repeatable: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One subcommand; of its positional arguments all have the same kind of value."""

    name: str
    help: str
    options: tuple[ShellOption, ...]
    argument: Completes | None = None
    metavar: str = ""
    many: bool = False

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every spelling of every option."""
        return tuple(word for option in self.options for word in option.spellings)


MADE_BY = "Generated from the command tree by `hydractl completion`; do not edit."

BASH = """\
# bash completion for hydractl
# @MADE_BY@
# shellcheck shell=bash

_hydractl_words() {
    local word
    while IFS= read -r word; do
        COMPREPLY+=("$word")
    done < <(compgen -W "$1" -- "$cur")
}

# Offer folders, and files with one of the suffixes in $1 (a|b|c; any file if it is empty).
_hydractl_files() {
    local name pattern="\\\\.($1)$"
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do
        if [[ -d ${name/#\\~/$HOME} || -z $1 || $name =~ $pattern ]]; then
            COMPREPLY+=("$name")
        fi
    done < <(compgen -f -- "$cur")
}

_hydractl() {
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command='' i
    COMPREPLY=()
    # --option=value arrives as three words
    if [[ $cur == = ]]; then
        cur=''
    elif [[ $prev == = ]]; then
        prev=${COMP_WORDS[COMP_CWORD-2]}
    fi
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then
            command=${COMP_WORDS[i]}
            break
        fi
    done
    case $command in
@CASES@
    esac
}

complete -F _hydractl hydractl
"""


def bash_script(commands: Sequence[Command]) -> str:
    """Return the script for bash 3.2 and later."""
    root, *subcommands = commands
    words = " ".join((*(c.name for c in subcommands), *root.spellings))
    cases = [f"    '')\n        _hydractl_words '{words}'\n        ;;"]
    cases += [_bash_command(command) for command in subcommands]
    return BASH.replace("@MADE_BY@", MADE_BY).replace("@CASES@", "\n".join(cases))


def _bash_command(command: Command) -> str:
    lines = [f"    {command.name})", "        case $prev in"]
    offers: dict[tuple[str, ...], list[str]] = {}
    for option in command.options:
        if option.value is not None:
            offers.setdefault(tuple(_bash_value(option.value)), []).extend(option.spellings)
    for offer, spellings in offers.items():
        lines.append(f"        {' | '.join(spellings)})")
        lines += [f"            {line}" for line in offer]
        lines.append("            ;;")
    lines += ["        *)", f"            _hydractl_words '{' '.join(command.spellings)}'"]
    if command.argument:
        lines[-1] = "    " + lines[-1]
        lines[-1:] = ["            if [[ $cur == -* ]]; then", lines[-1], "            else"]
        lines += [f"                {line}" for line in _bash_value(command.argument)]
        lines.append("            fi")
    lines += ["            ;;", "        esac", "        ;;"]
    return "\n".join(lines)


def _bash_value(value: Completes) -> list[str]:
    lines = [f"_hydractl_words '{' '.join(value.words)}'"] if value.words else []
    lines += [f"_hydractl_files '{'|'.join(value.suffixes)}'"] if value.files else []
    return lines or [": # any text"]


ZSH_END = """\
if [[ $funcstack[1] == _hydractl ]]; then
  _hydractl "$@"
else
  compdef _hydractl hydractl
fi"""


def zsh_script(commands: Sequence[Command]) -> str:
    """Return the script for zsh, to be evaluated, or to lie in a folder of `$fpath` as `_hydractl`."""
    root, *subcommands = commands
    lines = ["#compdef hydractl", f"# {MADE_BY}", "", "_hydractl() {"]
    lines += [
        "  local curcontext=$curcontext state line ret=1",
        "  typeset -A opt_args",
        "",
        "  _arguments -C \\",
    ]
    lines += [f"    {spec} \\" for option in root.options for spec in _zsh_option(option)]
    lines += ["    '1:command:->command' \\", "    '*::argument:->rest' && ret=0", "", "  case $state in"]
    lines += ["    command)", "      local -a commands=("]
    lines += [f"        '{c.name}:{_zsh_quoted(c.help)}'" for c in subcommands]
    lines += ["      )", "      _describe -t commands command commands && ret=0", "      ;;"]
    lines += ["    rest)", "      case $line[1] in"]
    for command in subcommands:
        specs = [spec for option in command.options for spec in _zsh_option(option)]
        if command.argument:
            place = "*" if command.many else "1"
            specs.append(f"'{place}:{command.metavar}:{_zsh_action(command.argument)}'")
        lines += [f"        {command.name})", "          _arguments \\"]
        lines += [f"            {spec} \\" for spec in specs[:-1]]
        lines += [f"            {specs[-1]} && ret=0", "          ;;"]
    lines += ["      esac", "      ;;", "  esac", "  return ret", "}", "", ZSH_END, ""]
    return "\n".join(lines)


def _zsh_option(option: ShellOption) -> Iterator[str]:
    """Yield one specification a spelling."""
    others = " ".join(option.spellings)
    before = "*" if option.repeatable else f"({others})"
    ending = f"[{_zsh_quoted(option.help)}]"
    if option.value is not None:
        ending += f":{_zsh_quoted(option.metavar)}:{_zsh_action(option.value)}"
    for spelling in option.spellings:
        joined = "" if option.value is None else "=" if spelling.startswith("--") else "+"
        yield f"'{before}{spelling}{joined}{ending}'"


def _zsh_action(value: Completes) -> str:
    pattern = "|".join(value.suffixes)
    # parentheses that end a pattern would be read as qualifiers of what it finds
    files = (f'_files -g "*.({pattern})(-.)"' if pattern else "_files") if value.files else ""
    words = " ".join(value.words)
    if (
        words and files
    ):  # the blank keeps zsh from handing over options of its own, which `_alternative` does not take
        return f' _alternative "words\\:word\\:({words})" "files\\:file\\:{files}"'
    return f"({words})" if words else files or " "


def _zsh_quoted(text: str) -> str:
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    return text.replace("'", "'\\''")


FISH = """\
# fish completion for hydractl
# @MADE_BY@

# Whether the subcommand typed so far is $argv[1]; empty for none.
function __hydractl_in
    set -l words (commandline -opc)
    for word in $words[2..-1]
        string match -q -- '-*' $word; and continue
        test "$word" = "$argv[1]"
        return
    end
    test -z "$argv[1]"
end

# Folders, and files with one of the suffixes $argv. What an unknown command may be followed by is any file.
function __hydractl_files
    set -l word (string replace -r -- '^-[^=]*=' '' (commandline -ct))
    set -l ending (string join '|' -- $argv)
    complete -C "__hydractl_unknown $word" | string match -r -- "^.*(?:/|\\.(?:$ending))\\$"
end

complete -c hydractl -f
@LINES@
"""


def fish_script(commands: Sequence[Command]) -> str:
    """Return the script for fish."""
    _, *subcommands = commands
    lines = [
        f"complete -c hydractl -n '__hydractl_in \"\"' -a {c.name} -d '{_fish_quoted(c.help)}'"
        for c in subcommands
    ]
    for command in commands:
        name = command.name or '""'
        start = f"complete -c hydractl -n '__hydractl_in {name}'"
        lines += [f"{start} {_fish_option(option)}" for option in command.options]
        if command.argument:
            lines.append(f"{start} {' '.join(_fish_value(command.argument))}")
    return FISH.replace("@MADE_BY@", MADE_BY).replace("@LINES@", "\n".join(lines))


def _fish_option(option: ShellOption) -> str:
    parts = [
        f"-l {word.removeprefix('--')}" if word.startswith("--") else f"-s {word.removeprefix('-')}"
        for word in option.spellings
    ]
    if option.value is not None:
        any_file = option.value.files and not option.value.suffixes
        parts += ["-r" if any_file else "-x", *_fish_value(option.value)]
    return " ".join([*parts, f"-d '{_fish_quoted(option.help)}'"])


def _fish_value(value: Completes) -> Iterable[str]:
    if value.words:
        yield f"-a '{' '.join(value.words)}'"
    if value.files and value.suffixes:
        yield f"-a '(__hydractl_files {' '.join(value.suffixes)})'"
    elif value.files:
        yield "-F"


def _fish_quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


SCRIPTS: dict[str, Callable[[Sequence[Command]], str]] = {
    "bash": bash_script,
    "zsh": zsh_script,
    "fish": fish_script,
}
"""What makes each shell's script."""
