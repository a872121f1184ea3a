# One replica of a model on the simulated engine, pinned to one seat of one GPU.
#
#   nomad job run jobs/demo.nomad.hcl
#   remuda model apply jobs/single.model.hcl    # the same, placed by the controller
#
# needs a Nomad >= 1.11.1 whose client has raw_exec enabled, the remuda-device
# plugin configured, and `remuda` on its PATH (or -var remuda=/path/to/remuda).
# `remuda dev` runs this file unchanged, through the controller.

variable "model" {
  description = "What clients name in their requests."
  default     = "demo"
}

variable "seat" {
  description = "The device ID to run on: <GPU UUID>#<seat>, as `nomad node status -verbose` lists them. The default is the first seat of remuda-device's first simulated GPU."
  default     = "GPU-00000000-0000-4000-8000-000000000000#0"
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
  description = "lockd's socket; auto for that of jobs/node.nomad.hcl, empty for an engine that lockd does not watch."
  default     = "auto"
}

variable "weights" {
  description = "Size of the weights that the simulated engine loads."
  default     = "256MiB"
}

variable "memory" {
  description = "Memory of the engine in MiB, with its weights: more than that and the kernel kills it."
  type        = number
  default     = 1024
}

variable "slots" {
  description = "Requests that the engine processes at once."
  default     = "16"
}

variable "init_delay" {
  description = "What the simulated engine takes between its weights and its first answer, as real ones do to compile."
  default     = "0s"
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

job "demo" {
  type = "service"

  group "replica" {
    count = 1

    network {
      port "engine" {}
      port "shim" {}
    }

    # An engine that dies comes back at once, in place, and as often as needed.
    restart {
      attempts = 100
      interval = "1m"
      delay    = "250ms"
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
          "-group", var.remuda_replica == "" ? "${local.model}:${var.remuda_variant}:${NOMAD_ALLOC_ID}" : var.remuda_replica,
          "-engine-url", "http://${NOMAD_ADDR_engine}",
          "-listen", "${NOMAD_ADDR_shim}",
          "-lock", var.lock,
          "-consul", var.consul,
          "-slots", local.slots,
          "-drain-timeout", "20s",
          "--",
          var.remuda, "sim",
          "-listen", "${NOMAD_ADDR_engine}",
          "-model", local.model,
          "-weights", "${NOMAD_ALLOC_DIR}/data/remuda/weights.safetensors",
          "-max-num-seqs", local.slots,
          "-init-delay", var.init_delay,
        ]
      }

      # The shim drains for up to 20 s and then gives the engine 5 s to end,
      # together less than this. Nomad caps this at the client's max_kill_timeout (30 s unless it is raised).
      kill_timeout = "30s"

      # The shim itself registers the engine in Consul, and only while it can
      # serve. This service tells Nomad when the allocation is healthy.
      service {
        name     = "remuda-shim"
        provider = "nomad"
        port     = "shim"

        check {
          type     = "http"
          path     = "/ready"
          interval = "1s"
          timeout  = "2s"
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
            value     = var.seat
          }
        }
      }
    }
  }
}
