# A failover pair of a model on vLLM, in Docker, on two seats of each of its GPUs. lockd
# decides which of the two engines serves.
#
#   remuda model apply jobs/llama-3-8b-failover.model.hcl
#   nomad job run -var weights=llama-3-8b -var model=llama-3-8b -var gpus=GPU-… jobs/vllm-failover.nomad.hcl
#
# It needs what jobs/vllm.nomad.hcl needs, and lockd on the node (jobs/node.nomad.hcl).
#
# With any vLLM the standby is cold: its shim waits for the pair's lock, and starts vLLM once
# it has it. A vLLM that starts takes its whole share of the GPU's memory before it can
# sleep, and refuses to start where another one has it (vllm#20305), so no vLLM may run beside
# the one that serves. When that one dies, lockd first makes sure that it and its workers are
# gone, and with them their memory. A failover takes as long as vLLM takes to load the model;
# what was compiled is found in the allocation's directory.
#
# With gms = true the standby is warm, for a vLLM with the client of NVIDIA Dynamo's GPU Memory
# Service in its image (lib/gpu_memory_service of github.com/ai-dynamo/dynamo, commit
# 008c6d0a692b of 2026: integrations/vllm/worker.py and model_loader.py,
# integrations/common/utils.py, examples/shadow_failover). Both engines load with
# --load-format gms: the primary writes the weights into the service, or reads them there
# after a restart, and the shadow only reads (gms_read_only), so that two that start at once
# never wait for each other. Each has a scratch KV cache until it wakes
# (DYN_GMS_SCRATCH_KV_ENABLED): the KV cache of a standby takes no memory that the engine that
# serves needs. The service is that of jobs/node.nomad.hcl; the device plugin mounts its sockets
# (gms_socket_dir) into the containers. A GPU can have one such pair. No such pair has run on a GPU yet.

variable "lock" {
  description = "lockd's socket; auto for that of jobs/node.nomad.hcl."
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
  description = "The replica's full name, under which its engines are registered; empty: a name from the allocation's ID."
  default     = ""
}

variable "remuda_gpus" {
  description = "GPUs of an engine; the model is spread over them (tensor parallelism)."
  type        = number
  default     = 1
}

variable "remuda_reach" {
  description = "GPUs on which an engine has a seat; 0: remuda_gpus. A sleeping engine that can move may wake on others of them."
  type        = number
  default     = 0
}

variable "remuda_slots" {
  description = "Requests that an engine processes at once; 0: the variable slots."
  type        = number
  default     = 0
}

variable "gms" {
  description = "Whether the engines share their weights through a GPU memory service and the standby is warm. Only for a vLLM with Dynamo's client of it."
  type        = bool
  default     = false
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

variable "gpus" {
  description = "UUIDs of the GPUs, separated by commas; the pair has the first two seats of each. The controller sets the seats."
  default     = "GPU-00000000-0000-4000-8000-000000000000"
}

variable "remuda" {
  description = "The full path of the remuda binary on the node."
  default     = "/usr/local/bin/remuda"
}

variable "consul" {
  description = "The node's Consul agent, in which the engine that serves is registered, such as 127.0.0.1:8500. It must be set."
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
  description = "More arguments of vllm serve, of both engines: a port in them would be in use twice."
  type        = list(string)
  default     = []
}

variable "cpu" {
  description = "MHz of each engine."
  default     = 8000
}

variable "memory" {
  description = "MiB of host memory of each engine: a sleeping vLLM keeps its weights there, unless gms has them."
  default     = 32768
}

variable "start_budget" {
  description = "How long vLLM may take to load its model before it counts as hung."
  default     = "2h"
}

locals {
  model = var.remuda_model == "" ? var.model : var.remuda_model
  slots = var.remuda_slots == 0 ? var.slots : var.remuda_slots

  # What the GPU memory service needs of each engine.
  gms = {
    primary = ["--load-format", "gms", "--worker-cls", "gpu_memory_service.integrations.vllm.worker:GMSWorker"]
    shadow = ["--load-format", "gms", "--worker-cls", "gpu_memory_service.integrations.vllm.worker:GMSWorker",
    "--model-loader-extra-config", "{\"gms_read_only\": true}"]
  }
}

job "vllm-failover" {
  type = "service"

  group "replica" {
    count = 1

    network {
      port "primary" {}
      port "primary_shim" {}
      port "primary_nixl" {}
      port "shadow" {}
      port "shadow_shim" {}
      port "shadow_nixl" {}
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
    # its engines meanwhile: lockd guards this GPU, not another node's.
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

    dynamic "task" {
      for_each = ["primary", "shadow"]
      labels   = [task.value]

      content {
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
            "-role", task.value,
            "-standby", var.gms ? "warm" : "cold",
            "-group", var.remuda_replica == "" ? "${local.model}:${var.remuda_variant}:${NOMAD_ALLOC_ID}" : var.remuda_replica,
            "-engine-url", "http://$${NOMAD_ADDR_${task.value}}",
            "-listen", "$${NOMAD_ADDR_${task.value}_shim}",
            "-lock", var.lock,
            "-consul", var.consul,
            "-slots", local.slots,
            "-init-timeout", var.start_budget,
            "-drain-timeout", "20s",
            "--",
            "vllm", "serve", "/models/${var.weights}",
            "--served-model-name", local.model,
            "--host", "$${NOMAD_IP_${task.value}}",
            "--port", "$${NOMAD_PORT_${task.value}}",
            "--tensor-parallel-size", format("%d", var.remuda_gpus),
            "--max-num-seqs", local.slots,
            "--gpu-memory-utilization", var.gpu_memory_utilization,
            "--enable-sleep-mode",
          ], var.gms ? local.gms[task.value] : [], var.max_model_len == "" ? [] : ["--max-model-len", var.max_model_len], var.extra_args)

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
          # Both engines are in the host's network: a KV connector has a port of its own.
          VLLM_NIXL_SIDE_CHANNEL_PORT = "$${NOMAD_PORT_${task.value}_nixl}"
          # An engine has the memory of its KV cache once it wakes.
          DYN_GMS_SCRATCH_KV_ENABLED = var.gms ? "1" : "0"
        }

        # The shim drains for up to 20 s and then gives vLLM 5 s to end, together less
        # than this. Nomad caps this at the client's max_kill_timeout (30 s unless it is
        # raised).
        kill_timeout = "30s"

        # The shim itself registers the engine in Consul, and only while it serves. This
        # service tells Nomad when the engine serves or stands by (ready), and when its
        # shim hangs and must be restarted (live).
        service {
          name     = "remuda-shim"
          provider = "nomad"
          port     = "${task.value}_shim"
          tags     = [task.value]

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
              value     = join(",", [for gpu in split(",", var.gpus) : "${gpu}#${task.value == "primary" ? 0 : 1}"])
            }
          }
        }
      }
    }
  }
}
