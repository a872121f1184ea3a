package gatewayreport

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"remuda/controller/api"
	"remuda/internal/replica"
)

// Limits of reports, in addition to those of package api.
const (
	// MaxGateways is the maximum number of live gateways.
	MaxGateways = 1000
	// MaxBytes limits the estimated memory of the reports of all gateways. A report of 5,000
	// replicas takes 1 MiB.
	MaxBytes = 64 << 20
	// MaxReplicas is the maximum number of replicas in a report.
	MaxReplicas = 10_000
	maxName     = 512
)

// Errors of Store.Put.
var (
	// ErrTooManyGateways means that MaxGateways other gateways are live.
	ErrTooManyGateways = fmt.Errorf("too many gateways report: at most %d may", MaxGateways)
	// ErrTooManyBytes means that the report would exceed MaxBytes.
	ErrTooManyBytes = fmt.Errorf("the reports of all gateways are too long: they may take %d bytes together", MaxBytes)
)

// Validate returns all errors of a report.
func Validate(r api.GatewayReport) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if err := checkName(r.Gateway); err != nil {
		bad("gateway: %w", err)
	}
	if n := len(r.Replicas); n > MaxReplicas {
		bad("%d replicas: must be at most %d", n, MaxReplicas)
		return errors.Join(errs...)
	}
	if n := len(r.Demand); n > api.MaxReportDemand {
		bad("demand for %d models: must be at most %d", n, api.MaxReportDemand)
		return errors.Join(errs...)
	}
	if n := len(r.Queues); n > api.MaxReportQueues {
		bad("%d queues: must be at most %d", n, api.MaxReportQueues)
		return errors.Join(errs...)
	}
	queues := make(map[string]bool, len(r.Queues))
	for _, q := range r.Queues {
		if queues[q.Model] {
			bad("duplicate queue of model %q", q.Model)
		}
		queues[q.Model] = true
		errs = append(errs, queueErrors(q)...)
	}
	if n := len(r.Counters); n > api.MaxReportQueues {
		bad("%d models with counters: must be at most %d", n, api.MaxReportQueues)
		return errors.Join(errs...)
	}
	counted := make(map[string]bool, len(r.Counters))
	for _, c := range r.Counters {
		if counted[c.Model] {
			bad("duplicate counters of model %q", c.Model)
		}
		counted[c.Model] = true
		errs = append(errs, counterErrors(c)...)
	}
	if n := len(r.Shares); n > api.MaxReportShares {
		bad("%d shares: must be at most %d", n, api.MaxReportShares)
		return errors.Join(errs...)
	}
	if n := len(r.Keys); n > api.MaxReportKeys {
		bad("demand of %d keys: must be at most %d", n, api.MaxReportKeys)
		return errors.Join(errs...)
	}
	errs = append(errs, shareErrors(r)...)
	for _, model := range slices.Sorted(maps.Keys(r.Demand)) {
		if err := checkName(model); err != nil {
			bad("demand: %w", err)
		}
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
		if one.Answered < 0 || one.Answered > maxCount || one.Failed < 0 || one.Failed > maxCount {
			bad("replica %s: answered is %d and failed is %d: must be 0 to %d", one.Name, one.Answered, one.Failed, maxCount)
		}
		if one.FailedInARow < 0 || one.FailedInARow > one.Failed {
			bad("replica %s: failed in a row is %d: must be 0 to %d, all that failed", one.Name, one.FailedInARow, one.Failed)
		}
		if n := len(one.Requests); n > api.MaxReportRequests {
			bad("replica %s: %d requests: must be at most %d", one.Name, n, api.MaxReportRequests)
		}
		if one.InFlight >= 0 && len(one.Requests) > one.InFlight {
			bad("replica %s: %d requests but only %d in flight", one.Name, len(one.Requests), one.InFlight)
		}
	}
	return errors.Join(errs...)
}

// bytesOf estimates the size of a report in memory.
func bytesOf(r api.GatewayReport) int {
	const request, queue, replica, counters, wanted, shared, keys = 128, 256, 192, 256, 96, 160, 192
	n := len(r.Address) + len(r.Replicas)*replica + len(r.Queues)*queue + len(r.Counters)*counters + len(r.Demand)*wanted + len(r.Shares)*shared + len(r.Keys)*keys
	requests := func(all []api.Request) {
		for _, one := range all {
			n += request + len(one.ID) + len(one.Key)
		}
	}
	for _, one := range r.Replicas {
		n += len(one.Name)
		requests(one.Requests)
	}
	for _, q := range r.Queues {
		n += len(q.Model)
		requests(q.Requests)
	}
	for _, c := range r.Counters {
		n += len(c.Model)
	}
	for model := range r.Demand {
		n += len(model)
	}
	for _, c := range r.Shares {
		n += len(c.Name)
	}
	for _, k := range r.Keys {
		n += len(k.Model) + len(k.Key)
	}
	return n
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
