package gatewayreport

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"remuda/controller/api"
	"remuda/controller/share"
)

// ShareTTL is for how long a report keeps the shares of its gateway, unless the time to live of a
// Store is shorter. It is short, so that the others soon have what a gateway leaves that was killed.
// Gateways report several times within it. One that lives and is not heard keeps its last shares, and
// the sum is above the whole meanwhile: it cannot tell that from an election, in which it must not stand still.
const ShareTTL = 1500 * time.Millisecond

func (s *Store) shareTTL() time.Duration { return min(s.ttl, ShareTTL) }

var shareKinds = []api.ShareKind{api.ShareSlots, api.ShareQueue, api.ShareConcurrency, api.ShareRate, api.ShareTokens, api.ShareBudget}

// shareErrors returns all errors of the shares of a report.
func shareErrors(r api.GatewayReport) []error {
	var errs []error
	if len(r.Shares) > 0 && r.Sequence == 0 {
		errs = append(errs, errors.New("sequence is 0: must be 1 or more in a report with shares"))
	}
	type resource struct{ kind, name string }
	seen := make(map[resource]bool, len(r.Shares))
	for _, c := range r.Shares {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("share of %s %q: "+format, append([]any{c.Kind, c.Name}, args...)...))
		}
		if !slices.Contains(shareKinds, c.Kind) {
			bad("kind is %q: must be one of %v", c.Kind, shareKinds)
		}
		if err := checkName(c.Name); err != nil {
			bad("%w", err)
		}
		if seen[resource{c.Kind, c.Name}] {
			bad("duplicate")
		}
		seen[resource{c.Kind, c.Name}] = true
		if (c.Kind == api.ShareRate || c.Kind == api.ShareTokens) && c.Of != api.ShareWhole {
			bad("of is %d: must be %d", c.Of, api.ShareWhole)
		}
		if least, most := min(c.Of, c.Held, c.Used, c.Need), max(c.Of, c.Held, c.Used, c.Need); least < 0 || most > api.MaxShareUnits {
			bad("of is %d, held is %d, used is %d and need is %d: must be 0 to %d", c.Of, c.Held, c.Used, c.Need, api.MaxShareUnits)
		}
	}
	return append(errs, keyErrors(r.Keys)...)
}

// maxWeight is more than the weights of MaxReportKeys keys together.
const maxWeight = 1e6

// keyErrors returns all errors of the keys of a report.
func keyErrors(keys []api.KeyDemand) []error {
	var errs []error
	type one struct{ model, key string }
	seen := make(map[one]bool, len(keys))
	for _, k := range keys {
		bad := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("demand of key %q for model %q: "+format, append([]any{k.Key, k.Model}, args...)...))
		}
		if err := checkName(k.Model); err != nil {
			bad("model: %w", err)
		}
		if k.Key != "" {
			if err := checkName(k.Key); err != nil {
				bad("%w", err)
			}
		}
		if seen[one{k.Model, k.Key}] {
			bad("duplicate")
		}
		seen[one{k.Model, k.Key}] = true
		if !(k.Weight > 0 && k.Weight <= maxWeight) {
			bad("weight is %g: must be more than 0 and at most %g", k.Weight, float64(maxWeight))
		}
		if k.Need < 1 || k.Need > api.MaxShareUnits {
			bad("need is %d: must be 1 to %d", k.Need, api.MaxShareUnits)
		}
	}
	return errs
}

// divide gives the gateway of e its shares. A report that comes after a later one changes none. The
// caller holds the lock.
func (s *Store) divide(old, e *entry, r api.GatewayReport) {
	age := e.at.Sub(s.since)
	// After its first report in a term a gateway sends the usage again that the last leader had not committed.
	shares, parts, newer := s.shares.Report(share.Report{Gateway: r.Gateway, Sequence: r.Sequence, Draining: r.Draining, Claims: r.Shares, Keys: r.Keys}, func(kind api.ShareKind) bool {
		return age >= s.shareTTL() && (kind != api.ShareBudget || age >= 2*s.shareTTL())
	})
	if !newer && old != nil {
		shares, parts = old.shares, old.parts
	}
	if age < s.shareTTL() {
		// 0 would say that others have the slots, and no share says that the leader does not know.
		shares = slices.DeleteFunc(shares, func(g api.GatewayShare) bool { return g.Kind == api.ShareSlots && g.Units == 0 })
	}
	e.shares, e.parts = shares, parts
}
