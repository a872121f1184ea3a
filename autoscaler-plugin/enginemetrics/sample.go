package enginemetrics

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Sample is what one engine said at one moment, its ranks joined.
type Sample struct {
	// Dialect is the name of the one that was told or found; empty when none was.
	Dialect string `json:"dialect,omitempty"`
	// Running and Waiting are requests, KVUsage is a share from 0 to 1.
	Running Value `json:"running"`
	Waiting Value `json:"waiting"`
	KVUsage Value `json:"kv_usage"`
	// Blocks, BlockSize (tokens) and KVTokens say how much fits.
	// How many requests fit (slots) no engine shows; it comes from Consul.
	Blocks    Value `json:"blocks"`
	BlockSize Value `json:"block_size"`
	KVTokens  Value `json:"kv_tokens"`
	// Asleep is true where the engine says that it does not hold its weights on
	// the GPU. Its gauges are zero then, which does not make it idle.
	Asleep bool `json:"asleep,omitempty"`
	// Ranks is how many data-parallel ranks were joined; 0 when nothing was read.
	Ranks int `json:"ranks,omitempty"`
	// Counters only grow while the engine lives.
	Counters Counters `json:"counters"`
	// Findings are what a person should hear about, in a fixed order.
	Findings []Finding `json:"findings,omitempty"`
}

// Counters are the engine's counters, ranks added up.
type Counters struct {
	Finished         Value `json:"finished"`
	PromptTokens     Value `json:"prompt_tokens"`
	GenerationTokens Value `json:"generation_tokens"`
	// The sums, in seconds, and counts of histograms.
	Queue    Histogram `json:"queue"`
	EndToEnd Histogram `json:"end_to_end"`
	// FirstTokens are the times from a request until its first token, InterTokens those between tokens.
	FirstTokens Latency `json:"first_tokens,omitzero"`
	InterTokens Latency `json:"inter_tokens,omitzero"`
}

// Histogram is a histogram without its buckets.
type Histogram struct {
	// Sum is in seconds.
	Sum Value `json:"sum"`
	// Count is how many observations Sum adds up.
	Count Value `json:"count"`
}

// at is the counter of index i, in the order of the quantities from Finished on.
func (c *Counters) at(i int) *Value {
	return [counters]*Value{&c.Finished, &c.PromptTokens, &c.GenerationTokens,
		&c.Queue.Sum, &c.Queue.Count, &c.EndToEnd.Sum, &c.EndToEnd.Count}[i]
}

// latency is that of index i, in the order of the quantities from FirstTokens on.
func (c *Counters) latency(i int) *Latency {
	return [latencies]*Latency{&c.FirstTokens, &c.InterTokens}[i]
}

// unknown is why the load cannot be judged, or empty.
func (s *Sample) unknown() string {
	for _, v := range [...]struct {
		q Quantity
		v Value
	}{{KVUsage, s.KVUsage}, {Waiting, s.Waiting}, {Running, s.Running}} {
		if _, flaw := v.v.Get(); v.v.flawed() {
			return fmt.Sprintf("%s is invalid: %s", v.q, flaw)
		}
	}
	switch {
	case s.Waiting.IsZero() && s.KVUsage.IsZero():
		return "the engine reports no waiting requests and no KV usage"
	case s.Asleep:
		return "the engine is asleep"
	}
	return ""
}

// FindingKind is a kind of Finding.
type FindingKind string

// The findings. Each one is worth an alarm: a policy that meets it decides on
// less than it believes.
const (
	// LabelMismatch: there are series of the engine, all of other models. The
	// upstream analyzer was silently inert this way.
	LabelMismatch FindingKind = "label_mismatch"
	// WrongDialect: no series of the dialect that was told, but those of another.
	WrongDialect FindingKind = "wrong_dialect"
	// AmbiguousDialect: series of several dialects, none of which has the most.
	AmbiguousDialect FindingKind = "ambiguous_dialect"
	// NoSeries: nothing of any known engine.
	NoSeries FindingKind = "no_series"
	// NoMetrics: engines of this dialect show no metrics at all.
	NoMetrics FindingKind = "no_metrics"
	// SeveralModels: no model was told and there are several; they were joined.
	SeveralModels FindingKind = "several_models"
	// DuplicateSeries: a replica comes from several scrapes that disagree.
	DuplicateSeries FindingKind = "duplicate_series"
)

// Finding is something that should raise an alarm.
type Finding struct {
	Kind FindingKind `json:"kind"`
	// Want is what was asked for, Seen what was there; at most ten of each, sorted.
	Want []string `json:"want,omitempty"`
	Seen []string `json:"seen,omitempty"`
}

// maxNames bounds the names that a finding repeats.
const maxNames = 10

func (f Finding) String() string {
	seen, want := strings.Join(f.Seen, ", "), strings.Join(f.Want, ", ")
	switch f.Kind {
	case LabelMismatch:
		return fmt.Sprintf("label mismatch: the engine's series are of model %s and not of %s; set served_as to the engine's served model name", seen, want)
	case WrongDialect:
		return fmt.Sprintf("wrong dialect: the engine's series are of dialect %s and not of %s; correct the dialect or leave it out", seen, want)
	case AmbiguousDialect:
		return fmt.Sprintf("ambiguous dialect: the page has as many series of each of %s; set the dialect", seen)
	case NoSeries:
		return "no series: the page has no series of " + want + "; check the address and that the engine's metrics are enabled"
	case NoMetrics:
		return "no metrics: engines of dialect " + want + " have none; use the gateway's slot occupancy"
	case SeveralModels:
		return fmt.Sprintf("several models: the page has series of %s; set the model", seen)
	case DuplicateSeries:
		return fmt.Sprintf("duplicate series: several scrapes of %s disagree; make Prometheus scrape each engine once", seen)
	}
	return string(f.Kind)
}

// finding builds a Finding with its names sorted, unique and bounded.
func finding(kind FindingKind, want, seen []string) Finding {
	return Finding{Kind: kind, Want: names(want), Seen: names(seen)}
}

func names(in []string) []string {
	if len(in) == 0 {
		return nil
	}
	out := slices.Compact(slices.Sorted(slices.Values(in)))
	return slices.Clone(out[:min(len(out), maxNames)])
}

// mergeFindings sorts findings and keeps one of each.
func mergeFindings(in []Finding) []Finding {
	slices.SortStableFunc(in, compareFindings)
	return slices.CompactFunc(in, func(a, b Finding) bool { return compareFindings(a, b) == 0 })
}

func compareFindings(a, b Finding) int {
	return cmp.Or(cmp.Compare(a.Kind, b.Kind), slices.Compare(a.Want, b.Want), slices.Compare(a.Seen, b.Seen))
}
