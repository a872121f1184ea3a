package offload

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/go-hclog"

	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
)

var (
	// ErrNothing is wrapped by Save where a service has no committed layout.
	ErrNothing = errors.New("the GPU memory service has no committed layout")
	// ErrDamaged is wrapped by Restore where bytes are not as they were saved.
	ErrDamaged = errors.New("the restored bytes differ from the saved ones")
)

// Config says which services hold the weights.
type Config struct {
	// Sockets are the addresses of the units, one for each GPU, in the order of the
	// engine's.
	Sockets []string
	// Space makes the place in which one GPU's memory is mapped, and what closes it.
	// It is called anew for each operation, so that nothing of the GPU is held between.
	Space func(socket string) (space client.Space, closeSpace func() error, err error)
	// Logger may be nil.
	Logger hclog.Logger
}

// Offload moves the layouts of one engine's GPUs. Its methods are safe for concurrent
// use as long as no two of them change the services at once.
type Offload struct {
	cfg Config
	log hclog.Logger
}

// New checks the config; the error names every bad field. It starts nothing.
func New(cfg Config) (*Offload, error) {
	var errs []error
	if len(cfg.Sockets) == 0 {
		errs = append(errs, errors.New("Sockets must not be empty"))
	}
	if cfg.Space == nil {
		errs = append(errs, errors.New("Space must be set"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("offload GPU memory: %w", err)
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	return &Offload{cfg: cfg, log: cfg.Logger}, nil
}

// Held says what the services have, taken together.
type Held int

const (
	// Nothing: no service has an allocation.
	Nothing Held = iota
	// Partial: a crash has left some of it; it is of no use to anybody.
	Partial
	// Whole: every service has a committed layout.
	Whole
)

// Look asks every service what it has. No lock is taken. A service that is not there is
// waited for until ctx ends, as one that restarts is away for a moment.
func (o *Offload) Look(ctx context.Context) (Held, error) {
	var committed, empty int
	for _, socket := range o.cfg.Sockets {
		st, err := client.AwaitRuntimeState(ctx, socket)
		switch {
		case err != nil:
			return Nothing, fmt.Errorf("offload GPU memory: %w", err)
		case st.Committed:
			committed++
		case st.AllocationCount == 0:
			empty++
		}
	}
	switch len(o.cfg.Sockets) {
	case committed:
		return Whole, nil
	case empty:
		return Nothing, nil
	default:
		return Partial, nil
	}
}

// Save copies the committed layouts of all services into this process's memory. The
// error wraps ErrNothing where there is none, also where one was lost meanwhile.
// ctx should have a deadline: a service that restarts is waited for.
func (o *Offload) Save(ctx context.Context) (_ *Copy, err error) {
	saved := &Copy{parts: make([]*part, len(o.cfg.Sockets))}
	err = o.each(func(i int, socket string) error {
		st, err := client.AwaitRuntimeState(ctx, socket)
		if err != nil {
			return err
		}
		if !st.Committed {
			return fmt.Errorf("%w at %s", ErrNothing, socket)
		}
		return o.with(socket, func(c *client.Client) error {
			p, err := save(ctx, c)
			saved.parts[i] = p
			return err
		})
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("save GPU memory: %w", err), saved.Free())
	}
	o.log.Info("GPU memory saved", "bytes", saved.Bytes(), "gpus", len(o.cfg.Sockets))
	return saved, nil
}

// closingTime is how long a service may take to notice the end of a connection.
const closingTime = 250 * time.Millisecond

// Hold marks the layouts as in use until release is called: no other engine's Vacate
// takes them away, though nothing is mapped now, as when the engines sleep.
func (o *Offload) Hold() (release func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var holding sync.WaitGroup
	for _, address := range o.cfg.Sockets {
		holding.Go(func() { client.Hold(ctx, address, o.log) })
	}
	return func() { cancel(); holding.Wait() }
}

// Vacate makes the services release what only this engine's group uses, and reports
// whether all of them hold nothing now. It waits for no other engine and holds up none.
// It needs no layout to be there.
func (o *Offload) Vacate(ctx context.Context) (all bool, err error) {
	used := make([]bool, len(o.cfg.Sockets))
	err = o.each(func(i int, address string) error {
		// A connection that has just been closed may count yet.
		for end := time.Now().Add(closingTime); ; {
			err := release(ctx, address)
			if used[i] = busy(err); !used[i] || ctx.Err() != nil {
				return err
			}
			if time.Now().After(end) {
				return nil
			}
			time.Sleep(closingTime / 50)
		}
	})
	if err != nil {
		return false, fmt.Errorf("vacate GPU memory: %w", err)
	}
	if slices.Contains(used, true) {
		o.log.Debug("GPU memory stays: other engines use it", "gpus", len(used))
		return false, nil
	}
	o.log.Info("GPU memory vacated", "gpus", len(o.cfg.Sockets))
	return true, nil
}

// Restore makes the saved layouts anew where the services have none, and commits them.
// A layout that another engine has committed meanwhile stays if it is the same, and is an
// error otherwise. The copy stays the caller's. After an error there may be a part of it:
// see Vacate.
func (o *Offload) Restore(ctx context.Context, saved *Copy) error {
	if len(saved.parts) != len(o.cfg.Sockets) {
		return fmt.Errorf("restore GPU memory: the copy is of %d GPUs, and there are %d", len(saved.parts), len(o.cfg.Sockets))
	}
	err := o.each(func(i int, socket string) error {
		return o.with(socket, func(c *client.Client) error { return restore(ctx, c, saved.parts[i]) })
	})
	if err != nil {
		return fmt.Errorf("restore GPU memory: %w", err)
	}
	o.log.Info("GPU memory restored", "bytes", saved.Bytes(), "gpus", len(o.cfg.Sockets))
	return nil
}

// with calls f with a client of one service, and closes it.
func (o *Offload) with(socket string, f func(*client.Client) error) error {
	space, closeSpace, err := o.cfg.Space(socket)
	if err != nil {
		return fmt.Errorf("%s: %w", socket, err)
	}
	c, err := client.New(client.Config{Socket: socket, Space: space, Logger: o.log})
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", socket, err), closeSpace())
	}
	err = f(c)
	end := c.Close()
	if !errors.Is(end, client.ErrBroken) { // a driver that hangs would hold this up
		end = errors.Join(end, closeSpace())
	}
	if err = errors.Join(err, end); err != nil {
		return fmt.Errorf("%s: %w", socket, err)
	}
	return nil
}

// each calls f for every service at once and joins the errors.
func (o *Offload) each(f func(i int, socket string) error) error {
	errs := make([]error, len(o.cfg.Sockets))
	var wg sync.WaitGroup
	for i, socket := range o.cfg.Sockets {
		wg.Go(func() { errs[i] = f(i, socket) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// save reads one service's committed layout.
func save(ctx context.Context, c *client.Client) (*part, error) {
	// The service may have lost the layout since it was seen. Nobody has to commit another.
	var wait time.Duration
	if _, err := c.Connect(ctx, wire.RO, &wait); errors.Is(err, client.ErrTimeout) {
		return nil, fmt.Errorf("%w: %w", ErrNothing, err)
	} else if err != nil {
		return nil, err
	}
	s := c.Session()
	list, err := s.List(ctx, "")
	if err != nil {
		return nil, err
	}
	p := &part{hash: c.Hash()}
	index := make(map[string]int, len(list))
	for i, a := range list {
		index[a.ID] = i
		p.allocations = append(p.allocations, allocation{size: a.Size, tag: a.Tag})
	}
	if err := p.room(); err != nil {
		return nil, err
	}
	err = parallel(len(list), func(i int) error {
		m, err := c.Map(ctx, list[i].ID)
		if err == nil {
			p.allocations[i].sum, err = read(ctx, m, p.allocations[i].bytes)
		}
		if err == nil {
			err = c.Forget(ctx, m)
		}
		return err
	})
	if err != nil {
		return p, err
	}
	keys, err := s.ListMetadata(ctx, "")
	if err != nil {
		return p, err
	}
	for _, key := range keys {
		m, found, err := s.GetMetadata(ctx, key)
		if err != nil {
			return p, err
		}
		at, known := index[m.AllocationID]
		if !found || !known {
			return p, fmt.Errorf("metadata %q is of allocation %q, which is not in the layout", key, m.AllocationID)
		}
		p.metadata = append(p.metadata, metadata{key: key, allocation: at, offset: m.Offset, value: m.Value})
	}
	return p, nil
}

// restore writes one service's layout and commits it.
func restore(ctx context.Context, c *client.Client, p *part) error {
	lock, err := c.Connect(ctx, wire.Auto, nil)
	switch {
	case err != nil:
		return err
	case lock == wire.RO && c.Hash() == p.hash:
		return nil
	case lock == wire.RO:
		return fmt.Errorf("%w: its hash is %s, and the saved one's is %s", client.ErrStaleLayout, c.Hash(), p.hash)
	}
	s := c.Session()
	ids := make([]string, len(p.allocations))
	for i, a := range p.allocations { // in their order: it is part of the layout
		made, err := s.Allocate(ctx, a.size, a.tag)
		if err != nil {
			return err
		}
		ids[i] = made.ID
	}
	err = parallel(len(ids), func(i int) error {
		a := p.allocations[i]
		m, err := c.Map(ctx, ids[i])
		if err != nil {
			return err
		}
		sum, err := write(ctx, m, a.bytes)
		if err == nil && sum != a.sum {
			err = fmt.Errorf("allocation %d of %d bytes: %w: xxh64 %016x, want %016x", i, a.size, ErrDamaged, sum, a.sum)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, m := range p.metadata {
		if err := s.PutMetadata(ctx, m.key, client.Metadata{AllocationID: ids[m.allocation], Offset: m.offset, Value: m.value}); err != nil {
			return err
		}
	}
	hash, err := c.Commit(ctx)
	if err != nil && !errors.Is(err, client.ErrCommitted) {
		return err
	}
	if err == nil && hash != p.hash {
		return fmt.Errorf("the restored layout has the hash %s, and the saved one had %s: was it of another GPU or service?", hash, p.hash)
	}
	return nil
}

// chunk is how much is copied at once: it is summed while it is in the processor's cache.
const chunk = 1 << 20

// parallel calls f for 0 to n-1 on as many goroutines as there are CPUs, and joins the
// errors.
func parallel(n int, f func(i int) error) error {
	var next atomic.Int64
	errs := make([]error, n)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				errs[i] = f(int(i))
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// read copies an allocation, and returns the sum of the copy.
func read(ctx context.Context, m *client.Mapping, to []byte) (uint64, error) {
	sum := xxhash.New()
	for at := 0; at < len(to); at += chunk {
		part := to[at:min(at+chunk, len(to))]
		if err := m.Read(ctx, uint64(at), part); err != nil {
			return 0, err
		}
		_, _ = sum.Write(part) // never fails
	}
	return sum.Sum64(), nil
}

// write fills an allocation, and returns the sum of what is there now.
func write(ctx context.Context, m *client.Mapping, from []byte) (uint64, error) {
	sum := xxhash.New()
	back := make([]byte, min(chunk, len(from))) // not used after an error
	for at := 0; at < len(from); at += chunk {
		part := from[at:min(at+chunk, len(from))]
		if err := m.Write(ctx, uint64(at), part); err != nil {
			return 0, err
		}
		if err := m.Read(ctx, uint64(at), back[:len(part)]); err != nil {
			return 0, err
		}
		_, _ = sum.Write(back[:len(part)])
	}
	return sum.Sum64(), nil
}
