Running: [[ join ", " (var "jobs" .) ]].
Next: export REMUDA_ADDR=[[ if var "controllers" . ]][[ first (var "controllers" .) ]][[ else ]]http://SERVER:4750[[ end ]] and run "remuda doctor", which checks each step of the installation.
