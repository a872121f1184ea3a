# The demo model: failover pairs on the simulated engine, each on one GPU.
#
#   remuda model apply jobs/demo.model.hcl
#   remuda scale demo 2
#
# It needs what jobs/failover.nomad.hcl needs. `remuda dev` applies this file as it is.

model "demo" {
  min      = 0
  max      = 16
  replicas = 1
  failover = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "256MiB"
    cost    = 1
    slots   = 16
    engine  = "sim"
    job     = "failover.nomad.hcl"
    vars    = { weights = "256MiB" }
  }
}
