# What runs once on every GPU node: lockd, and the GPU memory service.
#
#   nomad job run jobs/node.nomad.hcl
#
# lockd knows every engine on the node. When an engine's shim dies, lockd kills what is
# left of the engine and removes its registration from Consul, and of a failover pair it
# grants the lock to the other engine. Its state is in a directory of the host, so that
# it outlives this job and reboots. The memory service keeps weights that engines on one
# GPU share. A task that dies comes back in place: lockd finds from its state who holds
# the locks, and the memory service finds the weights with its keeper. Engines serve on
# meanwhile.
#
# It needs a Nomad whose client has raw_exec enabled, the CUDA driver, and `remuda` on its
# PATH (or -var remuda=/path/to/remuda). Where the device plugin simulates its GPUs, name
# them and share host memory instead:
#
#   nomad job run -var 'memory=["-backend", "host", "-gpu", "GPU-00000000-0000-4000-8000-000000000000=80GiB"]' jobs/node.nomad.hcl
#
# `remuda dev` runs this file unchanged, in that way.

variable "remuda" {
  description = "The remuda binary."
  default     = "remuda"
}

variable "socket_dir" {
  description = "Where the sockets are; the same as gms_socket_dir of the remuda-device plugin."
  default     = "/run/remuda"
}

variable "state_dir" {
  description = "Where lockd keeps its state: a directory on the node's own disk, which outlives reboots."
  default     = "/var/lib/remuda/lockd"
}

variable "consul" {
  description = "The node's Consul agent, from which dead engines are deregistered. Empty: CONSUL_HTTP_ADDR of the Nomad client, else none."
  default     = ""
}

variable "memory" {
  description = "Flags of `remuda gms` that say whose memory it shares. The default is all GPUs of the CUDA driver."
  type        = list(string)
  default     = ["-backend", "cuda"]
}

job "remuda-node" {
  type = "system"

  # Engines depend on it: it comes first where a node is full.
  priority = 80

  group "node" {
    network {
      port "lockd" {}
      port "gms" {}
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
          "-metrics", "${NOMAD_ADDR_lockd}",
        ]
      }

      # A lockd that hangs is restarted: it answers for its metrics from the locks' state.
      service {
        name     = "remuda-lockd"
        provider = "nomad"
        port     = "lockd"

        check {
          type     = "http"
          path     = "/metrics"
          interval = "5s"
          timeout  = "2s"

          check_restart {
            limit = 3
            grace = "10s"
          }
        }
      }

      resources {
        cpu    = 100
        memory = 128
      }
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
          "-metrics", "${NOMAD_ADDR_gms}",
        ], var.memory)
      }

      service {
        name     = "remuda-gms"
        provider = "nomad"
        port     = "gms"

        check {
          type     = "http"
          path     = "/metrics"
          interval = "5s"
          timeout  = "2s"

          check_restart {
            limit = 3
            grace = "10s"
          }
        }
      }

      resources {
        cpu    = 200
        memory = 256
      }
    }
  }
}
