variable "model" {
  description = "What clients name in their requests."
  type        = string
}

variable "engine" {
  description = "vllm, sglang, ollama, or sim, the simulated engine."
  type        = string
  default     = "vllm"
}

variable "job" {
  description = "The full path of a job file on the nodes in place of the one that comes with remuda for the engine, as \"remuda model render\" prints it; empty: that one."
  type        = string
  default     = ""
}

variable "failover" {
  description = "Whether each replica has a second engine that takes over when one dies."
  type        = bool
  default     = false
}

variable "weights" {
  description = "The size of the weights, such as 16GiB."
  type        = string
}

variable "memory" {
  description = "What an engine takes of each GPU, such as 72GiB; empty: from weights."
  type        = string
  default     = ""
}

variable "host_memory" {
  description = "Host memory of an engine; empty: from weights."
  type        = string
  default     = ""
}

variable "gpus" {
  description = "GPUs of an engine."
  type        = number
  default     = 1
}

variable "gpu_model" {
  description = "The name of the device group of these GPUs, such as NVIDIA H100 80GB HBM3; empty: any."
  type        = string
  default     = ""
}

variable "slots" {
  description = "Requests that an engine processes at once; 0: the job file's."
  type        = number
  default     = 0
}

variable "replicas" {
  description = "How many replicas a new model begins with."
  type        = number
  default     = 1
}

variable "min" {
  description = "The least number of replicas."
  type        = number
  default     = 0
}

variable "max" {
  description = "The largest number of replicas; 0: replicas."
  type        = number
  default     = 0
}

variable "idle_warm" {
  description = "After how long without requests the weights go to host memory, such as 15m; empty: never."
  type        = string
  default     = ""
}

variable "idle_cold" {
  description = "After how long without requests a replica stops, such as 4h; empty: never."
  type        = string
  default     = ""
}

variable "vars" {
  description = "Values of the variables of the engine's job file, such as {weights = \"llama-3-8b\", consul = \"127.0.0.1:8500\"}."
  type        = map(string)
  default     = {}
}

variable "controller" {
  description = "URLs of the controller's servers, separated by commas; empty: REMUDA_ADDR of the Nomad client, else http://127.0.0.1:4750."
  type        = string
  default     = ""
}

variable "remuda" {
  description = "The remuda binary on the nodes."
  type        = string
  default     = "/usr/local/bin/remuda"
}
