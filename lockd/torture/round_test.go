package torture

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// reconnect is lockd's window, short so that fencing is frequent.
	reconnect = 120 * time.Millisecond
	// patience is how long a group may take to be granted once nothing is
	// killed any more. None is expected to come near it.
	patience = 20 * time.Second
)

func pagePath(dir string) string { return filepath.Join(dir, "page") }

// round is one lockd, restarted again and again, and those who want its locks.
type round struct {
	cfg    Config
	dir    string
	random *lockedRand

	// ends stops the seats and lockd's restarts.
	ends    context.Context //nolint:containedctx // the life of a round
	running sync.WaitGroup
	lives   atomic.Uint64

	mu      sync.Mutex
	all     []*life
	holders []*life // by group: the last that said that it was granted
	lockd   *exec.Cmd
	// atGrant is what to do at a group's next grant.
	atGrant []func(*life)
	trace   []string
	counts  Report
	faults  []string
	// granted is how many grants each group had.
	granted []int
	// since is how many grants there were since lockd was killed.
	since int
	// spared is until when lockd is not killed, so that it can end a window.
	spared time.Time
}

// lockedRand is one source of choices for all goroutines.
type lockedRand struct {
	mu sync.Mutex
	r  *rand.Rand
}

func (l *lockedRand) n(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.r.IntN(n)
}

// pause is a random time, mostly much shorter than most.
func (l *lockedRand) pause(most time.Duration) time.Duration {
	d := time.Duration(l.n(int(most)))
	if l.n(3) > 0 {
		d /= 8
	}
	return d
}

func (r *round) sleep(ctx context.Context, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(r.random.pause(most)):
	}
}

func (r *round) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.trace = append(r.trace, fmt.Sprintf("%.6f ", float64(now())/1e9)+fmt.Sprintf(format, args...))
}

func (r *round) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// runRound kills until the goal is reached, waits for every group to be granted
// once more, and judges.
func runRound(ctx context.Context, cfg Config, seed uint64, goal int, limit time.Duration, report *Report) error {
	dir, err := os.MkdirTemp("", "torture")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // a temporary directory
	shared, err := os.MkdirTemp("/dev/shm", "torture")
	if err != nil {
		return err
	}
	defer os.RemoveAll(shared) //nolint:errcheck // a temporary directory
	p, err := openPage(pagePath(shared), cfg.Groups)
	if err != nil {
		return err
	}
	defer p.close() //nolint:errcheck // nothing to lose

	alive, end := context.WithCancel(ctx)
	defer end()
	r := &round{cfg: cfg, dir: shared, random: &lockedRand{r: rand.New(rand.NewPCG(seed, 0))}, ends: alive,
		holders: make([]*life, cfg.Groups), atGrant: make([]func(*life), cfg.Groups), granted: make([]int, cfg.Groups)}
	id := filepath.Base(shared)
	defer sweep(id)
	r.running.Go(func() { r.keepLockd(dir, id) })
	for g := range cfg.Groups {
		for s := range cfg.Seats {
			r.running.Go(func() { r.keepSeat(g, s, dir, id) })
		}
	}
	r.chaos(ctx, goal, limit, dir, id)
	if ctx.Err() == nil && !r.violated() {
		r.settle(ctx)
	}
	end()
	r.killAll()
	r.running.Wait()
	sweep(id)

	ops := r.history(p)
	if !r.violated() {
		if err := linearizable(ops); err != nil {
			r.fault("%v", err)
		}
	}
	c := &r.counts
	report.HolderKills += c.HolderKills
	report.LockdKills += c.LockdKills
	report.Fenced += c.Fenced
	report.Stops += c.Stops
	report.Cuts += c.Cuts
	report.Claims += c.Claims
	report.Lives += len(r.all)
	for _, o := range ops {
		switch o.Kind {
		case acquire:
			report.Grants++
		case keep:
			report.Kept++
		}
	}
	report.Violations = append(report.Violations, r.violations()...)
	if len(report.Violations) > 0 {
		report.History = r.tell(seed, ops, filepath.Join(dir, "log"))
	}
	return nil
}

func (r *round) violations() []string {
	raw, _ := os.ReadFile(violationsPath(r.dir))
	var out []string
	if s := strings.TrimSpace(string(raw)); s != "" {
		out = strings.Split(s, "\n")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return append(out, r.faults...)
}

func (r *round) violated() bool {
	_, err := os.Stat(violationsPath(r.dir))
	r.mu.Lock()
	defer r.mu.Unlock()
	return err == nil || len(r.faults) > 0
}

// tell is all that is known of a round.
func (r *round) tell(seed uint64, ops []operation, log string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "seed of the round: %d\n", seed)
	last := func(what string, lines []string) {
		const most = 400
		fmt.Fprintf(&b, "--- %s (the last %d of %d)\n%s\n", what, min(most, len(lines)), len(lines), strings.Join(lines[max(0, len(lines)-most):], "\n"))
	}
	last("what was done", r.trace)
	var lines []string
	slices.SortFunc(ops, func(a, b operation) int { return int(a.Return - b.Return) })
	for _, o := range ops {
		lines = append(lines, o.String())
	}
	last("history", lines)
	fmt.Fprintf(&b, "--- lockd's log\n%s\n", tail(log, 400))
	return b.String()
}

// history makes the operations of what the processes have marked.
func (r *round) history(p *page) []operation {
	type marks struct {
		token         uint64
		granted, last int64
		own           int64
	}
	var ops []operation
	r.mu.Lock()
	defer r.mu.Unlock()
	byID := map[uint64]*life{}
	for _, l := range r.all {
		byID[l.id] = l
	}
	for g := range p.groups {
		seen := map[uint64]*marks{}
		for i := range min(p.groups[g].used.Load(), slotsPerGroup) {
			s := &p.groups[g].slot[i]
			life, beat := s.life.Load(), s.beat.Load()
			if byID[life] == nil || beat == 0 {
				continue // killed while it made its first mark
			}
			m := seen[life]
			if m == nil {
				m = &marks{token: s.token.Load(), granted: s.granted.Load()}
				seen[life] = m
			}
			m.last = max(m.last, beat)
			if s.pid.Load() == uint64(byID[life].cmd.Process.Pid) {
				m.own = beat
			}
		}
		for id, m := range seen {
			l := byID[id]
			call := l.began
			if l.asked != 0 {
				call = l.asked
			}
			ops = append(ops,
				operation{acquire, g, id, m.token, call, m.granted},
				operation{hold, g, id, m.token, m.own, m.own},
				operation{die, g, id, m.token, m.last, max(m.last, l.reaped)})
			for _, k := range l.kept {
				if k.Return <= m.last { // not answered when it was killed otherwise
					ops = append(ops, k)
				}
			}
		}
	}
	return ops
}

func environ(id string, more ...string) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "REMUDA_") {
			env = append(env, kv)
		}
	}
	return append(append(env, runVar+"="+id), more...)
}

// sweep ends what is left of a run.
func sweep(id string) {
	mark := []byte(runVar + "=" + id)
	for range 20 {
		left := 0
		files, _ := filepath.Glob("/proc/[0-9]*/environ")
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil || !slices.ContainsFunc(bytes.Split(raw, []byte{0}), func(kv []byte) bool { return bytes.Equal(kv, mark) }) {
				continue
			}
			if pid, err := strconv.Atoi(strings.Split(f, "/")[2]); err == nil && pid != os.Getpid() {
				left++
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		if left == 0 {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
}
