# The controller finds the engines and the gateways, and registers itself.

service_prefix "" {
  policy = "read"
}

node_prefix "" {
  policy = "read"
}

service "remuda-controller" {
  policy = "write"
}
