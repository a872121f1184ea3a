# A failover pair of the tiny model on Ollama, in place of jobs/tiny.model.hcl.
#
#   remuda model apply jobs/tiny-failover.model.hcl
#
# It needs what jobs/ollama-failover.nomad.hcl needs.

model "tiny" {
  min      = 0
  max      = 8
  replicas = 1
  failover = true

  variant "ollama" {
    gpu {
      count = 1
    }

    weights = "1MiB"
    cost    = 1
    slots   = 2
    engine  = "ollama"
    job     = "ollama-failover.nomad.hcl"
  }
}
