# The GPU memory service of every node: engines on one GPU share its weights.
#
#   nomad job run jobs/gms.nomad.hcl
#
# One service per node, as the child of a keeper. A service that dies or hangs comes
# back in place with the committed weights; engines that have them mapped lose
# nothing. To upgrade it without losing the weights, replace the binary and send
# SIGHUP to the task:
#
#   nomad alloc signal -s SIGHUP ALLOC gms
#
# A change of this job restarts the task, which frees the memory: the node's engines
# load their weights again.
#
# It needs a Nomad whose client has raw_exec enabled, the CUDA driver, and `remuda`
# on its PATH (or -var remuda=/path/to/remuda). Where the device plugin simulates
# its GPUs, name them and share host memory instead:
#
#   nomad job run -var 'memory=["-backend", "host", "-gpu", "GPU-00000000-0000-4000-8000-000000000000=80GiB"]' jobs/gms.nomad.hcl
#
# `remuda dev` runs this file unchanged, in that way.

variable "remuda" {
  description = "The remuda binary."
  default     = "remuda"
}

variable "socket_dir" {
  description = "Where the sockets are; the same as gms_socket_dir of the remuda-device plugin."
  default     = "/run/remuda/gms"
}

variable "memory" {
  description = "Flags of `remuda gms` that say whose memory it shares. The default is all GPUs of the CUDA driver."
  type        = list(string)
  default     = ["-backend", "cuda"]
}

job "gms" {
  type = "system"

  # Engines depend on it: it comes first where a node is full.
  priority = 80

  group "node" {
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
