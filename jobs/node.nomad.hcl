# What runs once on every GPU node: lockd, and the GPU memory service.
#
#   nomad job run jobs/node.nomad.hcl
#
# lockd knows every engine on the node. When an engine's shim dies, lockd kills what is
# left of the engine and removes its registration from Consul, and of a failover pair it
# grants the lock to the other engine. Its state is in a directory of the host, so that
# it outlives this job and reboots. The memory service keeps weights that engines on one
# GPU share. A task that dies comes back in place: lockd finds from its state who holds
# the locks, and the memory service, which is the child of a keeper, gets the weights back
# from it. Engines serve on meanwhile.
#
# To upgrade the memory service without losing the weights, replace the binary and send
# SIGHUP to its task:
#
#   nomad alloc signal -s SIGHUP ALLOC gms
#
# A change of its group in this job restarts it, which frees the memory: the node's engines
# load their weights again. A change of lockd's group restarts lockd alone, and no engine
# notices.
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
