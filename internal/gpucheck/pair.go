package gpucheck

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// modelName is what the pair serves.
const modelName = "gpu-check"

// How an engine checks its weights, as `remuda sim -verify` knows it.
const (
	verifyAlways = "always"
	verifyImport = "import"
)

// locks is lockd. It outlives the pairs: tokens must go on growing, or the memory
// service refuses the next pair.
type locks struct {
	*process
	socket string
}

// lockd starts it.
func (r *run) lockd(name string) (*locks, error) {
	l := &locks{socket: filepath.Join(r.dir, "lockd.sock")}
	var err error
	l.process, err = r.start(name, false, r.remuda, "lockd", "-socket", l.socket, "-state", filepath.Join(r.dir, "lockd.state"))
	return l, err
}

// pair is a failover pair.
type pair struct {
	r      *run
	verify string
	// socket is the memory service's.
	socket  string
	locks   *locks
	engines []*engine
}

// engine is one of the pair: a shim and what it started.
type engine struct {
	p *pair
	// role is primary or shadow, url where the engine serves and shimURL where the
	// shim does.
	role, url, shimURL string
	shim               *process
	// lives counts the starts.
	lives int
}

// newPair picks addresses. Nothing starts.
func (r *run) newPair(socket string, l *locks, verify string) (*pair, error) {
	p := &pair{r: r, verify: verify, socket: socket, locks: l}
	ports, err := freePorts(4)
	if err != nil {
		return nil, err
	}
	for i, role := range []string{"primary", "shadow"} {
		p.engines = append(p.engines, &engine{p: p, role: role, url: "http://" + ports[2*i], shimURL: "http://" + ports[2*i+1]})
	}
	return p, nil
}

// freePorts finds addresses on which nobody listens.
func freePorts(n int) ([]string, error) {
	var out []string
	var errs []error
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer l.Close() // only when all are found, so that they differ
		out = append(out, l.Addr().String())
	}
	return out, errors.Join(errs...)
}

// start starts the engine, or starts it again.
func (e *engine) start() (err error) {
	e.lives++
	r := e.p.r
	args := []string{
		"engine", "-role", e.role, "-group", modelName + ":gpu:pair", "-lock", e.p.locks.socket, "-no-consul",
		"-engine-url", e.url, "-listen", strings.TrimPrefix(e.shimURL, "http://"),
		"-init-timeout", "3m", "-wake-timeout", "1m", "-watch-parent", "--",
		r.remuda, "sim", "-listen", strings.TrimPrefix(e.url, "http://"), "-model", modelName, "-weights", r.weights,
		"-gms-socket", e.p.socket, "-gms-backend", r.cfg.Backend, "-gms-timeout", "1m", "-verify", e.p.verify,
		// The model itself takes no time: the first token comes when it can.
		"-prefill-rate", "0",
	}
	if r.cfg.Backend == backendCUDA && r.cfg.CUDALibrary != "" {
		args = append(args, "-cuda-library", r.cfg.CUDALibrary)
	}
	e.shim, err = r.start(fmt.Sprintf("4-%s-%s-%d", e.p.verify, e.role, e.lives), false, r.remuda, args...)
	return err
}

// shimState is what of the shim's GET /state matters here.
type shimState struct {
	State string `json:"state"`
	PID   int    `json:"pid"`
	Lock  struct {
		Held     bool `json:"held"`
		Position int  `json:"position"`
	} `json:"lock"`
}

func (e *engine) state(ctx context.Context) (s shimState, err error) {
	if err := e.shim.alive(); err != nil {
		return s, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.shimURL+"/state", nil)
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

// active waits until the engine serves.
func (e *engine) active(ctx context.Context) error {
	return await(ctx, func(ctx context.Context) error {
		s, err := e.state(ctx)
		if err == nil && s.State != "active" {
			err = fmt.Errorf("the %s is %s", e.role, s.State)
		}
		return err
	})
}

// settled waits until one engine serves and the other is next for the lock.
func (p *pair) settled(ctx context.Context) (active, standby *engine, pid int, err error) {
	err = await(ctx, func(ctx context.Context) error {
		active, standby = nil, nil
		var all []string
		for _, e := range p.engines {
			s, err := e.state(ctx)
			switch {
			case errors.Is(err, errEnded):
				return err
			case err != nil:
				all = append(all, fmt.Sprintf("%s: %v", e.role, err))
			case s.State == "active" && s.Lock.Held:
				active, pid = e, s.PID
			case s.State == "standby" && s.Lock.Position == 1:
				standby = e
			default:
				all = append(all, fmt.Sprintf("%s is %s", e.role, s.State))
			}
		}
		if active == nil || standby == nil {
			return fmt.Errorf("no engine serves while the other stands by: %s", strings.Join(all, ", "))
		}
		return nil
	})
	return active, standby, pid, err
}

// firstToken asks the engine for an answer until one begins, and says when that
// was.
func (e *engine) firstToken(ctx context.Context) (time.Time, error) {
	body, err := json.Marshal(map[string]any{"model": modelName, "prompt": "who serves?", "max_tokens": 4, "stream": true})
	if err != nil {
		return time.Time{}, err
	}
	var last error
	for ctx.Err() == nil {
		at, err := e.ask(ctx, body)
		if err == nil {
			return at, nil
		}
		if err := e.shim.alive(); err != nil {
			return time.Time{}, err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
		case <-time.After(askEvery):
		}
	}
	return time.Time{}, fmt.Errorf("no token of the %s: %w (last: %w)", e.role, ctx.Err(), last)
}

// askEvery is the pause between two tries: an engine that sleeps refuses at once.
const askEvery = time.Millisecond

func (e *engine) ask(ctx context.Context, body []byte) (time.Time, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url+"/v1/completions", bytes.NewReader(body))
	if err != nil {
		return time.Time{}, err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return time.Time{}, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	if resp.StatusCode != http.StatusOK {
		lines.Scan()
		return time.Time{}, fmt.Errorf("%s: %s", resp.Status, lines.Text())
	}
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		at := time.Now()
		var chunk struct {
			Choices []struct {
				Text string `json:"text"`
			} `json:"choices"`
		}
		if ok && json.Unmarshal([]byte(data), &chunk) == nil && len(chunk.Choices) > 0 && chunk.Choices[0].Text != "" {
			return at, nil
		}
	}
	return time.Time{}, errors.Join(errors.New("the answer ended without a token"), lines.Err())
}

// takeover is one failover in its parts.
type takeover struct {
	// total is from the kill to the first token of the other engine. dead is when
	// lockd had proof that the holder is gone, and granted when the other engine
	// had the lock, both from the kill on and to a millisecond.
	total, dead, granted time.Duration
	// remap is how long it took to map the weights again, and check to read and
	// digest them.
	remap, check time.Duration
}

// takeover kills the engine that serves, waits for the other to, and starts the
// dead one again. serving and standing by is what it begins with.
func (p *pair) takeover(ctx context.Context) (t takeover, err error) {
	active, standby, pid, err := p.settled(ctx)
	if err != nil {
		return t, err
	}
	if _, err := active.firstToken(ctx); err != nil {
		return t, fmt.Errorf("before the kill: %w", err)
	}
	killed := time.Now()
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		return t, fmt.Errorf("kill the %s: %w", active.role, err)
	}
	at, err := standby.firstToken(ctx)
	if err != nil {
		return t, err
	}
	t.total = at.Sub(killed)
	if t.dead, err = since(ctx, p.locks.log, killed, "holder is proven gone"); err != nil {
		return t, fmt.Errorf("lockd: %w", err)
	}
	if t.granted, err = since(ctx, standby.shim.log, killed, "the lock is granted"); err != nil {
		return t, fmt.Errorf("%s: %w", standby.role, err)
	}
	line, err := standby.shim.log.await(ctx, killed, "weights mapped again")
	if err != nil {
		return t, fmt.Errorf("%s: %w", standby.role, err)
	}
	if t.remap, err = field(line.text, "remap"); err == nil {
		t.check, err = field(line.text, "check")
	}
	if err != nil {
		return t, err
	}
	// Its shim ends by itself. Under Nomad it would be started again.
	if err := active.shim.await(ctx); err != nil {
		return t, err
	}
	return t, active.start()
}

// since is how long after a moment a log said something.
func since(ctx context.Context, l *logbook, moment time.Time, text string) (time.Duration, error) {
	line, err := l.await(ctx, moment, text)
	return max(line.at.Sub(moment), 0), err
}

// field reads a duration of a log line.
func field(line, name string) (time.Duration, error) {
	_, rest, ok := strings.Cut(line, " "+name+"=")
	if !ok {
		return 0, fmt.Errorf("%q has no %s", line, name)
	}
	value, _, _ := strings.Cut(rest, " ")
	return time.ParseDuration(strings.Trim(value, `"`))
}

// stop ends both engines, the one that stands by first.
func (p *pair) stop(ctx context.Context) error {
	engines := slices.DeleteFunc(slices.Clone(p.engines), func(e *engine) bool { return e.shim == nil })
	if len(engines) > 1 {
		if s, err := engines[0].state(ctx); err == nil && s.Lock.Held {
			slices.Reverse(engines)
		}
	}
	var errs []error
	for _, e := range engines {
		errs = append(errs, e.shim.stop(ctx, stopGrace))
	}
	return errors.Join(errs...)
}

// stopGrace is how long a shim may take to end its engine in peace.
const stopGrace = 10 * time.Second
