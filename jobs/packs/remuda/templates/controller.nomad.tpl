[[- /* Generated from jobs/controller.nomad.hcl by `make reference`: do not edit. */ -]]
[[- if has "controller" (var "jobs" .) ]]
variable "servers" {
  description = "The addresses of the nodes that run a server: one, three or five, as Nomad knows them."
  type        = list(string)
  default     = [[ template "value" (var "servers" .) ]]
}

variable "remuda" {
  description = "The remuda binary."
  default     = [[ template "value" (var "remuda" .) ]]
}

variable "volume" {
  description = "The host volume for the Raft log."
  default     = [[ template "value" (var "controller_volume" .) ]]
}

variable "nomad" {
  description = "The Nomad agent that the controller asks."
  default     = [[ template "value" (var "nomad" .) ]]
}

variable "consul" {
  description = "The Consul agent in which it finds the engines. Empty: CONSUL_HTTP_ADDR of the Nomad client, which must be set then."
  default     = [[ template "value" (var "consul" .) ]]
}

variable "acl" {
  description = "Whether the API wants a token."
  default     = [[ template "value" (var "controller_acl" .) ]]
}

variable "tls" {
  description = "A directory of the node, in the chroot, with ca.pem, server.pem and server-key.pem; empty: no TLS. The certificate bears the DNS name server.remuda and the node's addresses."
  default     = [[ template "value" (var "controller_tls" .) ]]
}

variable "http_port" {
  description = "The port of the API."
  type        = number
  default     = [[ template "value" (var "controller_http_port" .) ]]
}

variable "raft_port" {
  description = "The port on which the servers talk to each other."
  type        = number
  default     = [[ template "value" (var "controller_raft_port" .) ]]
}

job "controller" {
  type = "service"

  # Everything else is started by it.
  priority = 90

  constraint {
    attribute = "${attr.unique.network.ip-address}"
    operator  = "set_contains_any"
    value     = join(",", var.servers)
  }

  constraint {
    distinct_hosts = true
  }

  # One after the other, each only once the one before it has found its leader again.
  update {
    max_parallel      = 1
    health_check      = "checks"
    min_healthy_time  = "5s"
    healthy_deadline  = "5m"
    progress_deadline = "15m"
  }

  group "server" {
    count = length(var.servers)

    network {
      port "http" {
        static = var.http_port
      }

      port "raft" {
        static = var.raft_port
      }
    }

    volume "raft" {
      type   = "host"
      source = var.volume
    }

    restart {
      attempts = 100
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    # A server has its log on its node: another node is no help.
    reschedule {
      attempts  = 0
      unlimited = false
    }

    disconnect {
      lost_after = "24h"
      replace    = false
      reconcile  = "keep_original"
    }

    task "agent" {
      driver = "exec"

      config {
        command = var.remuda
        args    = ["agent", "-config", "${NOMAD_SECRETS_DIR}/agent.hcl"]
      }

      # NOMAD_TOKEN.
      identity {
        env = true
      }

      volume_mount {
        volume      = "raft"
        destination = "/raft"
      }

      template {
        destination = "secrets/agent.hcl"
        # The same in every life; a new one comes with a new version of the job.
        change_mode = "noop"
        data        = <<-EOT
          data_dir         = "/raft"
          bootstrap_expect = ${length(var.servers)}
          join             = ${length(var.servers) == 1 ? "[]" : jsonencode([for s in var.servers : "${s}:${var.raft_port}"])}

          raft {
            bind      = "0.0.0.0:${var.raft_port}"
            advertise = "{{ env "NOMAD_ADDR_raft" }}"
            {{ if nomadVarExists "nomad/jobs/controller" }}{{ with nomadVar "nomad/jobs/controller" }}secret = {{ .raft_secret.Value | toJSON }}{{ end }}{{ end }}
          }

          http {
            bind      = "0.0.0.0:${var.http_port}"
            advertise = "{{ env "NOMAD_ADDR_http" }}"
          }

          acl {
            enabled = ${var.acl}
          }

          nomad {
            address = ${jsonencode(var.nomad)}
          }

          consul {
            address = ${jsonencode(var.consul)}
          }
          %{~if var.tls != ""}

          tls {
            ca_file   = ${jsonencode("${var.tls}/ca.pem")}
            cert_file = ${jsonencode("${var.tls}/server.pem")}
            key_file  = ${jsonencode("${var.tls}/server-key.pem")}
          }
          %{~endif}
        EOT
      }

      service {
        name     = "remuda-controller-api"
        provider = "nomad"
        port     = "http"

        check {
          type            = "http"
          protocol        = var.tls == "" ? "http" : "https"
          tls_skip_verify = true
          path            = "/ready"
          interval        = "2s"
          timeout         = "2s"
        }
      }

      kill_timeout = "10s"

      # Nine tenths of the task's memory, from where on Go collects garbage harder. Change both.
      env {
        GOMEMLIMIT = "460MiB"
      }

      resources {
        cpu    = 500
        memory = 512
      }
    }
  }
}
[[ end ]]
