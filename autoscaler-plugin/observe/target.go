package observe

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// Target is what to observe.
type Target struct {
	// Model is its name, as clients and engines know it.
	Model string `json:"model"`
	// ServedAs is the name under which the engines show the model in their metrics, where
	// that is another one than Model.
	ServedAs string `json:"served_as,omitempty"`
	// Group is the plain job group of a policy, for where no controller of ours knows the model: engines of
	// other groups are left out then, as each has a policy of its own. nil: all engines that are seen.
	Group *JobGroup `json:"group,omitempty"`
	// Dialect is what the engines speak (enginemetrics.Lookup); empty: what the controller says,
	// and otherwise found by the names on the page.
	Dialect string `json:"dialect,omitempty"`
}

// JobGroup is one job group that runs the model.
type JobGroup struct {
	// Variant is the name of the job group.
	Variant string `json:"variant"`
	// Cost of a replica per hour in any one unit; 0: not told.
	Cost float64 `json:"cost,omitempty"`
	// Count is how many replicas there are, as nomad-autoscaler says.
	Count int `json:"count"`
	// Slots is how many requests one engine works on at once; 0: as the engines say.
	Slots int `json:"slots,omitempty"`
	// Match are the labels that the series of this variant have on a Prometheus server.
	Match []enginemetrics.Matcher `json:"match,omitempty"`
}

// DefaultVariant is the name of a job group that has none. All engines of a model belong to it.
const DefaultVariant = "default"

// Validate names every bad field.
func (t *Target) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	named := func(field, name string, needed bool) {
		const longest = 512
		switch {
		case name == "" && needed:
			bad("%s is empty: must be a name", field)
		case len(name) > longest:
			bad("%s has %d bytes: must be at most %d", field, len(name), longest)
		case !utf8.ValidString(name):
			bad("%s is %q: must be valid UTF-8", field, name)
		}
	}
	named("model", t.Model, true)
	named("served_as", t.ServedAs, false)
	if t.Dialect != "" {
		if _, err := enginemetrics.Lookup(t.Dialect); err != nil {
			bad("dialect: %w", err)
		}
	}
	if g := t.Group; g != nil {
		named("variant", g.Variant, true)
		if !(g.Cost >= 0 && g.Cost <= math.MaxFloat64) {
			bad("cost is %g: must be 0 or more", g.Cost)
		}
		count := func(field string, n int) {
			if n < 0 || n > capacity.MaxCount {
				bad("%s is %d: must be 0 to %d", field, n, capacity.MaxCount)
			}
		}
		count("count", g.Count)
		count("slots", g.Slots)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("observe model %q: %w", t.Model, err)
	}
	return nil
}

// shown is the name under which the engines show the model.
func (t *Target) shown() string {
	if t.ServedAs != "" {
		return t.ServedAs
	}
	return t.Model
}
