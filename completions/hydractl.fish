# fish completion for hydractl

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
