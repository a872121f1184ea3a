# An engine's shim registers the engine while it serves.

service "remuda-engine" {
  policy = "write"
}
