// Package jobs holds the Nomad job files, model files, pipelines and nomad-autoscaler
// policies that users run as they are. They are embedded, so that `remuda dev` runs the very same files.
//
// A job file NAME.nomad.hcl that a model file names runs either way: by `nomad job
// run`, with the defaults of its variables, or as a variant's, with the reserved
// variables of package modelfile given by the controller.
package jobs

import "embed"

// Files are all of them, by their names in this directory.
//
//go:embed *.hcl
var Files embed.FS

// ConsulPolicies are the policies of a Consul with ACLs: acl/WHO.consul.hcl.
//
//go:embed acl/*.consul.hcl
var ConsulPolicies embed.FS

// Demo runs the simulated engine on a pinned seat.
//
//go:embed demo.nomad.hcl
var Demo string

// Failover runs a failover pair of simulated engines on two seats of one GPU.
//
//go:embed failover.nomad.hcl
var Failover string

// Node runs lockd and the GPU memory service on every node.
//
//go:embed node.nomad.hcl
var Node string

// Ollama runs Ollama, a real engine that needs no GPU, on a pinned seat.
//
//go:embed ollama.nomad.hcl
var Ollama string

// Model files that `remuda dev` applies, by their names in Files.
const (
	DemoModel   = "demo.model.hcl"   // failover pairs on the simulated engine
	SingleModel = "single.model.hcl" // the same without shadows
	TinyModel   = "tiny.model.hcl"   // on Ollama
)

// Policy is the name in Files of the policy that scales the demo model by a strategy, which
// is named without "remuda-", or "replicate" for remuda-hpa in its form replicate.
func Policy(name string) string { return name + ".policy.hcl" }
