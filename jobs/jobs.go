// Package jobs holds the Nomad job files that users run as they are. They are
// embedded, so that `remuda dev` runs the very same files.
package jobs

import _ "embed"

// Demo runs the simulated engine on a pinned seat.
//
//go:embed demo.nomad.hcl
var Demo string

// Failover runs a failover pair of simulated engines on two seats of one GPU.
//
//go:embed failover.nomad.hcl
var Failover string

// GMS runs the GPU memory service on every node.
//
//go:embed gms.nomad.hcl
var GMS string

// Ollama runs Ollama, a real engine that needs no GPU, on a pinned seat.
//
//go:embed ollama.nomad.hcl
var Ollama string
