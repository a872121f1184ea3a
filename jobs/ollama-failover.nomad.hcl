# A failover pair of a model on Ollama, a real engine that also runs on a CPU, on two seats of
# one GPU. lockd decides which of the two engines serves.
#
#   nomad job run jobs/ollama-failover.nomad.hcl
#   remuda model apply jobs/tiny-failover.model.hcl    # the same, placed by the controller
#   nomad job run -var gguf=/models/llama.gguf -var model=llama jobs/ollama-failover.nomad.hcl
#
# The standby is cold: Ollama cannot share the memory of its weights, so the shim of the standby
# waits for the pair's lock, and starts Ollama once it has it. When the engine that serves
# dies, lockd first makes sure that it and its runners are gone. A failover takes as long as
# Ollama takes to start and to load the model, whose blobs the first engine has left in the
# allocation's directory.
#
# It needs what jobs/ollama.nomad.hcl needs, and lockd on the node (jobs/node.nomad.hcl).

variable "model" {
  description = "What clients name in their requests."
  default     = "tiny"
}

variable "gguf" {
  description = "The model's GGUF file on the node; empty makes a tiny one."
  default     = ""
}

variable "gpu" {
  description = "The UUID of the GPU whose first two seats are used. The default is remuda-device's first simulated GPU."
  default     = "GPU-00000000-0000-4000-8000-000000000000"
}

variable "remuda" {
  description = "The remuda binary."
  default     = "remuda"
}

variable "ollama" {
  description = "The ollama binary."
  default     = "ollama"
}

variable "consul" {
  description = "The Consul agent in which the engine that serves is registered. Empty: CONSUL_HTTP_ADDR of the Nomad client, which must be set then."
  default     = ""
}

variable "slots" {
  description = "Requests that Ollama processes at once."
  default     = "2"
}

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
  default     = "ollama"
}

variable "remuda_replica" {
  description = "The replica's full name, under which its engines are registered; empty: a name from the allocation's ID."
  default     = ""
}

variable "remuda_gpus" {
  description = "GPUs of an engine."
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

locals {
  model = var.remuda_model == "" ? var.model : var.remuda_model
  slots = var.remuda_slots == 0 ? var.slots : var.remuda_slots
}

job "ollama-failover" {
  type = "service"

  group "replica" {
    count = 1

    network {
      port "primary" {}
      port "primary_shim" {}
      port "shadow" {}
      port "shadow_shim" {}
    }

    restart {
      attempts = 100
      interval = "1m"
      delay    = "250ms"
      mode     = "delay"
    }

    # A node that Nomad cannot reach for a while keeps serving. Nothing replaces
    # its engines meanwhile: lockd guards this GPU, not another node's.
    disconnect {
      lost_after = "6h"
      replace    = false
      reconcile  = "keep_original"
    }

    update {
      healthy_deadline  = "3h"
      progress_deadline = "4h"
      min_healthy_time  = "1s"
    }

    dynamic "task" {
      for_each = var.gguf == "" ? ["model"] : []
      labels   = [task.value]

      content {
        driver = "raw_exec"

        lifecycle {
          hook    = "prestart"
          sidecar = false
        }

        config {
          command = var.remuda
          args    = ["sim", "gguf", "${NOMAD_ALLOC_DIR}/data/remuda/tiny.gguf"]
        }

        resources {
          cpu    = 100
          memory = 64
        }
      }
    }

    dynamic "task" {
      for_each = ["primary", "shadow"]
      labels   = [task.value]

      content {
        driver = "raw_exec"

        config {
          command = var.remuda
          # The tiny model is served fastest by one thread; a real one by all.
          args = concat([
            "engine",
            "-role", task.value,
            "-standby", "cold",
            "-dialect", "ollama",
            "-group", var.remuda_replica == "" ? "${local.model}:${var.remuda_variant}:${NOMAD_ALLOC_ID}" : var.remuda_replica,
            "-model-file", var.gguf == "" ? "${NOMAD_ALLOC_DIR}/data/remuda/tiny.gguf" : var.gguf,
            "-engine-url", "http://$${NOMAD_ADDR_${task.value}}",
            "-listen", "$${NOMAD_ADDR_${task.value}_shim}",
            "-lock", var.lock,
            "-consul", var.consul,
            "-slots", local.slots,
            "-drain-timeout", "20s",
          ], var.gguf == "" ? ["-model-parameter", "num_thread=1"] : [], ["--", var.ollama, "serve"])
        }

        env {
          HOME                = "${NOMAD_TASK_DIR}"
          OLLAMA_HOST         = "$${NOMAD_ADDR_${task.value}}"
          OLLAMA_MODELS       = "${NOMAD_ALLOC_DIR}/data/remuda/ollama"
          OLLAMA_KEEP_ALIVE   = "-1"
          OLLAMA_NUM_PARALLEL = local.slots
          OLLAMA_NOPRUNE      = "1"
          GIN_MODE            = "release"
        }

        # The shim drains for up to 20 s and then gives the engine 5 s to end.
        kill_timeout = "30s"

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
            path     = "/live?startup=2h"
            interval = "5s"
            timeout  = "2s"

            check_restart {
              limit = 3
              grace = "15s"
            }
          }
        }

        resources {
          cpu    = 500
          memory = 1024

          device "nvidia/gpu" {
            count = max(var.remuda_gpus, var.remuda_reach)

            constraint {
              attribute = "${device.ids}"
              operator  = "set_contains_any"
              value     = "${var.gpu}#${task.value == "primary" ? 0 : 1}"
            }
          }
        }
      }
    }
  }
}
