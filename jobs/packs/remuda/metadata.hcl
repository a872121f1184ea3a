app {
  url = "https://github.com/hashicorp/nomad"
}

pack {
  name        = "remuda"
  description = "GPU inference scheduler: controller, gateway, the services of GPU nodes, and nomad-autoscaler with its plugin."
  version     = "0.1.0"
}
