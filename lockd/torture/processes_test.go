package torture

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"remuda/lockd/lock"
)

// life is one process that wants a lock, from its start to its end.
type life struct {
	id    uint64
	spec  holderSpec
	cmd   *exec.Cmd
	in    io.WriteCloser
	done  chan struct{}
	began int64

	// Guarded by the round's mu.
	asked   int64
	reaped  int64
	killed  bool // by this harness
	swept   bool // at the end of the round
	stopped bool
	cut     bool
	// left: lockd is to end it, so it is mostly not killed.
	left  bool
	token uint64 // 0 until it said that it was granted
	kept  []operation
}

// keepLockd runs lockd and restarts it when it was killed.
func (r *round) keepLockd(dir, id string) {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		r.fault("lockd's log: %v", err)
		return
	}
	defer log.Close()
	spec, _ := json.Marshal(lockdSpec{Socket: filepath.Join(dir, "sock"), State: filepath.Join(dir, "state"),
		Times: lock.Times{Reconnect: reconnect, SessionTTL: time.Second, LockDelay: time.Second}})
	for r.ends.Err() == nil {
		cmd := exec.Command(r.cfg.LockdBinary, roleArg, "lockd", string(spec))
		cmd.Env = environ(id, r.cfg.LockdEnv...)
		cmd.Stderr = log
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			r.fault("start lockd: %v", err)
			return
		}
		r.mu.Lock()
		r.lockd = cmd
		r.mu.Unlock()
		err = cmd.Wait()
		_ = in.Close()
		r.mu.Lock()
		expected := r.lockd == nil
		r.lockd = nil
		r.mu.Unlock()
		if !expected && r.ends.Err() == nil {
			r.fault("lockd ended by itself: %v", err)
			return
		}
		r.sleep(r.ends, 150*time.Millisecond)
	}
}

func (r *round) killLockd(why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// A lockd that is killed again and again grants nothing.
	if r.lockd == nil || r.since == 0 && r.random.n(6) > 0 || time.Now().Before(r.spared) {
		return
	}
	_ = r.lockd.Process.Kill()
	r.lockd, r.since = nil, 0
	r.counts.LockdKills++
	r.trace = append(r.trace, fmt.Sprintf("%.6f kill lockd %s", float64(now())/1e9, why))
}

// childKinds are what a holder starts; most start one or two.
var childKinds = []string{"child", "daemon", "sleeper", "socket", "walker"}

// keepSeat runs a process that wants the lock, and the next when it has ended.
func (r *round) keepSeat(group, seat int, dir, id string) {
	for r.ends.Err() == nil {
		spec := holderSpec{Dir: r.dir, Socket: filepath.Join(dir, "sock"), Groups: r.cfg.Groups, Group: group,
			Name: fmt.Sprintf("seat-%d", seat),
			MiB:  1 + r.random.n(6), DiesAtGrant: r.random.n(12) == 0, Stubborn: r.random.n(2) == 0}
		for range r.random.n(3) {
			spec.Children = append(spec.Children, childKinds[r.random.n(len(childKinds))])
		}
		l, err := r.start(spec, id)
		if err != nil {
			r.fault("start a holder: %v", err)
			return
		}
		<-l.done
		r.sleep(r.ends, 20*time.Millisecond)
	}
}

func (r *round) start(spec holderSpec, id string) (*life, error) {
	spec.Life = r.lives.Add(1)
	raw, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	l := &life{id: spec.Life, spec: spec, done: make(chan struct{}), began: now()}
	l.cmd = exec.Command(r.cfg.Binary, roleArg, "holder", string(raw))
	l.cmd.Env = environ(id, fmt.Sprintf("%s=%d", lifeVar, l.id), fmt.Sprintf("REMUDA_COHORT=%s-%d", id, l.id), "GOMAXPROCS=2", "GOGC=off")
	l.cmd.Stderr = os.Stderr
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	r.all = append(r.all, l)
	if r.ends.Err() != nil { // whoever ends the round may have looked already
		l.swept = true
		_ = l.cmd.Process.Kill()
	}
	r.mu.Unlock()
	r.running.Go(func() {
		defer close(l.done)
		for in := bufio.NewScanner(out); in.Scan(); {
			var e holderEvent
			if json.Unmarshal(in.Bytes(), &e) == nil {
				r.heard(l, e)
			}
		}
		err := l.cmd.Wait()
		r.reaped(l, err)
	})
	return l, nil
}

// reaped notes that a process has ended.
func (r *round) reaped(l *life, err error) {
	at := now()
	r.mu.Lock()
	defer r.mu.Unlock()
	l.reaped = at
	_ = l.in.Close()
	if r.holders[l.spec.Group] == l {
		r.holders[l.spec.Group] = nil
	}
	var exit *exec.ExitError
	signaled := errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled()
	how := fmt.Sprintf("ended by itself (%v)", err)
	switch {
	case signaled && (l.killed || l.spec.DiesAtGrant):
		r.counts.HolderKills++
		how = "was killed"
	case l.swept:
		how = "was killed in the end"
	case signaled:
		r.counts.Fenced++
		how = "was killed by lockd"
	}
	r.trace = append(r.trace, fmt.Sprintf("%.6f group %d life %d (pid %d, token %d, children %v) %s", float64(at)/1e9, l.spec.Group, l.id,
		l.cmd.Process.Pid, l.token, l.spec.Children, how))
}

// heard notes what a process says.
func (r *round) heard(l *life, e holderEvent) {
	g := l.spec.Group
	r.mu.Lock()
	r.trace = append(r.trace, fmt.Sprintf("%.6f group %d life %d (pid %d): %s %d %s", float64(e.At)/1e9, g, l.id, l.cmd.Process.Pid, e.Kind, e.Token, e.Text))
	var then func(*life)
	switch e.Kind {
	case "asked":
		l.asked = e.At
	case "granted":
		l.token = e.Token
		r.holders[g] = l
		r.granted[g]++
		r.since++
		then, r.atGrant[g] = r.atGrant[g], nil
	case "kept":
		l.kept = append(l.kept, operation{keep, g, l.id, e.Token, e.Call, e.At})
		l.cut, l.left = false, false
	}
	r.mu.Unlock()
	if then != nil {
		then(l)
	}
}

func (r *round) kill(l *life, why string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if l.killed || l.reaped != 0 || l.left && r.random.n(8) > 0 {
		return
	}
	l.killed = true
	r.trace = append(r.trace, fmt.Sprintf("%.6f group %d kill life %d (pid %d) %s", float64(now())/1e9, l.spec.Group, l.id, l.cmd.Process.Pid, why))
	_ = l.cmd.Process.Kill()
}

func (r *round) signal(l *life, sig syscall.Signal) {
	r.note("group %d %s life %d (pid %d)", l.spec.Group, sig, l.id, l.cmd.Process.Pid)
	_ = l.cmd.Process.Signal(sig)
}

func (r *round) holder(group int) *life {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.holders[group]
}

// anyone is a process that has not ended, of any group, or nil.
func (r *round) anyone() *life {
	r.mu.Lock()
	defer r.mu.Unlock()
	recent := r.all[max(0, len(r.all)-2*r.cfg.Groups*r.cfg.Seats):]
	if len(recent) == 0 {
		return nil // none has started yet
	}
	for range 10 {
		if l := recent[r.random.n(len(recent))]; l.reaped == 0 && !l.killed {
			return l
		}
	}
	return nil
}

func (r *round) killAll() {
	r.mu.Lock()
	all := slices.Clone(r.all)
	r.mu.Unlock()
	for _, l := range all {
		r.mu.Lock()
		if l.reaped == 0 {
			l.swept = true
			_ = l.cmd.Process.Kill()
		}
		r.mu.Unlock()
	}
	r.mu.Lock()
	if r.lockd != nil {
		_ = r.lockd.Process.Kill()
		r.lockd = nil
	}
	r.mu.Unlock()
}
