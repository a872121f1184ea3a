// Package client takes a failover lock from lockd and keeps it.
//
// The connection is the lock, and there is no release. Acquire waits for the
// lock for as long as its context allows, however often lockd goes away. The
// Grant that it returns keeps the connection and watches it: when the connection
// breaks, it asks for the same grant again, and when it cannot have it, its Lost
// channel closes. What is promised:
//   - Lost is closed as soon as it is known that the lock is lost, and at the
//     latest when the session is over, where there is one. The holder must end
//     itself then, and all that it started: lockd kills a local holder that does
//     not, and lets a remote one have no more than its lock delay.
//   - A holder on a Unix socket, without a session, keeps its lock while lockd is
//     away, for however long: nobody else can be granted it, and a lockd that
//     comes back grants it to nobody before the kernel has proven this holder dead.
//   - A session is counted from the sending of what lockd answered, so it is
//     over here before it is over there. Times are of CLOCK_MONOTONIC, which
//     stands still while a machine is suspended: a remote holder must not run on
//     a machine that sleeps.
//   - Nothing is left running, and no descriptor open, after Acquire returned an
//     error, after Close, and a moment after Lost. None of them waits for lockd.
//   - lockd is not trusted to speak well: garbage, lines that are too long and
//     events that are out of place end the connection as a failure of the
//     network would.
//
// On a Unix socket a process that lives and closes its Grant, or that gives up
// Acquire in the very moment of its grant, is the holder for lockd all the same:
// lockd kills it when its reconnect window closes, unless it calls Acquire for
// the same lock before that.
package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/go-hclog"

	"remuda/lockd/lock"
	"remuda/lockd/wire"
)

// codeForbidden is lockd's refusal of a peer that may not ask for the lock.
const codeForbidden = "forbidden"

var (
	// ErrLost means that a lock is no longer held.
	ErrLost = errors.New("the lock is lost")
	// ErrClosed is why a lock is lost after Grant.Close.
	ErrClosed = errors.New("the holder has closed its grant")
)

// RefusedError is lockd's refusal.
type RefusedError struct {
	// Code is one of package lock's Code constants, "forbidden", or one that
	// this client does not know.
	Code string
	// Message is lockd's text for people.
	Message string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("lockd rejected the request (%s): %s", e.Code, e.Message)
}

// final tells whether asking again cannot help. A code that is not known is a
// newer lockd's; what it means may pass.
func (e *RefusedError) final() bool {
	switch e.Code {
	case lock.CodeBadRequest, lock.CodeNotHolder, lock.CodeStale, lock.CodeLost, codeForbidden:
		return true
	default: // lock.CodeState too: a full disk may be emptied
		return false
	}
}

// refused makes an error of an event.
func refused(e wire.Event) *RefusedError { return &RefusedError{Code: e.Code, Message: e.Error} }

// final tells whether err is a refusal that asking again cannot help.
func final(err error) bool {
	var r *RefusedError
	return errors.As(err, &r) && r.final()
}

// Client asks one lockd for one lock. It is safe for concurrent use, but a
// process should hold a lock once: lockd knows a local holder by its process,
// and gives it the same grant again on a new connection in place of the old.
type Client struct {
	cfg  Config
	dial dialer
	log  hclog.Logger
}

// New checks the config, most of which should come from DefaultConfig; the error
// names every bad field. It starts nothing.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("lockd client: %w", err)
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Client{cfg: cfg, dial: cfg.dialer(), log: log.With("group", cfg.Group, "holder", cfg.Holder)}, nil
}

// Acquire blocks until the lock is granted or ctx ends; ctx does not end the
// Grant. While lockd is away, or has a trouble that may pass, it asks again and
// again. The error wraps ctx's cause, or a *RefusedError where asking again
// cannot help.
func (c *Client) Acquire(ctx context.Context) (*Grant, error) {
	var b backoff
	var trouble troubles
	for {
		l, token, err := c.attempt(ctx, &b, &trouble)
		if err == nil {
			return newGrant(c, l, token), nil
		}
		if final(err) {
			return nil, fmt.Errorf("acquire the lock of group %q: %w", c.cfg.Group, err)
		}
		if ctx.Err() == nil {
			delay := b.next()
			trouble.note(c.log, "cannot request the lock: retrying", err, delay)
			_ = sleep(ctx, delay) // an ended context is seen below
		}
		if ctx.Err() != nil {
			var before string // told, not wrapped: an attempt's own timeout is not ctx's
			if trouble.last != nil {
				before = fmt.Sprintf(" (before that: %s)", trouble.last)
			}
			return nil, fmt.Errorf("acquire the lock of group %q: %w%s", c.cfg.Group, context.Cause(ctx), before)
		}
	}
}

// attempt waits for the lock on one connection. The caller closes the link.
func (c *Client) attempt(ctx context.Context, b *backoff, trouble *troubles) (*link, uint64, error) {
	l, err := c.cfg.open(ctx, c.dial, c.cfg.ttl(), c.cfg.soft(), c.cfg.acquire(0))
	if err != nil {
		return nil, 0, err
	}
	token, err := c.granted(ctx, l, trouble)
	if err != nil {
		l.close()
		if l.age() >= backoffMax {
			*b = backoff{}
		}
		return nil, 0, err
	}
	return l, token, nil
}

// granted waits for a grant.
func (c *Client) granted(ctx context.Context, l *link, trouble *troubles) (uint64, error) {
	for {
		e, err := l.next(ctx)
		switch {
		case err != nil:
			return 0, err
		case e.Event == wire.Refused:
			return 0, refused(e)
		case e.Event == wire.Granted && e.Token != 0:
			c.log.Info("the lock is granted", "token", e.Token, "regranted", e.Regranted)
			return e.Token, nil
		case e.Event == wire.Waiting && e.Position > 0:
			trouble.over()
			c.log.Info("waiting for the lock", "position", e.Position)
			if c.cfg.OnWaiting != nil {
				c.cfg.OnWaiting(e.Position)
			}
		default:
			return 0, unexpected(e, "the client requested the lock")
		}
	}
}

// troubles logs what is tried again: a trouble that stays the same once as a
// warning, then for debugging only.
type troubles struct {
	last error
	kind string
}

func (t *troubles) note(log hclog.Logger, message string, err error, again any) {
	kind := "connection"
	if r := new(RefusedError); errors.As(err, &r) {
		kind = "refused: " + r.Code
	}
	level := hclog.Warn
	if t.kind == kind {
		level = hclog.Debug
	}
	t.last, t.kind = err, kind
	log.Log(level, message, "error", err, "after", again)
}

// over tells that lockd has answered.
func (t *troubles) over() { *t = troubles{} }

// Status asks lockd for all its groups, once. Of the config it uses Addr, TLS and
// ConnectTimeout; ctx bounds the answer.
func Status(ctx context.Context, cfg Config) ([]wire.Group, error) {
	cfg.SessionTTL = max(cfg.SessionTTL, 1) // a question has no session
	if err := errors.Join(cfg.serverErrors()...); err != nil {
		return nil, fmt.Errorf("lockd client: %w", err)
	}
	l, err := cfg.open(ctx, cfg.dialer(), 0, false, wire.Request{Op: wire.OpStatus, Protocol: wire.Protocol})
	if err != nil {
		return nil, fmt.Errorf("request the status: %w", err)
	}
	defer l.close()
	var groups []wire.Group
	for {
		e, err := l.next(ctx)
		switch {
		case err != nil:
		case e.Event == wire.Refused:
			err = refused(e)
		case e.Event != wire.StatusEvent:
			err = unexpected(e, "the client requested the status")
		}
		if err != nil {
			return nil, fmt.Errorf("request the status: %w", err)
		}
		groups = append(groups, e.Groups...)
		if !e.More {
			return groups, nil
		}
	}
}
