package observe

import (
	"context"
	"errors"
	"time"

	"remuda/autoscaler-plugin/enginemetrics"
)

// ErrUnknownModel is what a Controller answers for a model that it does not have. Such a
// model may still run, as plain jobs.
var ErrUnknownModel = errors.New("the model is unknown to the controller")

// Controller knows how many replicas there are. Its methods may be called from several
// goroutines at once.
type Controller interface {
	Model(ctx context.Context, model string) (Managed, error)
}

// Reporter knows what engines say of themselves. Its methods may be called from several
// goroutines at once.
type Reporter interface {
	// Name of the source, for messages and for Snapshot.Away.
	Name() string
	// Report answers what is known now. An error means that nothing is.
	Report(ctx context.Context, q Question) (Report, error)
}

// Managed is a model as the controller has it.
type Managed struct {
	// Snapshot has what the controller knows. Its Variants are complete but for what engines report.
	Snapshot
	// Copies are the replicas that serve, start or drain.
	Copies []Copy
	// Notes are for Snapshot.Findings.
	Notes []string
}

// Phase is what a Copy does.
type Phase string

// The phases of replicas that matter here.
const (
	Hot      Phase = "hot"      // it serves
	Starting Phase = "starting" // it is on its way there
	Draining Phase = "draining" // it finishes its requests and takes no new ones
)

// Copy is one replica of a model, as the controller has it.
type Copy struct {
	// Replica is its name, <model>:<variant>:<id>.
	Replica, Variant string
	Phase            Phase
	// Slots of its engine; 0: not known.
	Slots int
	// InFlight is how many requests gateways have at it.
	InFlight enginemetrics.Value
	// Since is when its phase began, by the controller's clock; zero: not known.
	Since time.Time
}

// Question is what a Reporter is asked.
type Question struct {
	Model string
	// Shown is the name under which the engines show the model.
	Shown string
	// Dialect is what they speak, Dialects the same by variant, which wins; where neither
	// says anything it is found by the names.
	Dialect  string
	Dialects map[string]string
	// Group is the Target's, where no controller has the model.
	Group *JobGroup
	// Replicas are the names of those that the controller says are there, sorted; nil
	// where no controller has the model.
	Replicas []string
}

// Report is what a Reporter knows of a model.
type Report struct {
	Engines []Reported
	// NotPassing counts, by variant, engines that are registered and must not be used: they
	// start, or are ill.
	NotPassing map[string]int
	// Findings concern the model as a whole.
	Findings []enginemetrics.Finding
	// Notes are for Snapshot.Findings.
	Notes []string
}

// Reported is one replica in a Report.
type Reported struct {
	// View has the replica's name.
	View    enginemetrics.View
	Variant string
	// Slots of its engine; 0: not known.
	Slots int
	// Gone: the source remembers it and knows that nothing is to be asked of it any more.
	Gone bool
}

// Queue is how many requests there are for a model.
type Queue struct {
	// Known: the numbers can be used. Source says whose they are.
	Known bool `json:"known"`
	// Partial: the controller's leader is new, and has not heard every gateway yet. The numbers
	// are not Known then: there are as many or more.
	Partial bool `json:"partial,omitempty"`
	// At is when the controller said so, by this host's clock; zero where it did not.
	At     time.Time   `json:"at,omitzero"`
	Source QueueSource `json:"source,omitempty"`
	// State is the gateways' word for the model, as READY.
	State string `json:"state,omitempty"`
	// Waiting requests have no engine, or wait in one where Source is FromEngines; InFlight
	// ones are at one.
	Waiting  int `json:"waiting"`
	InFlight int `json:"in_flight"`
	// WaitingTokens is how many tokens the prompts of Waiting have, as gateways estimate it.
	WaitingTokens int64 `json:"waiting_tokens,omitempty"`
	// Oldest is when the one came that has waited longest, by the gateways' clock; zero
	// where none waits or nobody knows.
	Oldest time.Time `json:"oldest,omitzero"`
	// Served is how many requests ended per second lately.
	Served enginemetrics.Value `json:"served_per_second,omitzero"`
	// Arrived, Finished and ServedSeconds are gateways' counters: requests that came, that
	// left engines, and the seconds that those were there. One that is lower than before began
	// anew.
	Arrived       enginemetrics.Value `json:"arrived,omitzero"`
	Finished      enginemetrics.Value `json:"finished,omitzero"`
	ServedSeconds enginemetrics.Value `json:"served_seconds,omitzero"`
	// Refused is a further one of those counters: requests that were turned away for want of
	// capacity.
	Refused enginemetrics.Value `json:"refused,omitzero"`
	// Late counts requests that got no engine within the model's goal for the first token; absent where
	// it has none.
	Late enginemetrics.Value `json:"late,omitzero"`
	// Gateways is how many of them have something of the model.
	Gateways int `json:"gateways,omitempty"`
}

// QueueSource is whose numbers a Queue has.
type QueueSource string

// The sources.
const (
	FromGateways QueueSource = "gateways"
	// FromEngines: no gateway of ours reports; the numbers are the sums of what the
	// engines have.
	FromEngines QueueSource = "engines"
)
