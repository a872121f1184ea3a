# nomad-autoscaler with the plugin remuda-autoscaler, which scales models by their load.
#
#   nomad job run -var 'controllers=["http://10.0.0.1:4750"]' jobs/autoscaler.nomad.hcl
#
# Its node needs a Nomad client with raw_exec enabled, `nomad-autoscaler` on its PATH (or -var
# agent=/path/to/nomad-autoscaler), and the plugin in plugin_dir.
#
# Where the controller has ACLs, put a token of the role autoscaler where the job finds
# it:
#
#   nomad var put nomad/jobs/autoscaler token=…
#
# A model whose file has a block "scaling" is scaled by it, and a changed one needs no restart. Other
# policies are a variable of this job, so that a changed one comes with a new version of it.

variable "controllers" {
  description = "URLs of the controller's servers. It must be set."
  type        = list(string)
  default     = []
}

variable "consul" {
  description = "The Consul agent that knows the engines. Empty: CONSUL_HTTP_ADDR of the Nomad client, which must be set then."
  default     = ""
}

variable "policies" {
  description = "Policies for models whose files have none, as in jobs/*.policy.hcl."
  default     = ""
}

variable "strategies" {
  description = "The strategies that policies may name."
  type        = list(string)
  default     = ["remuda-capacity", "remuda-hpa", "remuda-utilization", "remuda-predictive"]
}

variable "agent" {
  description = "The nomad-autoscaler binary."
  default     = "nomad-autoscaler"
}

variable "plugin_dir" {
  description = "The directory that has the plugin remuda-autoscaler."
  default     = "/opt/nomad-autoscaler/plugins"
}

variable "data_dir" {
  description = "Where the strategies keep their windows and decisions: a directory of the node, which outlives restarts."
  default     = "/var/lib/nomad-autoscaler"
}

variable "nomad" {
  description = "The Nomad agent that nomad-autoscaler asks."
  default     = "http://127.0.0.1:4646"
}

variable "ca_cert" {
  description = "A PEM file with the CA of the controller's certificate; empty: the system's."
  default     = ""
}

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
        command = var.agent
        args    = ["agent", "-config", "${NOMAD_SECRETS_DIR}/agent.hcl"]
      }

      # nomad-autoscaler goes on with the old policy if a file changes, so a change of this one
      # restarts it. The strategies' windows are in data_dir. The target writes the policies of
      # model files beside it.
      template {
        destination = "local/policies/models.hcl"
        data        = "${var.policies}\n"
      }

      template {
        destination = "secrets/agent.hcl"
        data        = <<-EOT
          plugin_dir = ${jsonencode(var.plugin_dir)}

          http {
            bind_address = "{{ env "NOMAD_IP_http" }}"
            bind_port    = {{ env "NOMAD_PORT_http" }}
          }

          nomad {
            address = ${jsonencode(var.nomad)}
          }

          policy {
            dir = "{{ env "NOMAD_TASK_DIR" }}/policies"
          }

          apm "remuda" {
            driver = "remuda-autoscaler"
            args   = ["apm"]
            config = { consul = ${jsonencode(var.consul)} }
          }

          target "remuda" {
            driver = "remuda-autoscaler"
            args   = ["target"]
            config = { policy_dir = "{{ env "NOMAD_TASK_DIR" }}/policies" }
          }
          %{~for s in var.strategies}

          strategy ${jsonencode(s)} {
            driver = "remuda-autoscaler"
            args   = ["strategy", ${jsonencode(s)}]
            config = {
              consul    = ${jsonencode(var.consul)}
              decisions = ${jsonencode("${var.data_dir}/${s}.json")}
              state_dir = ${jsonencode("${var.data_dir}/state")}
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
          REMUDA_ADDR=${join(",", var.controllers)}
          REMUDA_CACERT=${var.ca_cert}
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
