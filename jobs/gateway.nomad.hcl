# The gateway: where clients send their requests.
#
#   nomad job run -var 'controllers=["http://10.0.0.1:4750", "http://10.0.0.2:4750", "http://10.0.0.3:4750"]' jobs/gateway.nomad.hcl
#
# It finds the engines through the Consul agent of its node, and serves on while the
# controller is away. It needs a Nomad >= 1.11.1 whose client has raw_exec enabled, and
# `remuda` on its PATH (or -var remuda=/path/to/remuda).
#
# Where the controller has ACLs, put a token of the role gateway where the job finds
# it:
#
#   nomad var put nomad/jobs/gateway token=…

variable "count" {
  description = "How many gateways, each on a node of its own."
  type        = number
  default     = 1
}

variable "port" {
  description = "The port for clients."
  type        = number
  default     = 8080
}

variable "advertise" {
  description = "The URL at which the controller reaches the gateways, for the chat of its web page; empty: each one's address. With TLS, a name that the certificate bears."
  default     = ""
}

variable "operator_port" {
  description = "The port for operators, at the address of the node: /metrics, /live and /ready."
  type        = number
  default     = 4752
}

variable "remuda" {
  description = "The remuda binary."
  default     = "remuda"
}

variable "consul" {
  description = "The Consul agent that knows the engines. Empty: CONSUL_HTTP_ADDR of the Nomad client, which must be set then."
  default     = ""
}

variable "controllers" {
  description = "URLs of the controller's servers; empty: there is no controller."
  type        = list(string)
  default     = []
}

variable "ca_cert" {
  description = "A PEM file with the CA of the controller's certificate; empty: the system's."
  default     = ""
}

variable "tls_cert" {
  description = "A PEM file on the node with the certificate for clients; empty: plain HTTP."
  default     = ""
}

variable "tls_key" {
  description = "The PEM file with the certificate's private key."
  default     = ""
}

variable "engine_ca" {
  description = "A PEM file on the node with the CA of the engines' certificates: the gateway speaks TLS with engines; empty: plain HTTP."
  default     = ""
}

job "gateway" {
  type = "service"

  # Every request passes through it.
  priority = 80

  constraint {
    distinct_hosts = true
  }

  update {
    max_parallel     = 1
    health_check     = "checks"
    min_healthy_time = "5s"
    healthy_deadline = "2m"
  }

  group "gateway" {
    count = var.count

    network {
      port "http" {
        static = var.port
      }
      port "operators" {
        static = var.operator_port
      }
    }

    restart {
      attempts = 100
      interval = "1m"
      delay    = "250ms"
      mode     = "delay"
    }

    task "gateway" {
      driver = "raw_exec"

      config {
        command = var.remuda
        args    = ["gateway", "-config", "${NOMAD_TASK_DIR}/gateway.hcl", "-operator-listen", "${NOMAD_ADDR_operators}"]
      }

      # A new token comes with a restart.
      template {
        destination = "local/gateway.hcl"
        perms       = "600"
        data        = <<-EOT
          listen    = "0.0.0.0:${var.port}"
          advertise = ${jsonencode(var.advertise)}

          consul {
            address = ${jsonencode(var.consul)}
          }

          timeouts {
            # Load balancers see that /ready says 503 before connections are refused.
            lame_duck = "3s"
            drain     = "22s"
          }
          %{~if var.tls_cert != ""}

          tls {
            cert = ${jsonencode(var.tls_cert)}
            key  = ${jsonencode(var.tls_key)}
          }
          %{~endif}
          %{~if var.engine_ca != ""}

          engine_tls {
            ca_cert = ${jsonencode(var.engine_ca)}
          }
          %{~endif}
          %{~if length(var.controllers) > 0}

          controller {
            addresses = ${jsonencode(var.controllers)}
            ca_cert   = ${jsonencode(var.ca_cert)}
            {{ if nomadVarExists "nomad/jobs/gateway" }}{{ with nomadVar "nomad/jobs/gateway" }}token = {{ .token.Value | toJSON }}{{ end }}{{ end }}
          }
          %{~endif}
        EOT
      }

      # Longer than lame_duck and drain together. Nomad caps this at the client's
      # max_kill_timeout (30 s unless it is raised).
      kill_timeout = "30s"

      service {
        name     = "remuda-gateway"
        provider = "nomad"
        port     = "http"

        check {
          type            = "http"
          protocol        = var.tls_cert == "" ? "http" : "https"
          tls_skip_verify = true # the certificate is for the name that clients use
          path            = "/ready"
          interval        = "2s"
          timeout         = "2s"
        }
      }

      # limits.buffered (192 MiB by default) and what else requests hold must fit the memory. With
      # GOGC the collector runs a quarter as often below that limit, which saves CPU.
      env {
        GOMEMLIMIT = "448MiB"
        GOGC       = "400"
      }

      resources {
        cpu    = 1000
        memory = 512
      }
    }
  }
}
