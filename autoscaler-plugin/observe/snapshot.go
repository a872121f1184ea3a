package observe

import (
	"fmt"
	"slices"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Snapshot is one model at one moment. It survives a round trip through JSON.
type Snapshot struct {
	Model string    `json:"model"`
	At    time.Time `json:"at"`
	// Controlled: variants and counts came from the controller; otherwise from the Target
	// and from what engines are seen.
	Controlled bool `json:"controlled"`
	// ModifyIndex is the controller's, for a compare-and-set.
	ModifyIndex uint64 `json:"modify_index,omitempty"`
	// Min and Max bound the replicas of all variants together. Only where Controlled.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// Stopped and Management are the controller's: see Hold.
	Stopped    bool   `json:"stopped,omitempty"`
	Management string `json:"management,omitempty"`
	// ScalingDisabled: the switch disable-scaling is set. ScaleToZeroDelay is how long the model
	// must have been idle at least before its last replica goes, by the switch
	// scale-to-zero-delay.
	ScalingDisabled  bool          `json:"scaling_disabled,omitempty"`
	ScaleToZeroDelay time.Duration `json:"scale_to_zero_delay_ns,omitempty"`
	// Rollout names the rollout that is on its way, empty for none. Degraded says that all replicas
	// that serve are failover pairs without a standby, and why; empty where one is not.
	Rollout  string `json:"rollout,omitempty"`
	Degraded string `json:"degraded,omitempty"`
	// Goals are those of the model's file, with what was measured.
	Goals Goals `json:"goals,omitzero"`
	// Variants are in the order of the model's file, or of the Target; those that are no longer
	// in the file, or are only seen where the Target names none, come last, by name.
	Variants []Variant `json:"variants,omitempty"`
	// Engines are the replicas that serve or drain, sorted by name.
	Engines []Engine `json:"engines,omitempty"`
	Queue   Queue    `json:"queue"`
	// Census judges the replicas that should serve. Its own list of replicas is left out:
	// Engines has them.
	Census enginemetrics.Census `json:"census"`
	// Away are the sources that should have answered and did not.
	Away []string `json:"away,omitempty"`
	// Findings are what a person should know.
	Findings []string `json:"findings,omitempty"`
}

// Variant is one way to run the model.
type Variant struct {
	Variant string `json:"variant"`
	// Cost of a replica per hour; absent: not told.
	Cost enginemetrics.Value `json:"cost,omitzero"`
	// Accelerator is the GPU model that it needs, empty for any.
	Accelerator string `json:"accelerator,omitempty"`
	// Dialect of its engines, empty: not told.
	Dialect string `json:"dialect,omitempty"`
	// Slots is how many requests one of its engines works on at once; 0: not known.
	Slots int `json:"slots,omitempty"`
	// Current is how many replicas count: those that serve, start, are ordered or wait to be
	// tried again.
	Current int `json:"current"`
	// Desired is the number that was asked for; 0: none was for this variant by itself.
	Desired int `json:"desired,omitempty"`
	// Hot ones serve, Starting ones are on their way there or ordered, Failed ones wait to be
	// tried again: together they are Current. What is ordered and has no place does not count,
	// and what was ordered to go does not count any more (see Counted). Draining ones finish their requests, Warm ones rest
	// with their weights in memory, and neither counts. Where no controller has the model,
	// Hot ones report and Starting are all the others.
	Hot      int `json:"hot,omitempty"`
	Starting int `json:"starting,omitempty"`
	Failed   int `json:"failed,omitempty"`
	Draining int `json:"draining,omitempty"`
	Warm     int `json:"warm,omitempty"`
	// ColdStart is how long it took until a new replica served, as the controller measured it; 0: not
	// measured.
	ColdStart time.Duration `json:"cold_start_ns,omitempty"`
	// Unplaceable: there is no place for another one now, or none comes up; Why says so.
	Unplaceable bool   `json:"unplaceable,omitempty"`
	Why         string `json:"why,omitempty"`
	// Removed: it has replicas, and is no longer in the model's file, so that the controller
	// takes no number for it.
	Removed bool `json:"removed,omitempty"`
	// Min are the replicas in external pools, which only operators reduce.
	Min int `json:"min,omitempty"`
}

// Engine is one replica that serves or drains, and what is known of its load. A value that
// the engine showed and that cannot be is NaN; Why says what it was. The values of an
// engine whose Class is stale are the last ones known.
type Engine struct {
	Replica string              `json:"replica"`
	Variant string              `json:"variant"`
	Slots   int                 `json:"slots,omitempty"`
	Class   enginemetrics.Class `json:"class"`
	// Why is the reason for a class other than ok.
	Why string `json:"why,omitempty"`
	// Dialect is what the engine was found to speak.
	Dialect  string `json:"dialect,omitempty"`
	Draining bool   `json:"draining,omitempty"`
	// New: it has served for less than NewFor, and nobody has a sample of it yet.
	New bool `json:"new,omitempty"`
	// BySlots: the engine shows no metrics of its own, and Running and Waiting are made
	// from InFlight and Slots.
	BySlots bool `json:"by_slots,omitempty"`
	// KV, a share from 0 to 1, Waiting and Running are the peaks of the window.
	KV      enginemetrics.Value `json:"kv,omitzero"`
	Waiting enginemetrics.Value `json:"waiting,omitzero"`
	Running enginemetrics.Value `json:"running,omitzero"`
	// KVNow, WaitingNow and RunningNow are those of the last sample.
	KVNow      enginemetrics.Value `json:"kv_now,omitzero"`
	WaitingNow enginemetrics.Value `json:"waiting_now,omitzero"`
	RunningNow enginemetrics.Value `json:"running_now,omitzero"`
	// InFlight is how many requests gateways have at it.
	InFlight enginemetrics.Value `json:"in_flight,omitzero"`
	// KVTokens is how many tokens its KV cache holds.
	KVTokens enginemetrics.Value `json:"kv_tokens,omitzero"`
	Rates    Rates               `json:"rates,omitzero"`
	// AgeSeconds is how old the last sample is.
	AgeSeconds float64 `json:"age_seconds"`
}

// Rates are an engine's over the window. One that cannot be told is absent.
type Rates struct {
	// Requests that finished and tokens, per second.
	Finished enginemetrics.Value `json:"finished,omitzero"`
	// Means over the requests of the window, in seconds.
	Queue    enginemetrics.Value `json:"queue_seconds,omitzero"`
	EndToEnd enginemetrics.Value `json:"end_to_end_seconds,omitzero"`
}

// NewFor is how long a replica that serves may be missing from what the sources report
// before that is more than their delay: Consul's, a Prometheus server's discovery and scrape,
// and its answers, which are kept for some seconds. Where the controller's clock is off by
// more than that, no replica is new.
const NewFor = time.Minute

// usable tells whether an engine's peaks are of now and can be judged.
func (e *Engine) usable() bool {
	return e.Class == enginemetrics.ClassOK || e.Class == enginemetrics.ClassDuplicate
}

// AwayController is the name of the controller in Snapshot.Away.
const AwayController = "controller"

// Hold says why nothing may be changed by what the snapshot shows, whatever the strategy;
// it is empty where something may. That engines are unknown is no such reason: each
// strategy has its own rules for that.
func (s Snapshot) Hold() string {
	switch {
	case slices.Contains(s.Away, AwayController):
		return "the controller did not answer: the number of replicas is unknown"
	case s.Stopped:
		return "the model is stopped"
	case s.ScalingDisabled:
		return "the switch disable-scaling is set: the model is not scaled automatically"
	case s.Controlled && (s.Management == "disabled" || s.Management == "manual"):
		return fmt.Sprintf("the model's management is %s: it is not scaled automatically", s.Management)
	}
	return ""
}

// Current is how many replicas count, of all variants together.
func (s Snapshot) Current() int {
	n := 0
	for _, v := range s.Variants {
		n += v.Current
	}
	return n
}

// HotCount is how many replicas serve, of all variants together.
func (s Snapshot) HotCount() int {
	n := 0
	for _, v := range s.Variants {
		n += v.Hot
	}
	return n
}

// StartingCount is how many replicas are on their way to serving, of all variants together.
func (s Snapshot) StartingCount() int {
	n := 0
	for _, v := range s.Variants {
		n += v.Starting
	}
	return n
}

// Variant returns one variant by name.
func (s Snapshot) Variant(name string) (Variant, bool) {
	for _, v := range s.Variants {
		if v.Variant == name {
			return v, true
		}
	}
	return Variant{}, false
}
