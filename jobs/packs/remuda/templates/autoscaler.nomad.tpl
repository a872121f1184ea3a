[[- /* Generated from jobs/autoscaler.nomad.hcl by `make reference`: do not edit. */ -]]
[[- if has "autoscaler" (var "jobs" .) ]]
job "autoscaler" {
  type = "service"

  priority = 70

  # Two would order against each other.
  group "autoscaler" {
    count = 1

    network {
      port "http" {}
    }

    restart {
      attempts = 100
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    task "autoscaler" {
      driver = "raw_exec"

      config {
        command = [[ template "value" (var "autoscaler_agent" .) ]]
        args    = ["agent", "-config", "${NOMAD_SECRETS_DIR}/agent.hcl"]
      }

      # nomad-autoscaler goes on with the old policy if a file changes, so a change of this one
      # restarts it. The strategies' windows are in data_dir. The target writes the policies of
      # model files beside it.
      template {
        destination = "local/policies/models.hcl"
        data        = "${[[ template "value" (var "autoscaler_policies" .) ]]}\n"
      }

      template {
        destination = "secrets/agent.hcl"
        data        = <<-EOT
          plugin_dir = ${jsonencode([[ template "value" (var "autoscaler_plugin_dir" .) ]])}

          http {
            bind_address = "{{ env "NOMAD_IP_http" }}"
            bind_port    = {{ env "NOMAD_PORT_http" }}
          }

          nomad {
            address = ${jsonencode([[ template "value" (var "nomad" .) ]])}
          }

          policy {
            dir = "{{ env "NOMAD_TASK_DIR" }}/policies"
          }

          apm "remuda" {
            driver = "remuda-autoscaler"
            args   = ["apm"]
            config = { consul = ${jsonencode([[ template "value" (var "consul" .) ]])} }
          }

          target "remuda" {
            driver = "remuda-autoscaler"
            args   = ["target"]
            config = { policy_dir = "{{ env "NOMAD_TASK_DIR" }}/policies" }
          }
          %{~for s in [[ template "value" (var "autoscaler_strategies" .) ]]}

          strategy ${jsonencode(s)} {
            driver = "remuda-autoscaler"
            args   = ["strategy", ${jsonencode(s)}]
            config = {
              consul    = ${jsonencode([[ template "value" (var "consul" .) ]])}
              decisions = ${jsonencode("${[[ template "value" (var "autoscaler_data_dir" .) ]]}/${s}.json")}
              state_dir = ${jsonencode("${[[ template "value" (var "autoscaler_data_dir" .) ]]}/state")}
            }
          }
          %{~endfor}
        EOT
      }

      # nomad-autoscaler gives its environment to the plugins.
      template {
        destination = "secrets/remuda.env"
        env         = true
        data        = <<-EOT
          REMUDA_ADDR=${join(",", [[ template "value" (var "controllers" .) ]])}
          REMUDA_CACERT=${[[ template "value" (var "ca_cert" .) ]]}
          {{ if nomadVarExists "nomad/jobs/autoscaler" }}{{ with nomadVar "nomad/jobs/autoscaler" }}REMUDA_TOKEN={{ .token.Value }}{{ end }}{{ end }}
        EOT
      }

      service {
        name     = "remuda-autoscaler"
        provider = "nomad"
        port     = "http"

        check {
          type     = "http"
          path     = "/v1/health"
          interval = "5s"
          timeout  = "2s"
        }
      }

      resources {
        cpu    = 250
        memory = 256
      }
    }
  }
}
[[ end ]]
