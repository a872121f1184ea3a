[[- /* Generated from jobs/node.nomad.hcl by `make reference`: do not edit. */ -]]
[[- if has "node" (var "jobs" .) ]]
variable "remuda" {
  description = "The remuda binary."
  default     = [[ template "value" (var "remuda" .) ]]
}

variable "socket_dir" {
  description = "Where the sockets are; the same as gms_socket_dir of the remuda-device plugin."
  default     = [[ template "value" (var "node_socket_dir" .) ]]
}

variable "state_dir" {
  description = "Where lockd keeps its state: a directory on the node's own disk, which outlives reboots."
  default     = [[ template "value" (var "node_state_dir" .) ]]
}

variable "consul" {
  description = "The node's Consul agent, from which dead engines are deregistered. Empty: CONSUL_HTTP_ADDR of the Nomad client, else none."
  default     = [[ template "value" (var "consul" .) ]]
}

variable "memory" {
  description = "Flags of `remuda gms` that say whose memory it shares. The default is all GPUs of the CUDA driver."
  type        = list(string)
  default     = [[ template "value" (var "node_memory" .) ]]
}

job "remuda-node" {
  type = "system"

  # Engines depend on it: it comes first where a node is full.
  priority = 80

  # The controller places replicas only where all tasks of this job run.
  meta {
    remuda_node_job = "true"
  }

  group "lockd" {
    network {
      port "metrics" {}
    }

    restart {
      attempts = 100
      interval = "1m"
      delay    = "100ms"
      mode     = "delay"
    }

    task "lockd" {
      driver = "raw_exec"

      config {
        command = var.remuda
        args = [
          "lockd",
          "-socket", "${var.socket_dir}/lockd.sock",
          "-state", var.state_dir,
          "-consul", var.consul,
          "-metrics", "${NOMAD_ADDR_metrics}",
        ]
      }

      # A lockd that hangs does not answer for its metrics, and is restarted.
      service {
        name     = "remuda-lockd"
        provider = "nomad"
        port     = "metrics"

        check {
          type     = "http"
          path     = "/metrics"
          interval = "5s"
          timeout  = "2s"

          check_restart {
            limit = 2
            grace = "10s"
          }
        }
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }
  }

  group "gms" {
    network {
      port "metrics" {}
    }

    restart {
      attempts = 100
      interval = "1m"
      delay    = "100ms"
      mode     = "delay"
    }

    task "gms" {
      driver = "raw_exec"

      config {
        command = var.remuda
        args = concat([
          "gms",
          "-socket-dir", var.socket_dir,
          "-metrics", "${NOMAD_ADDR_metrics}",
        ], var.memory)
      }

      # The keeper itself replaces a service that hangs.
      service {
        name     = "remuda-gms"
        provider = "nomad"
        port     = "metrics"

        check {
          type     = "http"
          path     = "/metrics"
          interval = "5s"
          timeout  = "2s"
        }
      }

      resources {
        cpu    = 250
        memory = 320
      }
    }
  }
}
[[ end ]]
