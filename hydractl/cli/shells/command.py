"""`hydractl completion`: the scripts that ask the program, when Tab is pressed, what may be typed.

Shells find files themselves. Typer's own scripts pass on words alone: after `--option=` they offer nothing, and a path loses
what a shell does for one (quotes, `~`, a folder's slash).
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from hydractl.cli.output import Terminal, written_out

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


class Shell(StrEnum):
    """The shells that there are scripts for; the same words as in `SCRIPTS`."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Shell of the script.", show_default=False)],
    json: Annotated[bool, typer.Option("--json", help="Print the script in one JSON document.")] = False,
) -> None:
    """Print a script that completes command lines in your shell.

    The script asks hydractl at each Tab, so an update needs no new script.

    Examples:
      eval "$(hydractl completion bash)"   # in ~/.bashrc
      eval "$(hydractl completion zsh)"    # in ~/.zshrc, after `compinit`
      hydractl completion fish > ~/.config/fish/completions/hydractl.fish
    """
    terminal = Terminal(as_json=json)
    script = SCRIPTS[shell.value]
    if json:
        terminal.document({"script": script, "shell": shell.value})
    elif terminal.speaks:
        with written_out():
            sys.stdout.write(script)
