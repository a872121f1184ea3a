package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/wire"
)

const (
	// maxReply is more than any reply: a list of a million allocations.
	maxReply = 256 << 20
	// retryMin is about what a server takes to start, and retryMax how much later
	// than possible a server that comes may be seen.
	retryMin = 5 * time.Millisecond
	retryMax = 200 * time.Millisecond
	// answerTime is kept of a context's time for the server's answer that there
	// is no lock, so that a timeout is told by the one who knows why; at most a
	// tenth of the time.
	answerTime = 200 * time.Millisecond
)

// Options are what a session is asked for with.
type Options struct {
	// Lock is wire.RW, wire.RO or wire.Auto.
	Lock wire.LockType
	// Timeout is how long the server may let us wait for the lock; nil: as long
	// as the context allows, 0: not at all.
	Timeout *time.Duration
	// ExpectedNonce is the only incarnation of the server to accept; empty: any.
	ExpectedNonce string
	// IfUnused is for wire.RW: the lock is granted only if no connection of another group
	// uses the unit, without a wait; else the error wraps ErrInUse or, while the own group
	// has the lock, ErrTimeout.
	IfUnused bool
}

func (o *Options) validate() error {
	switch o.Lock {
	case wire.RW, wire.RO, wire.Auto:
	default:
		return fmt.Errorf("lock type %q: want rw, ro or auto", o.Lock)
	}
	return nil
}

// Allocation is what the server knows of an allocation.
type Allocation struct {
	ID string
	// Size is what was asked for and Aligned what it takes, in bytes.
	Size, Aligned uint64
	Tag           string
	// Slot is its place in the layout.
	Slot uint64
}

// Session is one connection. Its methods are safe for concurrent use, one
// request at a time.
type Session struct {
	conn    *wire.Conn
	lock    wire.LockType
	nonce   string
	hash    string
	replies chan reply
	// over is closed when the connection has ended; why is set before.
	over chan struct{}
	why  error
	// turn has the one request that is under way.
	turn chan struct{}

	end sync.Once
	// reading counts the reader.
	reading sync.WaitGroup
}

type reply struct {
	message wire.Message
	fd      int
}

func (r reply) close() {
	if r.fd >= 0 {
		_ = unix.Close(r.fd)
	}
}

// Open waits for the server of a unit's address and for the lock, for as long as ctx
// allows. A server that is not there, or that goes away before it has answered,
// is tried again.
func Open(ctx context.Context, address string, o Options) (*Session, error) {
	if err := o.validate(); err != nil {
		return nil, fmt.Errorf("open a GPU memory session: %w", err)
	}
	s, err := again(ctx, func() (*Session, error) { return open(ctx, address, o) })
	if err != nil {
		return nil, fmt.Errorf("open a GPU memory session at %s: %w", address, err)
	}
	return s, nil
}

// again calls f until it succeeds, another try cannot help, or ctx ends.
func again[T any](ctx context.Context, f func() (T, error)) (v T, err error) {
	var last error
	for delay := retryMin; ; delay = min(2*delay, retryMax) {
		if ctx.Err() != nil {
			err := ended(ctx)
			if last != nil {
				err = fmt.Errorf("%w (before that: %s)", err, last.Error())
			}
			return v, err
		}
		if v, err = f(); err == nil || !passing(err) {
			return v, err
		}
		last = err
		pause(ctx, delay)
	}
}

// passing tells whether another try may help: the server starts, has just died
// or has no room for a connection.
func passing(err error) bool {
	for _, p := range []error{unix.ECONNREFUSED, unix.ENOENT, unix.EAGAIN, unix.ECONNRESET, unix.EPIPE, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, p) {
			return true
		}
	}
	return false
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// dial connects, to a server of our own user or root's.
func dial(socket string) (*wire.Conn, error) {
	conn, err := wire.Dial(socket)
	if err != nil {
		return nil, err
	}
	_, uid, err := conn.Peer()
	if own := uint32(os.Geteuid()); err == nil && uid != own && uid != 0 && own != 0 {
		err = fmt.Errorf("the server is of user %d, and this process is of user %d", uid, own)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// connect opens a connection to the unit of an address.
func connect(ctx context.Context, address string) (*Session, error) {
	socket, unit := parseAddress(address)
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	s := newSession(conn)
	if unit != nil {
		if _, err := ask[*wire.OpenUnitResponse](ctx, s, unit); err != nil {
			_ = s.Close()
			return nil, err
		}
	}
	return s, nil
}

func open(ctx context.Context, address string, o Options) (*Session, error) {
	s, err := connect(ctx, address)
	if err != nil {
		return nil, err
	}
	request := &wire.HandshakeRequest{LockType: o.Lock, TimeoutMS: lockTimeout(ctx, o.Timeout), ExpectedNonce: o.ExpectedNonce, IfUnused: o.IfUnused}
	r, err := ask[*wire.HandshakeResponse](ctx, s, request)
	switch {
	case err != nil:
	case !r.Success:
		err = &HandshakeError{Code: r.Code, Message: r.Error, Nonce: r.Nonce, Committed: r.Committed, Hash: r.MemoryLayoutHash}
	case r.GrantedLockType != wire.RW && r.GrantedLockType != wire.RO || o.Lock != wire.Auto && r.GrantedLockType != o.Lock:
		err = fmt.Errorf("lock %q was granted where %q was asked for", r.GrantedLockType, o.Lock)
	}
	if err != nil {
		_ = s.Close()
		return nil, err
	}
	s.lock, s.nonce, s.hash = r.GrantedLockType, r.Nonce, r.MemoryLayoutHash
	return s, nil
}

// lockTimeout is how long the server may let us wait.
func lockTimeout(ctx context.Context, limit *time.Duration) *int64 {
	d := time.Duration(-1)
	if limit != nil {
		d = max(*limit, 0)
	}
	if end, ok := ctx.Deadline(); ok {
		left := time.Until(end)
		left -= min(left/10, answerTime)
		if d < 0 || left < d {
			d = max(left, 0)
		}
	}
	if d < 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

func newSession(conn *wire.Conn) *Session {
	s := &Session{conn: conn, replies: make(chan reply), over: make(chan struct{}), turn: make(chan struct{}, 1)}
	s.reading.Go(s.read)
	return s
}

// read takes what the server sends, so that its end is seen at once.
func (s *Session) read() {
	for {
		m, fd, err := s.conn.Read(maxReply, true)
		if err != nil {
			s.fail(fmt.Errorf("%w: %w", ErrClosed, err))
			return
		}
		r := reply{m, fd}
		select {
		case s.replies <- r:
		case <-s.over:
			r.close()
			return
		}
	}
}

// fail ends the session for a reason. The first reason counts.
func (s *Session) fail(why error) {
	s.end.Do(func() {
		s.why = why
		close(s.over)
		_ = s.conn.Close()
	})
}

// Close ends the session: a reader's lock is given back, and what a writer has
// not committed is dropped. It may be called twice.
func (s *Session) Close() error {
	s.fail(fmt.Errorf("%w: it was closed", ErrClosed))
	s.reading.Wait()
	return nil
}

// Done is closed when the session is over, whoever ended it. A reader's mappings
// stay whole. See Client.Reconnect.
func (s *Session) Done() <-chan struct{} { return s.over }

// Lock is what was granted, wire.RW or wire.RO.
func (s *Session) Lock() wire.LockType { return s.lock }

// Nonce names the server's incarnation; empty if it tells none.
func (s *Session) Nonce() string { return s.nonce }

// exchange sends a request and waits for its reply.
func (s *Session) exchange(ctx context.Context, m wire.Message) (reply, error) {
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-s.over:
		return reply{}, s.why
	case <-ctx.Done():
		return reply{}, ended(ctx)
	}
	if ctx.Err() != nil {
		return reply{}, ended(ctx)
	}
	abandon := func() { s.fail(fmt.Errorf("%w: the context of a request has ended: %w", ErrClosed, ended(ctx))) }
	stop := context.AfterFunc(ctx, abandon) // a write may wait, too
	defer stop()
	err := s.conn.Write(m, -1)
	if err == nil {
		select {
		case r := <-s.replies:
			return r, nil
		case <-s.over:
		}
	}
	if ctx.Err() != nil {
		abandon()
		return reply{}, ended(ctx)
	}
	if err != nil {
		s.fail(fmt.Errorf("%w: %w", ErrClosed, err))
	}
	<-s.over
	return reply{}, s.why
}

// ask sends a request and waits for an answer of type R, without a descriptor.
func ask[R wire.Message](ctx context.Context, s *Session, m wire.Message) (R, error) {
	answer, fd, err := askFD[R](ctx, s, m)
	if fd >= 0 {
		_ = unix.Close(fd)
		err = fmt.Errorf("%w: the answer to %s came with a descriptor", ErrClosed, m.MessageType())
		s.fail(err)
	}
	return answer, err
}

// askFD returns the descriptor as well, -1 if none came, and none after an error.
func askFD[R wire.Message](ctx context.Context, s *Session, m wire.Message) (answer R, fd int, err error) {
	r, err := s.exchange(ctx, m)
	if err != nil {
		return answer, -1, err
	}
	if answer, ok := r.message.(R); ok {
		return answer, r.fd, nil
	}
	r.close()
	if e, ok := r.message.(*wire.ErrorResponse); ok {
		return answer, -1, &RequestError{Code: e.Code, Message: e.Error}
	}
	err = fmt.Errorf("%w: the answer to %s was %s", ErrClosed, m.MessageType(), r.message.MessageType())
	s.fail(err)
	return answer, -1, err
}

// Allocate makes an allocation; an empty tag is wire.DefaultTag. It waits while
// the GPU is full, as the server is configured.
func (s *Session) Allocate(ctx context.Context, size uint64, tag string) (Allocation, error) {
	if tag == "" {
		tag = wire.DefaultTag
	}
	if size > 1<<62 {
		return Allocation{}, fmt.Errorf("allocate %d bytes: that is too many", size)
	}
	r, err := ask[*wire.AllocateResponse](ctx, s, &wire.AllocateRequest{Size: int64(size), Tag: tag})
	if err != nil {
		return Allocation{}, fmt.Errorf("allocate %d bytes: %w", size, err)
	}
	return Allocation{ID: r.AllocationID, Size: r.Size, Aligned: r.AlignedSize, Tag: tag, Slot: r.LayoutSlot}, nil
}

// Export returns a descriptor of an allocation, which the caller closes.
func (s *Session) Export(ctx context.Context, id string) (fd int, a Allocation, err error) {
	r, fd, err := askFD[*wire.ExportAllocationResponse](ctx, s, &wire.ExportAllocationRequest{AllocationID: id})
	if err == nil && fd < 0 {
		err = fmt.Errorf("%w: no descriptor came", ErrClosed)
		s.fail(err)
	}
	if err != nil {
		return -1, Allocation{}, fmt.Errorf("export allocation %q: %w", id, err)
	}
	return fd, Allocation{r.AllocationID, r.Size, r.AlignedSize, r.Tag, r.LayoutSlot}, nil
}

// Get tells about one allocation.
func (s *Session) Get(ctx context.Context, id string) (Allocation, error) {
	r, err := ask[*wire.GetAllocationResponse](ctx, s, &wire.GetAllocationRequest{AllocationID: id})
	if err != nil {
		return Allocation{}, fmt.Errorf("get allocation %q: %w", id, err)
	}
	return allocation(r), nil
}

func allocation(r *wire.GetAllocationResponse) Allocation {
	return Allocation{r.AllocationID, r.Size, r.AlignedSize, r.Tag, r.LayoutSlot}
}

// List tells about all allocations, by slot; an empty tag is any.
func (s *Session) List(ctx context.Context, tag string) ([]Allocation, error) {
	request := &wire.ListAllocationsRequest{}
	if tag != "" {
		request.Tag = &tag
	}
	r, err := ask[*wire.ListAllocationsResponse](ctx, s, request)
	if err != nil {
		return nil, fmt.Errorf("list allocations: %w", err)
	}
	list := make([]Allocation, len(r.Allocations))
	for i := range r.Allocations {
		list[i] = allocation(&r.Allocations[i])
	}
	slices.SortStableFunc(list, func(a, b Allocation) int { return cmp.Compare(a.Slot, b.Slot) })
	return list, nil
}

// Free drops an allocation and its metadata.
func (s *Session) Free(ctx context.Context, id string) error {
	r, err := ask[*wire.FreeAllocationResponse](ctx, s, &wire.FreeAllocationRequest{AllocationID: id})
	if err == nil && !r.Success {
		err = &RequestError{Code: wire.ErrorNotFound, Message: "it was not freed"}
	}
	if err != nil {
		return fmt.Errorf("free allocation %q: %w", id, err)
	}
	return nil
}

// Metadata is what is stored under a key.
type Metadata struct {
	AllocationID string
	// Offset is where in the allocation it is about, in bytes.
	Offset uint64
	Value  []byte
}

// PutMetadata sets a key.
func (s *Session) PutMetadata(ctx context.Context, key string, m Metadata) error {
	if m.Offset > 1<<62 {
		return fmt.Errorf("put metadata %q: the offset %d is too large", key, m.Offset)
	}
	value := m.Value
	if value == nil {
		value = []byte{}
	}
	r, err := ask[*wire.MetadataPutResponse](ctx, s,
		&wire.MetadataPutRequest{Key: key, AllocationID: m.AllocationID, OffsetBytes: int64(m.Offset), Value: value})
	if err == nil && !r.Success {
		err = &RequestError{Message: "it was not stored"}
	}
	if err != nil {
		return fmt.Errorf("put metadata %q: %w", key, err)
	}
	return nil
}

// GetMetadata returns what is stored under a key, if anything is.
func (s *Session) GetMetadata(ctx context.Context, key string) (m Metadata, found bool, err error) {
	r, err := ask[*wire.MetadataGetResponse](ctx, s, &wire.MetadataGetRequest{Key: key})
	if err != nil {
		return m, false, fmt.Errorf("get metadata %q: %w", key, err)
	}
	return Metadata{r.AllocationID, r.OffsetBytes, r.Value}, r.Found, nil
}

// ListMetadata returns the keys with a prefix, sorted.
func (s *Session) ListMetadata(ctx context.Context, prefix string) ([]string, error) {
	r, err := ask[*wire.MetadataListResponse](ctx, s, &wire.MetadataListRequest{Prefix: prefix})
	if err != nil {
		return nil, fmt.Errorf("list metadata: %w", err)
	}
	return r.Keys, nil
}

// LayoutHash is the committed layout's; empty if none is.
func (s *Session) LayoutHash(ctx context.Context) (string, error) {
	r, err := ask[*wire.GetMemoryLayoutHashResponse](ctx, s, &wire.GetMemoryLayoutHashRequest{})
	if err != nil {
		return "", fmt.Errorf("get the layout hash: %w", err)
	}
	return r.MemoryLayoutHash, nil
}

// Commit publishes the layout and ends the session. Where the answer was lost
// (ErrClosed), the layout may be committed all the same: see RuntimeState.
func (s *Session) Commit(ctx context.Context) error {
	r, err := ask[*wire.CommitResponse](ctx, s, &wire.CommitRequest{})
	if err == nil && !r.Success {
		err = &RequestError{Message: "it was not committed"}
	}
	if err != nil {
		return fmt.Errorf("commit the layout: %w", err)
	}
	return s.Close()
}

// RuntimeState asks the server how the unit of an address stands. No lock is taken. A
// server that is not there is an error at once.
func RuntimeState(ctx context.Context, address string) (*wire.GetRuntimeStateResponse, error) {
	r, err := once[*wire.GetRuntimeStateResponse](ctx, address, &wire.GetRuntimeStateRequest{})
	if err != nil {
		return nil, fmt.Errorf("get the state of %s: %w", address, err)
	}
	return r, nil
}

// AwaitRuntimeState is RuntimeState that waits for a server that is not there, for as long as ctx allows.
func AwaitRuntimeState(ctx context.Context, address string) (*wire.GetRuntimeStateResponse, error) {
	r, err := again(ctx, func() (*wire.GetRuntimeStateResponse, error) {
		return once[*wire.GetRuntimeStateResponse](ctx, address, &wire.GetRuntimeStateRequest{})
	})
	if err != nil {
		return nil, fmt.Errorf("get the state of %s: %w", address, err)
	}
	return r, nil
}

// once asks something on a connection of its own.
func once[R wire.Message](ctx context.Context, address string, m wire.Message) (answer R, err error) {
	s, err := connect(ctx, address)
	if err != nil {
		return answer, err
	}
	defer func() { _ = s.Close() }()
	return ask[R](ctx, s, m)
}
