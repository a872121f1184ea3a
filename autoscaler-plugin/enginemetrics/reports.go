package enginemetrics

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/common/model"
)

// Answers are a Prometheus server's answers to Queries. A nil one was not asked.
type Answers struct {
	KVUsage *Vector
	Waiting *Vector
	Running *Vector
	Seen    *Vector
	Models  *Vector
}

// ReportOptions say how to read Answers.
type ReportOptions struct {
	// Dialect is the one whose Queries were asked.
	Dialect *Dialect
	// Model is the model that was asked for, and ModelLabel its label where it is
	// not the dialect's. They matter for the answer to Queries.Models.
	Model, ModelLabel string
	// ReplicaLabels name a replica; the first one that a series has counts.
	ReplicaLabels []string
	// StaleAfter is how old a replica's last scrape may be.
	StaleAfter time.Duration
}

// Reports are what a Prometheus server knows of a model.
type Reports struct {
	// Views has one of each replica, sorted by name; its values are the peaks. Pass
	// them to TakeCensus with the replicas that live.
	Views []View `json:"views"`
	// Nameless counts series without any replica label; they cannot be used.
	Nameless int `json:"nameless,omitempty"`
	// Findings concern the model as a whole.
	Findings []Finding `json:"findings,omitempty"`
	// Warnings are those of the server: the answer may be incomplete.
	Warnings []string `json:"warnings,omitempty"`
}

// gathered are the series of one replica.
type gathered struct {
	core     [len(core)][]series
	seen     float64
	hasSeen  bool
	evaluate float64
}

// ReadAnswers joins a server's answers into one view of each replica.
//
// The age of a replica is that of its last scrape when Seen was asked, by the
// server's own clock, so a difference between clocks does not matter. A replica
// that has peaks and is not in Seen has died or stopped answering and is stale.
// Several scrapes of one engine that disagree make it a duplicate.
func ReadAnswers(a Answers, opts ReportOptions) Reports {
	opts.ModelLabel = cmp.Or(opts.ModelLabel, opts.Dialect.ModelLabel)
	var out Reports
	found := map[string]*gathered{}
	for i, v := range [...]*Vector{a.Running, a.Waiting, a.KVUsage} {
		out.gather(v, opts, found, func(g *gathered, s *model.Sample) {
			one, _ := opts.Dialect.classify(walk(s.Metric), true)
			one.value = float64(s.Value)
			g.core[i] = append(g.core[i], one)
		})
	}
	out.gather(a.Seen, opts, found, func(g *gathered, s *model.Sample) {
		if v := float64(s.Value); v >= 0 && !math.IsInf(v, 0) {
			g.seen, g.hasSeen = max(g.seen, v), true
		}
	})
	for replica, g := range found {
		out.Views = append(out.Views, g.view(replica, a, opts))
	}
	slices.SortFunc(out.Views, func(x, y View) int { return strings.Compare(x.Replica, y.Replica) })
	if a.Models != nil {
		out.Warnings = append(out.Warnings, a.Models.Warnings...)
	}
	if len(out.Views) == 0 {
		out.Findings = []Finding{emptyFinding(a, opts)}
	}
	out.Warnings = slices.Compact(slices.Sorted(slices.Values(out.Warnings)))
	return out
}

// gather sorts the series of an answer by replica.
func (r *Reports) gather(v *Vector, opts ReportOptions, found map[string]*gathered, add func(*gathered, *model.Sample)) {
	if v == nil {
		return
	}
	r.Warnings = append(r.Warnings, v.Warnings...)
	for _, s := range v.Series {
		replica := ""
		for _, l := range opts.ReplicaLabels {
			if replica = string(s.Metric[model.LabelName(l)]); replica != "" {
				break
			}
		}
		if replica == "" {
			r.Nameless++
			continue
		}
		g := found[replica]
		if g == nil {
			g = &gathered{}
			found[replica] = g
		}
		g.evaluate = max(g.evaluate, float64(s.Timestamp)/1000)
		add(g, s)
	}
}

// walk goes through labels in whatever order; classify does not mind.
func walk(m model.Metric) labels {
	return func(yield func(name, value string) bool) {
		for k, v := range m {
			if !yield(string(k), string(v)) {
				return
			}
		}
	}
}

// view joins the series of one replica.
func (g *gathered) view(replica string, a Answers, opts ReportOptions) View {
	s := Sample{Dialect: opts.Dialect.Name}
	var cores [len(core)]joined
	pointers := make([]*joined, 0, len(core))
	duplicate := false
	asked := [...]bool{a.Running != nil, a.Waiting != nil, a.KVUsage != nil}
	for i, q := range core {
		cores[i] = join(q, g.core[i], opts.Dialect.KVPercent, true)
		duplicate = duplicate || cores[i].duplicate
		pointers = append(pointers, &cores[i])
	}
	s.Ranks = completeRanks(pointers)
	for i, q := range core {
		if asked[i] && cores[i].value.IsZero() && opts.Dialect.requires(q) {
			cores[i].value = Flawed(NotShown)
		}
	}
	s.Running, s.Waiting, s.KVUsage = cores[0].value, cores[1].value, cores[2].value
	v := View{Replica: replica, Class: ClassOK, Last: s, Running: s.Running, Waiting: s.Waiting, KVUsage: s.KVUsage}
	if why := s.unknown(); why != "" {
		v.Class, v.Why = ClassUnknown, why
	}
	if duplicate {
		v.Class, v.Why = ClassDuplicate, "several scrapes of the replica disagree"
	}
	switch {
	case a.Seen == nil:
	case !g.hasSeen:
		v.Class, v.Why = ClassStale, "its last scrape failed, or it has stopped"
	default:
		v.Age = seconds(g.evaluate - g.seen)
		if v.Age > opts.StaleAfter {
			v.Class, v.Why = ClassStale, fmt.Sprintf("last scraped %v ago: must be at most %v", v.Age.Round(time.Millisecond), opts.StaleAfter)
		}
	}
	return v
}

// seconds makes a duration of seconds; less than none is none, too many are the
// longest there is.
func seconds(s float64) time.Duration {
	switch {
	case !(s > 0):
		return 0
	case s > (math.MaxInt64-1)/1e9:
		return math.MaxInt64
	}
	return time.Duration(s * 1e9)
}

// emptyFinding tells why no series came: other models are there, or nothing is.
func emptyFinding(a Answers, opts ReportOptions) Finding {
	if a.Models != nil {
		var others []string
		for _, s := range a.Models.Series {
			if name := string(s.Metric[model.LabelName(opts.ModelLabel)]); name != "" && name != opts.Model {
				others = append(others, name)
			}
		}
		if len(others) > 0 {
			return finding(LabelMismatch, []string{opts.Model}, others)
		}
	}
	return finding(NoSeries, []string{opts.Dialect.Name}, nil)
}
