# The GPU memory service of every node: engines on one GPU share its weights.
#
#   nomad job run jobs/gms.nomad.hcl
#
# One service per node, with a socket for each GPU and tag. A service that dies
# comes back in place and finds the committed weights with its keeper; engines that
# have them mapped lose nothing.
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

    # Holds a descriptor of every committed allocation, so that the memory outlives
    # the service.
    task "keeper" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = true
      }

      config {
        command = var.remuda
        args    = ["gms", "keeper", "-socket", "${var.socket_dir}/keeper.sock"]
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }

    task "gms" {
      driver = "raw_exec"

      config {
        command = var.remuda
        args = concat([
          "gms",
          "-socket-dir", var.socket_dir,
          "-keeper", "${var.socket_dir}/keeper.sock",
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
        cpu    = 200
        memory = 256
      }
    }
  }
}
