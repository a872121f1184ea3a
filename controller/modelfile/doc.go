// Package modelfile reads model files: HCL2 in which people say which models they
// want to serve and how. It turns them into state.Model and finds what changed between two of them.
//
//	model "llama-3-8b" {
//	  max        = 4
//	  replicas   = 1
//	  failover   = true
//	  management = "full"
//	  keep_warm  = 1 # WARM replicas beside those that serve
//
//	  continuation       = true # a stream that an engine broke off goes on at another one
//	  pass_authorization = true # engines get the credentials of clients
//
//	  queue { # at each gateway; what is left out is the gateway's own setting
//	    length     = 1024  # requests that wait at most
//	    wait       = "5m"  # how long one waits at most
//	    first_byte = "10m" # how long an engine may take until its answer begins
//	  }
//
//	  idle {
//	    warm = "15m"
//	    cold = "4h"
//	  }
//
//	  update {
//	    surge         = 0     # a replica goes before its successor serves: no spare GPU is needed
//	    min_available = "50%" # of the replicas, at least so many serve meanwhile
//	  }
//
//	  slo { # goals for 95 of 100 requests and tokens, which remuda-capacity and remuda-predictive keep
//	    ttft_p95 = "2s"   # time to the first token
//	    itl_p95  = "50ms" # time between two tokens
//	  }
//
//	  scaling { # the policy of nomad-autoscaler; left out: only people scale the model
//	    strategy            = "remuda-capacity"
//	    evaluation_interval = "10s"
//	    scale_to_zero       = true # this and what follows are keys of the strategy
//	    idle_after          = "5m"
//	  }
//
//	  variant "h100" {
//	    gpu {
//	      model = "NVIDIA H100 80GB HBM3"
//	      count = 1 # or memory = "80GiB", of each: the count follows from the weights
//	      reach = 2 # a WARM replica may wake on either of two
//	    }
//
//	    weights      = "16GiB"
//	    sleep_memory = "1GiB" # what a WARM replica takes of each GPU, or more if it was measured
//	    cost         = 3.5
//	    slots        = 64
//	    job          = "vllm.nomad.hcl" # left out: the one that comes with remuda for the engine
//	    vars         = { weights_dir = "/models/llama-3-8b" }
//	  }
//	}
//
// It guarantees that a file is either read whole or refused with every fault that it
// has, each with its file, line and column, the value found and what was expected;
// that equal models have equal hashes, however their files are formatted; and that the sources of
// a file's models, put together, are the file.
package modelfile
