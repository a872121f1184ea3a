# A failover drill by the calendar: a periodic job that ends the engine of one pair of a model, as a crash
# would, so that it is known that the standby takes over.
#
#   remuda acl token create -role operator -name drill    # where the controller has ACLs
#   nomad var put nomad/jobs/drill token=SECRET
#   nomad job run -var model=llama -var 'crons=["0 10 * * 1"]' jobs/drill.nomad.hcl
#
# Each time it takes the pair that can fail over and has not done so for the longest time. If none can, the
# run fails and nothing is ended. What it prints is in the log of its allocation, and each drill is in
# `remuda decision list`. The streams of the engine break, or are continued by another one where the model
# file says so. With -var drill=false the engine finishes its requests first, and none is lost.
#
# It is not run by anything else: without this job there are no drills.

variable "model" {
  description = "The model whose pairs are drilled."
  default     = "demo"
}

variable "crons" {
  description = "When, as cron expressions."
  type        = list(string)
  default     = ["0 10 * * 1-5"]
}

variable "time_zone" {
  description = "The time zone of the calendar."
  default     = "UTC"
}

variable "drill" {
  description = "Whether the engine ends at once, as after a crash. Otherwise it hands over, and no request is lost."
  type        = bool
  default     = true
}

variable "remuda" {
  description = "The remuda binary."
  default     = "remuda"
}

variable "controller" {
  description = "The controllers' addresses, by commas."
  default     = "http://127.0.0.1:4750"
}

job "drill" {
  type = "batch"

  periodic {
    crons            = var.crons
    time_zone        = var.time_zone
    prohibit_overlap = true
  }

  group "drill" {
    # A drill that fails is a finding, and not repeated.
    restart {
      attempts = 0
      mode     = "fail"
    }

    reschedule {
      attempts  = 0
      unlimited = false
    }

    task "drill" {
      driver = "raw_exec"

      config {
        command = var.remuda
        args    = concat(["failover"], var.drill ? ["-drill"] : [], [var.model])
      }

      template {
        destination = "secrets/token.env"
        env         = true
        data        = <<-EOT
        {{ if nomadVarExists "nomad/jobs/drill" }}{{ with nomadVar "nomad/jobs/drill" }}REMUDA_TOKEN={{ .token }}{{ end }}{{ end }}
        EOT
      }

      env {
        REMUDA_ADDR = var.controller
      }

      resources {
        cpu    = 50
        memory = 64
      }
    }
  }
}
