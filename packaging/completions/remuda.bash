# remuda completes its own command line.
complete -C remuda remuda
