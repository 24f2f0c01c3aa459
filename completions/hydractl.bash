# bash completion for hydractl
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
