# A failover pair of a model on the simulated engine: a primary and a shadow on two seats
# of one GPU. lockd decides which of them serves.
#
#   nomad job run jobs/failover.nomad.hcl
#   remuda model apply jobs/demo.model.hcl    # the same, placed by the controller
#
# lockd and the GPU memory service of the node must run (jobs/node.nomad.hcl). The primary
# writes the weights into the memory service, the shadow maps the same memory, and both go
# to sleep. lockd grants the pair's lock to the first that asks for it, which wakes and
# serves. When that one dies, lockd makes sure that it and its child processes are gone,
# and grants the lock to the other. The one that died is restarted and becomes the next
# shadow. A pair that is put to sleep (POST /v1/sleep at
# the shim whose engine serves) holds no memory of the GPU until it is woken: the weights
# are with that shim then.
#
# It needs a Nomad >= 1.11.1 whose client has raw_exec enabled, the remuda-device
# plugin configured, and `remuda` on its PATH (or -var remuda=/path/to/remuda).
# `remuda dev` runs this file unchanged, through the controller.

variable "model" {
  description = "What clients name in their requests."
  default     = "demo"
}

variable "gpu" {
  description = "The UUID of the GPU whose first two seats are used. The default is remuda-device's first simulated GPU."
  default     = "GPU-00000000-0000-4000-8000-000000000000"
}

variable "remuda" {
  description = "The remuda binary."
  default     = "remuda"
}

variable "consul" {
  description = "The Consul agent in which the engine is registered. Empty: CONSUL_HTTP_ADDR of the Nomad client, which must be set then."
  default     = ""
}

variable "lock" {
  description = "lockd's socket; auto for that of jobs/node.nomad.hcl."
  default     = "auto"
}

variable "weights" {
  description = "Size of the model's weights."
  default     = "256MiB"
}

variable "gms" {
  description = "Where the engines share their weights: auto for this GPU's socket of jobs/node.nomad.hcl, empty for a copy in each engine."
  default     = "auto"
}

variable "memory" {
  description = "Memory of each engine in MiB, with its weights: more than that and the kernel kills it."
  type        = number
  default     = 1024
}

variable "slots" {
  description = "Requests that an engine processes at once."
  default     = "16"
}

variable "init_delay" {
  description = "How long an engine takes from loaded weights to ready."
  default     = "0s"
}

variable "workers" {
  description = "Whether an engine has a process of its own for each of its GPUs, as engines do that shard their weights."
  type        = bool
  default     = false
}

variable "kv_memory" {
  description = "Memory of the KV cache on each GPU. The engine that serves has it, and a standby takes it when it wakes."
  default     = "0B"
}

variable "context_memory" {
  description = "Memory that an engine takes of each GPU also while it sleeps."
  default     = "0B"
}

variable "teardown" {
  description = "How long an engine that ends by itself still holds its memory."
  default     = "0s"
}

variable "start_budget" {
  description = "How long an engine may take to load its model before it counts as hung."
  default     = "2h"
}

# What the controller gives to a variant's job file. `nomad job run` leaves the
# defaults.
variable "remuda_model" {
  description = "The model's name; empty: the variable model."
  default     = ""
}

variable "remuda_variant" {
  description = "The variant's name."
  default     = "sim"
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

job "failover" {
  type = "service"

  group "replica" {
    count = 1

    network {
      port "primary" {}
      port "primary_shim" {}
      port "shadow" {}
      port "shadow_shim" {}
    }

    # An engine that dies comes back at once, in place, and as often as needed.
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

    # Loading a model takes as long as it takes.
    update {
      healthy_deadline  = "3h"
      progress_deadline = "4h"
      min_healthy_time  = "1s"
    }

    # Writes the weights once per allocation; a restart finds them there.
    task "weights" {
      driver = "raw_exec"

      lifecycle {
        hook    = "prestart"
        sidecar = false
      }

      config {
        command = var.remuda
        args    = ["sim", "weights", "-size", var.weights, "${NOMAD_ALLOC_DIR}/data/remuda/weights.safetensors"]
      }

      resources {
        cpu    = 100
        memory = 128
      }
    }

    task "primary" {
      driver = "raw_exec"

      config {
        command = var.remuda
        args = [
          "engine",
          "-dialect", "sim",
          "-role", "primary",
          "-lock", var.lock,
          "-standby", "warm",
          "-group", var.remuda_replica == "" ? "${local.model}:${var.remuda_variant}:${NOMAD_ALLOC_ID}" : var.remuda_replica,
          "-engine-url", "http://${NOMAD_ADDR_primary}",
          "-listen", "${NOMAD_ADDR_primary_shim}",
          "-consul", var.consul,
          "-slots", local.slots,
          "-init-timeout", var.start_budget,
          "-drain-timeout", "20s",
          "-gms-socket", var.gms,
          "--",
          var.remuda, "sim",
          "-listen", "${NOMAD_ADDR_primary}",
          "-model", local.model,
          "-weights", "${NOMAD_ALLOC_DIR}/data/remuda/weights.safetensors",
          "-gms-socket", var.gms,
          "-max-num-seqs", local.slots,
          "-init-delay", var.init_delay,
          "-start-asleep",
          "-workers=${var.workers}",
          "-kv-memory", var.kv_memory,
          "-context-memory", var.context_memory,
          "-teardown", var.teardown,
        ]
      }

      # The shim drains for up to 20 s and then gives the engine 5 s to end.
      kill_timeout = "30s"

      # The shim registers the engine in Consul, and only while it serves. This
      # service tells Nomad when the engine serves or stands by (ready), and
      # when its shim hangs and must be restarted (live).
      service {
        name     = "remuda-shim"
        provider = "nomad"
        port     = "primary_shim"
        tags     = ["primary"]

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
            grace = "15s"
          }
        }
      }

      resources {
        cpu    = 500
        memory = var.memory

        device "nvidia/gpu" {
          count = max(var.remuda_gpus, var.remuda_reach)

          constraint {
            attribute = "${device.ids}"
            operator  = "set_contains_any"
            value     = "${var.gpu}#0"
          }
        }
      }
    }

    task "shadow" {
      driver = "raw_exec"

      config {
        command = var.remuda
        args = [
          "engine",
          "-dialect", "sim",
          "-role", "shadow",
          "-lock", var.lock,
          "-standby", "warm",
          "-group", var.remuda_replica == "" ? "${local.model}:${var.remuda_variant}:${NOMAD_ALLOC_ID}" : var.remuda_replica,
          "-engine-url", "http://${NOMAD_ADDR_shadow}",
          "-listen", "${NOMAD_ADDR_shadow_shim}",
          "-consul", var.consul,
          "-slots", local.slots,
          "-init-timeout", var.start_budget,
          "-drain-timeout", "20s",
          "-gms-socket", var.gms,
          "--",
          var.remuda, "sim",
          "-listen", "${NOMAD_ADDR_shadow}",
          "-model", local.model,
          "-weights", "${NOMAD_ALLOC_DIR}/data/remuda/weights.safetensors",
          "-gms-socket", var.gms,
          "-max-num-seqs", local.slots,
          "-init-delay", var.init_delay,
          "-start-asleep",
          "-workers=${var.workers}",
          "-kv-memory", var.kv_memory,
          "-context-memory", var.context_memory,
          "-teardown", var.teardown,
        ]
      }

      # The shim drains for up to 20 s and then gives the engine 5 s to end.
      kill_timeout = "30s"

      # The shim registers the engine in Consul, and only while it serves. This
      # service tells Nomad when the engine serves or stands by (ready), and
      # when its shim hangs and must be restarted (live).
      service {
        name     = "remuda-shim"
        provider = "nomad"
        port     = "shadow_shim"
        tags     = ["shadow"]

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
            grace = "15s"
          }
        }
      }

      resources {
        cpu    = 500
        memory = var.memory

        device "nvidia/gpu" {
          count = max(var.remuda_gpus, var.remuda_reach)

          constraint {
            attribute = "${device.ids}"
            operator  = "set_contains_any"
            value     = "${var.gpu}#1"
          }
        }
      }
    }
  }
}
