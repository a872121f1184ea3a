// Package shimtest is a small shim: the part of a shim's HTTP that the controller uses,
// around an engine that does nothing. It serves over the network or, by Net, without one.
package shimtest

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"remuda/controller/shimclient"
)

// Answer is what a hook has a shim answer; Code 0: as it would without the hook.
type Answer struct {
	Code int
	// Error is the text, and State what the engine is then.
	Error string
	State shimclient.Phase
	// Cut: the connection breaks after it was done, without an answer.
	Cut bool
}

// Shim is one shim. Its methods may be called from several goroutines.
type Shim struct {
	mu      sync.Mutex // guards what follows, not held while a hook runs
	state   shimclient.State
	down    bool
	garbage bool
	hang    chan struct{} // nil: it answers
	gpus    []string
	orders  []string
	onDrain func() Answer
	onSleep func() Answer
	onWake  func() Answer
	onEnd   func() Answer
	admit   func(secret string) bool
}

// New returns the shim of an Active engine that can sleep, and has the lock of its group
// where locked.
func New(replica, role string, locked bool) *Shim {
	s := &Shim{state: shimclient.State{Replica: replica, Role: role, Phase: shimclient.Active, Since: time.Now(), CanSleep: true}}
	if locked {
		s.state.Lock = &shimclient.Lock{Held: true}
	}
	return s
}

// Set changes how the engine stands.
func (s *Shim) Set(f func(st *shimclient.State)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.state)
}

// State is how the engine stands.
func (s *Shim) State() shimclient.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Down has it answer nothing, or again.
func (s *Shim) Down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

// Hang has it take requests and answer none, until it is told not to.
func (s *Shim) Hang(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case on && s.hang == nil:
		s.hang = make(chan struct{})
	case !on && s.hang != nil:
		close(s.hang)
		s.hang = nil
	}
}

// Garbage has it answer what is no shim's.
func (s *Shim) Garbage(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.garbage = on
}

// OnDrain is OnSleep for drains.
func (s *Shim) OnDrain(f func() Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onDrain = f
}

// OnSleep has f run at each order to sleep, before it is done. nil: nothing.
func (s *Shim) OnSleep(f func() Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onSleep = f
}

// OnWake is OnSleep for wakes.
func (s *Shim) OnWake(f func() Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onWake = f
}

// OnFailover is OnSleep for failovers.
func (s *Shim) OnFailover(f func() Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.onEnd = f
}

// Admit has it take orders only with a secret that f accepts. nil: any, or none.
func (s *Shim) Admit(f func(secret string) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.admit = f
}

// Orders are what it was told, as "sleep", "wake GPU-1,GPU-2" and "failover 30s".
func (s *Shim) Orders() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.orders)
}

// GPUs are those that the last wake named.
func (s *Shim) GPUs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.gpus)
}

// ServeHTTP implements http.Handler.
func (s *Shim) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	down, garbage, hang, hook, admit := s.down, s.garbage, s.hang, s.onSleep, s.admit
	switch r.URL.Path {
	case "/v1/drain":
		hook = s.onDrain
	case "/v1/wake":
		hook = s.onWake
	case "/v1/failover":
		hook = s.onEnd
	}
	s.mu.Unlock()
	if hang != nil {
		<-hang
	}
	switch {
	case down:
		panic(http.ErrAbortHandler)
	case garbage:
		fmt.Fprint(w, "hello")
		return
	case r.URL.Path != "/state" && admit != nil && !admit(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")):
		s.answer(w, Answer{Code: http.StatusUnauthorized, Error: "wrong secret"})
		return
	}
	switch r.Method + " " + r.URL.Path {
	case "GET /v1/takeover":
		s.answer(w, Answer{})
	case "GET /state":
		st := s.State()
		if st.Takeover != nil {
			short := *st.Takeover
			short.Log = ""
			st.Takeover = &short
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(st)
	case "POST /v1/drain":
		s.order(w, r, "drain", hook, s.drain)
	case "POST /v1/sleep":
		if _, err := time.ParseDuration(r.URL.Query().Get("timeout")); err != nil {
			s.answer(w, Answer{Code: http.StatusBadRequest, Error: err.Error()})
			return
		}
		s.order(w, r, "sleep", hook, s.sleep)
	case "POST /v1/wake":
		gpus := r.URL.Query().Get("gpus")
		s.order(w, r, strings.TrimSpace("wake "+gpus), hook, func() Answer { return s.wake(gpus) })
	case "POST /v1/failover":
		text := "failover"
		if r.URL.Query().Get("drill") == "true" {
			text = "drill"
		}
		s.order(w, r, text+" "+r.URL.Query().Get("timeout"), hook, s.failover)
	default:
		http.NotFound(w, r)
	}
}

func (s *Shim) order(w http.ResponseWriter, r *http.Request, text string, hook func() Answer, do func() Answer) {
	s.mu.Lock()
	s.orders = append(s.orders, text)
	s.mu.Unlock()
	var a Answer
	if hook != nil {
		a = hook()
	}
	if a.State != "" {
		s.Set(func(st *shimclient.State) { st.Phase, st.Since = a.State, time.Now() })
	}
	if since := r.URL.Query().Get("since"); a.Code == 0 && since != "" {
		if at, err := time.Parse(time.RFC3339Nano, since); err != nil || !at.Equal(s.State().Since) {
			a = Answer{Code: http.StatusPreconditionFailed, Error: "the engine's state has changed"}
		}
	}
	if a.Code == 0 {
		cut := a.Cut
		a = do()
		a.Cut = cut
	}
	s.answer(w, a)
}

func (s *Shim) answer(w http.ResponseWriter, a Answer) {
	if a.Cut {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	if a.Code == 0 {
		_ = json.NewEncoder(w).Encode(s.State())
		return
	}
	w.WriteHeader(a.Code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": a.Error, "state": string(s.State().Phase)})
}

func (s *Shim) drain() Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch s.state.Phase {
	case shimclient.Active:
		s.state.Phase, s.state.Since = shimclient.Draining, time.Now()
	case shimclient.Draining:
	default:
		return Answer{Code: http.StatusConflict, Error: "wrong state: engine is " + string(s.state.Phase)}
	}
	return Answer{}
}

func (s *Shim) sleep() Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.state.CanSleep:
		return Answer{Code: http.StatusConflict, Error: "engine cannot sleep"}
	case !s.state.Leads():
		return Answer{Code: http.StatusConflict, Error: "wrong state: it waits for its lock"}
	case s.state.Phase == shimclient.Active, s.state.Phase == shimclient.Draining:
		s.state.Phase, s.state.Since = shimclient.Standby, time.Now()
		s.state.Parked, s.state.ParkedSince = true, s.state.Since
	case s.state.Phase == shimclient.Standby:
		s.state.Parked = true
		if s.state.ParkedSince.IsZero() {
			s.state.ParkedSince = time.Now()
		}
	default:
		return Answer{Code: http.StatusConflict, Error: "wrong state: engine is " + string(s.state.Phase)}
	}
	return Answer{}
}

func (s *Shim) wake(gpus string) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.state.Leads() {
		return Answer{Code: http.StatusConflict, Error: "wrong state: it waits for its lock"}
	}
	switch s.state.Phase {
	case shimclient.Active:
	case shimclient.Standby, shimclient.Draining:
		s.state.Phase, s.state.Since = shimclient.Active, time.Now()
		s.state.Parked, s.state.ParkedSince = false, time.Time{}
	default:
		return Answer{Code: http.StatusConflict, Error: "wrong state: engine is " + string(s.state.Phase)}
	}
	if gpus != "" {
		s.gpus = strings.Split(gpus, ",")
	}
	return Answer{}
}

// failover ends the engine, whatever its standby is.
func (s *Shim) failover() Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state.Lock == nil || !s.state.Lock.Held || s.state.Phase != shimclient.Active {
		return Answer{Code: http.StatusConflict, Error: "wrong state: engine is " + string(s.state.Phase)}
	}
	s.state.Phase, s.state.Since = shimclient.Dead, time.Now()
	return Answer{}
}

// Net is a network of shims that needs no sockets, so that it works where time is not
// real. What was asked for goes on when its client leaves, as at a real shim.
type Net struct {
	mu    sync.Mutex // guards shims
	shims map[string]*Shim
}

// NewNet returns an empty network.
func NewNet() *Net { return &Net{shims: map[string]*Shim{}} }

// Put puts a shim at an address, host:port; nil takes it away.
func (n *Net) Put(address string, s *Shim) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shims[address] = s
}

// RoundTrip implements http.RoundTripper.
func (n *Net) RoundTrip(r *http.Request) (*http.Response, error) {
	n.mu.Lock()
	s := n.shims[r.URL.Host]
	n.mu.Unlock()
	if s == nil {
		return nil, syscall.ECONNREFUSED
	}
	answered := make(chan *http.Response, 1)
	go func() {
		w := httptest.NewRecorder()
		defer func() {
			if recover() != nil { // http.ErrAbortHandler
				answered <- nil
				return
			}
			answered <- w.Result()
		}()
		s.ServeHTTP(w, r)
	}()
	select {
	case <-r.Context().Done():
		return nil, r.Context().Err()
	case resp := <-answered:
		if resp == nil {
			return nil, errors.New("connection reset by peer")
		}
		return resp, nil
	}
}
