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

// What an error of this package means to its caller. Errors that wrap none of them are
// the context's.
var (
	// ErrUnreachable: there was no answer that can be used. What was asked for may have
	// happened or not.
	ErrUnreachable = errors.New("cannot reach the shim")
	// ErrNotListening is an ErrUnreachable: no process listens at the shim's address. A shim
	// listens as long as its engine lives.
	ErrNotListening = fmt.Errorf("%w: no process listens", ErrUnreachable)
	// ErrRefused: the engine's state does not allow it, or the engine cannot do it.
	ErrRefused = errors.New("rejected by the shim")
	// ErrChanged: the engine's state is not the one that the order was for. Nothing was done.
	ErrChanged = errors.New("the engine's state has changed")
	// ErrNotDrained: requests still ran when the drain's time was up. The engine is out of
	// routing until it is woken.
	ErrNotDrained = errors.New("not drained")
	// ErrFailed: it was tried and went wrong. As a rule the engine ends of it.
	ErrFailed = errors.New("failed")
)

// Error is what a shim has answered. It wraps one of the errors above.
type Error struct {
	// Op is what was asked for, as "sleep"; Address is the shim's.
	Op, Address string
	// Code is HTTP's, 0 where nothing came.
	Code int
	// State is the engine's, where the shim has said it.
	State Phase
	// Text is a sentence's end.
	Text string
	kind error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s at the shim %s: %v: %s", e.Op, e.Address, e.kind, e.Text)
}

// Unwrap makes errors.Is find the kind.
func (e *Error) Unwrap() error { return e.kind }

// Phase is where an engine stands between start and death (lockd/engine).
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

// State is how an engine stands, as its shim says.
type State struct {
	// Replica is the name of the replica, Role the engine's in it.
	Replica string `json:"replica"`
	Role    string `json:"role"`
	Phase   Phase  `json:"state"`
	// Since is when Phase was entered, by the node's clock.
	Since time.Time `json:"since"`
	// Unhealthy is why an active engine cannot serve, empty while it can.
	Unhealthy string `json:"unhealthy"`
	CanSleep  bool   `json:"can_sleep"`
	// Parked: it was put to sleep, and stays so over restarts until it is woken.
	// ParkedSince is from when on, by the node's clock.
	Parked      bool      `json:"parked"`
	ParkedSince time.Time `json:"parked_since"`
	// Lock is nil where there is no lock, as for a single engine.
	Lock *Lock `json:"lock"`
	// Consul is nil where the engine is not to be registered in Consul, and until it serves.
	Consul *Consul `json:"consul"`
}

// Lock says how the failover group's lock stands.
type Lock struct {
	// Held: this engine has it. Position is its place in the queue otherwise, 0 where lockd
	// has not been reached yet.
	Held     bool `json:"held"`
	Position int  `json:"position"`
}

// Consul says how an engine's registration stands.
type Consul struct {
	Registered bool `json:"registered"`
	// LastError is why the last call to Consul failed, empty where it did not.
	LastError string `json:"last_error"`
}

// NotServing returns why the engine does not serve, empty if it serves as far as its shim
// knows.
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

// Leads tells whether it is up to this engine to serve: it has the lock, or there is none.
func (s State) Leads() bool { return s.Lock == nil || s.Lock.Held }

// Asleep tells whether the engine sleeps because it was told to, and since when it has held
// no GPU memory of its own: of a parked one since it is parked or, where its process began
// anew, since it stands by.
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
	// askTimeout bounds a question; a shim answers from memory.
	askTimeout = 3 * time.Second
	// dialTimeout is for a node that is gone.
	dialTimeout = 3 * time.Second
	// maxAnswer is far more than a shim says, in bytes.
	maxAnswer = 1 << 20
)

// Client talks to shims. Its methods may be called from several goroutines at once and
// return when their context ends.
type Client struct{ http *http.Client }

// Network is the way to shims on other machines.
func Network() http.RoundTripper {
	// A sleep's answer takes as long as the engine's last request. A node that dies
	// meanwhile is noticed within 20 s.
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 5 * time.Second, Count: 3}}
	return &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: 10 * time.Second}
}

// New returns a client that reaches shims through transport, as Network; it talks to
// nobody. Close it.
func New(transport http.RoundTripper) *Client {
	return &Client{http: &http.Client{
		Transport: transport,
		// Whoever sends us elsewhere is no shim.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// State asks how the engine stands. address is host:port.
func (c *Client) State(ctx context.Context, address string) (State, error) {
	bounded, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	s, err := c.do(bounded, "state", http.MethodGet, address, "/state", nil)
	if err != nil && ctx.Err() != nil {
		return State{}, ctx.Err()
	}
	return s, err
}

// Drain takes the engine out of routing and returns nil once it has no request. The error
// wraps ErrNotDrained if it still had some after timeout. If ctx ends, the shim waits no
// longer either; the engine stays out of routing until it is woken.
func (c *Client) Drain(ctx context.Context, address string, timeout time.Duration) error {
	_, err := c.do(ctx, "drain", http.MethodPost, address, "/v1/drain", url.Values{"timeout": {timeout.String()}})
	return err
}

// Sleep has the engine finish its requests, for at most drain, and sleep until Wake. It
// returns how the engine stands then. Since is the State.Since that the order is for, zero
// for any: if the engine has changed its state meanwhile, the error wraps ErrChanged.
func (c *Client) Sleep(ctx context.Context, address string, since time.Time, drain time.Duration) (State, error) {
	query := forState(since)
	query.Set("timeout", drain.String())
	return c.do(ctx, "sleep", http.MethodPost, address, "/v1/sleep", query)
}

func forState(since time.Time) url.Values {
	if since.IsZero() {
		return url.Values{}
	}
	return url.Values{"since": {since.Format(time.RFC3339Nano)}}
}

// Wake has the engine serve: on the GPUs of these UUIDs where some are given, which an
// engine that cannot move refuses where they are others than those that it slept on. A
// drain is called off by it. It returns when the engine serves. Since is as of Sleep.
func (c *Client) Wake(ctx context.Context, address string, since time.Time, gpus []string) (State, error) {
	query := forState(since)
	if len(gpus) > 0 {
		query.Set("gpus", strings.Join(gpus, ","))
	}
	return c.do(ctx, "wake", http.MethodPost, address, "/v1/wake", query)
}

func (c *Client) do(ctx context.Context, op, method, address, path string, query url.Values) (State, error) {
	fail := func(kind error, code int, text string) error {
		return &Error{Op: op, Address: address, Code: code, Text: text, kind: kind}
	}
	u := url.URL{Scheme: "http", Host: address, Path: path, RawQuery: query.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return State{}, fail(ErrUnreachable, 0, err.Error())
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
	return State{}, refusal(op, address, resp.StatusCode, body)
}

// refusal reads an answer that is not 200.
func refusal(op, address string, code int, body []byte) error {
	var said struct {
		Error string `json:"error"`
		State Phase  `json:"state"`
	}
	e := &Error{Op: op, Address: address, Code: code, kind: ErrUnreachable}
	if err := json.Unmarshal(body, &said); err != nil || said.Error == "" {
		// No shim, or one in the midst of its end.
		e.Text = fmt.Sprintf("not the response of a shim: %d %s", code, bytes.TrimSpace(body[:min(len(body), 200)]))
		return e
	}
	e.Text, e.State = said.Error, said.State
	switch {
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
