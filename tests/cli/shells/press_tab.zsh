# zsh -f press_tab.zsh FOLDER SETUP LINE...
# Presses Tab after each line in a shell that has a terminal and FOLDER in its $fpath, and has run SETUP.
# What is offered goes to standard output, a word a line, then `==`; what the terminal shows to standard error.
zmodload zsh/zpty
folder=$1 setup=$2 offers=$(mktemp) said= part=
shift 2

until_done() {
    said=
    while zpty -r shell part; do
        said+=$part
        [[ $said == *'<done>'* ]] && break
    done
    print -r -- $said >&2
}

zpty shell zsh -f -i
zpty -w shell "PS1= fpath=(${(q)folder} \$fpath) offers=${(q)offers}
autoload -Uz compinit; compinit -u -D; $setup
compadd() {
    local -a found; builtin compadd -A found \"\$@\"; print -rl -- \$found >> \$offers; builtin compadd \"\$@\"
}
press_tab() { zle complete-word; BUFFER=; print -r -- '==' >> \$offers; print -r -- '<'done'>' }
zle -N press_tab; bindkey '^I' press_tab; print -r -- '<'done'>'"
until_done
for line; do
    zpty -w -n shell $line$'\t'
    until_done
done
cat $offers; rm $offers
