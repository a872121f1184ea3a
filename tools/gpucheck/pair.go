package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	deviceplugin "remuda/device-plugin"
	"remuda/device-plugin/gms"
	"remuda/internal/testkit/process"
	"remuda/internal/vram"
	"remuda/lockd/engine"
)

// modelName is what the pair serves.
const modelName = "gpu-check"

// pair is a failover pair.
type pair struct {
	r *run
	// verify is when its engines check the weights, as `remuda sim -verify` names it.
	verify string
	// record is the directory of what its shims remember.
	record  string
	members [2]*member
}

// member is one engine of a pair with its shim.
type member struct {
	p    *pair
	role string
	// engine and shim are the addresses on which they listen.
	engine, shim string
	proc         *process.Process
	starts       int
}

func (r *run) memorySocket() string { return gms.SocketPath(r.dir, r.gpu) }
func (r *run) lockSocket() string   { return filepath.Join(r.dir, "lockd.sock") }

// startNode starts what a node runs: the memory service, and lockd.
// It returns once their sockets are there.
func (r *run) startNode(ctx context.Context) error {
	service := []string{"gms", "-socket-dir", r.dir, "-gpu", r.gpu, "-backend", r.cfg.backend}
	for _, one := range []struct {
		name, socket string
		args         []string
	}{
		{"3-gms", r.memorySocket(), append(service, r.libraryFlag()...)},
		{"3-lockd", r.lockSocket(), []string{"lockd", "-socket", r.lockSocket(), "-state", filepath.Join(r.dir, "lockd.state")}},
	} {
		p, err := r.start(one.name, nil, "remuda", one.args...)
		if err != nil {
			return err
		}
		if err := await(ctx, func(context.Context) error {
			_, err := os.Stat(one.socket)
			return errors.Join(p.Running(), err)
		}); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) libraryFlag() []string {
	if r.cfg.backend == backendHost || r.cfg.cudaLibrary == "" {
		return nil
	}
	return []string{"-cuda-library", r.cfg.cudaLibrary}
}

// newPair chooses addresses. Nothing starts.
func (r *run) newPair(verify string) (*pair, error) {
	p := &pair{r: r, verify: verify, record: filepath.Join(r.dir, verify)}
	for i, role := range []string{"primary", "shadow"} {
		m := &member{p: p, role: role}
		for _, address := range []*string{&m.engine, &m.shim} {
			// No other program uses this host, so a port that is free stays free.
			l, err := net.Listen("tcp", fmt.Sprintf("127.%d.%d.%d:0", 128+os.Getpid()>>8&63, os.Getpid()&255, 1+i))
			if err != nil {
				return nil, fmt.Errorf("find a free address: %w", err)
			}
			defer l.Close() // after all are found, so that they differ
			*address = l.Addr().String()
		}
		p.members[i] = m
	}
	return p, nil
}

// start starts the engine, or starts it again. The engine has a worker, as real ones have, which holds a
// KV cache of which the GPU has no room for two.
func (m *member) start() (err error) {
	m.starts++
	r := m.p.r
	memory := append([]string{"-gms-socket", r.memorySocket(), "-gms-backend", r.cfg.backend}, r.libraryFlag()...)
	args := slices.Concat([]string{
		"engine", "-role", m.role, "-group", modelName + ":gpu:pair", "-lock", r.lockSocket(), "-standby", "warm", "-no-consul",
		"-engine-url", "http://" + m.engine, "-listen", m.shim, "-record", m.p.record,
		"-init-timeout", "3m", "-wake-timeout", "1m", "-watch-parent",
	}, memory, []string{
		"--", r.program("remuda"), "sim", "-listen", m.engine, "-model", modelName, "-weights", r.weights,
		"-workers", "-start-asleep", "-kv-memory", fmt.Sprint(r.cache), "-gms-timeout", "1m", "-verify", m.p.verify,
		"-prefill-rate", "0", // the model itself takes no time
	}, memory)
	env := []string{deviceplugin.EnvGPUs + "=" + r.gpu}
	if r.cfg.backend == backendHost {
		env = append(env, vram.EnvDir+"="+r.dir)
	}
	m.proc, err = r.start(fmt.Sprintf("3-%s-%s-%d", m.p.verify, m.role, m.starts), env, "remuda", args...)
	return err
}

// begin starts both engines and waits until one serves and the other stands by.
func (p *pair) begin(ctx context.Context) (_ seen, err error) {
	if p.r.usedBefore, err = p.r.memoryInUse(); err != nil {
		return seen{}, err
	}
	began := time.Now()
	if err := p.members[0].start(); err != nil {
		return seen{}, err
	}
	// An engine that serves before it has slept once cannot be put to sleep.
	if err := await(ctx, func(ctx context.Context) error {
		s, err := p.members[0].status(ctx)
		if err == nil && s.State != engine.Active {
			err = fmt.Errorf("the primary is %s", s.State)
		}
		return err
	}); err != nil {
		return seen{}, err
	}
	served := time.Since(began)
	began = time.Now()
	if err := p.members[1].start(); err != nil {
		return seen{}, err
	}
	_, _, _, err = p.settled(ctx)
	stands := time.Since(began)
	return seen{fmt.Sprintf("the primary served %s after its start, the shadow stood by after %s", short(served), short(stands)),
		Figures{"primary_active_seconds": served.Seconds(), "shadow_standby_seconds": stands.Seconds()}}, err
}

// status asks the shim.
func (m *member) status(ctx context.Context) (s engine.Status, err error) {
	if err := m.proc.Running(); err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+m.shim+"/state", nil)
	if err != nil {
		return s, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// settled waits until one engine is active and the other is next for the lock. pid is
// the active engine's process.
func (p *pair) settled(ctx context.Context) (active, standby *member, pid int, err error) {
	err = await(ctx, func(ctx context.Context) error {
		active, standby = nil, nil
		var states []string
		for _, m := range p.members {
			s, err := m.status(ctx)
			switch {
			case errors.Is(err, process.ErrEnded):
				return err
			case err != nil || s.Lock == nil:
			case s.State == engine.Active && s.Lock.Held:
				active, pid = m, s.PID
			case s.State == engine.Standby && s.Lock.Position == 1:
				standby = m
			}
			states = append(states, fmt.Sprintf("the %s is %q (error: %v)", m.role, s.State, err))
		}
		if active == nil || standby == nil {
			return fmt.Errorf("want an active and a standby engine: %s", strings.Join(states, ", "))
		}
		return nil
	})
	return active, standby, pid, err
}

// strike ends the engine that serves, or has it ended; pid is its process.
type strike func(ctx context.Context, active *member, pid int) error

// killed: the engine dies.
func killed(_ context.Context, active *member, pid int) error {
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return fmt.Errorf("kill the %s: %w", active.role, err)
	}
	return nil
}

// workerHangs: the engine's worker stops, and a request waits for it.
func workerHangs(ctx context.Context, active *member, pid int) error {
	worker := process.Child(pid)
	if worker == 0 {
		return fmt.Errorf("the %s, process %d, has no worker", active.role, pid)
	}
	if err := unix.Kill(worker, unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop the worker of the %s: %w", active.role, err)
	}
	go func() { _, _ = active.ask(ctx) }() // it ends with the engine
	return nil
}

// handsOver: the engine is told to drain and to let the other one serve.
func handsOver(ctx context.Context, active *member, _ int) error {
	return active.order(ctx, "failover")
}

// failOver strikes the active engine and returns how long it took until the other one
// sent a token. It starts the struck engine again.
func (p *pair) failOver(ctx context.Context, strike strike) (took time.Duration, err error) {
	active, standby, pid, err := p.settled(ctx)
	if err != nil {
		return 0, err
	}
	if _, err := active.firstToken(ctx); err != nil {
		return 0, fmt.Errorf("before it: %w", err)
	}
	struck := time.Now()
	if err := strike(ctx, active, pid); err != nil {
		return 0, err
	}
	at, err := standby.firstToken(ctx)
	if err != nil {
		return 0, err
	}
	// The shim of the dead engine ends by itself. Nomad would start it again.
	if err := active.proc.Wait(ctx); err != nil && ctx.Err() != nil {
		return 0, err
	}
	return at.Sub(struck), active.start()
}

// order sends one of the controller's orders to the shim and waits until it is done.
func (m *member) order(ctx context.Context, what string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.shim+"/v1/"+what, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("%s of the %s: %w", what, m.role, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		answer, _ := io.ReadAll(io.LimitReader(resp.Body, 4096)) // what came is enough
		return fmt.Errorf("%s of the %s: %s: %s", what, m.role, resp.Status, answer)
	}
	return nil
}

// nap puts the pair to sleep, wakes it, and returns what the pair held of the GPU meanwhile, in bytes, and how
// long it took from the order until the first token.
func (p *pair) nap(ctx context.Context) (kept int64, took time.Duration, err error) {
	active, _, _, err := p.settled(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := active.order(ctx, "sleep"); err != nil {
		return 0, 0, err
	}
	used, err := p.r.memoryInUse()
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := active.order(ctx, "wake"); err != nil {
		return 0, 0, err
	}
	at, err := active.firstToken(ctx)
	return int64(used) - int64(p.r.usedBefore), at.Sub(began), err
}

// firstToken sends requests until one is answered, and returns the time of the first
// token.
func (m *member) firstToken(ctx context.Context) (at time.Time, err error) {
	err = await(ctx, func(ctx context.Context) error {
		at, err = m.ask(ctx)
		if err != nil {
			return errors.Join(err, m.proc.Running())
		}
		return nil
	})
	return at, err
}

func (m *member) ask(ctx context.Context) (time.Time, error) {
	body := []byte(`{"model": "` + modelName + `", "prompt": "who serves?", "max_tokens": 4, "stream": true}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+m.engine+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		at := time.Now()
		var chunk struct {
			Choices []struct {
				Text string `json:"text"`
			} `json:"choices"`
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if ok && json.Unmarshal([]byte(data), &chunk) == nil && len(chunk.Choices) > 0 && chunk.Choices[0].Text != "" {
			return at, nil
		}
	}
	return time.Time{}, fmt.Errorf("%s: an answer without a token", resp.Status)
}

// stop ends the standby engine first, so that it does not wake.
func (p *pair) stop() error {
	first, last := p.members[1], p.members[0]
	if s, err := first.status(context.Background()); err == nil && s.Lock != nil && s.Lock.Held {
		first, last = last, first
	}
	return errors.Join(first.proc.Stop(10*time.Second), last.proc.Stop(10*time.Second))
}
