# Llama 3 8B in failover pairs on SGLang, in place of jobs/llama-3-8b.model.hcl.
#
#   remuda model apply jobs/llama-3-8b-sglang-failover.model.hcl
#
# jobs/sglang-failover.nomad.hcl says what a node needs for it, and what its standby is.

model "llama-3-8b" {
  min      = 0
  max      = 4
  replicas = 1
  failover = true

  idle {
    warm = "15m"
    cold = "4h"
  }

  variant "h100" {
    gpu {
      model = "NVIDIA H100 80GB HBM3"
      count = 1
    }

    # In bf16, of the engine that serves: a cold standby has no memory. SGLang takes its
    # share of the card for weights and KV cache, whatever their size, and some more for
    # activations and CUDA graphs.
    weights     = "16GiB"
    memory      = "74GiB"
    host_memory = "24GiB"
    cost        = 3.5
    slots       = 64
    engine      = "sglang"
    job         = "sglang-failover.nomad.hcl"

    # What stays on the card while it sleeps: CUDA's contexts and graphs.
    sleep_memory = "4GiB"

    vars = {
      consul              = "127.0.0.1:8500" # the node's own agent
      weights             = "llama-3-8b"
      mem_fraction_static = 0.85
      context_length      = 8192
    }
  }
}
