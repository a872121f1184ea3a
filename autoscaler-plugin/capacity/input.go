package capacity

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"remuda/autoscaler-plugin/measure"
)

// Input is everything that an answer depends on.
type Input struct {
	Model     string    `json:"model"`
	Namespace string    `json:"namespace"`
	Config    Config    `json:"config"`
	Replicas  []Replica `json:"replicas"`
	Variants  []Variant `json:"variants"`
	// ModelBasedTargets are an optimizer's targets by variant. nil: there is no optimizer.
	ModelBasedTargets map[string]int `json:"model_based_targets,omitzero"`
}

// Replica is what a replica's engine reports: peaks over the last minute.
type Replica struct {
	// Replica names it among the replicas of its variant.
	Replica     string `json:"replica"`
	Variant     string `json:"variant"`
	Accelerator string `json:"accelerator,omitzero"`
	// Cost of a replica of the variant. Where replicas differ, the highest is the variant's.
	Cost measure.Value `json:"cost,omitzero"`
	// KVCacheUsage is the share of the KV cache in use, 0 to 1.
	KVCacheUsage measure.Value `json:"kv_cache_usage,omitzero"`
	// QueueLength is the number of requests that wait in the engine.
	QueueLength measure.Value `json:"queue_length,omitzero"`
	// KVCapacity is the size of its KV cache, in tokens or any unit that is the same for all
	// replicas of the model. Where one of them has none, sizes are not known, and Safe wants a
	// removal to be safe both with equal sizes and with sizes as the costs are. Safe only.
	KVCapacity measure.Value `json:"kv_capacity,omitzero"`
	// AgeSeconds is how old the metrics are. Safe only.
	AgeSeconds float64 `json:"age_seconds,omitzero"`
	// Draining: it takes no new requests. Its load counts, its room does not. Safe only.
	Draining bool `json:"draining,omitzero"`
}

// Variant is how many replicas a variant has, and may have.
type Variant struct {
	Variant string `json:"variant"`
	// Current is how many replicas there are, those that start included, and those that
	// drain not.
	Current int `json:"current"`
	// Desired is the target that was decided before; 0: none.
	Desired int `json:"desired"`
	// Cost of a replica. Where it is absent it is that of the variant's replicas, or
	// DefaultCost.
	Cost measure.Value `json:"cost,omitzero"`
	// Min and Max bound the target; nil: none, but for the seed's rule that the analyzer
	// alone does not remove the last replica of a variant. With Min 0 it may. Safe only.
	Min *int `json:"min,omitzero"`
	Max *int `json:"max,omitzero"`
	// Pending is how many of Current start. nil: nobody knows, and those that are missing from
	// the replicas are taken to start. Safe only.
	Pending *int `json:"pending,omitzero"`
	// Draining is how many replicas drain, beside Current. Safe only.
	Draining int `json:"draining,omitzero"`
	// Unplaceable: there is no place for another replica now. Safe only.
	Unplaceable bool `json:"unplaceable,omitzero"`
}

const (
	// DefaultCost is the cost of a replica that has none (the seed's DefaultReplicaCost).
	DefaultCost = 10
	// MaxCount is the largest number of replicas that a variant may have.
	MaxCount = 1_000_000
)

// FieldError says what is wrong with a field of an input.
type FieldError struct {
	// Field is its path, as in "replicas[0].cost".
	Field string
	// Line is where it is in the text, from 1; 0 where there is no text.
	Line int
	// Problem is what it is and what it should be.
	Problem string
}

// Error names the field, and its line where there is one.
func (e *FieldError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("line %d: %s %s", e.Line, e.Field, e.Problem)
	}
	return e.Field + " " + e.Problem
}

func count(n int) bool { return n >= 0 && n <= MaxCount }

func countOr(n *int) bool { return n == nil || count(*n) }

// good is Validate without words, for a replica.
func (r *Replica) good() bool {
	return r.Replica != "" && r.Variant != "" && r.Cost.Raw() >= 0 && finite(r.Cost.Raw()) &&
		(r.KVCapacity.IsZero() || r.KVCapacity.Raw() > 0 && finite(r.KVCapacity.Raw()))
}

// good is Validate without words, but for replicas, and variants that are there twice.
func (in *Input) good() bool {
	for i := range in.Variants {
		v := &in.Variants[i]
		if v.Variant == "" || !count(v.Current) || !count(v.Desired) || !count(v.Draining) ||
			!countOr(v.Min) || !countOr(v.Max) || !countOr(v.Pending) ||
			v.Min != nil && v.Max != nil && *v.Min > *v.Max || !(v.Cost.Raw() >= 0 && finite(v.Cost.Raw())) {
			return false
		}
	}
	for _, n := range in.ModelBasedTargets {
		if !count(n) {
			return false
		}
	}
	return true
}

// Validate names every bad field, each as a *FieldError. Metrics are no fields in this sense:
// whatever an engine reports is an input, and is classified.
func (in *Input) Validate() error {
	errs := in.Config.orDefault().faults("config.")
	bad := func(field, format string, args ...any) {
		errs = append(errs, &FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
	}
	named := func(field, name string) {
		if name == "" {
			bad(field, "is missing or empty: want a name")
		}
	}
	cost := func(field string, v measure.Value) {
		if !(v.Raw() >= 0 && finite(v.Raw())) {
			bad(field, "is %s: want 0 or more", v)
		}
	}
	counted := func(field string, n *int) {
		if !countOr(n) {
			bad(field, "is %d: want 0 to %d replicas", *n, MaxCount)
		}
	}
	for i := range in.Replicas {
		r, at := &in.Replicas[i], fmt.Sprintf("replicas[%d].", i)
		named(at+"replica", r.Replica)
		named(at+"variant", r.Variant)
		cost(at+"cost", r.Cost)
		if !r.KVCapacity.IsZero() && !(r.KVCapacity.Raw() > 0 && finite(r.KVCapacity.Raw())) {
			bad(at+"kv_capacity", "is %s: want more than 0, or leave it out", r.KVCapacity)
		}
	}
	first := map[string]int{}
	for i := range in.Variants {
		v, at := &in.Variants[i], fmt.Sprintf("variants[%d].", i)
		named(at+"variant", v.Variant)
		if j, twice := first[v.Variant]; twice && v.Variant != "" {
			bad(at+"variant", "is %q as variants[%d].variant is: want each variant once", v.Variant, j)
		} else {
			first[v.Variant] = i
		}
		counted(at+"current", &v.Current)
		counted(at+"desired", &v.Desired)
		counted(at+"draining", &v.Draining)
		counted(at+"pending", v.Pending)
		counted(at+"min", v.Min)
		counted(at+"max", v.Max)
		if v.Min != nil && v.Max != nil && *v.Min > *v.Max {
			bad(at+"min", "is %d and max is %d: want min at most max", *v.Min, *v.Max)
		}
		cost(at+"cost", v.Cost)
	}
	for _, name := range sortedKeys(in.ModelBasedTargets) {
		n := in.ModelBasedTargets[name]
		counted(fmt.Sprintf("model_based_targets[%q]", name), &n)
	}
	return errors.Join(errs...)
}

func sortedKeys(m map[string]int) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, strings.Compare)
	return keys
}
