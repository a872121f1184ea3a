package keeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// retryMin is about what a keeper takes to start, and retryMax how much
	// later than possible its return may be noticed.
	retryMin = 5 * time.Millisecond
	retryMax = 500 * time.Millisecond
)

// RefusedError is the keeper's refusal of a record. Asking again does not help
// before there is room.
type RefusedError struct {
	// Reason is the keeper's text for people.
	Reason string
}

func (e *RefusedError) Error() string { return "the keeper rejected the request: " + e.Reason }

// Client speaks to one keeper. Its methods are safe for concurrent use. Each of
// them waits for the keeper, and begins again over a new connection when one
// breaks, for as long as its context allows: give it a deadline. The error wraps
// the context's cause then, or a *RefusedError.
type Client struct {
	socket string
	log    hclog.Logger
	uid    uint32
	cancel context.CancelFunc
	// watching counts the goroutine that watches the keeper.
	watching sync.WaitGroup
	lost     chan struct{}

	mu sync.Mutex // guards what is below
	// instance is the keeper's that was spoken to last; "" before the first.
	instance string
	// failed: something was not kept while no keeper had been seen.
	failed bool
}

// Open starts a client of the keeper at the socket, which need not be there
// yet. Close ends it. A nil logger is fine.
func Open(socket string, log hclog.Logger) (*Client, error) {
	if socket == "" {
		return nil, errors.New("gms keeper client: no socket is given")
	}
	if log == nil {
		log = hclog.NewNullLogger()
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &Client{socket: socket, log: log, uid: uint32(os.Geteuid()), cancel: cancel, lost: make(chan struct{}, 1)}
	c.watching.Go(func() { c.watch(ctx) })
	return c, nil
}

// Close ends the client. Calls in progress go on.
func (c *Client) Close() error {
	c.cancel()
	c.watching.Wait()
	return nil
}

// Lost receives a value when records have to be saved again: the keeper that
// had them is gone and an empty one has come in its place, or the first keeper
// has come after a call had failed for want of one. Values are not counted: one
// that comes while the last was not received yet is dropped, so take it first
// and save all records after. The channel is never closed.
func (c *Client) Lost() <-chan struct{} { return c.lost }

// Save stores blob and duplicates of fds under the name, in place of what was
// there. After an error the old record or the new one is there, each whole; call
// it again, as Lost tells only of keepers that have come back empty.
func (c *Client) Save(ctx context.Context, name string, blob []byte, fds []int) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("keep %q: %w", name, err)
	}
	request := append(extent{uint64(len(blob)), uint32(len(fds))}.append(nil), name...)
	err := c.call(ctx, func(l *link) error {
		restBlob, restFDs := blob, fds
		p, err := l.ask(opSave, request, nil)
		for {
			if err == nil {
				err = want(&p, opOK)
			}
			if err != nil || len(restBlob) == 0 && len(restFDs) == 0 {
				return err
			}
			var chunk []byte
			var batch []int
			chunk, restBlob, batch, restFDs = part(restBlob, restFDs)
			p, err = l.ask(opData, chunk, batch)
		}
	})
	if err != nil {
		return fmt.Errorf("keep %q: %w", name, err)
	}
	return nil
}

// Drop forgets the name. It is no error if it is not known.
func (c *Client) Drop(ctx context.Context, name string) error {
	err := c.call(ctx, func(l *link) error {
		p, err := l.ask(opDrop, []byte(name), nil)
		if err == nil {
			err = want(&p, opOK)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("drop %q from the keeper: %w", name, err)
	}
	return nil
}

// Load returns what is stored under the name. The descriptors are the caller's.
func (c *Client) Load(ctx context.Context, name string) (blob []byte, fds []int, found bool, err error) {
	err = c.call(ctx, func(l *link) error {
		var err error
		blob, fds, found, err = load(l, name)
		return err
	})
	if err != nil {
		return nil, nil, false, fmt.Errorf("load %q from the keeper: %w", name, err)
	}
	return blob, fds, found, nil
}

// load returns no descriptor with an error.
func load(l *link, name string) (blob []byte, fds []int, found bool, err error) {
	p, err := l.ask(opLoad, []byte(name), nil)
	if err == nil && p.op == opMissing {
		return nil, nil, false, nil
	}
	var e extent
	if err == nil {
		err = want(&p, opFound)
	}
	if err == nil {
		e, _, err = cutExtent(p.body)
	}
	for err == nil && (uint64(len(blob)) < e.size || len(fds) < int(e.count)) {
		if p, err = l.ask(opNext, nil, nil); err != nil {
			break
		}
		n, m := len(p.body), len(p.fds)
		if p.op == opData && n+m > 0 && uint64(n) <= e.size-uint64(len(blob)) && m <= int(e.count)-len(fds) {
			blob, fds = append(blob, p.body...), append(fds, p.fds...)
			continue
		}
		p.close()
		err = fmt.Errorf("%w: packet %q in the middle of a load", errProtocol, p.op)
	}
	if err != nil {
		closeAll(fds)
		return nil, nil, false, err
	}
	return blob, fds, true, nil
}

// want checks an answer. It may carry no descriptors.
func want(p *packet, o op) error {
	fds := len(p.fds)
	p.close()
	switch {
	case fds > 0:
		return fmt.Errorf("%w: %d descriptors where none belong", errProtocol, fds)
	case p.op == opRefused:
		return &RefusedError{Reason: string(p.body)}
	case p.op != o:
		return fmt.Errorf("%w: answer %q, not %q", errProtocol, p.op, o)
	}
	return nil
}

// call does one thing over a connection of its own, again and again until it
// works, is refused, or ctx ends.
func (c *Client) call(ctx context.Context, do func(*link) error) error {
	var last error
	for delay := retryMin; ctx.Err() == nil; delay = min(2*delay, retryMax) {
		err := c.once(ctx, do)
		var refused *RefusedError
		if err == nil || errors.As(err, &refused) {
			return err
		}
		if ctx.Err() == nil {
			last = err
			pause(ctx, delay)
		}
	}
	c.mu.Lock()
	c.failed = c.failed || c.instance == ""
	c.mu.Unlock()
	if last != nil {
		return fmt.Errorf("%w (before that: %s)", context.Cause(ctx), last.Error())
	}
	return context.Cause(ctx)
}

// once does one thing over a connection of its own.
func (c *Client) once(ctx context.Context, do func(*link) error) error {
	l, stop, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer stop()
	return do(l)
}

// connect returns a connection to the keeper that ends with ctx or stop.
func (c *Client) connect(ctx context.Context) (_ *link, stop func(), err error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unixpacket", c.socket)
	if err != nil {
		return nil, nil, err
	}
	closed := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close(); close(closed) })
	// The keeper does nothing more for a connection that has ended, so it must have
	// ended before the next call begins.
	stop = func() {
		if !unhook() {
			<-closed
		}
		_ = conn.Close()
	}
	l, err := newLink(conn.(*net.UnixConn))
	if err == nil && l.uid != c.uid {
		err = fmt.Errorf("the keeper at %s is of user %d, and this process is of user %d", c.socket, l.uid, c.uid)
	}
	if err == nil {
		err = c.greet(l)
	}
	if err != nil {
		stop()
		return nil, nil, err
	}
	return l, stop, nil
}

// greet reads which keeper it is.
func (c *Client) greet(l *link) error {
	p, err := l.receive()
	if err == nil {
		err = want(&p, opHello)
	}
	if err != nil {
		return err
	}
	if len(p.body) < 2 || p.body[0] != version {
		return fmt.Errorf("%w: the keeper speaks another version", errProtocol)
	}
	instance := string(p.body[1:])
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.instance == instance {
		return nil
	}
	empty := c.instance != "" || c.failed
	c.instance = instance
	if !empty {
		return nil
	}
	c.log.Warn("the keeper restarted: records must be saved again", "socket", c.socket, "instance", instance)
	select {
	case c.lost <- struct{}{}:
	default:
	}
	return nil
}

// watch holds a connection to learn when the keeper goes, and looks for the next.
func (c *Client) watch(ctx context.Context) {
	for delay := retryMin; ctx.Err() == nil; {
		l, stop, err := c.connect(ctx)
		if err == nil {
			began := time.Now()
			p, err := l.receive() // nothing is sent: it waits for the end
			p.close()
			stop()
			if ctx.Err() == nil {
				c.log.Warn("lost the connection to the keeper", "socket", c.socket, "error", err)
			}
			if time.Since(began) > retryMax {
				delay = retryMin
			}
		}
		pause(ctx, delay)
		delay = min(2*delay, retryMax)
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
