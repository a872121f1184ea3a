# remuda completes its own command line.
function __complete_remuda
    set -lx COMP_LINE (commandline -cp)
    test -z (commandline -ct)
    and set COMP_LINE "$COMP_LINE "
    remuda
end
complete -f -c remuda -a "(__complete_remuda)"
