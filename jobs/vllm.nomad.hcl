# One replica of a model on vLLM, in Docker, pinned to one seat of each of its GPUs.
#
#   remuda model apply jobs/llama-3-8b.model.hcl
#   nomad job run -var weights=llama-3-8b -var model=llama-3-8b -var 'seats=GPU-…#0' jobs/vllm.nomad.hcl
#
# The node needs: Nomad >= 1.11.1 with the Docker driver and `volumes { enabled =
# true }` in its plugin block (for the mount of the shim), the NVIDIA container
# toolkit, the remuda-device plugin, the remuda binary at var.remuda, and a host
# volume with the weights, read by vLLM from a directory in the format of Hugging
# Face:
#
#   client {
#     host_volume "models" {
#       path      = "/srv/models"
#       read_only = true
#     }
#   }
#
# This is a single engine and not a failover pair: a vLLM that starts takes its whole
# share of the GPU's memory before it can sleep, and refuses to start where another
# one has it (vllm#20305). A pair needs engines that share their weights and leave
# the cache to the one that wakes, as those patched for the GPU memory service.

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
  default     = "vllm"
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
  description = "vLLM's image. The shim needs a glibc of 2.34 or newer in it."
  default     = "vllm/vllm-openai:v0.11.0"
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

variable "consul_ca" {
  description = "A PEM file in the container with the CA of Consul's certificate, where the agent's address is https://…, as /etc/remuda-tls/consul-ca.pem with tls; empty: the system's."
  default     = ""
}

variable "tls" {
  description = "A directory of the node with engine.pem and engine-key.pem, /etc/remuda-tls in the container: the engine is also served over TLS, for gateways with engine_tls; empty: not."
  default     = ""
}

variable "slots" {
  description = "Requests that vLLM processes at once (--max-num-seqs)."
  default     = "64"
}

variable "gpu_memory_utilization" {
  description = "vLLM's share of each GPU's memory. The memory in the model file is the same in bytes."
  default     = "0.90"
}

variable "max_model_len" {
  description = "The longest context in tokens; empty: the model's own."
  default     = ""
}

variable "extra_args" {
  description = "More arguments of vllm serve."
  type        = list(string)
  default     = []
}

variable "cpu" {
  description = "MHz."
  default     = 8000
}

variable "memory" {
  description = "MiB of host memory: a sleeping vLLM keeps its weights there."
  default     = 32768
}

variable "start_budget" {
  description = "How long vLLM may take to load its model before it counts as hung."
  default     = "2h"
}

locals {
  model = var.remuda_model == "" ? var.model : var.remuda_model
  slots = var.remuda_slots == 0 ? var.slots : var.remuda_slots
}

job "vllm" {
  type = "service"

  group "replica" {
    count = 1

    network {
      port "engine" {}
      port "tls" {}
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
        # vLLM's workers talk through shared memory; Docker's 64 MiB are too few.
        shm_size = 8589934592
        # Ends what the workers leave behind.
        init = true

        args = concat([
          "engine",
          "-role", "primary",
          "-group", var.remuda_replica == "" ? "${local.model}:${var.remuda_variant}:${NOMAD_ALLOC_ID}" : var.remuda_replica,
          "-engine-url", "http://${NOMAD_ADDR_engine}",
          "-listen", "${NOMAD_ADDR_shim}",
          "-lock", var.lock,
          "-consul", var.consul,
          "-slots", local.slots,
          "-init-timeout", var.start_budget,
          "-drain-timeout", "20s",
          ], var.tls == "" ? [] : [
          "-tls-listen", "${NOMAD_ADDR_tls}",
          "-tls-cert", "/etc/remuda-tls/engine.pem",
          "-tls-key", "/etc/remuda-tls/engine-key.pem",
          ], [
          "--",
          "vllm", "serve", "/models/${var.weights}",
          "--served-model-name", local.model,
          "--host", "${NOMAD_IP_engine}",
          "--port", "${NOMAD_PORT_engine}",
          "--tensor-parallel-size", format("%d", var.remuda_gpus),
          "--max-num-seqs", local.slots,
          "--gpu-memory-utilization", var.gpu_memory_utilization,
          "--enable-sleep-mode",
        ], var.max_model_len == "" ? [] : ["--max-model-len", var.max_model_len], var.extra_args)

        volumes = var.tls == "" ? [] : ["${var.tls}:/etc/remuda-tls:ro"]

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

      env {
        # Without it vLLM has no /sleep, /wake_up and /is_sleeping. These routes are
        # open to every client that reaches the engine's port: keep it inside the cluster.
        VLLM_SERVER_DEV_MODE = "1"
        # What was compiled outlives a restart.
        VLLM_CACHE_ROOT = "${NOMAD_ALLOC_DIR}/data/remuda/vllm"
        HF_HUB_OFFLINE  = "1"
        DO_NOT_TRACK    = "1"
        CONSUL_CACERT   = var.consul_ca
      }

      # The shim drains for up to 20 s and then gives vLLM 5 s to end, together less
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
