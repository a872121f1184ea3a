package peers

import (
	"errors"
	"fmt"
	"math"
	"time"

	"remuda/tools/policystudy/scalesim"
)

// KnativeConfig are the settings of Knative's pod autoscaler (KPA), by the names of
// its config-autoscaler.
type KnativeConfig struct {
	// StableWindow and PanicWindow are what concurrency is averaged over.
	StableWindow time.Duration `json:"stable_window_ns"`
	PanicWindow  time.Duration `json:"panic_window_ns"`
	// TargetUtilization is the share of a replica's slots that is the target.
	TargetUtilization float64 `json:"target_utilization"`
	// PanicThreshold is how many times the ready replicas the short window must want.
	PanicThreshold float64 `json:"panic_threshold"`
	// MaxScaleUpRate and MaxScaleDownRate bound a decision, as multiples of the ready
	// replicas.
	MaxScaleUpRate   float64 `json:"max_scale_up_rate"`
	MaxScaleDownRate float64 `json:"max_scale_down_rate"`
	// ScaleDownDelay holds the highest wish of that time.
	ScaleDownDelay time.Duration `json:"scale_down_delay_ns"`
	// Tick is the time between decisions.
	Tick time.Duration `json:"tick_ns"`
}

// DefaultKnativeConfig has Knative's defaults.
func DefaultKnativeConfig() KnativeConfig {
	return KnativeConfig{StableWindow: time.Minute, PanicWindow: 6 * time.Second, TargetUtilization: 0.7,
		PanicThreshold: 2, MaxScaleUpRate: 1000, MaxScaleDownRate: 2, Tick: 2 * time.Second}
}

// Validate names every field that is wrong.
func (c *KnativeConfig) Validate() error {
	var errs []error
	check := func(ok bool, field string, value any, want string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is %v: it must be %s", field, value, want))
		}
	}
	check(c.Tick >= time.Millisecond, "tick_ns", c.Tick, "at least 1ms")
	check(c.PanicWindow >= c.Tick, "panic_window_ns", c.PanicWindow, "at least tick_ns")
	check(c.StableWindow >= c.PanicWindow, "stable_window_ns", c.StableWindow, "at least panic_window_ns")
	check(c.TargetUtilization > 0 && c.TargetUtilization <= 1, "target_utilization", c.TargetUtilization, "above 0 and at most 1")
	check(c.PanicThreshold > 1 && c.PanicThreshold <= 10, "panic_threshold", c.PanicThreshold, "above 1 and at most 10")
	check(c.MaxScaleUpRate > 1 && c.MaxScaleUpRate <= 1e6, "max_scale_up_rate", c.MaxScaleUpRate, "above 1 and at most 1e6")
	check(c.MaxScaleDownRate > 1 && c.MaxScaleDownRate <= 1e6, "max_scale_down_rate", c.MaxScaleDownRate, "above 1 and at most 1e6")
	check(c.ScaleDownDelay >= 0 && c.ScaleDownDelay <= time.Hour, "scale_down_delay_ns", c.ScaleDownDelay, "0 to 1h")
	return errors.Join(errs...)
}

// Knative scales as Knative's KPA does (pkg/autoscaler/scaling/autoscaler.go): the mean
// concurrency of a stable and of a panic window, each divided by the target, bounded by the
// rates. If the panic window wants PanicThreshold times the ready replicas, it panics: for
// a stable window after the last such moment it takes the larger of both and never goes
// down. What Knative counts as concurrency is what runs and what waits at its activator.
type Knative struct {
	cfg     KnativeConfig
	ring    []mark // one for each tick of the stable window and one more
	n       int    // marks so far
	panicAt time.Duration
	panics  bool
	most    int // of the panic
	delayed []wish
}

// mark is the concurrency integral at a decision.
type mark struct {
	at    time.Duration
	total float64 // seconds
}

type wish struct {
	at      time.Duration
	desired int
}

var _ scalesim.Paced = (*Knative)(nil)

// NewKnative makes the policy.
func NewKnative(cfg KnativeConfig) (*Knative, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("knative: %w", err)
	}
	n := int((cfg.StableWindow+cfg.Tick-1)/cfg.Tick) + 1
	return &Knative{cfg: cfg, ring: make([]mark, n)}, nil
}

// Name implements scalesim.Policy.
func (k *Knative) Name() string { return "kpa" }

// Interval implements scalesim.Paced.
func (k *Knative) Interval() time.Duration { return k.cfg.Tick }

// Decide implements scalesim.Policy.
func (k *Knative) Decide(o *scalesim.Observation) int {
	k.ring[k.n%len(k.ring)] = mark{o.Now, o.BusySeconds + o.WaitingSeconds}
	k.n++
	inSystem := float64(o.Running + o.Waiting)
	stable := k.average(k.cfg.StableWindow, inSystem)
	short := k.average(k.cfg.PanicWindow, inSystem)
	target := k.cfg.TargetUtilization * float64(o.Slots)
	ready := math.Max(float64(o.Ready), 1)
	bound := func(wanted float64) int {
		up := math.Ceil(k.cfg.MaxScaleUpRate * ready)
		down := math.Floor(float64(o.Ready) / k.cfg.MaxScaleDownRate)
		return int(math.Min(math.Max(wanted, down), up))
	}
	wantShort := math.Ceil(short / target)
	desired, panicked := bound(math.Ceil(stable/target)), bound(wantShort)
	switch {
	case wantShort/ready >= k.cfg.PanicThreshold:
		k.panics, k.panicAt = true, o.Now
	case k.panics && o.Now > k.panicAt+k.cfg.StableWindow:
		k.panics, k.most = false, 0
	}
	if k.panics {
		k.most = max(k.most, desired, panicked)
		desired = k.most
	}
	if o.Waiting > 0 && desired == 0 {
		desired = 1 // the activator holds a request: scale from zero
	}
	return k.delay(o.Now, desired)
}

// average is the mean concurrency over the window, or over what there is of it. At the
// first decision it is what is in the system now.
func (k *Knative) average(window time.Duration, now float64) float64 {
	last := k.ring[(k.n-1)%len(k.ring)]
	back := min(int((window+k.cfg.Tick-1)/k.cfg.Tick), k.n-1, len(k.ring)-1)
	if back == 0 {
		return now
	}
	first := k.ring[(k.n-1-back)%len(k.ring)]
	return (last.total - first.total) / (last.at - first.at).Seconds()
}

// delay gives the highest wish of the delay.
func (k *Knative) delay(now time.Duration, desired int) int {
	if k.cfg.ScaleDownDelay == 0 {
		return desired
	}
	for len(k.delayed) > 0 && k.delayed[len(k.delayed)-1].desired <= desired {
		k.delayed = k.delayed[:len(k.delayed)-1]
	}
	k.delayed = append(k.delayed, wish{now, desired})
	for k.delayed[0].at <= now-k.cfg.ScaleDownDelay {
		k.delayed = k.delayed[1:]
	}
	return k.delayed[0].desired
}
