// Package health decides whether a GPU may be given to tasks, from the XIDs
// that its driver reports and from what can be read of it, and decides when it
// may be given out again.
//
// It is pure: no I/O, no goroutines, no clock of its own. A Machine is told
// what happened and when, and says what follows.
//
// Two rules hold it together. A GPU falls ill at once and recovers slowly: a
// fault ends only after Config.GoodReadings readings in a row that speak for
// the GPU. And time alone never heals a GPU that needs a reset: that takes
// proof, which is one of
//
//   - the GPU was gone and came back (a reset, a reboot, a driver reload);
//   - its volatile error counters were set back, which only a reset does;
//   - the driver says that no recovery action is needed, after it said that one
//     was, or a while (Config.Quiet) after the fault. Drivers that say so at all
//     say it of the very faults that are meant here ("None: the GPU can be
//     immediately used again", NVIDIA's GPU Memory Error Management).
//
// A driver that is silent about recovery, counters that stand at zero and a GPU
// that never left the bus leave no trace of a reset: such a GPU stays unhealthy
// until the operator declares it healthy (Clear). A restart of the plugin is no
// proof of anything: Save and Restore carry the faults over it.
package health

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Config is what a Machine needs. DefaultConfig has reasons for the numbers.
type Config struct {
	// Policy judges XIDs. Required.
	Policy Policy
	// Ignored are XIDs that the operator has declared harmless.
	Ignored []uint64
	// GoodReadings is how many readings in a row must speak for a GPU before a
	// fault ends, at least 1.
	GoodReadings int
	// BadReadings is how many readings in a row must fail before a GPU whose
	// driver gives no clear reason is unhealthy, at least 1. A GPU that is lost
	// or that has never answered is unhealthy at once.
	BadReadings int
	// Every is the least time between two readings that count: what comes
	// sooner can raise a fault but neither prove a recovery nor count as
	// another failure. 0 counts every reading.
	Every time.Duration
	// Quiet is how long a paused GPU must stay without a new fault.
	Quiet time.Duration
	// MaxQuiet bounds the doubling of Quiet for faults that come back within
	// Relapse of the last recovery.
	MaxQuiet time.Duration
	// Relapse is how long a recovery must hold to count as one.
	Relapse time.Duration
	// StormCount warnings within StormWindow pause the GPU.
	StormCount  int
	StormWindow time.Duration
}

// DefaultConfig is meant for a reading every five seconds.
func DefaultConfig() Config {
	return Config{
		Policy: DefaultPolicy(),
		// A quarter of a minute at the default period: a GPU that comes back
		// from a reset answers in fits and starts for some seconds.
		GoodReadings: 3,
		// One failed reading happens while a driver is busy.
		BadReadings: 2,
		// Long enough for a link to retrain and for a bad program to be gone.
		Quiet:    time.Minute,
		MaxQuiet: time.Hour,
		Relapse:  time.Hour,
		// Contained memory errors are rare: three in ten minutes are a bad card.
		StormCount:  3,
		StormWindow: 10 * time.Minute,
	}
}

func (c Config) validate() error {
	var errs []error
	if c.Policy == nil {
		errs = append(errs, errors.New("Policy is missing"))
	}
	for _, f := range []struct {
		name string
		n    int
	}{{"GoodReadings", c.GoodReadings}, {"BadReadings", c.BadReadings}, {"StormCount", c.StormCount}} {
		if f.n < 1 {
			errs = append(errs, fmt.Errorf("%s %d: must be at least 1", f.name, f.n))
		}
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"Quiet", c.Quiet}, {"Relapse", c.Relapse}, {"StormWindow", c.StormWindow}} {
		if f.d <= 0 {
			errs = append(errs, fmt.Errorf("%s %s: must be more than 0", f.name, f.d))
		}
	}
	if c.Every < 0 {
		errs = append(errs, fmt.Errorf("Every %s: must be at least 0", c.Every))
	}
	if c.MaxQuiet < c.Quiet {
		errs = append(errs, fmt.Errorf("MaxQuiet %s: must be at least Quiet, %s", c.MaxQuiet, c.Quiet))
	}
	return errors.Join(errs...)
}

// Reading is what one look at a GPU gave.
type Reading struct {
	// Lost says that the driver no longer finds the GPU, or calls it lost.
	Lost bool
	// Err is why the GPU could not be read, empty if it could.
	Err string
	// Certain says of Err that one such reading is enough: a call that hangs, or a library that
	// crashes again and again.
	Certain bool
	// Uncorrected is the number of uncorrectable memory errors since the last
	// reset, nil where it is unknown.
	Uncorrected *uint64
	// RemapFailed says that the GPU has run out of spare memory rows.
	RemapFailed bool
	// Recovery is the action that the driver recommends, as "reset the GPU":
	// empty for none, nil where the driver does not say.
	Recovery *string
}

func (r Reading) answers() bool { return !r.Lost && r.Err == "" }

// faultKind tells a GPU's faults apart: it has at most one of each kind.
type faultKind int

// The kinds, the gravest first: the first one is the reason that is shown. That a GPU cannot be read
// says little, so it comes last.
const (
	faultLost faultKind = iota
	faultReset
	faultRecovery
	faultRemap
	faultECC
	faultPause
	faultRead
)

// fault is one reason against a GPU.
type fault struct {
	reason string
	// at is when it was raised.
	at time.Time
	// goods is how many readings in a row have spoken for the GPU since.
	goods int
	// proven says that the reset which ends the fault has been seen. Only
	// faults that end by a reset or by the driver's word have it.
	proven bool
	// quietUntil is when a pause may end, and from when on the driver's word
	// counts that no reset is needed.
	quietUntil time.Time
}

type gpu struct {
	faults map[faultKind]*fault
	// answered says that the GPU has ever answered.
	answered bool
	// lost says that the GPU has not answered since it was lost.
	lost bool
	// bad is how many readings in a row have failed.
	bad int
	// counted is when a reading last counted.
	counted time.Time
	// uncorrected is the last reading of the counter.
	uncorrected *uint64
	// warned are the times of recent warnings, and reported is when the last XID came.
	warned   []time.Time
	reported time.Time
	// relapses doubles the quiet time; recovered is when the last fault ended.
	relapses  int
	recovered time.Time
}

// Machine keeps the health of a node's GPUs. It is not safe for concurrent use.
type Machine struct {
	cfg  Config
	gpus map[string]*gpu
}

// New makes a Machine that believes every GPU to be healthy.
func New(cfg Config) (*Machine, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("health: %w", err)
	}
	return &Machine{cfg: cfg, gpus: map[string]*gpu{}}, nil
}

func (m *Machine) gpu(id string) *gpu {
	g := m.gpus[id]
	if g == nil {
		g = &gpu{faults: map[faultKind]*fault{}}
		m.gpus[id] = g
	}
	return g
}

// XID tells the machine that the driver reported an XID for a GPU, and returns
// the rule that was applied, with the action that was taken: a storm of
// warnings is a pause.
func (m *Machine) XID(id string, code uint64, now time.Time) Rule {
	rule := m.cfg.Policy.rule(code)
	if slices.Contains(m.cfg.Ignored, code) {
		rule.Action = Ignore
	}
	g := m.gpu(id)
	g.reported = now
	switch rule.Action {
	case Warn:
		if m.storm(g, now) {
			rule.Action = Pause
			m.pause(g, fmt.Sprintf("XID %d and similar ones %d times within %s: %s", code, m.cfg.StormCount, m.cfg.StormWindow, rule.Meaning), now)
		}
	case Pause:
		m.pause(g, fmt.Sprintf("XID %d: %s", code, rule.Meaning), now)
	case UntilReset:
		// A new fault needs a new reset, and the first one since the last reset is the cause.
		f := fault{at: now, quietUntil: now.Add(m.cfg.Quiet), reason: fmt.Sprintf("XID %d: %s; it needs a reset (nvidia-smi -r, or a reboot)", code, rule.Meaning)}
		if before := g.faults[faultReset]; before != nil && !before.proven {
			f.at, f.reason = before.at, before.reason
		}
		g.faults[faultReset] = &f
	}
	return rule
}

// Crashed tells the machine that NVML ended the process that read a GPU, or hung. Each such case is a
// warning; text says what happened.
func (m *Machine) Crashed(id, text string, now time.Time) {
	if g := m.gpu(id); m.storm(g, now) {
		m.pause(g, fmt.Sprintf("NVML failed %d times within %s, the last time: %s", m.cfg.StormCount, m.cfg.StormWindow, text), now)
	}
}

// storm counts a warning and says whether there have been too many.
func (m *Machine) storm(g *gpu, now time.Time) bool {
	g.warned = slices.DeleteFunc(g.warned, func(at time.Time) bool { return now.Sub(at) > m.cfg.StormWindow })
	g.warned = append(g.warned, now)
	if len(g.warned) < m.cfg.StormCount {
		return false
	}
	g.warned = nil
	return true
}

func (m *Machine) pause(g *gpu, reason string, now time.Time) {
	quiet := m.cfg.Quiet
	before := g.faults[faultPause]
	if before == nil {
		if !g.recovered.IsZero() && now.Sub(g.recovered) < m.cfg.Relapse {
			g.relapses++
		} else {
			g.relapses = 0
		}
		before = &fault{reason: reason, at: now}
	}
	for range g.relapses {
		quiet = min(quiet*2, m.cfg.MaxQuiet)
	}
	g.faults[faultPause] = &fault{reason: before.reason, at: before.at, quietUntil: now.Add(quiet)}
}

// Observe tells the machine what a look at a GPU gave.
func (m *Machine) Observe(id string, r Reading, now time.Time) {
	g := m.gpu(id)
	counts := now.Sub(g.counted) >= m.cfg.Every
	if counts {
		g.counted = now
	}
	cameBack := g.lost && r.answers()
	g.lost = (g.lost || r.Lost) && !cameBack
	level := func(kind faultKind, there bool, reason string) {
		if there {
			at := now
			if f := g.faults[kind]; f != nil {
				at = f.at
			}
			g.faults[kind] = &fault{reason: reason, at: at, goods: -1} // heal may count this reading
		}
	}
	level(faultLost, r.Lost, "the GPU is lost: the driver no longer lists it")
	if r.answers() {
		g.answered, g.bad = true, 0
	} else if counts || g.bad == 0 {
		g.bad++
	}
	level(faultRead, !r.Lost && r.Err != "" && (r.Certain || g.bad >= m.cfg.BadReadings || !g.answered), "the GPU cannot be read: "+r.Err)

	setBack := false
	if r.Uncorrected != nil {
		if was := g.uncorrected; was != nil {
			setBack = *r.Uncorrected < *was
			level(faultECC, *r.Uncorrected > *was, "uncorrectable memory errors were counted")
		}
		n := *r.Uncorrected
		g.uncorrected = &n
	}
	if !r.answers() {
		for _, f := range g.faults {
			f.goods = 0
		}
		return
	}
	healed := false
	if r.Recovery != nil {
		healed = g.faults[faultRecovery] != nil && *r.Recovery == ""
		level(faultRecovery, *r.Recovery != "", "the driver asks to "+*r.Recovery)
	}
	if f := g.faults[faultRecovery]; f != nil { // silence takes nothing back
		f.proven = f.proven || healed || cameBack
	}
	level(faultRemap, r.RemapFailed, "the GPU has no spare memory rows left and must be replaced")
	for _, kind := range []faultKind{faultReset, faultECC} {
		if f := g.faults[kind]; f != nil {
			needsNothing := r.Recovery != nil && *r.Recovery == "" && now.Sub(f.at) >= m.cfg.Quiet && !now.Before(f.quietUntil)
			f.proven = f.proven || cameBack || setBack || healed || needsNothing
		}
	}
	if counts {
		m.heal(g, now)
	}
}

// heal counts a good reading for every fault and ends those that have enough.
func (m *Machine) heal(g *gpu, now time.Time) {
	for kind, f := range g.faults {
		unproven := !f.proven && (kind == faultReset || kind == faultRecovery || kind == faultECC && !m.explained(g, f))
		if unproven || kind == faultPause && now.Before(f.quietUntil) {
			f.goods = 0
			continue
		}
		f.goods++
		if f.goods >= m.cfg.GoodReadings {
			delete(g.faults, kind)
			g.recovered = now
		}
	}
}

// explained says whether an XID came with memory errors. The driver says by XIDs whether an error was
// contained, and the XID's own rule decides then. Errors that no XID explains may have spread.
func (m *Machine) explained(g *gpu, f *fault) bool {
	return !g.reported.IsZero() && f.at.Sub(g.reported).Abs() <= m.cfg.Quiet
}

// Reloaded tells the machine that the driver was unloaded and is back, which
// resets every GPU.
func (m *Machine) Reloaded() {
	for _, g := range m.gpus {
		g.reset()
	}
}

// reset takes note that a GPU was reset: its counters begin anew, and no XID of before explains an
// error of after.
func (g *gpu) reset() {
	g.uncorrected, g.reported = nil, time.Time{}
	for _, kind := range []faultKind{faultReset, faultRecovery, faultECC} {
		if f := g.faults[kind]; f != nil {
			f.proven = true
		}
	}
}

// Clear forgets the faults of a GPU that the operator declares healthy. A fault that every reading
// shows comes back with the next one.
func (m *Machine) Clear(id string) {
	if g := m.gpus[id]; g != nil {
		m.gpus[id] = &gpu{faults: map[faultKind]*fault{}, answered: g.answered, uncorrected: g.uncorrected}
	}
}

// Reason is why a GPU must not be used, empty if it may be: the gravest fault.
// It does not change while the fault stays the same.
func (m *Machine) Reason(id string) string {
	g := m.gpus[id]
	if g == nil || len(g.faults) == 0 {
		return ""
	}
	var kinds []faultKind
	for kind := range g.faults {
		kinds = append(kinds, kind)
	}
	slices.SortFunc(kinds, func(a, b faultKind) int { return cmp.Compare(a, b) })
	// The XID says why the GPU is lost; being lost is only how it shows.
	if kinds[0] == faultLost && len(kinds) > 1 && kinds[1] == faultReset {
		return g.faults[faultReset].reason
	}
	reason := g.faults[kinds[0]].reason
	if f := g.faults[faultRead]; f != nil && len(kinds) > 1 {
		reason += "; " + f.reason
	}
	return reason
}

// Forget drops what is known of GPUs that keep does not name.
func (m *Machine) Forget(keep func(id string) bool) {
	for id := range m.gpus {
		if !keep(id) {
			delete(m.gpus, id)
		}
	}
}
