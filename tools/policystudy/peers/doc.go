// Package peers has scaling policies to compare others with: a fixed number of replicas,
// Knative's autoscaler, and one that knows the trace. The tests hold all of them against a
// lower bound of the GPU time that any policy needs.
//
// Policies are deterministic and belong to one run each. None of them imports what the
// project ships: they are what it is measured against.
package peers
