package placement

import (
	"math"
	"time"

	"remuda/controller/state"
)

// Rates say how fast things are, for estimates. All are above 0.
type Rates struct {
	// Fetch, Disk and Host are bytes per second: over the network, from the node's disk,
	// from its memory to a GPU.
	Fetch, Disk, Host float64
	// Start is the fixed part of a cold start.
	Start time.Duration
	// Wake is the fixed part of a wake.
	Wake time.Duration
}

// DefaultRates returns rates of common GPU nodes.
func DefaultRates() Rates {
	return Rates{
		Fetch: 1e9,                    // a share of a 10 or 25 Gbit/s link
		Disk:  2.5e9,                  // one NVMe drive
		Host:  16e9,                   // PCIe 4.0 with 16 lanes, pinned memory
		Start: 40 * time.Second,       // vLLM: imports, profiling, CUDA graphs (47 to 98 s in all, vLLM's blog)
		Wake:  300 * time.Millisecond, // vLLM's wake_up without the copy
	}
}

// ColdSeconds estimates how long a start takes with so many bytes of weights, which are
// fetched first where they are not on the node's disk.
func (r Rates) ColdSeconds(weights int64, onDisk bool) float64 {
	s := r.Start.Seconds() + float64(weights)/r.Disk
	if !onDisk {
		s += float64(weights) / r.Fetch
	}
	return s
}

// WarmSeconds estimates how long a wake takes with so many bytes of weights.
func (r Rates) WarmSeconds(weights int64) float64 {
	return r.Wake.Seconds() + float64(weights)/r.Host
}

// Weights returns how many bytes a replica of v loads: as the variant says, or else
// what it takes of all its GPUs.
func Weights(v *state.Variant) int64 {
	if v.Weights > 0 {
		return v.Weights
	}
	return v.Memory * int64(v.GPUs)
}

// Worth is what an eviction's cost is made of.
type Worth struct {
	// Weights in bytes that are loaded again later.
	Weights int64
	// Idle is how long it has had no request.
	Idle time.Duration
	// Priority of its model, 0 to 100.
	Priority int
	// Failed: it serves nothing, and COLD costs nothing.
	Failed bool
}

// heat is how much dearer a replica is that is in use than one long idle is 1+heat; its
// half-life is halfLife.
const (
	heat     = 9.0
	halfLife = 5 * time.Minute
)

// EvictionCost returns what it costs to send a replica to WARM or COLD: the seconds to
// bring it back (from memory, or from the node's disk), up to ten times as much where
// it was in use a moment ago, and up to twice as much by its priority.
func EvictionCost(r Rates, w Worth, to state.Goal) float64 {
	seconds := r.WarmSeconds(w.Weights)
	if to != state.GoalWarm {
		if w.Failed {
			return 0
		}
		seconds = r.ColdSeconds(w.Weights, true)
	}
	idle := max(w.Idle, 0)
	return seconds * (1 + heat*math.Exp2(-float64(idle)/float64(halfLife))) * (1 + float64(w.Priority)/100)
}
