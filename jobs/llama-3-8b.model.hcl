# Llama 3 8B on vLLM.
#
#   remuda model apply jobs/llama-3-8b.model.hcl
#
# jobs/vllm.nomad.hcl says what a node needs for it.

model "llama-3-8b" {
  min      = 0
  max      = 4
  replicas = 1

  idle {
    warm = "15m"
    cold = "4h"
  }

  variant "h100" {
    gpu {
      model = "NVIDIA H100 80GB HBM3"
      count = 1
    }

    # In bf16. vLLM takes nine tenths of the card for weights and cache, whatever
    # their size, so that is what it costs the ledger.
    weights     = "16GiB"
    memory      = "72GiB"
    host_memory = "24GiB"
    cost        = 3.5
    slots       = 64
    job         = "vllm.nomad.hcl"

    vars = {
      consul                 = "127.0.0.1:8500" # the node's own agent
      weights                = "llama-3-8b"
      gpu_memory_utilization = 0.9
      max_model_len          = 8192
    }
  }

  # Two smaller cards do as well, spread over them. It is preferred where it is
  # cheaper, or where no H100 is free.
  variant "l40s" {
    gpu {
      model = "NVIDIA L40S"
      count = 2
    }

    weights     = "16GiB"
    memory      = "41GiB"
    host_memory = "24GiB"
    cost        = 3.6
    slots       = 32
    job         = "vllm.nomad.hcl"

    vars = {
      consul                 = "127.0.0.1:8500" # the node's own agent
      weights                = "llama-3-8b"
      gpu_memory_utilization = 0.9
      max_model_len          = 8192
    }
  }
}
