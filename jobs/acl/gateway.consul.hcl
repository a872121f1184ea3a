# A gateway finds the engines, and registers itself. By the agent's name it prefers engines on its own node.

service_prefix "" {
  policy = "read"
}

node_prefix "" {
  policy = "read"
}

agent_prefix "" {
  policy = "read"
}

service "remuda-gateway" {
  policy = "write"
}
