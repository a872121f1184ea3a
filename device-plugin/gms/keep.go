package gms

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/keeper"
	"remuda/device-plugin/gms/layout"
)

// Keeper stores records outside of this process: a blob and descriptors by name.
// Its methods are safe for concurrent use, and wait for the keeper as long as
// their context allows, unless it refuses (keeper.RefusedError).
type Keeper interface {
	// Save replaces a record as a whole. It borrows fds.
	Save(ctx context.Context, name string, blob []byte, fds []int) error
	// Drop forgets a record, if there is one.
	Drop(ctx context.Context, name string) error
	// Load returns a record. The descriptors are the caller's.
	Load(ctx context.Context, name string) (blob []byte, fds []int, found bool, err error)
	// Lost receives a value when all records have to be saved again.
	Lost() <-chan struct{}
	// Gone tells whether there is no keeper now, so that nothing it had can ever
	// come back. One that is there and does not answer is not gone.
	Gone() bool
}

// KeeperClient is a Keeper over its socket.
type KeeperClient struct {
	*keeper.Client
	socket string
}

var _ Keeper = (*KeeperClient)(nil)

// OpenKeeper starts a client of the keeper at the socket, which need not be there
// yet. Close ends it.
func OpenKeeper(socket string, logger hclog.Logger) (*KeeperClient, error) {
	c, err := keeper.Open(socket, logger)
	if err != nil {
		return nil, err
	}
	return &KeeperClient{Client: c, socket: socket}, nil
}

// goneLimit is how long a keeper that is there may take to be seen: connecting needs
// nothing of it.
const goneLimit = 2 * time.Second

// Gone asks the kernel: nobody listens.
func (k *KeeperClient) Gone() bool {
	c, err := net.DialTimeout("unixpacket", k.socket, goneLimit)
	if err == nil {
		_ = c.Close()
	}
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT)
}

// appearPause is how often a keeper is looked for at the start.
const appearPause = 5 * time.Millisecond

// refusedPause is how long a record that the keeper has refused is left alone: it
// has no room, and a try costs a descriptor of every allocation.
const refusedPause = 10 * time.Second

// recordVersion begins every blob.
const recordVersion = 1

// keeping keeps records in step with what they should be: at once where somebody
// waits for it, and later where the keeper could not be reached then.
type keeping struct {
	keeper  Keeper // nil: nothing is kept
	wait    time.Duration
	retry   time.Duration
	logger  hclog.Logger
	metrics *metrics
	// down tells that the keeper did not answer last time. It is not waited for
	// as long then.
	down atomic.Bool
	// wake tells the background that something is left to do.
	wake    chan struct{}
	records []*record
}

func newKeeping(cfg Config, m *metrics) *keeping {
	return &keeping{keeper: cfg.Keeper, wait: cfg.KeeperWait, retry: cfg.KeeperRetry,
		logger: cfg.Logger.Named("keeper"), metrics: m, wake: make(chan struct{}, 1)}
}

// record is one name at the keeper.
type record struct {
	k    *keeping
	name string
	// want makes what should be stored; keep is false for nothing. The
	// descriptors are closed after use.
	want func() (c content, err error)

	// sem is a mutex that can be waited for with a deadline: whoever has put
	// something in may call the keeper for the name, so that what was decided last
	// is what is stored last. It guards the next three fields.
	sem chan struct{}
	// maybe: the keeper may have something under the name.
	maybe bool
	// warned: a failure was logged since the last success.
	warned bool
	// notBefore is when a record that was refused is tried again.
	notBefore time.Time
	// wanted counts those that wait for sem for a client's sake; they end the
	// background's call, if there is one, by background.
	wanted     atomic.Int32
	background atomic.Pointer[context.CancelFunc]
	// behind: the keeper does not have what it should have.
	behind atomic.Bool
	// kept: the keeper has what it should have, and that is something.
	kept atomic.Bool
}

// content is what a record should hold.
type content struct {
	keep bool
	blob []byte
	fds  []int
}

func (c content) close() {
	for _, fd := range c.fds {
		_ = unix.Close(fd)
	}
}

func (k *keeping) record(name string, want func() (content, error)) *record {
	r := &record{k: k, name: name, want: want, sem: make(chan struct{}, 1)}
	k.records = append(k.records, r)
	return r
}

var errKeeperGone = errors.New("no keeper is running")

// hungShare is by how much the wait for a keeper is shortened that did not answer
// last time: one commit waits for it, and not every commit after it.
const hungShare = 10

// sync stores what should be stored, while the caller has locked the record. wanted
// tells that somebody waits for it.
func (r *record) sync(ctx context.Context, wanted bool) error {
	r.behind.Store(true)
	c, err := r.want()
	if err != nil {
		return r.failed(err)
	}
	defer c.close()
	if !c.keep && !r.maybe {
		r.behind.Store(false)
		return nil
	}
	wait := r.k.wait
	if wanted && r.k.down.Load() {
		if r.k.keeper.Gone() {
			return r.failed(errKeeperGone)
		}
		wait /= hungShare // it may be back, or it hangs
	}
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if c.keep {
		r.maybe = true
		err = r.k.keeper.Save(limited, r.name, c.blob, c.fds)
	} else {
		err = r.k.keeper.Drop(limited, r.name)
	}
	if err != nil && ctx.Err() != nil { // it was called off, which says nothing of the keeper
		r.kept.Store(false)
		return err
	}
	var refused *keeper.RefusedError
	isRefused := errors.As(err, &refused)
	r.k.down.Store(err != nil && !isRefused)
	if isRefused {
		r.notBefore = time.Now().Add(refusedPause)
	}
	if err != nil {
		return r.failed(err)
	}
	if r.warned {
		r.k.logger.Info("the keeper is up to date again", "record", r.name)
	}
	r.warned = false
	r.maybe = c.keep
	r.kept.Store(c.keep)
	r.behind.Store(false)
	return nil
}

// failed notes that the record is not as it should be. The record is locked.
func (r *record) failed(err error) error {
	r.kept.Store(false)
	r.k.metrics.keeperFailures.Inc()
	r.k.poke()
	if r.warned {
		return err
	}
	r.warned = true
	r.k.logger.Warn("the keeper is out of date: a crash now can lose or revive a layout", "record", r.name, "error", err)
	return err
}

// lock takes the record for a client's sake: a call of the background, which may be
// waiting for a keeper that is away, gives way. Its error is the context's cause.
func (r *record) lock(ctx context.Context) error {
	r.wanted.Add(1)
	defer r.wanted.Add(-1)
	if cancel := r.background.Load(); cancel != nil {
		(*cancel)()
	}
	select {
	case r.sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (r *record) unlock() { <-r.sem }

// catchUp brings the record up to date in the background, unless somebody wants it
// or it was refused a moment ago.
func (r *record) catchUp(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.background.Store(&cancel)
	defer r.background.Store(nil)
	r.sem <- struct{}{} // nobody has it for longer than the keeper is waited for
	defer r.unlock()
	if r.wanted.Load() > 0 || time.Now().Before(r.notBefore) {
		return nil
	}
	return r.sync(ctx, false)
}

// now brings the record up to date. It waits for the keeper for a short time; the
// rest is done in the background.
func (r *record) now(ctx context.Context) {
	if r.k.keeper == nil {
		return
	}
	if r.lock(ctx) != nil {
		return
	}
	defer r.unlock()
	_ = r.sync(ctx, true) // it is tried again
}

// settlePause is how long a keeper that fails is left alone.
const settlePause = 50 * time.Millisecond

// settle brings the record up to date, however long that takes: it returns nil only
// when nothing else can come back after a crash. That is so too where there is no
// keeper, which has lost what it had, and where it has refused what it should keep.
func (r *record) settle(ctx context.Context) error {
	for {
		if err := r.lock(ctx); err != nil {
			return err
		}
		settled := r.trySettle(ctx)
		r.unlock()
		if settled {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(settlePause):
		}
	}
}

func (r *record) trySettle(ctx context.Context) bool {
	if r.k.keeper.Gone() {
		r.k.down.Store(true)
		r.maybe = false
		r.kept.Store(false)
		r.later()
		return true
	}
	err := r.sync(ctx, false)
	var refused *keeper.RefusedError
	return err == nil || errors.As(err, &refused)
}

// later has the record brought up to date in the background.
func (r *record) later() {
	r.behind.Store(true)
	r.k.poke()
}

func (k *keeping) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run brings records up to date that are behind, until ctx ends.
func (k *keeping) run(ctx context.Context) {
	if k.keeper == nil {
		return
	}
	retry := time.NewTimer(k.retry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.keeper.Lost():
			k.logger.Warn("the keeper restarted empty: saving everything again", "records", len(k.records))
			k.down.Store(false)
			for _, r := range k.records {
				r.sem <- struct{}{}
				r.notBefore = time.Time{}
				r.kept.Store(false)
				r.unlock()
				r.behind.Store(true)
			}
		case <-k.wake:
			// What has just failed is not tried again at once.
			if k.down.Load() {
				continue
			}
		case <-retry.C:
		}
		k.catchUp(ctx)
		retry.Reset(k.retry)
	}
}

func (k *keeping) catchUp(ctx context.Context) {
	left := false
	for _, r := range k.records {
		if !r.behind.Load() || ctx.Err() != nil {
			continue
		}
		left = true
		if err := r.catchUp(ctx); err != nil && k.down.Load() {
			return // the others would wait for nothing
		}
	}
	if !left && k.down.Load() && !k.keeper.Gone() {
		k.down.Store(false)
	}
}

// load reads a record at the start. It waits for a keeper that does not answer,
// unless that one is gone.
func (r *record) load(ctx context.Context) (blob []byte, fds []int, found bool, err error) {
	r.sem <- struct{}{} // nobody else is there yet
	defer r.unlock()
	r.maybe = true
	for {
		limited, cancel := context.WithTimeout(ctx, r.k.wait)
		blob, fds, found, err = r.k.keeper.Load(limited, r.name)
		cancel()
		var refused *keeper.RefusedError
		r.k.down.Store(err != nil && !errors.As(err, &refused))
		if err == nil {
			r.maybe = found
			r.kept.Store(found)
		}
		if !r.k.down.Load() || ctx.Err() != nil {
			return blob, fds, found, err
		}
		if r.k.keeper.Gone() {
			r.maybe = false
			return nil, nil, false, errKeeperGone
		}
		r.k.metrics.keeperFailures.Inc()
		r.k.logger.Error("the keeper does not respond: waiting for it before the start", "record", r.name, "error", err)
	}
}

// pack and unpack make blobs of records.
func pack(v any) ([]byte, error) {
	b := bytes.NewBuffer([]byte{recordVersion})
	err := gob.NewEncoder(b).Encode(v)
	return b.Bytes(), err
}

func unpack(blob []byte, v any) error {
	if len(blob) == 0 || blob[0] != recordVersion {
		return errors.New("the record has another version")
	}
	return gob.NewDecoder(bytes.NewReader(blob[1:])).Decode(v)
}

// keptLayout is the record of a layout. The descriptors are those of Allocations,
// in their order.
type keptLayout struct {
	Layout layout.Snapshot
}

// wantLayout is what a unit's record should hold: a committed layout that no writer
// is about to replace, or one that is being committed.
func (u *unit) wantLayout() (content, error) {
	u.mu.Lock()
	committed := u.machine.Status().Committed && u.replacing == 0
	committing := u.machine.Check(u.committing, true, "commit") == nil
	if !committed && !committing {
		u.mu.Unlock()
		return content{}, nil
	}
	snapshot := u.machine.Snapshot()
	held := make([]backend.Memory, len(snapshot.Allocations))
	for i, a := range snapshot.Allocations {
		held[i] = u.memory[a.ID]
	}
	u.mu.Unlock()
	c := content{keep: true}
	var err error
	if c.blob, err = pack(keptLayout{snapshot}); err != nil {
		return content{}, err
	}
	for _, m := range held {
		fd, err := m.Export()
		if err != nil {
			c.close()
			return content{}, fmt.Errorf("export an allocation for the keeper: %w", err)
		}
		c.fds = append(c.fds, fd)
	}
	return c, nil
}

// restore takes back what the keeper has of a server that is gone. A keeper that
// hangs is waited for: it may have what would be lost. What cannot be taken back is
// dropped: engines load again then.
func (s *Server) restore(ctx context.Context) {
	if s.cfg.Keeper == nil {
		return
	}
	if !s.keeping.appears(ctx) { // and so what one before it had is lost
		s.keeping.down.Store(true)
		s.logger.Warn("no keeper is running: nothing is restored, and nothing is saved until it starts", "waited", s.cfg.KeeperWait)
		return
	}
	fail := func(r *record, err error) {
		s.metrics.keeperFailures.Inc()
		s.logger.Error("cannot restore a layout from the keeper", "record", r.name, "error", err)
		r.later()
	}
	for _, u := range s.units {
		blob, fds, found, err := u.record.load(ctx)
		if err == nil && found {
			err = u.takeBack(blob, fds)
		}
		if err != nil {
			fail(u.record, err)
		}
	}
}

// appears waits until there is a keeper: it may have been started together with
// this program.
func (k *keeping) appears(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, k.wait)
	defer cancel()
	tick := time.NewTicker(appearPause)
	defer tick.Stop()
	for k.keeper.Gone() {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}

// takeBack restores a unit's layout. It owns fds.
func (u *unit) takeBack(blob []byte, fds []int) error {
	var kept keptLayout
	err := unpack(blob, &kept)
	allocations := kept.Layout.Allocations
	if err == nil && len(allocations) != len(fds) {
		err = fmt.Errorf("%d descriptors of %d allocations", len(fds), len(allocations))
	}
	var machine *layout.Machine
	if err == nil {
		machine, err = layout.Restore(u.server.newID, kept.Layout)
	}
	if err != nil {
		content{fds: fds}.close()
		return err
	}
	memory := make(map[string]backend.Memory, len(allocations))
	for i, a := range allocations {
		m, err := u.gpu.Backend.Restore(fds[i], a.AlignedSize)
		if err != nil {
			content{fds: fds[i+1:]}.close()
			for _, m := range memory {
				u.releaser.add(m)
			}
			return fmt.Errorf("allocation %s of %d bytes: %w", a.ID, a.AlignedSize, err)
		}
		memory[a.ID] = m
	}
	u.mu.Lock()
	u.machine, u.memory = machine, memory
	u.mu.Unlock()
	u.logger.Info("restored a committed layout from the keeper", "allocations", len(allocations), "hash", kept.Layout.Hash)
	return nil
}
