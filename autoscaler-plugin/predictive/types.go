package predictive

import (
	"errors"
	"fmt"
	"time"

	measure "remuda/autoscaler-plugin/enginemetrics"
)

// Input is what is known of a model at one moment. What is absent is left out of the
// decision as doc.go says.
type Input struct {
	// Now is the caller's clock, as time.Duration(time.Now().UnixNano()).
	Now time.Duration `json:"now_ns"`
	// Arrived, Finished and ServedSeconds are counters: requests that came, requests that
	// ended, and the seconds that those held their slots.
	Arrived       measure.Value `json:"arrived,omitzero"`
	Finished      measure.Value `json:"finished,omitzero"`
	ServedSeconds measure.Value `json:"served_seconds,omitzero"`
	// Late counts requests that started after the target wait, if that is counted.
	Late measure.Value `json:"late,omitzero"`
	// Running and Waiting count requests now.
	Running measure.Value `json:"running,omitzero"`
	Waiting measure.Value `json:"waiting,omitzero"`
	// KVUsage is the mean share of KV memory in use on the ready replicas, Ready their
	// number.
	KVUsage measure.Value `json:"kv_usage,omitzero"`
	Ready   int           `json:"ready"`
	// ColdStartSeconds is from the start of a replica until it serves, TargetWaitSeconds how
	// long a request may wait.
	ColdStartSeconds  float64 `json:"cold_start_seconds"`
	TargetWaitSeconds float64 `json:"target_wait_seconds"`
	// Min and Max bound the sum of replicas over the variants.
	Min      int       `json:"min"`
	Max      int       `json:"max"`
	Variants []Variant `json:"variants"`
}

// Variant is one way to run the model.
type Variant struct {
	Variant string `json:"variant"`
	// Slots is how many requests a replica runs at once.
	Slots int `json:"slots"`
	// Cost of a replica; 0 is DefaultCost.
	Cost float64 `json:"cost,omitempty"`
	// Current counts its replicas, starting ones included and draining ones not.
	Current int `json:"current"`
	// Min and Max bound it; Max 0 is no bound of its own.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// Unplaceable: there is no place for another replica now.
	Unplaceable bool `json:"unplaceable,omitempty"`
}

// DefaultCost is the cost of a replica that names none, as in package capacity.
const DefaultCost = 10

const maxCount = 1_000_000

// Validate names every bad field of what an operator or the controller says. Metrics are
// not looked at here: they are classified.
func (in *Input) Validate() error {
	var errs []error
	bad := func(field string, v any, want string) {
		errs = append(errs, fmt.Errorf("%s is %v: must be %s", field, v, want))
	}
	if !(in.ColdStartSeconds >= 0 && in.ColdStartSeconds <= 86400) {
		bad("cold_start_seconds", in.ColdStartSeconds, "0 to 86400")
	}
	if !(in.TargetWaitSeconds >= 0 && in.TargetWaitSeconds <= 86400) {
		bad("target_wait_seconds", in.TargetWaitSeconds, "0 to 86400")
	}
	if in.Max < 0 || in.Max > maxCount {
		bad("max", in.Max, fmt.Sprintf("0 to %d", maxCount))
	}
	if in.Min < 0 || in.Min > in.Max {
		bad("min", in.Min, fmt.Sprintf("0 to max, which is %d", in.Max))
	}
	if in.Ready < 0 {
		bad("ready", in.Ready, "0 or more")
	}
	if len(in.Variants) == 0 {
		bad("variants", "empty", "at least one")
	}
	seen := map[string]bool{}
	for i, v := range in.Variants {
		at := fmt.Sprintf("variants[%d]", i)
		if seen[v.Variant] {
			bad(at+".variant", fmt.Sprintf("%q", v.Variant), "unique")
		}
		seen[v.Variant] = true
		if v.Slots < 1 || v.Slots > maxCount {
			bad(at+".slots", v.Slots, fmt.Sprintf("1 to %d", maxCount))
		}
		if !(v.Cost >= 0 && v.Cost <= 1e12) {
			bad(at+".cost", v.Cost, "0 to 1e12")
		}
		if v.Current < 0 || v.Current > maxCount {
			bad(at+".current", v.Current, fmt.Sprintf("0 to %d", maxCount))
		}
		if v.Max < 0 || v.Max > maxCount {
			bad(at+".max", v.Max, fmt.Sprintf("0 to %d", maxCount))
		}
		if v.Min < 0 || v.Min > maxCount || v.Max > 0 && v.Min > v.Max {
			bad(at+".min", v.Min, "0 to the variant's max")
		}
	}
	return errors.Join(errs...)
}

// Rule is what made the need what it is.
type Rule string

// The rules of doc.go.
const (
	ByForecast Rule = "forecast" // the forecast for the next start, at the price
	ByQueue    Rule = "queue"    // the requests that wait
	ByIdle     Rule = "idle"     // no request for an hour
	BySeason   Rule = "season"   // the same, but yesterday or last week had some at this time
	ByHold     Rule = "hold"     // nothing is removed before the load was observed for the payback time, nor while requests wait
	ByPayback  Rule = "payback"  // a replica stays, as removing it would not pay back
	ByUnknown  Rule = "unknown"  // the load is unknown: nothing changes
	ByInvalid  Rule = "invalid"  // the input or the state cannot be: nothing changes
)

// Finding is a measured number that could not be used.
type Finding struct {
	Field string       `json:"field"`
	Flaw  measure.Flaw `json:"flaw"`
}

// Decision is the answer.
type Decision struct {
	// Replicas is the sum of Targets, and Current what there was.
	Replicas int            `json:"replicas"`
	Current  int            `json:"current"`
	Targets  map[string]int `json:"targets"`
	// Load is the mean demand of the last minute, Base its decaying peak, and Forecast what the
	// season says, all in slots. Need is what they call for at the risk.
	Load     float64 `json:"load"`
	Base     float64 `json:"base"`
	Forecast float64 `json:"forecast"`
	Need     float64 `json:"need"`
	// Risk is the share of the time in which demand may outgrow capacity.
	Risk float64 `json:"risk"`
	Rule Rule    `json:"rule"`
	// Short is how many slots are needed and could not be given.
	Short    float64   `json:"short,omitempty"`
	Findings []Finding `json:"findings,omitempty"`
	Reason   string    `json:"reason"`
}

// Inert tells that the load was unknown. It deserves an alarm.
func (d *Decision) Inert() bool { return d.Rule == ByUnknown || d.Rule == ByInvalid }
