# The demo model with one engine to a replica and no shadow, so that two replicas fit
# on a GPU. `remuda dev -single` applies this file.
#
#   remuda model apply jobs/single.model.hcl
#
# It needs what jobs/demo.nomad.hcl needs.

model "demo" {
  min      = 0
  max      = 32
  replicas = 1

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "256MiB"
    cost    = 1
    slots   = 16
    engine  = "sim"
    job     = "demo.nomad.hcl"
    vars    = { weights = "256MiB" }
  }
}
