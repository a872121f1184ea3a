package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"remuda/controller/consul"
	"remuda/internal/replica"
	"remuda/lockd/engine/dialect"
)

// Status is the answer of GET /state.
type Status struct {
	// Replica is the replica's whole name, Model and Variant are the first parts of it.
	Replica string `json:"replica"`
	Model   string `json:"model"`
	Variant string `json:"variant"`
	// Role is primary or shadow.
	Role string `json:"role"`
	// State is one of the states below.
	State State `json:"state"`
	// Since is when State was entered.
	Since time.Time `json:"since"`
	// Unhealthy is why an Active engine cannot serve, empty while it can.
	Unhealthy string `json:"unhealthy,omitempty"`
	// Waits is what an engine in Init waits for before it is started, empty once it is.
	Waits string `json:"waits,omitempty"`
	// Address is where the engine serves clients.
	Address string `json:"address"`
	// Slots is how many requests the engine works on at once.
	Slots int `json:"slots"`
	// Token is the fencing token of the lock that the engine holds: the pair's, or a single
	// engine's own; "0.0" without one.
	Token replica.Token `json:"token"`
	// Dialect is the kind of the engine.
	Dialect string `json:"dialect"`
	// CanSleep tells whether the engine can be put to sleep.
	CanSleep bool `json:"can_sleep"`
	// Parked: the engine was put to sleep by POST /v1/sleep, complete at ParkedSince, and stays
	// so across restarts until POST /v1/wake. It is the same for both of a pair.
	Parked      bool      `json:"parked"`
	ParkedSince time.Time `json:"parked_since,omitzero"`
	// WeightsLost: the engine was put to sleep and is the one to wake, and its wake loads the
	// weights from their file, because the engine that kept them in host memory has ended.
	WeightsLost bool `json:"weights_lost,omitempty"`
	// GPUs are those that the engine uses, or will once it wakes; empty where nobody
	// has said.
	GPUs []string `json:"gpus,omitempty"`
	// PID is the engine's process, 0 while a cold or parked standby has none.
	PID int `json:"pid"`
	// Cohort names this life of the engine with all its processes.
	Cohort string `json:"cohort"`
	// Takeover is how the engine came to serve after another one, or after its own earlier life.
	// It is absent until it serves, and for the first engine of a replica.
	Takeover *Takeover `json:"takeover,omitempty"`
	// Consul is absent where the engine is not registered in Consul, Lock for an engine that
	// is not of a failover pair.
	Consul *ConsulStatus `json:"consul,omitempty"`
	Lock   *LockStatus   `json:"lock,omitempty"`
}

// LockStatus says how the lock stands.
type LockStatus struct {
	// Held tells whether this engine has it; Position is its place in the queue
	// otherwise, 0 where lockd has not been reached yet.
	Held     bool `json:"held"`
	Position int  `json:"position,omitempty"`
}

// ConsulStatus says how the registration stands.
type ConsulStatus struct {
	// Registered tells whether Consul lists the engine.
	Registered bool `json:"registered"`
	// LastError is why the last call to Consul failed, empty where it did not; Failures
	// counts such calls.
	LastError string `json:"last_error,omitempty"`
	Failures  uint64 `json:"failures"`
}

// Status returns the engine's state for people and programs.
func (s *Shim) Status() Status {
	rec := s.record()
	s.mu.Lock()
	st := Status{
		Replica: s.engine.Name.String(), Model: s.engine.Name.Model, Variant: s.engine.Name.Variant,
		Role: s.engine.Role, State: s.machine.State(), Since: s.machine.Since(), Unhealthy: s.machine.unhealthy,
		Address: s.engine.HostPort(), Slots: s.engine.Slots, Token: s.engine.Token,
		Dialect: s.dialect.Name(), Cohort: s.cohortID, GPUs: s.gpus, Parked: s.parked(rec), WeightsLost: s.weightsLost, Takeover: s.takeover,
	}
	if st.Parked {
		st.ParkedSince = rec.Since
		if s.vacatedAt.After(rec.Since) {
			st.ParkedSince = s.vacatedAt
		}
	}
	if s.child != nil {
		st.PID = s.child.pid()
	}
	if s.life != nil && s.alone == nil {
		st.Waits = "no answer from lockd at " + s.cfg.Lock
		if s.waiting > 0 {
			st.Waits = "an earlier life of the engine still runs: lockd has not proven its end"
		}
	}
	if s.locker != nil {
		st.Lock = &LockStatus{Held: s.grant != nil, Position: s.waiting}
	}
	s.mu.Unlock()
	st.CanSleep = s.dialect.CanSleep() && !s.loadsNothing(rec)
	if s.registrar != nil {
		c := s.registrar.Status()
		st.Consul = &ConsulStatus{Registered: c.Registered, LastError: c.LastError, Failures: c.Failures}
	}
	return st
}

// handler is the shim's own HTTP API.
func (s *Shim) handler() http.Handler {
	mux := http.NewServeMux()
	// Answers 200 while the engine is sound, and 503 with the reason where its task must be
	// restarted. With ?startup=DURATION an engine that initialises is sound for so long.
	mux.HandleFunc("GET /live", s.live)
	// Answers 200 while the engine can take requests, and 503 with the reason while not.
	mux.HandleFunc("GET /ready", s.probe((*Machine).Ready))
	// Answers with the engine's state, as below.
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, s.Status()) })
	// Answers with the shim's metrics in Prometheus' text format.
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics.registry, promhttp.HandlerOpts{}))

	// The routes below need "Authorization: Bearer SECRET" where the shim has a secret or its
	// controller's key, and answer 401 without; a shim that has neither answers 403 to clients
	// of other machines.

	// A drain ends when its client leaves. A sleep or a wake that has begun goes on:
	// half of one is worse than either. Both and a failover take ?since=TIME, the "since" of the
	// state that they are for, and answer 412 in any other state: so that an order of a
	// controller that was stopped for a while does not undo those of its successor.

	// Takes the engine out of routing and waits until it has no request, at most for
	// ?timeout=DURATION. The engine serves again if the client leaves before the answer, or if
	// neither a sleep nor a stop nor another drain follows the answer within -drain-hold. The
	// answer is the state.
	mux.HandleFunc("POST /v1/drain", s.guarded(s.operation(func(ctx context.Context, _ time.Time, timeout time.Duration) error { return s.Drain(ctx, timeout) })))
	// Drains the engine, at most for ?timeout=DURATION, and puts it to sleep. It stays
	// asleep across restarts. The answer is the state.
	mux.HandleFunc("POST /v1/sleep", s.guarded(s.committed(s.Sleep)))
	// Wakes the engine, with ?gpus=UUID,UUID on other GPUs of its task. The answer is the
	// state.
	mux.HandleFunc("POST /v1/wake", s.guarded(func(w http.ResponseWriter, r *http.Request) {
		var gpus []string
		if q := r.URL.Query(); q.Has("gpus") {
			gpus = strings.Split(q.Get("gpus"), ",")
		}
		s.committed(func(ctx context.Context, since time.Time, _ time.Duration) error { return s.WakeOn(ctx, since, gpus) })(w, r)
	}))
	// Drains the engine, at most for ?timeout=DURATION, and ends it, so that the standby takes
	// over; with ?drill at once, as a crash would. Without a standby that waits the answer is 409,
	// and 504 if requests still ran after the timeout. After an error, or if the client leaves
	// before the drain is complete, the engine serves on. The answer is the state.
	mux.HandleFunc("POST /v1/failover", s.guarded(s.failover))
	// Answers with the state, whose take-over has the log of the engine that ended.
	mux.HandleFunc("GET /v1/takeover", s.guarded(func(w http.ResponseWriter, _ *http.Request) {
		st := s.Status()
		if st.Takeover != nil {
			whole := *st.Takeover
			s.mu.Lock()
			whole.Log = s.lastLines
			s.mu.Unlock()
			st.Takeover = &whole
		}
		writeJSON(w, http.StatusOK, st)
	}))
	return mux
}

// failover orders a hand-over, or a drill.
func (s *Shim) failover(w http.ResponseWriter, r *http.Request) {
	drill := r.URL.Query().Has("drill")
	if raw := r.URL.Query().Get("drill"); raw != "" {
		var err error
		if drill, err = strconv.ParseBool(raw); err != nil {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": fmt.Sprintf("drill is %q: must be empty, true or false", raw)})
			return
		}
	}
	s.operation(func(ctx context.Context, since time.Time, timeout time.Duration) error {
		return s.HandOver(ctx, since, timeout, drill)
	})(w, r)
}

// live is the liveness probe, which depends on the state. Kubernetes has a start-up probe for Init, Nomad
// has not: with the query parameter startup (a Go duration) Init counts as live
// for so long.
func (s *Shim) live(w http.ResponseWriter, r *http.Request) {
	ask := (*Machine).Live
	if raw := r.URL.Query().Get("startup"); raw != "" {
		budget, err := time.ParseDuration(raw)
		if err != nil || budget <= 0 {
			writeJSON(w, http.StatusBadRequest, map[string]string{"error": fmt.Sprintf("startup is %q: must be a duration above 0, such as 2h", raw)})
			return
		}
		ask = func(m *Machine, now time.Time) error {
			if m.State() == Init && now.Sub(m.Since()) < budget {
				return nil
			}
			return m.Live(now)
		}
	}
	s.probe(ask)(w, r)
}

func (s *Shim) probe(ask func(*Machine, time.Time) error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		s.record()
		s.mu.Lock()
		state, err := s.machine.State(), ask(s.machine, time.Now())
		s.mu.Unlock()
		if err != nil {
			writeJSON(w, http.StatusServiceUnavailable, map[string]string{"state": string(state), "error": err.Error()})
			return
		}
		writeJSON(w, http.StatusOK, map[string]string{"state": string(state)})
	}
}

// committed is operation for what goes on when the client leaves.
func (s *Shim) committed(op func(context.Context, time.Time, time.Duration) error) http.HandlerFunc {
	run := s.operation(op)
	return func(w http.ResponseWriter, r *http.Request) {
		run(w, r.WithContext(context.WithoutCancel(r.Context())))
	}
}

// operation runs op under the client's context and the shim's. The query
// parameter timeout (a Go duration) overrides how long a drain waits; since (RFC 3339) is
// zero where it is not given.
func (s *Shim) operation(op func(context.Context, time.Time, time.Duration) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		timeout := s.cfg.DrainTimeout
		if raw := r.URL.Query().Get("timeout"); raw != "" {
			d, err := time.ParseDuration(raw)
			if err != nil || d <= 0 {
				writeJSON(w, http.StatusBadRequest, map[string]string{
					"error": fmt.Sprintf("timeout is %q: must be a duration above 0, such as 30s", raw)})
				return
			}
			timeout = d
		}
		var since time.Time
		if raw := r.URL.Query().Get("since"); raw != "" {
			var err error
			if since, err = time.Parse(time.RFC3339Nano, raw); err != nil {
				writeJSON(w, http.StatusBadRequest, map[string]string{
					"error": fmt.Sprintf("since is %q: must be a time as in the state's \"since\", such as 2026-01-02T03:04:05.678Z", raw)})
				return
			}
		}
		s.mu.Lock()
		run := s.run
		s.mu.Unlock()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(run, cancel)()
		if err := op(ctx, since, timeout); err != nil {
			writeJSON(w, statusOf(err), map[string]string{"error": err.Error(), "state": string(s.State())})
			return
		}
		writeJSON(w, http.StatusOK, s.Status())
	}
}

func statusOf(err error) int {
	switch {
	case errors.Is(err, ErrWrongState), errors.Is(err, ErrNoStandby), errors.Is(err, ErrCannotSleep), errors.Is(err, dialect.ErrBusy), errors.Is(err, dialect.ErrCannotMove):
		return http.StatusConflict
	case errors.Is(err, ErrChanged):
		return http.StatusPreconditionFailed
	case errors.Is(err, ErrBadGPUs):
		return http.StatusBadRequest
	case errors.Is(err, ErrNotDrained):
		return http.StatusGatewayTimeout
	case errors.Is(err, consul.ErrRefused):
		return http.StatusBadGateway
	default:
		return http.StatusInternalServerError
	}
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v) // the client may have left
}
