package planner

import (
	"cmp"
	"time"

	"remuda/controller/placement"
	"remuda/controller/state"
)

// StandbyKind is how a standby waits.
type StandbyKind string

// The kinds of standbys.
const (
	StandbyPair StandbyKind = "pair" // the second engine of a failover pair, on the GPUs of the first one
	StandbyWarm StandbyKind = "warm" // a WARM replica
)

// Standby is what stands by in the state that Foresee ends in, and what that costs.
type Standby struct {
	// Replica is the pair, or the WARM replica.
	Replica *state.Replica
	Kind    StandbyKind
	// Seats that it takes, and the GPUs on which it keeps memory.
	Seats, GPUs int
	// GPUMemory is how many bytes it keeps of each of these GPUs: what a sleep has shown, or the file's
	// sleep_memory; 0: neither is known, or its engine has no sleep mode. Of a pair it is a part of the memory that
	// the pair is charged: half of what both engines keep asleep.
	GPUMemory int64
	// HostMemory is how many bytes of its node's memory it takes.
	HostMemory int64
	// Takes is how long it takes until it serves, Cold how long a start on its node would take.
	Takes, Cold time.Duration
	// Measured: Takes is what wakes have taken, and not an estimate by rates.
	Measured bool
}

// standbys returns what stands by, in the order of the replicas.
func (f *future) standbys() []Standby {
	var out []Standby
	v := f.store.View()
	for _, r := range v.Replicas(nil) {
		def, m, h := v.VariantOf(nil, r), v.Model(nil, r.Name.Model), r.Holds()
		version := v.Versions(nil, r.Name.Model).Get(r.Version)
		if def == nil || m == nil || version == nil || len(h.Seats) == 0 {
			continue
		}
		bytes, start := placement.Weights(def), m.Starts[def.Hash]
		s := Standby{
			Replica: r, Seats: len(h.Seats), GPUs: len(r.Placement.Memory), GPUMemory: r.Placement.SleepMemory,
			Cold: cmp.Or(start.Cold, timeOf(f.conf.Rates.ColdSeconds(bytes, true))),
		}
		switch {
		case r.Resting():
			s.Kind, s.HostMemory = StandbyWarm, r.Placement.HostMemory
			s.Takes, s.Measured = cmp.Or(start.Warm, timeOf(f.conf.Rates.WarmSeconds(bytes))), start.Warm > 0
		case r.Counts() && version.Model.Failover:
			s.Kind, s.Seats, s.GPUMemory = StandbyPair, s.Seats/2, s.GPUMemory/2
			s.Takes = f.conf.Rates.Wake // the weights are on the GPU
			if m.Sleeps[def.Hash].None {
				s.Takes, s.GPUMemory = s.Cold, 0
			}
		default:
			continue
		}
		out = append(out, s)
	}
	return out
}
