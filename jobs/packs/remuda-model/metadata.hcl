app {
  url = "https://github.com/hashicorp/nomad"
}

pack {
  name        = "remuda_model"
  description = "A model on vLLM, SGLang or Ollama, as single engines or failover pairs, applied to remuda's controller."
  version     = "0.1.0"
}
