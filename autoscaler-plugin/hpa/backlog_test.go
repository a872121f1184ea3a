package hpa_test

import (
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"remuda/autoscaler-plugin/hpa"
)

// seen is one call of a Backlog. The count is the previous answer, and all of it is ready
// unless told otherwise.
type seen struct {
	t        float64 // seconds
	queue    int64
	want     int
	by       hpa.Limit
	running  int64
	requests int64
	unready  bool
	unknown  string
	set      int // the count that someone else set before, plus 1; 0 is nobody
}

// backlog is the default with 10 requests for each replica.
func backlog(change func(*hpa.Backlog)) hpa.Backlog {
	b := hpa.DefaultBacklog()
	b.Target = 10_000
	if change != nil {
		change(&b)
	}
	return b
}

// unhindered has no windows, policies, hysteresis or gap.
func unhindered(change func(*hpa.Backlog)) hpa.Backlog {
	return backlog(func(b *hpa.Backlog) {
		b.Hysteresis = 0
		b.Behavior = hpa.Behavior{ScaleUp: free, ScaleDown: free}
		if change != nil {
			change(b)
		}
	})
}

func number(n int) *int { return &n }

func TestBacklog(t *testing.T) {
	for name, tc := range map[string]struct {
		backlog hpa.Backlog
		initial int
		calls   []seen
	}{
		"ceil((queue + headroom) / target)": {unhindered(func(b *hpa.Backlog) { b.Headroom = 5 }), 3, []seen{
			{t: 0, queue: 30, want: 4}, {t: 1, queue: 35, want: 4}, {t: 2, queue: 36, want: 5}, {t: 3, queue: 5, want: 1}, {t: 4, queue: 6, want: 2}}},
		"a target that is no whole number": {unhindered(func(b *hpa.Backlog) { b.Target = 700 }), 1, []seen{{t: 0, queue: 7, want: 10}, {t: 1, queue: 8, want: 12}}},
		"hysteresis: less than 2 % is ignored": {unhindered(func(b *hpa.Backlog) { b.Hysteresis = 20 }), 10, []seen{
			{t: 0, queue: 101, want: 10, by: hpa.LimitHeld}, {t: 1, queue: 102, want: 11}, {t: 2, queue: 108, want: 11, by: hpa.LimitNone}, {t: 3, queue: 107, want: 11}}},
		"scale-out: the smallest of 30 s": {backlog(nil), 1, []seen{
			{t: 0, queue: 10, want: 1}, {t: 10, queue: 40, want: 1, by: hpa.LimitScaleUp}, {t: 29, queue: 30, want: 1, by: hpa.LimitScaleUp},
			{t: 30, queue: 50, want: 3, by: hpa.LimitScaleUp}, {t: 58, queue: 50, want: 3, by: hpa.LimitScaleUp}, {t: 59, queue: 50, want: 5}}},
		"scale-in: the largest of 2 minutes, then at once": {backlog(nil), 20, []seen{
			{t: 0, queue: 200, want: 20}, {t: 30, queue: 20, want: 20, by: hpa.LimitScaleDown}, {t: 60, queue: 20, want: 20, by: hpa.LimitScaleDown},
			{t: 119, queue: 20, want: 20, by: hpa.LimitScaleDown}, {t: 120, queue: 20, want: 2}}},
		"scale-out: the larger of 5 and 100 % a minute": {backlog(func(b *hpa.Backlog) { b.Behavior.ScaleUp.StabilizationWindowSeconds = 0 }), 2, []seen{
			{t: 0, queue: 900, want: 7, by: hpa.LimitUpRate}, {t: 59, queue: 900, want: 7, by: hpa.LimitUpRate}, {t: 60, queue: 900, want: 14, by: hpa.LimitUpRate}}},
		"slow start: 5 until the first replica is ready": {unhindered(nil), 0, []seen{
			{t: 0, queue: 900, want: 5, by: hpa.LimitSlowStart}, {t: 60, queue: 900, want: 5, by: hpa.LimitSlowStart, unready: true},
			{t: 61, queue: 900, want: 90}, {t: 62, queue: 950, want: 95, unready: true}}},
		"slow start removes nothing": {unhindered(nil), 20, []seen{
			{t: 0, queue: 300, want: 20, by: hpa.LimitSlowStart, unready: true}, {t: 1, queue: 110, want: 11, unready: true}}},
		"slow start again after 0": {unhindered(func(b *hpa.Backlog) { b.IdleSeconds = 0 }), 9, []seen{
			{t: 0, queue: 0, want: 0}, {t: 1, queue: 0, want: 0}, {t: 2, queue: 900, want: 5, by: hpa.LimitSlowStart}}},
		"slow start switched off":     {unhindered(func(b *hpa.Backlog) { b.SlowStart = 0 }), 0, []seen{{t: 0, queue: 900, want: 90}}},
		"min stands above slow start": {unhindered(func(b *hpa.Backlog) { b.Min = 8 }), 0, []seen{{t: 0, queue: 900, want: 8, by: hpa.LimitMin}}},
		"to 0 at the end of the idle delay": {backlog(func(b *hpa.Backlog) { b.Headroom = 10 }), 2, []seen{
			{t: 0, queue: 10, want: 2}, {t: 60, queue: 0, want: 2, by: hpa.LimitScaleDown}, {t: 120, queue: 0, want: 1}, {t: 180, queue: 0, want: 1}, {t: 240, queue: 0, want: 1},
			{t: 300, queue: 0, want: 1}, {t: 359, queue: 0, want: 1}, {t: 360, queue: 0, want: 0}, {t: 420, queue: 0, want: 0}}},
		"without headroom the last replica stays meanwhile": {unhindered(nil), 3, []seen{
			{t: 0, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 299, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 300, queue: 0, want: 0}}},
		"a request starts the delay anew": {unhindered(nil), 1, []seen{
			{t: 0, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 299, queue: 1, want: 1}, {t: 300, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 599, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 600, queue: 0, want: 0}}},
		"a running request, too": {unhindered(nil), 1, []seen{
			{t: 0, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 300, queue: 0, running: 1, want: 1, by: hpa.LimitAwake}, {t: 301, queue: 0, want: 1, by: hpa.LimitAwake}}},
		"and one that came and went between two calls": {unhindered(nil), 1, []seen{
			{t: 0, requests: 7, want: 1, by: hpa.LimitAwake}, {t: 299, requests: 8, want: 1, by: hpa.LimitAwake}, {t: 300, requests: 8, want: 1, by: hpa.LimitAwake},
			{t: 599, requests: 8, want: 1, by: hpa.LimitAwake}, {t: 600, requests: 8, want: 0}}},
		"a counter that began anew is a request": {unhindered(nil), 1, []seen{
			{t: 0, requests: 7, want: 1, by: hpa.LimitAwake}, {t: 300, requests: 0, want: 1, by: hpa.LimitAwake}}},
		"the first request wakes without a window": {backlog(func(b *hpa.Backlog) { b.Behavior.MaxGapSeconds = 0 }), 1, []seen{
			{t: 0, queue: 0, want: 1, by: hpa.LimitScaleDown}, {t: 300, queue: 0, want: 0}, {t: 301, queue: 0, want: 0}, {t: 302, queue: 25, want: 3}}},
		"asleep at first sight, too":     {backlog(nil), 0, []seen{{t: 0, queue: 0, want: 0}, {t: 1, queue: 1, want: 1}}},
		"a first request at first sight": {backlog(nil), 0, []seen{{t: 0, queue: 21, want: 3}}},
		"headroom alone wakes nobody":    {backlog(func(b *hpa.Backlog) { b.Headroom = 99 }), 0, []seen{{t: 0, queue: 0, want: 0}}},
		"the first replica comes where percent allows none": {unhindered(func(b *hpa.Backlog) { b.Behavior.ScaleUp = rules(0, "Max", percent(100, 60)) }), 0, []seen{
			{t: 0, queue: 90, want: 1, by: hpa.LimitAwake}}},
		"but not where scaling up is disabled": {unhindered(func(b *hpa.Backlog) { b.Behavior.ScaleUp.SelectPolicy = hpa.SelectDisabled }), 0, []seen{
			{t: 0, queue: 90, want: 0, by: hpa.LimitDisabled}}},
		"nor is the last one removed where scaling down is": {unhindered(func(b *hpa.Backlog) { b.Behavior.ScaleDown.SelectPolicy = hpa.SelectDisabled }), 2, []seen{
			{t: 0, queue: 0, want: 2, by: hpa.LimitDisabled}, {t: 900, queue: 0, want: 2, by: hpa.LimitDisabled}}},
		"scale to zero switched off": {unhindered(func(b *hpa.Backlog) { b.ScaleToZero = false }), 2, []seen{
			{t: 0, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 9000, queue: 0, want: 1, by: hpa.LimitAwake}}},
		"a min above 0 keeps it awake": {unhindered(func(b *hpa.Backlog) { b.Min = 2 }), 5, []seen{
			{t: 0, queue: 0, want: 2, by: hpa.LimitMin}, {t: 9000, queue: 0, want: 2, by: hpa.LimitMin}}},
		"a min above 0 wakes it": {unhindered(func(b *hpa.Backlog) { b.Min = 2 }), 0, []seen{{t: 0, queue: 0, want: 2, by: hpa.LimitMin}}},
		"min override up":        {unhindered(func(b *hpa.Backlog) { b.MinOverride = number(4) }), 1, []seen{{t: 0, queue: 10, want: 4, by: hpa.LimitMin}}},
		"min override down":      {unhindered(func(b *hpa.Backlog) { b.Min, b.MinOverride = 4, number(1) }), 4, []seen{{t: 0, queue: 10, want: 1}}},
		"max":                    {unhindered(func(b *hpa.Backlog) { b.Max = 6 }), 9, []seen{{t: 0, queue: 900, want: 6, by: hpa.LimitMax}}},
		"the emergency cap is above all": {unhindered(func(b *hpa.Backlog) { b.Min, b.Cap = 8, number(3) }), 9, []seen{
			{t: 0, queue: 900, want: 3, by: hpa.LimitCap}, {t: 1, unknown: "no answer", want: 3, by: hpa.LimitCap}}},
		"an emergency cap of 0":  {unhindered(func(b *hpa.Backlog) { b.Cap = number(0) }), 9, []seen{{t: 0, queue: 900, want: 0, by: hpa.LimitCap}}},
		"min above max":          {unhindered(func(b *hpa.Backlog) { b.Min = 200 }), 9, []seen{{t: 0, queue: 900, want: 9, by: hpa.LimitBounds}}},
		"an unknown queue holds": {unhindered(nil), 9, []seen{{t: 0, unknown: "no answer", want: 9, by: hpa.LimitUnknown}, {t: 1, queue: -1, want: 9, by: hpa.LimitUnknown}, {t: 2, running: -1, want: 9, by: hpa.LimitUnknown}}},
		"within the bounds":      {unhindered(func(b *hpa.Backlog) { b.Max = 5 }), 9, []seen{{t: 0, unknown: "no answer", want: 5, by: hpa.LimitMax}}},
		"unknown time is no idle time": {unhindered(nil), 1, []seen{
			{t: 0, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 250, unknown: "?", want: 1, by: hpa.LimitUnknown}, {t: 300, queue: 0, want: 1, by: hpa.LimitAwake},
			{t: 549, queue: 0, want: 1, by: hpa.LimitAwake}, {t: 550, queue: 0, want: 0}}},
		"a suspended host is not idle": {backlog(nil), 1, []seen{
			{t: 0, queue: 0, want: 1, by: hpa.LimitScaleDown}, {t: 36000, queue: 0, want: 1, by: hpa.LimitScaleDown}, {t: 36060, queue: 0, want: 1, by: hpa.LimitAwake}}},
		"manual scaling in mid-window": {backlog(nil), 4, []seen{
			{t: 0, queue: 40, want: 4}, {t: 10, queue: 40, set: 9 + 1, want: 4}, {t: 20, queue: 40, set: 1 + 1, want: 4}}},
	} {
		t.Run(name, func(t *testing.T) {
			var s hpa.State
			current := tc.initial
			for i, c := range tc.calls {
				if c.set > 0 {
					current = c.set - 1
				}
				o := hpa.Observed{Current: current, Ready: current, Queue: c.queue, Running: c.running, Requests: c.requests, Unknown: c.unknown}
				if c.unready {
					o.Ready = 0
				}
				s = throughJSON(t, s)
				d := tc.backlog.Next(&s, time.Duration(math.Round(c.t*1e9)), o)
				require.Equal(t, c.want, d.Replicas, "call %d: %+v", i, d)
				if c.by != "" || c.want == d.Desired {
					require.Equal(t, c.by, d.LimitedBy, "call %d: %+v", i, d)
				}
				require.NotEmpty(t, d.Reason)
				current = d.Replicas
			}
		})
	}
}

func TestBacklogDefaults(t *testing.T) {
	b := hpa.DefaultBacklog()
	require.NoError(t, b.Validate())
	require.Equal(t, hpa.Milli(20), b.Hysteresis)
	require.Equal(t, 30, b.Behavior.ScaleUp.StabilizationWindowSeconds)
	require.Equal(t, 120, b.Behavior.ScaleDown.StabilizationWindowSeconds)
}

func TestBacklogValidate(t *testing.T) {
	b := hpa.Backlog{Target: -1, Headroom: -1, Hysteresis: 1001, Min: -1, SlowStart: -1, IdleSeconds: -1, MinOverride: number(7), Cap: number(-1)}
	err := b.Validate()
	for _, want := range []string{"target_milli is -1", "headroom is -1", "hysteresis_milli is 1001", "behavior.scale_up.policies is empty", "min is -1", "max is 0",
		"slow_start is -1", "idle_seconds is -1", "min is 7 and max is 0: min must be at most max", "emergency_cap is -1"} {
		require.ErrorContains(t, err, want)
	}
}

// backlogReference is a direct implementation of Backlog.Next over the reference of rules 4
// and 5.
type backlogReference struct {
	*reference
	backlog  hpa.Backlog
	started  bool
	idle     bool
	idleFor  *big.Int
	requests int64
}

func (r *backlogReference) next(now time.Duration, o hpa.Observed) int {
	b := r.backlog
	before, first := r.clock, !r.seen
	r.pass(now)
	if first && o.Current > 0 {
		r.raw = append(r.raw, moment{r.clock, o.Current})
	}
	r.seen = true
	if o.Ready > 0 {
		r.started = true
	}
	if o.Current == 0 {
		r.started = false
	}
	known := o.Unknown == "" && o.Queue >= 0 && o.Running >= 0
	if known {
		quiet := o.Queue == 0 && o.Running == 0 && (first || o.Requests == r.requests)
		if quiet && r.idle {
			r.idleFor = new(big.Int).Add(r.idleFor, new(big.Int).Sub(r.clock, before))
		} else {
			r.idleFor = new(big.Int)
		}
		r.idle, r.requests = quiet, o.Requests
	}
	low := b.Min
	if b.MinOverride != nil {
		low = *b.MinOverride
	}
	n := o.Current
	if known && low <= b.Max {
		delay := big.NewInt(int64(b.IdleSeconds) * 1e9)
		if r.idle && (o.Current == 0 || low == 0 && b.ScaleToZero && r.idleFor.Cmp(delay) >= 0) {
			n = r.rated(o.Current, 0)
		} else {
			work := big.NewRat(o.Queue+int64(b.Headroom), 1)
			target := big.NewRat(int64(b.Target), 1000)
			desired := ratCeil(new(big.Rat).Quo(work, target))
			if o.Current > 0 {
				each := new(big.Rat).Quo(work, big.NewRat(int64(o.Current), 1))
				off := new(big.Rat).Sub(each.Quo(each, target), big.NewRat(1, 1))
				if off.Abs(off).Cmp(big.NewRat(int64(b.Hysteresis), 1000)) < 0 {
					desired = o.Current
				}
			}
			n = r.rated(o.Current, r.stabilized(o.Current, desired))
			if n == 0 && (o.Current > 0 || b.Behavior.ScaleUp.SelectPolicy != "Disabled") {
				n = 1
			}
			if b.SlowStart > 0 && !r.started {
				n = min(n, max(b.SlowStart, o.Current))
			}
		}
	}
	if low <= b.Max {
		n = max(min(n, b.Max), low)
	}
	if b.Cap != nil {
		n = min(n, *b.Cap)
	}
	if n != o.Current {
		r.changes = append(r.changes, moment{r.clock, n - o.Current})
	}
	return n
}

// TestBacklogIsTheRules compares long random histories with the reference.
func TestBacklogIsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := hpa.Backlog{
			Target:      hpa.Milli(rapid.SampledFrom([]int{1, 700, 1000, 3000, 10_000}).Draw(t, "target")),
			Headroom:    rapid.IntRange(0, 5).Draw(t, "headroom"),
			Hysteresis:  hpa.Milli(rapid.SampledFrom([]int{0, 20, 200}).Draw(t, "hysteresis")),
			Behavior:    drawBehavior(t),
			Min:         rapid.SampledFrom([]int{0, 0, 0, 2}).Draw(t, "min"),
			Max:         rapid.IntRange(2, 40).Draw(t, "max"),
			SlowStart:   rapid.SampledFrom([]int{0, 1, 5}).Draw(t, "slow start"),
			ScaleToZero: rapid.Bool().Draw(t, "scale to zero"),
			IdleSeconds: rapid.IntRange(0, 30).Draw(t, "idle"),
		}
		require.NoError(t, b.Validate())
		ref := &backlogReference{reference: newReference(b.Behavior), backlog: b, idleFor: new(big.Int)}
		var s hpa.State
		var o hpa.Observed
		now := time.Duration(0)
		o.Current = rapid.IntRange(0, 12).Draw(t, "initial")
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			now += drawStep(t)
			o.Queue = rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 60), rapid.Int64Range(-1, 300)).Draw(t, "queue")
			o.Running = rapid.SampledFrom([]int64{0, 0, 0, 3}).Draw(t, "running")
			o.Requests += rapid.SampledFrom([]int64{0, 0, 0, 0, 1}).Draw(t, "requests")
			o.Unknown = rapid.SampledFrom([]string{"", "", "", "", "no answer"}).Draw(t, "unknown")
			o.Ready = rapid.SampledFrom([]int{0, o.Current}).Draw(t, "ready")
			if rapid.IntRange(0, 14).Draw(t, "settings change") == 0 {
				b.MinOverride = rapid.SampledFrom([]*int{nil, number(0), number(3), number(99)}).Draw(t, "override")
				b.Cap = rapid.SampledFrom([]*int{nil, nil, number(0), number(4)}).Draw(t, "cap")
				ref.backlog = b
			}
			want := ref.next(now, o)
			after := throughJSON(t, s)
			again := b.Next(&after, now, o)
			got := b.Next(&s, now, o)
			require.Equal(t, want, got.Replicas, "%+v", got)
			require.Equal(t, got, again)
			require.Equal(t, s, after)
			require.NoError(t, s.Validate())
			o.Current = got.Replicas
			if rapid.IntRange(0, 14).Draw(t, "manual") == 0 {
				o.Current = rapid.IntRange(0, 45).Draw(t, "current")
			}
		}
	})
}
