package scalesim

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Dispatch is how a request finds its replica when several have a free slot.
type Dispatch string

const (
	// LeastLoaded takes the replica that runs the fewest requests. It is the default, and
	// what a gateway with one worker for each slot does on the whole.
	LeastLoaded Dispatch = "least_loaded"
	// Packed takes the fullest replica that has a free slot, so that others run empty and
	// drain sooner.
	Packed Dispatch = "packed"
)

// Config is the world that a policy is judged in. The zero value is not valid:
// DefaultConfig is a start.
type Config struct {
	// Slots is how many requests a replica runs at once.
	Slots int `json:"slots"`
	// ColdStart is the time from a replica's start until it serves. It is charged.
	ColdStart time.Duration `json:"cold_start_ns"`
	// ColdStartSpread makes cold starts differ: each is drawn evenly from
	// ColdStart*(1-spread) to ColdStart*(1+spread) with Seed. 0 to 1; 0 draws nothing.
	ColdStartSpread float64 `json:"cold_start_spread,omitempty"`
	// Interval is the time between two decisions. A policy that is Paced has its own.
	Interval time.Duration `json:"interval_ns"`
	// TargetWait is how long a request may wait and still count as started in time, the
	// end included.
	TargetWait time.Duration `json:"target_wait_ns"`
	// PeakWindow is how far back the peaks of an Observation reach. 0 means one minute, as
	// in the two Prometheus queries of the capacity analyzer.
	PeakWindow time.Duration `json:"peak_window_ns,omitempty"`
	// Waits are further target waits that are scored beside it: see Hour.LateAfter.
	Waits []time.Duration `json:"waits_ns,omitempty"`
	// DataAge is how old the metrics are when a decision is carried out: they are sampled
	// at each Interval, and the decision follows DataAge later. Only the numbers of replicas
	// are those of the decision's moment.
	DataAge time.Duration `json:"data_age_ns,omitempty"`
	// BatchSlope makes service times grow with the batch: with a full batch a request takes
	// its Service, alone 1/(1+BatchSlope) of it, and in between linearly. The batch is that of
	// the moment at which the request begins.
	BatchSlope float64 `json:"batch_slope,omitempty"`
	// Min and Max bound what a policy may want. Max also bounds what is charged at once,
	// less the replicas that drain.
	Min int `json:"min"`
	Max int `json:"max"`
	// Initial replicas are ready at the start of the trace.
	Initial int `json:"initial"`
	// KVTokens is how many tokens the KV cache of a replica holds. A request holds its
	// context and what it generates from start to end. 0 means that KV use is the share of
	// slots in use. KV use is observed only: it refuses no request.
	KVTokens int64 `json:"kv_tokens,omitempty"`
	// Dispatch is LeastLoaded if empty.
	Dispatch Dispatch `json:"dispatch,omitempty"`
	// Undrain lets a higher wish take draining replicas back before it starts new ones.
	// Kubernetes cannot do that; a WARM tier can.
	Undrain bool `json:"undrain,omitempty"`
	// ScoreFrom is when the score begins: requests that arrive earlier, and GPU time before
	// it, are simulated and seen by the policy, and left out of the Result.
	ScoreFrom time.Duration `json:"score_from_ns,omitempty"`
	// Seed is for the spread of cold starts.
	Seed uint64 `json:"seed,omitempty"`
}

// DefaultConfig is a world of replicas with 64 slots and a cold start of 110 s. 15 s is the
// interval of Kubernetes' HPA, and 2 s the wait that remuda-predictive aims at by default.
func DefaultConfig() Config {
	return Config{Slots: 64, ColdStart: 110 * time.Second, Interval: 15 * time.Second,
		TargetWait: 2 * time.Second, Min: 0, Max: 1000, Initial: 1}
}

const (
	maxSlots    = 1 << 16
	maxReplicas = 1 << 20
	maxDuration = 10 * 365 * 24 * time.Hour
)

// Validate names every field that is wrong, and what it should be.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("%s is %v: it must be %s", field, value, want))
	}
	duration := func(field string, d, least time.Duration) {
		if d < least || d > maxDuration {
			bad(field, d, fmt.Sprintf("%v to %v", least, maxDuration))
		}
	}
	if c.Slots < 1 || c.Slots > maxSlots {
		bad("slots", c.Slots, fmt.Sprintf("1 to %d", maxSlots))
	}
	duration("cold_start_ns", c.ColdStart, 0)
	if math.IsNaN(c.ColdStartSpread) || c.ColdStartSpread < 0 || c.ColdStartSpread > 1 {
		bad("cold_start_spread", c.ColdStartSpread, "0 to 1")
	}
	duration("interval_ns", c.Interval, time.Millisecond)
	duration("target_wait_ns", c.TargetWait, 0)
	for _, w := range c.Waits {
		duration("waits_ns", w, 0)
	}
	duration("data_age_ns", c.DataAge, 0)
	if !(c.BatchSlope >= 0 && c.BatchSlope <= 100) {
		bad("batch_slope", c.BatchSlope, "0 to 100")
	}
	duration("peak_window_ns", c.PeakWindow, 0)
	duration("score_from_ns", c.ScoreFrom, 0)
	if c.Max < 1 || c.Max > maxReplicas {
		bad("max", c.Max, fmt.Sprintf("1 to %d", maxReplicas))
	}
	if c.Min < 0 || c.Min > c.Max {
		bad("min", c.Min, fmt.Sprintf("0 to max, which is %d", c.Max))
	}
	if c.Initial < 0 || c.Initial > c.Max {
		bad("initial", c.Initial, fmt.Sprintf("0 to max, which is %d", c.Max))
	}
	if c.KVTokens < 0 {
		bad("kv_tokens", c.KVTokens, "0 or more")
	}
	switch c.Dispatch {
	case "", LeastLoaded, Packed:
	default:
		bad("dispatch", fmt.Sprintf("%q", c.Dispatch), fmt.Sprintf("%q or %q", LeastLoaded, Packed))
	}
	return errors.Join(errs...)
}
