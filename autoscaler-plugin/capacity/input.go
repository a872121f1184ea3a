package capacity

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"remuda/autoscaler-plugin/enginemetrics"
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
	Cost enginemetrics.Value `json:"cost,omitzero"`
	// KVCacheUsage is the share of the KV cache in use, 0 to 1.
	KVCacheUsage enginemetrics.Value `json:"kv_cache_usage,omitzero"`
	// QueueLength is the number of requests that wait in the engine.
	QueueLength enginemetrics.Value `json:"queue_length,omitzero"`
	// KVCapacity is the size of its KV cache, in tokens or any unit that is the same for all
	// replicas of the model. Where one of them has none, sizes are not known, and Safe wants a
	// removal to be safe both with equal sizes and with sizes as the costs are. Safe only.
	KVCapacity enginemetrics.Value `json:"kv_capacity,omitzero"`
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
	Cost enginemetrics.Value `json:"cost,omitzero"`
	// Slots is how many requests a replica runs at once; 0: not known. Where all variants have
	// them, what a slot costs makes a variant cheap, and otherwise what a replica costs. Safe only.
	Slots int `json:"slots,omitzero"`
	// Min and Max bound the target; nil: none, but for upstream's rule that the analyzer
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
	// DefaultCost is the cost of a replica that has none (upstream's DefaultReplicaCost).
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

// Note is a value of an input that Safe rejects. WVA takes it as it is, and says so.
type Note struct {
	// Field is its path, as in "replicas[0].cost".
	Field string `json:"field"`
	// Problem is what it is, and what it should be.
	Problem string `json:"problem"`
	// Effect is what WVA makes of it. It is empty for a field that the autoscaler's analyzer
	// does not have: WVA rejects it, too.
	Effect string `json:"effect"`
}

// What WVA makes of a value that Safe rejects.
const (
	asItIs       = "the analyzer uses it unchanged"
	notRead      = "the analyzer does not read it"
	anyName      = "the analyzer treats the empty name like any other"
	lastCounts   = "the last entry of the variant counts"
	costNotEqual = "no comparison with it is true: which variant changes depends on the order of a Go map in the autoscaler, and it counts as the lowest cost here"
)

// Validate names every field that the rules reject, each as a *FieldError. Metrics are no
// fields in this sense: whatever an engine reports is an input, and is classified. WVA rejects
// only fields that the autoscaler's analyzer does not have.
func (in *Input) Validate(rules Rules) error { return asErrors(rules, in.problems()) }

// asErrors joins the problems that the rules reject, as *FieldErrors; nil if there are none.
func asErrors(rules Rules, all []Note) error {
	var errs []error
	for _, n := range all {
		if rules == WVA && n.Effect != "" {
			continue
		}
		errs = append(errs, &FieldError{Field: n.Field, Problem: n.Problem})
	}
	return errors.Join(errs...)
}

// problems are the bad fields of the input. It allocates nothing where there are none, and
// the variants are few.
func (in *Input) problems() []Note {
	cfg := in.Config.orDefault()
	p := problems{cfg.problems("config.")}
	for i := range in.Replicas {
		r := &in.Replicas[i]
		p.name("replicas", i, "replica", r.Replica, notRead)
		p.name("replicas", i, "variant", r.Variant, anyName)
		p.cost("replicas", i, r.Cost)
		if x := r.KVCapacity; !x.IsZero() && !(x.Raw() > 0 && finite(x.Raw())) {
			p.add("replicas", i, "kv_capacity", fmt.Sprintf("is %s: must be more than 0 or absent", x), "")
		}
	}
	for i := range in.Variants {
		v := &in.Variants[i]
		p.name("variants", i, "variant", v.Variant, anyName)
		if j := slices.IndexFunc(in.Variants, func(o Variant) bool { return o.Variant == v.Variant }); j < i {
			p.add("variants", i, "variant", fmt.Sprintf("is %q: duplicate of variants[%d].variant", v.Variant, j), lastCounts)
		}
		p.count("variants", i, "current", v.Current, asItIs)
		p.count("variants", i, "desired", v.Desired, asItIs)
		p.count("variants", i, "draining", v.Draining, "")
		p.count("variants", i, "slots", v.Slots, "")
		p.count("variants", i, "pending", or0(v.Pending), "")
		p.count("variants", i, "min", or0(v.Min), "")
		p.count("variants", i, "max", or0(v.Max), "")
		if v.Min != nil && v.Max != nil && *v.Min > *v.Max {
			p.add("variants", i, "min", fmt.Sprintf("is %d and max is %d: min must be at most max", *v.Min, *v.Max), "")
		}
		p.cost("variants", i, v.Cost)
	}
	targets := len(p.all)
	for name, n := range in.ModelBasedTargets {
		if !isCount(n) {
			p.all = append(p.all, Note{Field: fmt.Sprintf("model_based_targets[%q]", name), Problem: countProblem(n), Effect: asItIs})
		}
	}
	slices.SortFunc(p.all[targets:], func(x, y Note) int { return strings.Compare(x.Field, y.Field) })
	return p.all
}

// problems collects the bad fields of an input.
type problems struct{ all []Note }

func (p *problems) add(list string, i int, field, problem, effect string) {
	p.all = append(p.all, Note{Field: fmt.Sprintf("%s[%d].%s", list, i, field), Problem: problem, Effect: effect})
}

func (p *problems) name(list string, i int, field, name, effect string) {
	if name == "" {
		p.add(list, i, field, "is missing or empty: must be a name", effect)
	}
}

func (p *problems) cost(list string, i int, cost enginemetrics.Value) {
	x := cost.Raw()
	if x >= 0 && finite(x) {
		return
	}
	effect := asItIs
	if math.IsNaN(x) {
		effect = costNotEqual
	}
	p.add(list, i, "cost", fmt.Sprintf("is %s: must be 0 or more", cost), effect)
}

func (p *problems) count(list string, i int, field string, n int, effect string) {
	if !isCount(n) {
		p.add(list, i, field, countProblem(n), effect)
	}
}

func isCount(n int) bool { return n >= 0 && n <= MaxCount }

func countProblem(n int) string { return fmt.Sprintf("is %d: must be 0 to %d replicas", n, MaxCount) }

// or0 is 0 for nil.
func or0(n *int) int {
	if n == nil {
		return 0
	}
	return *n
}
