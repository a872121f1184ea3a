# One replica of a model on SGLang, in Docker, pinned to one seat of each of its GPUs.
#
#   remuda model apply jobs/llama-3-8b-sglang.model.hcl
#   nomad job run -var weights=llama-3-8b -var model=llama-3-8b -var 'seats=GPU-…#0' jobs/sglang.nomad.hcl
#
# The node needs: Nomad >= 1.11.1 with the Docker driver and `volumes { enabled =
# true }` in its plugin block (for the mount of the shim), the NVIDIA container
# toolkit, the remuda-device plugin, the remuda binary at var.remuda, and a host
# volume with the weights, read by SGLang from a directory in the format of Hugging
# Face:
#
#   client {
#     host_volume "models" {
#       path      = "/srv/models"
#       read_only = true
#     }
#   }
#
# It can be WARM: SGLang releases its GPU memory and keeps the weights in host memory
# (--enable-memory-saver, --enable-weights-cpu-backup). It needs a version of 2026, whose
# GET /v1/loads reports what it works on.

variable "lock" {
  description = "lockd's socket; auto for that of jobs/node.nomad.hcl, empty for an engine that lockd does not watch."
  default     = "auto"
}

# What the controller gives to a variant's job file. `nomad job run` leaves the
# defaults.
variable "remuda_model" {
  description = "The model's name; empty: the variable model."
  default     = ""
}

variable "remuda_variant" {
  description = "The variant's name."
  default     = "sglang"
}

variable "remuda_replica" {
  description = "The replica's full name, under which the engine is registered; empty: a name from the allocation's ID."
  default     = ""
}

variable "remuda_gpus" {
  description = "GPUs of the engine; the model is spread over them (tensor parallelism)."
  type        = number
  default     = 1
}

variable "remuda_reach" {
  description = "GPUs on which an engine has a seat; 0: remuda_gpus. A sleeping engine that can move may wake on others of them."
  type        = number
  default     = 0
}

variable "remuda_slots" {
  description = "Requests that the engine processes at once; 0: the variable slots."
  type        = number
  default     = 0
}

variable "model" {
  description = "What clients name in their requests."
  default     = "llama-3-8b"
}

variable "weights" {
  description = "The model's directory in the volume."
  default     = "llama-3-8b"
}

variable "volume" {
  description = "The host volume that holds the weights."
  default     = "models"
}

variable "image" {
  description = "SGLang's image. The shim needs a glibc of 2.34 or newer in it."
  default     = "lmsysorg/sglang:v0.5.17"
}

variable "seats" {
  description = "The device IDs to run on, <GPU UUID>#<seat> separated by commas; the controller sets them."
  default     = "GPU-00000000-0000-4000-8000-000000000000#0"
}

variable "remuda" {
  description = "The full path of the remuda binary on the node."
  default     = "/usr/local/bin/remuda"
}

variable "consul" {
  description = "The node's Consul agent, in which the engine is registered, such as 127.0.0.1:8500. It must be set."
  default     = ""
}

variable "slots" {
  description = "Requests that SGLang processes at once (--max-running-requests)."
  default     = "64"
}

variable "mem_fraction_static" {
  description = "SGLang's share of each GPU's memory for weights and KV cache. It takes some more for activations and CUDA graphs: the memory in the model file is all of it."
  default     = "0.85"
}

variable "context_length" {
  description = "The longest context in tokens; empty: the model's own."
  default     = ""
}

variable "extra_args" {
  description = "More arguments of sglang.launch_server."
  type        = list(string)
  default     = []
}

variable "cpu" {
  description = "MHz."
  default     = 8000
}

variable "memory" {
  description = "MiB of host memory: a sleeping SGLang keeps its weights there."
  default     = 32768
}

variable "start_budget" {
  description = "How long SGLang may take to load its model before it counts as hung."
  default     = "2h"
}

locals {
  model = var.remuda_model == "" ? var.model : var.remuda_model
  slots = var.remuda_slots == 0 ? var.slots : var.remuda_slots
}

job "sglang" {
  type = "service"

  group "replica" {
    count = 1

    network {
      port "engine" {}
      port "shim" {}
    }

    volume "weights" {
      type      = "host"
      source    = var.volume
      read_only = true
    }

    # An engine that dies comes back in place, where the image and the compiled
    # kernels are.
    restart {
      attempts = 100
      interval = "10m"
      delay    = "1s"
      mode     = "delay"
    }

    # A node that Nomad cannot reach for a while keeps serving. Nothing replaces
    # its engine meanwhile: two must never hold one GPU's seat.
    disconnect {
      lost_after = "6h"
      replace    = false
      reconcile  = "keep_original"
    }

    # Loading a model takes as long as it takes.
    update {
      healthy_deadline  = "3h"
      progress_deadline = "4h"
      min_healthy_time  = "1s"
    }

    task "primary" {
      driver = "docker"

      config {
        image              = var.image
        image_pull_timeout = "30m"
        entrypoint         = ["/usr/local/bin/remuda"]
        # The engine is reached at the port that Nomad chose, on the host's address.
        network_mode = "host"
        # SGLang's processes talk through shared memory; Docker's 64 MiB are too few.
        shm_size = 8589934592
        # Ends what the workers leave behind.
        init = true

        args = concat([
          "engine",
          "-dialect", "sglang",
          "-role", "primary",
          "-group", var.remuda_replica == "" ? "${local.model}:${var.remuda_variant}:${NOMAD_ALLOC_ID}" : var.remuda_replica,
          "-engine-url", "http://${NOMAD_ADDR_engine}",
          "-listen", "${NOMAD_ADDR_shim}",
          "-lock", var.lock,
          "-consul", var.consul,
          "-slots", local.slots,
          "-init-timeout", var.start_budget,
          "-drain-timeout", "20s",
          "--",
          "python3", "-m", "sglang.launch_server",
          "--model-path", "/models/${var.weights}",
          "--served-model-name", local.model,
          "--host", "${NOMAD_IP_engine}",
          "--port", "${NOMAD_PORT_engine}",
          "--tp-size", format("%d", var.remuda_gpus),
          "--max-running-requests", local.slots,
          "--mem-fraction-static", var.mem_fraction_static,
          "--enable-memory-saver",
          "--enable-weights-cpu-backup",
          "--enable-metrics",
        ], var.context_length == "" ? [] : ["--context-length", var.context_length], var.extra_args)

        mount {
          type     = "bind"
          source   = var.remuda
          target   = "/usr/local/bin/remuda"
          readonly = true
        }
      }

      volume_mount {
        volume      = "weights"
        destination = "/models"
        read_only   = true
      }

      # SGLang's own routes, such as those that release its memory, are open to every client
      # that reaches the engine's port: keep it inside the cluster.
      env {
        HF_HUB_OFFLINE = "1"
      }

      # The shim drains for up to 20 s and then gives SGLang 5 s to end, together less
      # than this. Nomad caps this at the client's max_kill_timeout (30 s unless it is
      # raised).
      kill_timeout = "30s"

      # The shim itself registers the engine in Consul, and only while it can
      # serve. This service tells Nomad when the engine serves (ready), and when its
      # shim hangs and must be restarted (live).
      service {
        name     = "remuda-shim"
        provider = "nomad"
        port     = "shim"

        check {
          name     = "ready"
          type     = "http"
          path     = "/ready"
          interval = "1s"
          timeout  = "2s"
        }

        check {
          name     = "live"
          type     = "http"
          path     = "/live?startup=${var.start_budget}"
          interval = "5s"
          timeout  = "2s"

          check_restart {
            limit = 3
            grace = "60s"
          }
        }
      }

      resources {
        cpu    = var.cpu
        memory = var.memory

        device "nvidia/gpu" {
          count = max(var.remuda_gpus, var.remuda_reach)

          constraint {
            attribute = "${device.ids}"
            operator  = "set_contains_any"
            value     = var.seats
          }
        }
      }
    }
  }
}
