package shimclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// The kinds of errors. An error that wraps none of them is the context's.
var (
	// ErrUnreachable means that there was no valid response. The operation may have been done or
	// not.
	ErrUnreachable = errors.New("cannot reach the shim")
	// ErrNotListening is an ErrUnreachable: no process listens at the shim's address. A shim
	// listens as long as its engine runs.
	ErrNotListening = fmt.Errorf("%w: no process listens", ErrUnreachable)
	// ErrRefused means that the engine does not support the operation, or not in its state.
	ErrRefused = errors.New("rejected by the shim")
	// ErrChanged means that the engine's state is not the expected one. Nothing was done.
	ErrChanged = errors.New("the engine's state has changed")
	// ErrUnauthorized means that the shim does not accept the secret. Nothing was done.
	ErrUnauthorized = errors.New("rejected by the shim: not authorized")
	// ErrNotDrained means that requests still ran at the drain timeout. The engine gets no new
	// requests until it is woken; after a failover that was ordered it serves on.
	ErrNotDrained = errors.New("not drained")
	// ErrFailed means that the operation was tried and failed. Usually the engine exits.
	ErrFailed = errors.New("failed")
)

// Error is the error of an operation. It wraps one of the errors above.
type Error struct {
	// Op is the operation, for example "sleep"; Address is the shim's.
	Op, Address string
	// Code is the HTTP status, 0 if there was no response.
	Code int
	// State is the state of the engine, if the shim reported it.
	State Phase
	// Text describes the error; it ends the error message.
	Text string
	kind error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at the shim %s: %v: %s", e.Op, e.Address, e.kind, e.Text)
}

// Unwrap returns the kind of the error.
func (e *Error) Unwrap() error { return e.kind }

// Phase is the phase of an engine's life (lockd/engine).
type Phase string

// The phases.
const (
	Init     Phase = "init"
	Standby  Phase = "standby"
	Waking   Phase = "waking"
	Active   Phase = "active"
	Draining Phase = "draining"
	Dead     Phase = "dead"
)

// State is the state of an engine, as its shim reports it.
type State struct {
	// Replica is the name of the replica, Role the engine's in it.
	Replica string `json:"replica"`
	Role    string `json:"role"`
	Phase   Phase  `json:"state"`
	// Since is when the engine entered Phase, by the node's clock.
	Since time.Time `json:"since"`
	// Unhealthy is why an active engine cannot serve, empty if it can.
	Unhealthy string `json:"unhealthy"`
	// Waits is what an engine in Init waits for before it is started, empty once it is.
	Waits    string `json:"waits"`
	CanSleep bool   `json:"can_sleep"`
	// Parked means that the engine was put to sleep. It stays so over restarts until it is woken.
	// ParkedSince is when that was complete, by the node's clock.
	Parked      bool      `json:"parked"`
	ParkedSince time.Time `json:"parked_since"`
	// WeightsLost: the engine sleeps and leads, and its wake loads the weights from their file.
	WeightsLost bool `json:"weights_lost"`
	// Takeover is how the engine came to serve after another one, nil for the first one and if the
	// engine has not served.
	Takeover *Takeover `json:"takeover"`
	// Lock is nil if there is no failover lock, as for a single engine.
	Lock *Lock `json:"lock"`
	// Consul is nil until the engine serves, and if it is not registered in Consul at all.
	Consul *Consul `json:"consul"`
}

// Takeover says how an engine came to serve after another one, or after its own earlier life.
type Takeover struct {
	// From is the role of the engine that served before. Cause is why that one ended, one of those
	// of lockd/engine, and Reason says more.
	From   string `json:"from"`
	Cause  string `json:"cause"`
	Reason string `json:"reason"`
	// Ended is when that one ended, and At when this one served, by the node's clock. Seconds is
	// the time between.
	Ended   time.Time `json:"ended"`
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	// Log is the end of what that engine's task had printed; only Client.Takeover returns it.
	Log string `json:"log"`
}

// Lock is the state of the failover group's lock.
type Lock struct {
	// Held means that this engine holds the lock. Otherwise Position is its place in the queue,
	// 0 if lockd has not been reached yet.
	Held     bool `json:"held"`
	Position int  `json:"position"`
}

// Consul is the state of an engine's registration in Consul.
type Consul struct {
	Registered bool `json:"registered"`
	// LastError is why the last call to Consul failed, empty if it succeeded.
	LastError string `json:"last_error"`
}

// NotServing returns why the engine does not serve, empty if it serves according to its shim.
func (s State) NotServing() string {
	switch {
	case s.Phase == Active && s.Unhealthy != "":
		return "the engine is unhealthy: " + s.Unhealthy
	case s.Phase == Active && s.Consul != nil && s.Consul.LastError != "":
		return "the engine is up, but Consul rejects its registration: " + s.Consul.LastError
	case s.Phase == Active && s.Consul != nil && !s.Consul.Registered:
		return "the engine is up, but is not registered in Consul yet"
	case s.Phase == Active:
		return ""
	case s.Phase == Init && s.Waits != "":
		return "the engine is not started yet: " + s.Waits
	case s.Phase == Init:
		return "the engine is loading"
	case s.Phase == Standby && s.Lock != nil && !s.Lock.Held && s.Lock.Position == 0:
		return "the engine stands by: lockd does not respond"
	case s.Phase == Standby && s.Lock != nil && !s.Lock.Held:
		return fmt.Sprintf("the engine stands by: it waits for the lock of its failover group at position %d", s.Lock.Position)
	case s.Phase == Standby && s.Parked:
		return "the engine was put to sleep"
	}
	return fmt.Sprintf("the engine is in state %s", s.Phase)
}

// CanTakeOver reports whether the engine waits for the lock of its failover group, and would serve with it.
func (s State) CanTakeOver() bool {
	return s.Phase == Standby && s.Lock != nil && !s.Lock.Held && s.Lock.Position > 0
}

// Leads reports whether this engine is the one to serve: it holds the lock, or there is no lock.
func (s State) Leads() bool { return s.Lock == nil || s.Lock.Held }

// Asleep reports whether the engine was put to sleep and sleeps, and since when it has held no
// GPU memory of its own: since it was parked or, if its process was restarted after that, since it
// is in standby.
func (s State) Asleep() (since time.Time, ok bool) {
	if s.Phase != Standby || !s.Leads() {
		return time.Time{}, false
	}
	if s.ParkedSince.After(s.Since) {
		return s.ParkedSince, true
	}
	return s.Since, true
}

const (
	// askTimeout limits a request for the state, which a shim answers from memory.
	askTimeout = 3 * time.Second
	// dialTimeout limits the connection to a node that is gone.
	dialTimeout = 3 * time.Second
	// maxAnswer limits a response, in bytes. Shims send far less.
	maxAnswer = 1 << 20
)

// Target is a shim whose engine's state is to be changed.
type Target struct {
	// Address is host:port.
	Address string
	// Secret is the shim's, of the controller or its own; empty for a shim on this machine that
	// has none.
	Secret string
}

// Client is a client of all shims. Its methods may be called from several goroutines at once and
// return when their context ends.
type Client struct{ http *http.Client }

// Network returns a transport to shims on other machines.
func Network() http.RoundTripper {
	// The response to a sleep takes as long as the engine's last request. Keep-alives detect a
	// node that dies meanwhile within 20 s.
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second}
}

// New returns a client that uses transport, for example Network. It opens no connection yet. The
// caller must call Close.
func New(transport http.RoundTripper) *Client {
	return &Client{http: &http.Client{
		Transport: transport,
		// A shim sends no redirects.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// State returns the state of the engine. address is host:port.
func (c *Client) State(ctx context.Context, address string) (State, error) {
	bounded, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := c.do(bounded, "state", http.MethodGet, Target{Address: address}, "/state", nil)
	if err != nil && ctx.Err() != nil {
		return State{}, ctx.Err()
	}
	return s, err
}

// Takeover returns the state of the engine, whose Takeover has the log of the engine that ended.
func (c *Client) Takeover(ctx context.Context, to Target) (State, error) {
	bounded, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	return c.do(bounded, "takeover", http.MethodGet, to, "/v1/takeover", nil)
}

// Drain takes the engine out of routing and returns nil once it has no request. The error wraps
// ErrNotDrained if requests still run after timeout. The engine serves again if ctx ends before, or
// if neither a sleep nor a stop nor another drain follows soon.
func (c *Client) Drain(ctx context.Context, to Target, timeout time.Duration) error {
	_, err := c.do(ctx, "drain", http.MethodPost, to, "/v1/drain", url.Values{"timeout": {timeout.String()}})
	return err
}

// Sleep drains the engine for at most drain, puts it to sleep, and returns its new state. The
// engine sleeps until Wake. If since is not zero and the engine's State.Since differs from it,
// nothing is done and the error wraps ErrChanged.
func (c *Client) Sleep(ctx context.Context, to Target, since time.Time, drain time.Duration) (State, error) {
	query := forState(since)
	query.Set("timeout", drain.String())
	return c.do(ctx, "sleep", http.MethodPost, to, "/v1/sleep", query)
}

func forState(since time.Time) url.Values {
	if since.IsZero() {
		return url.Values{}
	}
	return url.Values{"since": {since.Format(time.RFC3339Nano)}}
}

// Wake wakes the engine, or cancels its drain, and returns once it serves. If gpus is not empty, it
// has the UUIDs of the GPUs to serve on; an engine that cannot move rejects other GPUs than those
// on which it slept. Since is as for Sleep.
func (c *Client) Wake(ctx context.Context, to Target, since time.Time, gpus []string) (State, error) {
	query := forState(since)
	if len(gpus) > 0 {
		query.Set("gpus", strings.Join(gpus, ","))
	}
	return c.do(ctx, "wake", http.MethodPost, to, "/v1/wake", query)
}

// Failover drains the engine of a pair, for at most drain, and ends it, so that its standby takes
// over. A drill ends it at once, as a crash would. It returns once the engine is about to end. After
// an error that wraps neither ErrUnreachable nor ErrFailed the engine serves on, also if ctx ends
// before the drain does. Since is as for Sleep.
func (c *Client) Failover(ctx context.Context, to Target, since time.Time, drain time.Duration, drill bool) error {
	query := forState(since)
	query.Set("timeout", drain.String())
	if drill {
		query.Set("drill", "true")
	}
	_, err := c.do(ctx, "failover", http.MethodPost, to, "/v1/failover", query)
	return err
}

func (c *Client) do(ctx context.Context, op, method string, to Target, path string, query url.Values) (State, error) {
	fail := func(kind error, code int, text string) error {
		return &Error{Op: op, Address: to.Address, Code: code, Text: text, kind: kind}
	}
	u := url.URL{Scheme: "http", Host: to.Address, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return State{}, fail(ErrUnreachable, 0, err.Error())
	}
	if to.Secret != "" {
		req.Header.Set("Authorization", "Bearer "+to.Secret)
	}
	resp, err := c.http.Do(req)
	if errors.Is(err, syscall.ECONNREFUSED) {
		return State{}, fail(ErrNotListening, 0, err.Error())
	}
	if err != nil {
		return State{}, fail(ErrUnreachable, 0, err.Error())
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return State{}, fail(ErrUnreachable, resp.StatusCode, err.Error())
	}
	if resp.StatusCode == http.StatusOK {
		var s State
		if err := json.Unmarshal(body, &s); err != nil || s.Replica == "" || s.Phase == "" {
			return State{}, fail(ErrUnreachable, resp.StatusCode, "not the response of a shim")
		}
		return s, nil
	}
	return State{}, refusal(op, to.Address, resp.StatusCode, body)
}

// refusal returns the error of a response whose status is not 200.
func refusal(op, address string, code int, body []byte) error {
	var said struct {
		Error string `json:"error"`
		State Phase  `json:"state"`
	}
	e := &Error{Op: op, Address: address, Code: code, kind: ErrUnreachable}
	if err := json.Unmarshal(body, &said); err != nil || said.Error == "" {
		// Another program, or a shim that is exiting.
		e.Text = fmt.Sprintf("not the response of a shim: %d %s", code, bytes.TrimSpace(body[:min(len(body), 200)]))
		return e
	}
	e.Text, e.State = said.Error, said.State
	switch {
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		e.kind = ErrUnauthorized
	case code == http.StatusConflict:
		e.kind = ErrRefused
	case code == http.StatusPreconditionFailed:
		e.kind = ErrChanged
	case code == http.StatusGatewayTimeout:
		e.kind = ErrNotDrained
	case code >= 400:
		e.kind = ErrFailed
	}
	return e
}
