job [[ printf "model-%s" (var "model" .) | toJson ]] {
  type = "batch"

  group "apply" {
    # The controller may be away for a while.
    restart {
      attempts = 20
      interval = "10m"
      delay    = "5s"
      mode     = "delay"
    }

    task "apply" {
      driver = "raw_exec"

      config {
        command = [[ var "remuda" . | toJson ]]
        args    = ["model", "apply", "-detach", "local/[[ var "model" . ]].model.hcl"]
      }

      template {
        destination = "local/[[ var "model" . ]].model.hcl"
        data        = <<-EOT
          model [[ var "model" . | toJson ]] {
            min      = [[ var "min" . ]]
            max      = [[ if var "max" . ]][[ var "max" . ]][[ else ]][[ var "replicas" . ]][[ end ]]
            replicas = [[ var "replicas" . ]]
            failover = [[ var "failover" . ]]
            [[- if or (var "idle_warm" .) (var "idle_cold" .) ]]

            idle {
              [[- with var "idle_warm" . ]]
              warm = [[ toJson . ]]
              [[- end ]]
              [[- with var "idle_cold" . ]]
              cold = [[ toJson . ]]
              [[- end ]]
            }
            [[- end ]]

            variant [[ var "engine" . | toJson ]] {
              engine  = [[ var "engine" . | toJson ]]
              weights = [[ var "weights" . | toJson ]]
              [[- with var "job" . ]]
              job = [[ toJson . ]]
              [[- end ]]
              [[- with var "memory" . ]]
              memory = [[ toJson . ]]
              [[- end ]]
              [[- with var "host_memory" . ]]
              host_memory = [[ toJson . ]]
              [[- end ]]
              [[- with var "slots" . ]]
              slots = [[ . ]]
              [[- end ]]

              gpu {
                count = [[ var "gpus" . ]]
                [[- with var "gpu_model" . ]]
                model = [[ toJson . ]]
                [[- end ]]
              }

              vars = {
                [[- range $name, $value := var "vars" . ]]
                [[ $name ]] = [[ $value | toJson ]]
                [[- end ]]
              }
            }
          }
        EOT
      }

      template {
        destination = "secrets/remuda.env"
        env         = true
        data        = <<-EOT
          [[- with var "controller" . ]]
          REMUDA_ADDR=[[ . ]]
          [[- end ]]
          {{ if nomadVarExists [[ printf "nomad/jobs/model-%s" (var "model" .) | toJson ]] }}{{ with nomadVar [[ printf "nomad/jobs/model-%s" (var "model" .) | toJson ]] }}REMUDA_TOKEN={{ .token.Value }}{{ end }}{{ end }}
        EOT
      }

      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}
