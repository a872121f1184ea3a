package load

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"remuda/internal/replica"
)

// Limits of a report.
const (
	// MaxGateways is how many gateways may report within one time to live.
	MaxGateways = 1000
	// MaxReplicas is how many replicas one report may have.
	MaxReplicas = 10_000
	// MaxRequests is how many requests of one replica a report may have.
	MaxRequests = 64
	// MaxWanted is how many models one report may want.
	MaxWanted = 1000
	// MaxQueues is how many models one report may have queues of, and counters.
	MaxQueues = 1000
	maxName   = 512
)

// ErrTooManyGateways means that MaxGateways others report already.
var ErrTooManyGateways = errors.New("too many gateways report")

// Report is what one gateway has on its replicas. Each replaces the one before it, so
// a gateway that has nothing in flight reports that, too.
type Report struct {
	// Gateway is its ID, which no other has.
	Gateway string
	// Index is that of the state which the gateway follows: it routes as that state
	// says, or as a newer one.
	Index uint64
	// Replicas are those that it knows. One that is missing has nothing in flight.
	Replicas []Replica
	// Since is when the gateway began: of requests before that it knows nothing. Zero: it
	// does not say.
	Since time.Time
	// Wanted are models that clients asked for and that had no replica to serve them, since
	// the report before.
	Wanted []string
	// Queues are the models that have requests waiting or at engines.
	Queues []Queue
	// Counters are of the models that the gateway has had a request of lately, at most
	// MaxQueues.
	Counters []Counters
	// Draining: the gateway takes no new requests.
	Draining bool
}

// Replica is what a gateway has on one replica.
type Replica struct {
	Name     string
	InFlight int
	// Oldest is when the oldest request in flight began, LastRequest when the newest
	// of all did; zero where there was none.
	Oldest, LastRequest time.Time
	// Answered, Failed and FailedInARow are as of api.ReplicaLoad.
	Answered, Failed, FailedInARow int64
	// Requests are some of those in flight, oldest first, at most MaxRequests.
	Requests []Request
}

// Request is one request, in flight or waiting.
type Request struct {
	ID string
	// Started is when it was sent to the replica, or came where it waits.
	Started time.Time
}

// Validate names everything that is wrong with the report.
func (r Report) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkName(r.Gateway); err != nil {
		bad("gateway: %w", err)
	}
	if n := len(r.Replicas); n > MaxReplicas {
		bad("%d replicas: must be at most %d", n, MaxReplicas)
		return errors.Join(errs...)
	}
	if n := len(r.Wanted); n > MaxWanted {
		bad("%d wanted models: must be at most %d", n, MaxWanted)
		return errors.Join(errs...)
	}
	if n := len(r.Queues); n > MaxQueues {
		bad("%d queues: must be at most %d", n, MaxQueues)
		return errors.Join(errs...)
	}
	queues := make(map[string]bool, len(r.Queues))
	for _, q := range r.Queues {
		if queues[q.Model] {
			bad("duplicate queue of model %q", q.Model)
		}
		queues[q.Model] = true
		errs = append(errs, q.validate()...)
	}
	if n := len(r.Counters); n > MaxQueues {
		bad("%d models with counters: must be at most %d", n, MaxQueues)
		return errors.Join(errs...)
	}
	counted := make(map[string]bool, len(r.Counters))
	for _, c := range r.Counters {
		if counted[c.Model] {
			bad("duplicate counters of model %q", c.Model)
		}
		counted[c.Model] = true
		errs = append(errs, c.validate()...)
	}
	wanted := make(map[string]bool, len(r.Wanted))
	for _, model := range r.Wanted {
		if err := checkName(model); err != nil {
			bad("wanted model: %w", err)
		} else if wanted[model] {
			bad("duplicate wanted model %q", model)
		}
		wanted[model] = true
	}
	seen := make(map[string]bool, len(r.Replicas))
	for _, one := range r.Replicas {
		switch _, err := replica.ParseName(one.Name); {
		case err != nil:
			bad("replica: %w", err)
		case seen[one.Name]:
			bad("duplicate replica %s", one.Name)
		}
		seen[one.Name] = true
		if one.InFlight < 0 {
			bad("replica %s: in flight is %d: must be 0 or more", one.Name, one.InFlight)
		}
		if one.Answered < 0 || one.Answered > mostCounted || one.Failed < 0 || one.Failed > mostCounted {
			bad("replica %s: answered is %d and failed is %d: must be 0 to %d", one.Name, one.Answered, one.Failed, mostCounted)
		}
		if one.FailedInARow < 0 || one.FailedInARow > one.Failed {
			bad("replica %s: failed in a row is %d: must be 0 to %d, all that failed", one.Name, one.FailedInARow, one.Failed)
		}
		if n := len(one.Requests); n > MaxRequests {
			bad("replica %s: %d requests: must be at most %d", one.Name, n, MaxRequests)
		}
		if one.InFlight >= 0 && len(one.Requests) > one.InFlight {
			bad("replica %s: %d requests but only %d in flight", one.Name, len(one.Requests), one.InFlight)
		}
	}
	return errors.Join(errs...)
}

func checkName(s string) error {
	switch {
	case s == "":
		return errors.New("name is empty")
	case len(s) > maxName:
		return fmt.Errorf("name is %d bytes: must be at most %d bytes", len(s), maxName)
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c == 0x7f }):
		return fmt.Errorf("name is %q: spaces and control characters are not allowed", s)
	}
	return nil
}
