package placement

import (
	"fmt"

	"remuda/controller/state"
)

// Level says how a replica would come up, the best first. The names are those of NDIF's
// scheduler.
type Level int

// The levels.
const (
	CachedAndFree   Level = iota // a WARM replica wakes, and nothing has to go for it
	Free                         // it starts, and nothing has to go for it
	CachedAndFull                // a WARM replica wakes once something was evicted
	Full                         // it starts once something was evicted
	CantAccommodate              // nothing that may be evicted makes room
)

var levels = [...]string{"CACHED_AND_FREE", "FREE", "CACHED_AND_FULL", "FULL", "CANT_ACCOMMODATE"}

// String returns the level's name, such as CACHED_AND_FREE.
func (l Level) String() string {
	if l < 0 || int(l) >= len(levels) {
		return fmt.Sprintf("Level(%d)", int(l))
	}
	return levels[l]
}

// Request says what is to be placed.
type Request struct {
	Model   string
	Variant *state.Variant
	// Failover: it takes two seats of each of its GPUs, not one.
	Failover bool
	// Pool is the capacity pool that the node must belong to.
	Pool string
	// Exclude are node IDs that are out of the question.
	Exclude map[string]bool
	// Weights names the weights that it shares with replicas on the same GPUs, see state.WeightsOf. They
	// count where the variant has SharedMemory.
	Weights string
	// OnDisk are the IDs of nodes that have the weights on disk.
	OnDisk map[string]bool
	// Warm are the replicas of this variant that could be woken instead.
	Warm []Warm
	// MayEvict tells whether a tenant that has ways may be evicted for this; nil: none
	// may. It must give the same answer for the same tenant.
	MayEvict func(*Tenant) bool
	// Future counts on what tenants will hold after what is under way, instead of what
	// they hold: what is on its way out is gone.
	Future bool
}

// Warm is a WARM replica of the variant that is asked for. The fleet must have it as a
// tenant.
type Warm struct {
	Tenant    string
	Placement state.Placement
	// Weights names those that it shares once it is awake, as in Request: it may be of another version.
	Weights string
}

// SeatsPerGPU returns how many seats the request takes of each of its GPUs.
func (r *Request) SeatsPerGPU() int {
	if r.Failover {
		return 2
	}
	return 1
}

// Choice is a place that was found.
type Choice struct {
	Level Level
	// Placement is where it goes. Of a replica that is woken it is its own, with Memory on
	// the GPUs that it wakes on.
	Placement state.Placement
	// Weights are those that it shares there with others on the same GPUs.
	Weights state.Weights
	// Wake is the replica to wake; empty: a new one starts.
	Wake string
	// Evict is what must go first, by name. Each of them is necessary.
	Evict []Eviction
	// Seconds is the estimate until it serves, once there is room. Cost is that of what is
	// evicted, in seconds as well.
	Seconds, Cost float64
	// Why is a sentence for people, Inputs the numbers it was made from.
	Why    string
	Inputs map[string]string
}

// Eviction is a tenant that has to make room, and where it goes.
type Eviction struct {
	Tenant string
	To     state.Goal
	Cost   float64
}
