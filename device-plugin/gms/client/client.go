package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/wire"
)

// Space is where memory is mapped: host.Space or cuda.Space. Its methods are safe
// for concurrent use. Addresses stay reserved between Unmap and Map.
type Space interface {
	// Reserve takes a range of addresses, of a multiple of the granularity.
	Reserve(size uint64) (addr uintptr, err error)
	// Free gives a range back where nothing is mapped.
	Free(addr uintptr, size uint64) error
	// Map maps what fd was exported from. It borrows fd. After an error nothing
	// is mapped.
	Map(addr uintptr, size uint64, fd int, writable bool) error
	// Protect changes whether a mapping may be written.
	Protect(addr uintptr, size uint64, writable bool) error
	// Unmap ends a mapping.
	Unmap(addr uintptr, size uint64) error
	// Sync waits until nothing that was started uses mapped memory any more.
	Sync() error
	// Write and Read copy to and from mapped memory.
	Write(addr uintptr, from []byte) error
	Read(addr uintptr, to []byte) error
}

// direct is a Space whose memory this process reads and writes itself.
type direct interface {
	Bytes(addr uintptr, size uint64) []byte
}

// Config is what a Client is made of.
type Config struct {
	// Socket is the address of a unit: see Address.
	Socket string
	// Space is where memory is mapped. It outlives the client; who made it closes
	// it.
	Space Space
	// Logger may be nil.
	Logger hclog.Logger
}

// Client is an engine's memory on one GPU. Its methods are safe for concurrent
// use; they run one after the other.
type Client struct {
	cfg Config
	log hclog.Logger
	// turn has the one call that is under way, and guards what is below.
	turn chan struct{}
	// quit ends the calls that are under way when the client is closed.
	quit context.Context //nolint:containedctx // it is the client's life
	end  context.CancelCauseFunc

	// mu guards session, hash and the mappings' allocations, for those who only
	// look: they are changed in a turn.
	mu      sync.Mutex
	session *Session
	// mappings in the order of Map.
	mappings []*Mapping
	// asleep: the mappings are reserved addresses only.
	asleep bool
	// nonce and hash are the server's incarnation and the committed layout that
	// the mappings are of; hash is empty before the first commit is seen.
	nonce, hash string
	// ranks are where each allocation ID is in that layout.
	ranks map[string]int
	// committed are the allocations of a layout that this client has committed
	// and whose hash it has not seen yet.
	committed []Allocation
	// broken: a call of the Space was left behind.
	broken bool
	closed bool
}

// New checks the config; the error names every bad field. It starts nothing.
func New(cfg Config) (*Client, error) {
	var errs []error
	if cfg.Socket == "" {
		errs = append(errs, errors.New("Socket must be set"))
	}
	if cfg.Space == nil {
		errs = append(errs, errors.New("Space must be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("GPU memory client: %w", err)
	}
	log := cfg.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	c := &Client{cfg: cfg, log: log.With("socket", cfg.Socket), turn: make(chan struct{}, 1)}
	c.quit, c.end = context.WithCancelCause(context.Background())
	return c, nil
}

var errClosed = fmt.Errorf("%w: the client has been closed", ErrState)

// begin takes the turn. The context ends with ctx and with the client; done must
// be called.
func (c *Client) begin(ctx context.Context) (_ context.Context, done func(), err error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ended(ctx)
	case <-c.quit.Done():
		return nil, nil, errClosed
	}
	switch {
	case c.closed || c.quit.Err() != nil:
		err = errClosed
	case c.broken:
		err = ErrBroken
	case ctx.Err() != nil:
		err = ended(ctx)
	}
	if err != nil {
		<-c.turn
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(c.quit, func() { cancel(errClosed) })
	return ctx, func() { stop(); cancel(nil); <-c.turn }, nil
}

const (
	// grace is how long a call of the Space may outlast its context before it is
	// left behind: all but a driver that hangs are done in microseconds.
	grace = 100 * time.Millisecond
	// undoTime is how long it may take to undo what failed.
	undoTime = time.Second
)

// in runs a call of the Space, and leaves it behind soon after ctx has ended.
// What f uses it must own.
func (c *Client) in(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	t := time.NewTimer(grace)
	defer t.Stop()
	select {
	case err := <-result:
		return err
	case <-t.C:
		c.broken = true
		return fmt.Errorf("%w: %w", ErrBroken, ended(ctx))
	}
}

// set changes what others may look at.
func (c *Client) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// Connect opens a session and returns what was granted. timeout is how long the
// server may let us wait for the lock; nil: as long as ctx allows. A writer that
// is granted its lock has cleared the layout, so there must be no mappings of an
// older one.
func (c *Client) Connect(ctx context.Context, lock wire.LockType, timeout *time.Duration) (wire.LockType, error) {
	return c.connect(ctx, Options{Lock: lock, Timeout: timeout})
}

// Replace opens a writer's session if no other group uses the unit: see Options.IfUnused.
func (c *Client) Replace(ctx context.Context) error {
	_, err := c.connect(ctx, Options{Lock: wire.RW, IfUnused: true})
	return err
}

func (c *Client) connect(ctx context.Context, o Options) (wire.LockType, error) {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return "", fmt.Errorf("connect: %w", err)
	}
	defer done()
	if c.session != nil {
		return "", fmt.Errorf("connect: %w: there is a session", ErrState)
	}
	if len(c.mappings) > 0 {
		return "", fmt.Errorf("connect: %w: there are mappings: use Remap or Reconnect, or a new client", ErrState)
	}
	s, err := Open(ctx, c.cfg.Socket, o)
	if err != nil {
		return "", err
	}
	if err := c.adopt(ctx, s); err != nil {
		return "", errors.Join(fmt.Errorf("connect: %w", err), s.Close())
	}
	c.log.Info("a session is open", "lock", s.lock, "nonce", s.nonce, "hash", c.hash)
	return s.lock, nil
}

// adopt makes s the session. A reader learns the layout.
func (c *Client) adopt(ctx context.Context, s *Session) error {
	var hash string
	var list []Allocation
	if s.lock == wire.RO {
		var err error
		if hash, err = s.committed(ctx); err != nil {
			return err
		}
		if list, err = s.List(ctx, ""); err != nil {
			return err
		}
	}
	c.nonce, c.ranks = s.nonce, ranks(list)
	c.set(func() { c.session, c.hash = s, hash })
	return nil
}

// committed is the hash of the layout that a reader sees. It cannot change while
// the session is open.
func (s *Session) committed(ctx context.Context) (string, error) {
	if s.hash != "" {
		return s.hash, nil
	}
	return s.LayoutHash(ctx)
}

// Session is the open session; nil without one. It may be over already.
func (c *Client) Session() *Session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session
}

// Hash is the layout's that the client has last seen committed.
func (c *Client) Hash() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hash
}

// Map maps an allocation of the open session; a writer's mapping may be written.
func (c *Client) Map(ctx context.Context, id string) (*Mapping, error) {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("map allocation %q: %w", id, err)
	}
	defer done()
	if c.session == nil || c.asleep {
		return nil, fmt.Errorf("map allocation %q: %w: there is no session", id, ErrState)
	}
	fd, a, err := c.session.Export(ctx, id)
	if err != nil {
		return nil, err
	}
	m := &Mapping{c: c, allocation: a, size: a.Size, aligned: a.Aligned}
	writable := c.session.lock == wire.RW
	err = c.in(ctx, func() error {
		defer unix.Close(fd) //nolint:errcheck // it was only used to map
		addr, err := c.cfg.Space.Reserve(a.Aligned)
		if err != nil {
			return err
		}
		if err = c.cfg.Space.Map(addr, a.Aligned, fd, writable); err != nil {
			return errors.Join(err, c.cfg.Space.Free(addr, a.Aligned))
		}
		m.addr = addr
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("map allocation %q: %w", id, err)
	}
	c.mappings = append(c.mappings, m)
	return m, nil
}

// Forget ends a mapping and gives its addresses back, as before its allocation is
// freed.
func (c *Client) Forget(ctx context.Context, m *Mapping) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("forget a mapping: %w", err)
	}
	defer done()
	at := slices.Index(c.mappings, m)
	if at < 0 {
		return fmt.Errorf("forget a mapping: %w: it is not this client's", ErrState)
	}
	asleep := c.asleep
	err = c.in(ctx, func() error {
		if !asleep {
			if err := errors.Join(c.cfg.Space.Sync(), c.cfg.Space.Unmap(m.addr, m.aligned)); err != nil {
				return err
			}
		}
		return c.cfg.Space.Free(m.addr, m.aligned)
	})
	if err != nil {
		return fmt.Errorf("forget a mapping: %w", err)
	}
	m.asleep.Store(true)
	c.mappings = slices.Delete(c.mappings, at, at+1)
	return nil
}

// Commit publishes the layout, and goes on as its reader: the mappings stay, and
// may not be written any more. It returns the layout's hash. Where the error
// wraps ErrCommitted, the layout is committed and there is no session; see
// Reconnect.
func (c *Client) Commit(ctx context.Context) (hash string, err error) {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	defer done()
	if c.session == nil || c.session.lock != wire.RW {
		return "", fmt.Errorf("commit: %w: there is no writer's session", ErrState)
	}
	// Nothing is written to what others can read.
	mappings := c.mappings
	err = c.in(ctx, func() error {
		if err := c.cfg.Space.Sync(); err != nil {
			return err
		}
		for _, m := range mappings {
			if err := c.cfg.Space.Protect(m.addr, m.aligned, false); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	// The allocations as the layout will have them: the writer has the last look.
	list, err := c.session.List(ctx, "")
	if err != nil {
		return "", fmt.Errorf("commit: %w", err)
	}
	places := ranks(list)
	for _, m := range mappings {
		if _, ok := places[m.allocation.ID]; !ok {
			return "", fmt.Errorf("commit: %w: allocation %q was freed and is still mapped", ErrState, m.allocation.ID)
		}
	}
	if err := c.session.Commit(ctx); err != nil {
		return "", err
	}
	c.set(func() { c.session = nil })
	c.committed, c.ranks = list, places
	if s, list, err := c.again(ctx); err == nil {
		c.resume(s, list)
	} else {
		return "", fmt.Errorf("%w: go on as a reader: %w", ErrCommitted, err)
	}
	c.log.Info("the layout is committed", "hash", c.hash, "allocations", len(list))
	return c.hash, nil
}

// ranks are the places of allocations by ID.
func ranks(list []Allocation) map[string]int {
	m := make(map[string]int, len(list))
	for i, a := range list {
		m[a.ID] = i
	}
	return m
}

// ErrCommitted is wrapped where the commit itself is done and what follows is not.
var ErrCommitted = errors.New("the layout is committed")

// Unmap puts the memory to sleep: it waits for the GPU, ends all mappings, keeps
// their addresses, and closes the session. A layout must be committed. After an
// error the client is of no use but to be closed.
func (c *Client) Unmap(ctx context.Context) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("unmap GPU memory: %w", err)
	}
	defer done()
	switch {
	case c.asleep:
		return nil
	case c.hash == "":
		return fmt.Errorf("unmap GPU memory: %w: no layout is committed that could be mapped again", ErrState)
	}
	mappings := c.mappings
	err = c.in(ctx, func() error {
		if err := c.cfg.Space.Sync(); err != nil {
			return err
		}
		return c.unmap(mappings)
	})
	if err != nil {
		return fmt.Errorf("unmap GPU memory: %w", err)
	}
	c.asleep = true
	for _, m := range mappings {
		m.asleep.Store(true)
	}
	return c.closeSession()
}

// unmap ends mappings; it goes on after an error.
func (c *Client) unmap(mappings []*Mapping) error {
	var errs []error
	for _, m := range mappings {
		errs = append(errs, c.cfg.Space.Unmap(m.addr, m.aligned))
	}
	return errors.Join(errs...)
}

func (c *Client) closeSession() error {
	if c.session == nil {
		return nil
	}
	err := c.session.Close()
	c.set(func() { c.session = nil })
	return err
}

// Remap wakes the memory: it opens a reader's session, compares the layout's hash
// with the one that was mapped, and maps the same memory at the same addresses.
// ctx must have a deadline. After an error the memory still sleeps; see the
// package's comment.
func (c *Client) Remap(ctx context.Context) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("remap GPU memory: %w", err)
	}
	defer done()
	if _, ok := ctx.Deadline(); !ok {
		return fmt.Errorf("remap GPU memory: %w", ErrNoDeadline)
	}
	if !c.asleep {
		return fmt.Errorf("remap GPU memory: %w: it does not sleep", ErrState)
	}
	began := time.Now()
	s, list, err := c.again(ctx)
	if err != nil {
		return fmt.Errorf("remap GPU memory: %w", err)
	}
	if err := c.mapAgain(ctx, s, list); err != nil {
		return errors.Join(fmt.Errorf("remap GPU memory: %w", err), s.Close())
	}
	c.resume(s, list)
	c.asleep = false
	for _, m := range c.mappings {
		m.asleep.Store(false)
	}
	c.log.Info("the memory is mapped again", "mappings", len(c.mappings), "hash", c.hash, "nonce", c.nonce, "took", time.Since(began))
	return nil
}

// Reconnect opens a reader's session in place of one that is over, as after a
// crash of the server that the keeper survived. The mappings stay as they are:
// they are of the very memory. ctx must have a deadline. ErrStaleLayout and
// ErrRestarted mean that they are of a layout that nobody else can map any more.
func (c *Client) Reconnect(ctx context.Context) error {
	ctx, done, err := c.begin(ctx)
	if err != nil {
		return fmt.Errorf("reconnect: %w", err)
	}
	defer done()
	if _, ok := ctx.Deadline(); !ok {
		return fmt.Errorf("reconnect: %w", ErrNoDeadline)
	}
	if c.asleep || c.hash == "" && c.committed == nil {
		return fmt.Errorf("reconnect: %w: there is nothing to hold a session for", ErrState)
	}
	if s := c.session; s != nil {
		select {
		case <-s.Done():
		default:
			return fmt.Errorf("reconnect: %w: there is a session", ErrState)
		}
		if err := c.closeSession(); err != nil {
			return err
		}
	}
	s, list, err := c.again(ctx)
	if err != nil {
		return fmt.Errorf("reconnect: %w", err)
	}
	// The structure is the same. So is the memory, where the allocations kept
	// their IDs: those are never given twice.
	for _, m := range c.mappings {
		rank, ok := c.ranks[m.allocation.ID]
		if !ok || list[rank].ID != m.allocation.ID {
			return errors.Join(fmt.Errorf("reconnect: %w", ErrStaleLayout), s.Close())
		}
	}
	c.resume(s, list)
	c.log.Info("the session is open again", "nonce", c.nonce, "hash", c.hash)
	return nil
}

// resume goes on with a session whose layout has the hash that is known.
func (c *Client) resume(s *Session, list []Allocation) {
	c.set(func() {
		for _, m := range c.mappings {
			m.allocation = list[c.ranks[m.allocation.ID]]
		}
		c.session = s
	})
	c.nonce, c.ranks = s.nonce, ranks(list)
}

// again opens a reader's session on the layout that is known, and lists it. The
// server may be another incarnation if it has that very layout: then the keeper
// has restored it.
func (c *Client) again(ctx context.Context) (*Session, []Allocation, error) {
	nonce := c.nonce
	for {
		s, err := Open(ctx, c.cfg.Socket, Options{Lock: wire.RO, Timeout: nil, ExpectedNonce: nonce})
		var refused *HandshakeError
		switch {
		case err == nil:
			list, err := c.check(ctx, s)
			if err != nil {
				return nil, nil, errors.Join(err, s.Close())
			}
			return s, list, nil
		case !errors.As(err, &refused) || refused.Code != wire.CodeRestarted || nonce == "":
			return nil, nil, err
		case !refused.Committed:
			return nil, nil, err
		case c.hash != "" && refused.Hash != c.hash:
			return nil, nil, fmt.Errorf("%w: %w", ErrStaleLayout, err)
		}
		c.log.Warn("the server has restarted and still has the layout", "nonce", refused.Nonce, "hash", refused.Hash)
		nonce = refused.Nonce // a third incarnation would have to show its layout too
	}
}

// check compares the layout with what is known: its hash, or its very allocations
// where the hash was not seen yet.
func (c *Client) check(ctx context.Context, s *Session) ([]Allocation, error) {
	hash, err := s.committed(ctx)
	if err != nil {
		return nil, err
	}
	if c.hash != "" && hash != c.hash {
		return nil, fmt.Errorf("%w: its hash is %s, and %s is mapped", ErrStaleLayout, hash, c.hash)
	}
	list, err := s.List(ctx, "")
	if err != nil {
		return nil, err
	}
	if len(list) != len(c.ranks) || c.hash == "" && !slices.Equal(list, c.committed) {
		return nil, fmt.Errorf("%w: it has other allocations, %d of them", ErrStaleLayout, len(list))
	}
	c.set(func() { c.hash = hash })
	c.committed = nil
	return list, nil
}

// mapAgain maps everything where it was. After an error nothing is mapped.
func (c *Client) mapAgain(ctx context.Context, s *Session, list []Allocation) error {
	for i, m := range c.mappings {
		err := c.mapOne(ctx, s, m, list)
		if err == nil {
			continue
		}
		if !c.broken { // else the driver is not asked for more
			mapped := c.mappings[:i]
			undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
			err = errors.Join(err, c.in(undo, func() error { return c.unmap(mapped) }))
			cancel()
		}
		return err
	}
	return nil
}

func (c *Client) mapOne(ctx context.Context, s *Session, m *Mapping, list []Allocation) error {
	rank, ok := c.ranks[m.allocation.ID]
	if !ok || list[rank].Aligned != m.aligned {
		return fmt.Errorf("%w: allocation %q is not in it as it was", ErrStaleLayout, m.allocation.ID)
	}
	fd, _, err := s.Export(ctx, list[rank].ID)
	if err != nil {
		return err
	}
	return c.in(ctx, func() error {
		defer unix.Close(fd) //nolint:errcheck // it was only used to map
		return c.cfg.Space.Map(m.addr, m.aligned, fd, false)
	})
}

// Close ends the calls that are under way, the session, all mappings and all
// reservations. A writer's layout that is not committed is dropped by the server.
// The driver has as long as it takes, but where a call of it was left behind it is
// not asked for more: the error wraps ErrBroken then, and the Space must not be closed
// either, which could wait for ever.
func (c *Client) Close() error {
	c.end(errClosed)
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if c.closed {
		return nil
	}
	c.closed = true
	errs := []error{c.closeSession()}
	if c.broken {
		return errors.Join(append(errs, fmt.Errorf("close: %w: what is mapped stays until this process ends", ErrBroken))...)
	}
	if !c.asleep && len(c.mappings) > 0 {
		errs = append(errs, c.cfg.Space.Sync(), c.unmap(c.mappings))
	}
	for _, m := range c.mappings {
		m.asleep.Store(true)
		errs = append(errs, c.cfg.Space.Free(m.addr, m.aligned))
	}
	c.mappings = nil
	return errors.Join(errs...)
}
