package plugin

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"remuda/autoscaler-plugin/capacity"
	"remuda/autoscaler-plugin/enginemetrics"
	"remuda/autoscaler-plugin/hpa"
	"remuda/autoscaler-plugin/observe"
	"remuda/autoscaler-plugin/utilization"
)

// The strategies.
const (
	Capacity    = "remuda-capacity"
	HPA         = "remuda-hpa"
	Utilization = "remuda-utilization"
	Predictive  = "remuda-predictive"
)

// StrategyNames are the strategies that there are.
func StrategyNames() []string { return []string{Capacity, HPA, Utilization, Predictive} }

// Options are what a check wants. They are kept beside every decision.
type Options struct {
	// Model is the name of the model that the check is about.
	Model string `json:"model"`
	// ScaleToZero lets a model without requests go to 0 replicas, where its min is 0.
	ScaleToZero bool `json:"scale_to_zero,omitempty"`
	// IdleAfter is for how long there must have been no request before that, in nanoseconds.
	IdleAfter time.Duration `json:"idle_after_ns"`
	// UnplaceableHold is for how long a variant is not chosen after it had no place, in
	// nanoseconds; 0: it is at once.
	UnplaceableHold time.Duration `json:"unplaceable_hold_ns,omitempty"`

	Capacity    *CapacityOptions    `json:"capacity,omitempty"`
	HPA         *HPAOptions         `json:"hpa,omitempty"`
	Utilization *UtilizationOptions `json:"utilization,omitempty"`
	Predictive  *PredictiveOptions  `json:"predictive,omitempty"`
}

// CapacityOptions are those of remuda-capacity.
type CapacityOptions struct {
	// Rules are safe, or wva: those of the upstream analyzer.
	Rules  string          `json:"rules"`
	Config capacity.Config `json:"config"`
	// Hold is for how long fewer replicas must have been enough before one is removed, in
	// nanoseconds. The analyzer has no windows of its own: where it comes from, the windows of
	// an HPA follow it.
	Hold time.Duration `json:"hold_ns,omitempty"`
}

// HPAOptions are those of remuda-hpa.
type HPAOptions struct {
	// Metric is what is compared with Target.
	Metric observe.Metric `json:"metric"`
	// Now takes the last reading of each engine in place of its peak of the last minute.
	Now bool `json:"now,omitempty"`
	// Target is the metric's value for each replica, in thousandths.
	Target    hpa.Milli     `json:"target_milli"`
	Tolerance hpa.Tolerance `json:"tolerance"`
	Behavior  hpa.Behavior  `json:"behavior"`
	// Backlog is set where the form is replicate; its bounds are the model's.
	Backlog *hpa.Backlog `json:"backlog,omitempty"`
}

// behavior is that of the form.
func (h *HPAOptions) behavior() *hpa.Behavior {
	if h.Backlog != nil {
		return &h.Backlog.Behavior
	}
	return &h.Behavior
}

// UtilizationOptions are those of remuda-utilization.
type UtilizationOptions struct {
	Config utilization.Config `json:"config"`
	// Window is over how long usage is averaged, in nanoseconds.
	Window time.Duration `json:"window_ns"`
	// Cycle is the time in which at most downscale_batch replicas are removed, and one unhealthy
	// one, in nanoseconds.
	Cycle time.Duration `json:"cycle_ns,omitempty"`
	// Tier is the model's, for the tiers and graces of Config: a key of the policy, in the model file.
	Tier string `json:"tier,omitempty"`
}

// defaultHold is long enough for a lull between two bursts, and for people who scale by hand
// to see what they did.
const defaultHold = 2 * time.Minute

// defaultCycle is how often the scheduler runs that the limits of remuda-utilization come from.
const defaultCycle = 5 * time.Minute

// defaultGrowthPercent lets a model at most double in one cold start, as an HPA's default does.
const defaultGrowthPercent = 100

// defaultIdleAfter is the idle delay, as in hpa.DefaultBacklog.
const defaultIdleAfter = 5 * time.Minute

// readOptions reads the keys that a check may set and a plugin block may give defaults for.
// Which keys there are depends on the strategy.
func readOptions(r *Settings, strategy string) (Options, observe.Target) {
	o := Options{Model: r.Text("model", "")}
	o.ScaleToZero = r.Switch("scale_to_zero", false)
	o.IdleAfter = r.Duration("idle_after", defaultIdleAfter, 0, 7*24*time.Hour)
	o.UnplaceableHold = r.Duration("unplaceable_hold", defaultUnplaceableHold, 0, time.Hour)
	t := observe.Target{Model: o.Model, Dialect: r.Text("dialect", "")}
	t.ServedAs = r.Text("served_as", "")
	t.Group = &observe.JobGroup{Variant: r.Text("variant", observe.DefaultVariant), Cost: r.Number("cost", capacity.DefaultCost, 0, 1e9)}
	t.Group.Slots = r.Whole("slots", 0, 0, 1<<20)
	r.Parsed("match", func(s string) (err error) {
		t.Group.Match, err = matches(s)
		return err
	})
	if err := t.Validate(); err != nil {
		r.Fault("model", "is invalid: %w", err)
	}
	switch strategy {
	case Capacity:
		o.Capacity = readCapacity(r)
	case HPA:
		o.HPA = readHPA(r, &o)
	case Utilization:
		o.Utilization = readUtilization(r)
	case Predictive:
		o.Predictive = readPredictive(r)
	}
	return o, t
}

// matches reads labels, as "job=llama,group=engine".
func matches(s string) ([]enginemetrics.Matcher, error) {
	var all []enginemetrics.Matcher
	for _, part := range strings.Split(s, ",") {
		label, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok || label == "" {
			return nil, fmt.Errorf("%q: must be label=value pairs separated by commas", part)
		}
		all = append(all, enginemetrics.Matcher{Name: label, Value: value})
	}
	return all, nil
}

func readCapacity(r *Settings) *CapacityOptions {
	d := capacity.DefaultConfig()
	c := &CapacityOptions{Rules: r.Word("rules", capacity.Safe.String(), capacity.WVA.String())}
	const most = 1e9
	c.Config = capacity.Config{
		KVCacheThreshold:     r.Number("kv_cache_threshold", d.KVCacheThreshold, 0, 1),
		QueueLengthThreshold: r.Number("queue_length_threshold", d.QueueLengthThreshold, 0, most),
		KVSpareTrigger:       r.Number("kv_spare_trigger", d.KVSpareTrigger, 0, 1),
		QueueSpareTrigger:    r.Number("queue_spare_trigger", d.QueueSpareTrigger, 0, most),
		GrowthPercent:        r.Whole("growth_percent", defaultGrowthPercent, 0, capacity.MaxGrowthPercent),
		StaleAfterSeconds:    r.Duration("stale_after", capacity.DefaultStaleAfterSeconds*time.Second, time.Second, time.Hour).Seconds(),
	}
	c.Hold = r.Duration("hold", defaultHold, 0, 24*time.Hour)
	if err := c.Config.Validate(); err != nil {
		r.Fault("thresholds", "are invalid: %w", err)
	}
	return c
}

func readHPA(r *Settings, o *Options) *HPAOptions {
	h := &HPAOptions{Metric: observe.MetricQueue, Behavior: hpa.DefaultBehavior()}
	r.Parsed("metric", func(s string) (err error) {
		h.Metric, err = observe.ParseMetric(s)
		return err
	})
	h.Now = r.Word("value", "peak", "now") == "now"
	standard := map[observe.Metric]float64{observe.MetricQueue: 2, observe.MetricWaiting: 2, observe.MetricRunning: 8, observe.MetricKV: 0.7}[h.Metric]
	most := float64(hpa.MaxCount)
	if h.Metric == observe.MetricKV {
		most = 1
	}
	h.Target, _ = hpa.FromFloat(r.Number("target", standard, 0.001, most))
	tolerance := hpa.DefaultTolerance()
	h.Tolerance.Up, _ = hpa.FromFloat(r.Number("tolerance_up", float64(tolerance.Up)/1000, 0, 1000))
	h.Tolerance.Down, _ = hpa.FromFloat(r.Number("tolerance_down", float64(tolerance.Down)/1000, 0, 1000))
	r.Parsed("behavior", func(s string) (err error) {
		h.Behavior, err = hpa.ParseBehavior([]byte(s))
		return err
	})
	// Our counts of 0 mean that the model sleeps, not that it is switched off.
	h.Behavior.FromZero = true
	if r.Word("form", "kubernetes", "replicate") == "replicate" {
		b := hpa.DefaultBacklog()
		if h.Metric != observe.MetricQueue && h.Metric != observe.MetricRunning {
			r.Fault("metric", "is %q: must be queue or running, because form is replicate, which scales by a backlog", h.Metric)
		}
		b.Target, b.ScaleToZero, b.IdleSeconds = h.Target, o.ScaleToZero, int(o.IdleAfter/time.Second)
		b.Headroom = r.Whole("headroom", 0, 0, hpa.MaxCount)
		b.Hysteresis, _ = hpa.FromFloat(r.Number("hysteresis", 0.02, 0, 1))
		b.SlowStart = r.Whole("slow_start", 5, 0, hpa.MaxCount)
		if r.Set("min_override") {
			n := r.Whole("min_override", 0, 0, hpa.MaxCount)
			b.MinOverride = &n
		}
		if r.Set("emergency_cap") {
			n := r.Whole("emergency_cap", hpa.MaxCount, 0, hpa.MaxCount)
			b.Cap = &n
		}
		if r.Set("behavior") {
			b.Behavior = h.Behavior
		}
		b.Max = hpa.MaxCount
		h.Backlog = &b
	}
	return h
}

func readUtilization(r *Settings) *UtilizationOptions {
	c := utilization.DefaultConfig()
	// Bounds are the model's; the newest rule is the one that knows what a slot is.
	c.MinCount, c.MaxCount, c.Scaling.EZ.Active = 0, hpa.MaxCount, true
	r.Parsed("config", func(s string) error { return decode(s, &c) })
	c.Scaling.EZ.MinUtilization = r.Number("min_utilization", c.Scaling.EZ.MinUtilization, 0, 1)
	c.Scaling.EZ.MaxUtilization = r.Number("max_utilization", c.Scaling.EZ.MaxUtilization, 0, 1)
	c.MaxConcurrency = r.Whole("max_concurrent_requests", c.MaxConcurrency, 0, 1<<20)
	valid := c
	valid.MaxConcurrency = max(c.MaxConcurrency, 1) // 0 is what the engines say
	if err := valid.Validate(); err != nil {
		r.Fault("config", "is invalid: %w", err)
	}
	return &UtilizationOptions{Config: c, Tier: r.Text("tier", ""), Cycle: r.Duration("cycle", defaultCycle, 0, 24*time.Hour), Window: r.Duration("usage_window", utilization.DefaultBucket, time.Minute, time.Hour)}
}

// decode reads JSON and refuses unknown fields.
func decode(s string, into any) error {
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if d.More() {
		return fmt.Errorf("unexpected data after the first JSON value")
	}
	return nil
}
