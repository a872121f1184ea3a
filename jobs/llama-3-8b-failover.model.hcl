# Llama 3 8B in failover pairs on vLLM, in place of jobs/llama-3-8b.model.hcl.
#
#   remuda model apply jobs/llama-3-8b-failover.model.hcl
#
# jobs/vllm-failover.nomad.hcl says what a node needs for it, and what its standby is.

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

    # Of the engine that serves: a cold standby has no memory. With gms = true a pair also has
    # the contexts of the standby, and it keeps its weights on the card while it is WARM:
    # sleep_memory = "20GiB".
    weights     = "16GiB"
    memory      = "72GiB"
    host_memory = "24GiB"
    cost        = 3.5
    slots       = 64
    job         = "vllm-failover.nomad.hcl"

    vars = {
      consul                 = "127.0.0.1:8500" # the node's own agent
      weights                = "llama-3-8b"
      gpu_memory_utilization = 0.9
      max_model_len          = 8192
    }
  }
}
