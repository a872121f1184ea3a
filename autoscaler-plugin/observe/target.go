package observe

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
)

// Target is what to observe.
type Target struct {
	// Model is its name, as clients and engines know it.
	Model string `json:"model"`
	// Namespace is for the records and for overrides of thresholds; nothing is found by it.
	Namespace string `json:"namespace,omitempty"`
	// ServedAs is the name under which the engines show the model in their metrics, where
	// that is another one than Model.
	ServedAs string `json:"served_as,omitempty"`
	// Variants are plain job groups that no controller of ours knows. Where the controller
	// knows the model they are not used. Where it does not, engines of other groups are left
	// out: each has a policy of its own. A single DefaultVariant has all engines.
	Variants []VariantSpec `json:"variants,omitempty"`
	// Dialect is what the engines speak (enginemetrics.Lookup); empty: what the controller says,
	// and otherwise found by the names on the page.
	Dialect string `json:"dialect,omitempty"`
}

// VariantSpec is one job group that runs the model.
type VariantSpec struct {
	// Variant is the name of the job group.
	Variant string `json:"variant"`
	// Cost of a replica per hour in any one unit; 0: not told.
	Cost float64 `json:"cost,omitempty"`
	// Count is how many replicas there are, as nomad-autoscaler says; nil: as many as
	// Consul or Prometheus shows.
	Count *int `json:"count,omitempty"`
	// Min and Max bound it; a Max of 0 is no bound.
	Min int `json:"min,omitempty"`
	Max int `json:"max,omitempty"`
	// Slots is how many requests one engine works on at once; 0: as the engines say.
	Slots int `json:"slots,omitempty"`
	// Match are the labels that the series of this variant have on a Prometheus server.
	Match []enginemetrics.Matcher `json:"match,omitempty"`
}

// DefaultVariant is the name of a job group that has none. All engines of a model belong to
// it where it is a Target's only one.
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
	named("namespace", t.Namespace, false)
	named("served_as", t.ServedAs, false)
	if t.Dialect != "" {
		if _, err := enginemetrics.Lookup(t.Dialect); err != nil {
			bad("dialect: %w", err)
		}
	}
	first := map[string]int{}
	for i, v := range t.Variants {
		at := fmt.Sprintf("variants[%d].", i)
		named(at+"variant", v.Variant, true)
		if j, twice := first[v.Variant]; twice {
			bad("%svariant is %q: duplicate of variants[%d].variant", at, v.Variant, j)
		}
		first[v.Variant] = i
		if !(v.Cost >= 0 && v.Cost <= math.MaxFloat64) {
			bad("%scost is %g: must be 0 or more", at, v.Cost)
		}
		count := func(field string, n int) {
			if n < 0 || n > capacity.MaxCount {
				bad("%s%s is %d: must be 0 to %d", at, field, n, capacity.MaxCount)
			}
		}
		if v.Count != nil {
			count("count", *v.Count)
		}
		count("min", v.Min)
		count("max", v.Max)
		count("slots", v.Slots)
		if v.Max > 0 && v.Min > v.Max {
			bad("%smin is %d and max is %d: min must be at most max", at, v.Min, v.Max)
		}
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

// groups names the job groups.
func (t *Target) groups() string {
	names := make([]string, len(t.Variants))
	for i, v := range t.Variants {
		names[i] = strconv.Quote(v.Variant)
	}
	return strings.Join(names, ", ")
}

// count is how many replicas all variants have together, -1 where it is not told of one.
func (t *Target) count() int {
	sum := 0
	for _, v := range t.Variants {
		if v.Count == nil {
			return -1
		}
		sum += *v.Count
	}
	if len(t.Variants) == 0 {
		return -1
	}
	return sum
}
