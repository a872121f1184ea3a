package enginemetrics

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Class says how far a replica's numbers can be used.
type Class string

// The classes of a replica.
const (
	// ClassOK: fresh and complete.
	ClassOK Class = "ok"
	// ClassStale: the last sample is too old. Its load is not known now.
	ClassStale Class = "stale"
	// ClassUnknown: never observed, or its core values are bad or missing.
	ClassUnknown Class = "unknown"
	// ClassAsleep: the engine is there and holds no weights on the GPU. It serves
	// nothing and its zeros say nothing.
	ClassAsleep Class = "asleep"
	// ClassDuplicate: several scrapes of it disagree. Its values are the highest.
	ClassDuplicate Class = "duplicate"
	// ClassGone: it is reported and does not live, such as a dead replica that
	// Prometheus still remembers.
	ClassGone Class = "gone"
)

// View is what is known of one replica at one moment.
type View struct {
	Replica string `json:"replica"`
	Class   Class  `json:"class"`
	// Why is the reason for a class other than ok.
	Why string `json:"why,omitempty"`
	// Age is how long ago the replica was last read.
	Age time.Duration `json:"age_ns"`
	// Running, Waiting and KVUsage are the peaks of the window. They are bad or
	// absent where the last sample's are. Of a stale replica they are the last
	// known ones.
	Running Value `json:"running"`
	Waiting Value `json:"waiting"`
	KVUsage Value `json:"kv_usage"`
	// Last is the last sample itself.
	Last Sample `json:"last"`
	// Points is how many samples are in the window.
	Points int `json:"points,omitempty"`
	// Rates of the counters; absent for a stale replica.
	Rates Rates `json:"rates"`
}

// Census is the state of all replicas of one model.
type Census struct {
	// Replicas has one view of each replica, living or reported, sorted by name.
	Replicas []View `json:"replicas"`
	// How many there are of each class.
	OK        int `json:"ok"`
	Stale     int `json:"stale,omitempty"`
	Unknown   int `json:"unknown,omitempty"`
	Asleep    int `json:"asleep,omitempty"`
	Duplicate int `json:"duplicate,omitempty"`
	Gone      int `json:"gone,omitempty"`
	// Inert is true when replicas live (other than asleep) and none of them can be
	// judged: a policy decides nothing then, which must raise an alarm.
	Inert bool `json:"inert,omitempty"`
	// Why says what makes it inert.
	Why string `json:"why,omitempty"`
	// Findings of all replicas that live, each once, in a fixed order.
	Findings []Finding `json:"findings,omitempty"`
}

// TakeCensus compares the replicas that live with what is reported, one view of each replica. A replica
// that lives and is not reported is unknown; one that is reported and does not
// live is gone. Findings about the model as a whole, such
// as those of Reports, join those of the replicas. The answer does not depend on
// the order of the arguments.
func TakeCensus(live []string, views []View, findings ...Finding) Census {
	living := make(map[string]bool, len(live))
	for _, r := range live {
		living[r] = true
	}
	c := Census{Findings: slices.Clone(findings), Replicas: make([]View, 0, max(len(views), len(living)))}
	reports := make(map[string]bool, len(views))
	for _, v := range views {
		reports[v.Replica] = true
		if !living[v.Replica] {
			v.Class, v.Why = ClassGone, "reported, but not a current replica"
		}
		c.Replicas = append(c.Replicas, v)
	}
	for r := range living {
		if !reports[r] {
			c.Replicas = append(c.Replicas, View{Replica: r, Class: ClassUnknown, Why: "no series for this replica"})
		}
	}
	slices.SortFunc(c.Replicas, func(a, b View) int { return cmp.Compare(a.Replica, b.Replica) })
	reported := 0
	for _, v := range c.Replicas {
		*c.counter(v.Class)++
		if v.Class == ClassGone {
			continue
		}
		if v.Last.Ranks > 0 {
			reported++
		}
		c.Findings = append(c.Findings, v.Last.Findings...)
		if v.Class == ClassDuplicate {
			c.Findings = append(c.Findings, finding(DuplicateSeries, nil, []string{v.Replica}))
		}
	}
	c.Findings = mergeFindings(c.Findings)
	c.judge(len(living), reported)
	return c
}

func (c *Census) counter(class Class) *int {
	switch class {
	case ClassOK:
		return &c.OK
	case ClassStale:
		return &c.Stale
	case ClassAsleep:
		return &c.Asleep
	case ClassDuplicate:
		return &c.Duplicate
	case ClassGone:
		return &c.Gone
	}
	return &c.Unknown
}

// judge sets Inert and Why.
func (c *Census) judge(living, reported int) {
	awake := living - c.Asleep
	if awake <= 0 || c.OK > 0 {
		return
	}
	c.Inert = true
	mismatch := slices.IndexFunc(c.Findings, func(f Finding) bool { return f.Kind == LabelMismatch })
	switch {
	case mismatch >= 0:
		c.Why = "no matching series: " + c.Findings[mismatch].String()
	case reported == 0 && len(c.Findings) > 0:
		c.Why = "no matching series: " + c.Findings[0].String()
	case reported == 0:
		c.Why = fmt.Sprintf("no matching series for any of %d replicas", awake)
	default:
		c.Why = fmt.Sprintf("none of %d replicas has usable metrics: %d unknown, %d stale, %d duplicate", awake, c.Unknown, c.Stale, c.Duplicate)
	}
}
