# The plugin of nomad-autoscaler finds the engines.

service_prefix "" {
  policy = "read"
}

node_prefix "" {
  policy = "read"
}
