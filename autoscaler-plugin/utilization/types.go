package utilization

import (
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
)

// Input is what is known of one model at one moment. Usage is measured over the
// caller's window (15 minutes by default) and given per minute.
type Input struct {
	Model string `json:"model"`
	// Now is the time of the decision. Only the grace after a tier change needs it.
	Now time.Time `json:"now,omitzero"`

	// Requested is how many instances are asked for at present; a hold answers it.
	Requested int `json:"requested"`
	// Healthy is how many of them serve. nil means that nobody knows.
	Healthy *int `json:"healthy,omitempty"`
	// Starting is how many of them are loading and expected to serve. They are neither
	// healthy nor unhealthy; what is left of Requested is unhealthy.
	Starting int `json:"starting,omitempty"`

	// RequestsPerMinute is the average of requests per minute (request-count rule).
	RequestsPerMinute enginemetrics.Value `json:"requests_per_minute,omitzero"`
	// InferenceSecondsPerMinute is the sum of the seconds that all requests spent in
	// inference, per minute.
	InferenceSecondsPerMinute enginemetrics.Value `json:"inference_seconds_per_minute,omitzero"`
	// ForecastSecondsPerMinute is InferenceSecondsPerMinute at the same time last week
	// (see Week). Absent is a gap.
	ForecastSecondsPerMinute enginemetrics.Value `json:"forecast_inference_seconds_per_minute,omitzero"`
	// Utilization is the busy share of the healthy instances' concurrency, in [0, 1],
	// for EZ's alternative source.
	Utilization enginemetrics.Value `json:"utilization,omitzero"`
	// SuccessfulPerMinute and OutOfCapacityPerMinute count requests that were served
	// and those turned away for want of capacity. An absent OutOfCapacityPerMinute
	// means that none was turned away: such a counter appears with its first count.
	SuccessfulPerMinute    enginemetrics.Value `json:"successful_per_minute,omitzero"`
	OutOfCapacityPerMinute enginemetrics.Value `json:"out_of_capacity_per_minute,omitzero"`

	// RemovedInCycle is how many instances were taken away in the last cycle, which is the time
	// that Config.DownscaleBatch is for, and ShedInCycle how many of them for being unhealthy.
	RemovedInCycle int `json:"removed_in_cycle,omitempty"`
	ShedInCycle    int `json:"shed_in_cycle,omitempty"`

	// Tier is the model's tier, TierChanged when it last became that.
	Tier        string    `json:"tier,omitempty"`
	TierChanged time.Time `json:"tier_changed,omitzero"`
}

// Rule names one of the three algorithms.
type Rule string

// The rules in the order of their priority: a later one that is on wins.
const (
	RequestCount   Rule = "request_count"
	EZUtilization  Rule = "ez_utilization"
	OldUtilization Rule = "old_utilization"
)

// Action is the direction of a decision.
type Action string

// The three directions.
const (
	ScaleUp   Action = "scale-up"
	ScaleDown Action = "scale-down"
	NoChange  Action = "no-change"
)

// Code is the typed reason of a decision.
type Code string

// Why a decision is what it is.
const (
	// WantsMore, WantsLess and InBand are the rule's own words.
	WantsMore Code = "wants_more"
	WantsLess Code = "wants_less"
	InBand    Code = "in_band"
	// ShedsUnhealthy takes one instance away because more than one is unhealthy.
	ShedsUnhealthy Code = "sheds_unhealthy"
	// NoneHealthy holds because no instance serves, so that the load is not known.
	NoneHealthy Code = "none_healthy"
	// MetricUnknown holds because what the rule needs is missing or absurd.
	MetricUnknown Code = "metric_unknown"
	// The rest hold before any rule is asked.
	InvalidConfig      Code = "invalid_config"
	InvalidInput       Code = "invalid_input"
	DisabledGlobally   Code = "disabled_globally"
	DisabledForModel   Code = "disabled_for_model"
	ManagementDisabled Code = "management_disabled"
	ManagementManual   Code = "management_manual"
	TierNotSelected    Code = "tier_not_selected"
	TierUnknown        Code = "tier_unknown"
	TierGrace          Code = "tier_grace"
)

// Limit is something that changed what the rule asked for.
type Limit string

// The limits, in the order in which they are applied.
const (
	ByMin        Limit = "min_count"
	ByMax        Limit = "max_count"
	ByBatch      Limit = "downscale_batch"
	ByManagement Limit = "management_upscaling"
)

// Finding is a measured number that could not be used.
type Finding struct {
	Field string             `json:"field"` // its name in the input's JSON
	Flaw  enginemetrics.Flaw `json:"flaw"`
}

// Proposal is what one rule says, before any limit.
type Proposal struct {
	Rule   Rule   `json:"rule"`
	Target int    `json:"target"`
	Code   Code   `json:"code"`
	Reason string `json:"reason"`
	// Required is how many full instances the usage fills, after forecast, scale and
	// inflation; of the request-count rule, requests times factor.
	Required enginemetrics.Value `json:"required,omitzero"`
	// UpUtilization and DownUtilization are Required over the instances that count for
	// that direction. Absent where there are none.
	UpUtilization   enginemetrics.Value `json:"up_utilization,omitzero"`
	DownUtilization enginemetrics.Value `json:"down_utilization,omitzero"`
	Findings        []Finding           `json:"findings,omitempty"`
	// Blind tells that instances are requested and their present load is not known;
	// at most the forecast has spoken.
	Blind bool `json:"blind,omitempty"`
}

// Decision is the answer for one model.
type Decision struct {
	Model   string `json:"model"`
	Action  Action `json:"action"`
	Current int    `json:"current"`
	Target  int    `json:"target"`
	// Rule is the algorithm that decided; empty where none was asked.
	Rule   Rule    `json:"rule,omitempty"`
	Code   Code    `json:"code"`
	Limits []Limit `json:"limits,omitempty"`
	Reason string  `json:"reason"`
	// Proposals are the answers of every rule that is on, the one that decided last.
	Proposals []Proposal `json:"proposals,omitempty"`
}

// Inert tells that the deciding rule could not see the present load, or was not asked
// because the configuration or the input is wrong, or because nobody says the tier by
// which it is chosen. It deserves an alarm: a policy that never sees its metrics looks
// like an idle model.
func (d Decision) Inert() bool {
	if n := len(d.Proposals); n > 0 {
		return d.Proposals[n-1].Blind
	}
	return d.Code == InvalidConfig || d.Code == InvalidInput || d.Code == TierUnknown
}
