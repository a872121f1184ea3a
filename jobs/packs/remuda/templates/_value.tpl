[[- /* A value as HCL, in which "${" and "%{" begin an expression. */ -]]
[[- define "value" -]][[ . | toJson | replace "${" "$${" | replace "%{" "%%{" ]][[- end -]]
