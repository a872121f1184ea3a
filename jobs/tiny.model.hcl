# A tiny model with random weights on Ollama, a real engine that also runs on a CPU.
#
#   remuda model apply jobs/tiny.model.hcl
#
# It needs what jobs/ollama.nomad.hcl needs. `remuda dev -engine ollama` applies this
# file.

model "tiny" {
  min      = 0
  max      = 8
  replicas = 1

  variant "ollama" {
    gpu {
      count = 1
    }

    weights = "1MiB"
    cost    = 1
    slots   = 2
    engine  = "ollama"
    job     = "ollama.nomad.hcl"
  }
}
