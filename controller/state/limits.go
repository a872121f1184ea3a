package state

import (
	"time"

	"github.com/hashicorp/go-memdb"
)

// Limits are the bounds that the dedicated set and the switches put on a model's scale. They bound
// how many replicas run, and change neither Model.Desired nor Model.Displaced.
type Limits struct {
	// Dedicated is the minimum number of replicas in the dedicated set.
	Dedicated int
	// Cap is how many it has at most, by SwitchCapMaxReplicas; nil where that is not set.
	Cap *int
	// ScalingDisabled: only operators change its scale, by SwitchDisableScaling.
	ScalingDisabled bool
	// ScaleToZeroDelay is how long its last replica must be idle before it goes, by the
	// switch of that name. KeepLast: it never goes.
	ScaleToZeroDelay time.Duration
	KeepLast         bool
}

// limitsOf reads the switches by value. The dedicated set may be nil.
func limitsOf(model string, dedicated *Dedicated, value func(name string) string) Limits {
	l := Limits{Dedicated: dedicated.number(model)}
	for _, name := range []string{SwitchCapMaxReplicas, SwitchFor(SwitchCapMaxReplicas, model)} {
		if n, ok := parseCap(value(name)); ok && (l.Cap == nil || n < *l.Cap) {
			l.Cap = &n
		}
	}
	// A value of before there were rules counts: a kill switch that was set in any way holds.
	l.ScalingDisabled = isOn(value(SwitchDisableScaling)) || isOn(value(SwitchFor(SwitchDisableScaling, model)))
	l.ScaleToZeroDelay, l.KeepLast, _ = parseDelay(value(SwitchScaleToZeroDelay))
	return l
}

// Limits returns what bounds the scale of a model beside its file, by the model's name.
func (v *View) Limits(ws memdb.WatchSet) func(model string) Limits {
	dedicated, switches := v.Dedicated(ws), map[string]string{}
	for _, s := range v.Switches(ws) {
		switches[s.Name] = s.Value
	}
	return func(model string) Limits {
		return limitsOf(model, dedicated, func(name string) string { return switches[name] })
	}
}

// Bound names what keeps a model from having as many replicas as it should.
type Bound string

// The bounds.
const (
	BoundNone      Bound = ""
	BoundStopped   Bound = "stopped"
	BoundMin       Bound = "min"       // of the model's file
	BoundDedicated Bound = "dedicated" // the dedicated set
	BoundDisplaced Bound = "displaced" // Model.Displaced
	BoundMax       Bound = "max"       // of the model's file
	BoundCap       Bound = "cap"       // the switch
)

// Target is how many replicas of a model should run now.
type Target struct {
	Replicas int
	// Bound is why that is not the sum of Model.Desired; BoundNone where it is.
	Bound Bound
}

// Target returns how many replicas of m should run now: what is active of Desired, not below
// the floors and, before all, not above the ceilings.
func (m *Model) Target(l Limits) Target {
	if m.Stopped {
		return Target{Bound: BoundStopped}
	}
	t := Target{Replicas: m.Active().Total()}
	if t.Replicas < m.Desired.Total() {
		t.Bound = BoundDisplaced
	}
	floor := func(n int, by Bound) {
		if t.Replicas < n {
			t = Target{n, by}
		}
	}
	ceiling := func(n int, by Bound) {
		if t.Replicas > n {
			t = Target{n, by}
		}
	}
	floor(m.Min, BoundMin)
	if m.Management != ManagementDisabled { // what runs stays as it is
		floor(l.Dedicated, BoundDedicated)
	}
	ceiling(m.Max, BoundMax)
	if l.Cap != nil {
		ceiling(*l.Cap, BoundCap)
	}
	if t.Replicas == m.Desired.Total() {
		t.Bound = BoundNone
	}
	return t
}

// Target returns how many replicas of m should run now; see Model.Target.
func (v *View) Target(ws memdb.WatchSet, m *Model) Target {
	return m.Target(v.Limits(ws)(m.Name))
}
