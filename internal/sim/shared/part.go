package shared

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/go-hclog"

	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/sim/weights"
)

const (
	// chunk is how much is copied at once from and to memory that this process
	// cannot read itself.
	chunk = 8 << 20
	// otherRetry is how soon a reader looks again whether the weights of another
	// model have made way.
	otherRetry = 250 * time.Millisecond
	// reconnectTime bounds one try to open a session anew, and reconnectRetry is
	// the pause between two.
	reconnectTime  = 10 * time.Second
	reconnectRetry = 100 * time.Millisecond
)

// errOther: the service has the weights of another model.
var errOther = errors.New("the GPU memory service has other weights")

// entry is the metadata of a tensor; the key is the tensor's name.
type entry struct {
	DType string   `json:"dtype"`
	Shape []uint64 `json:"shape"`
	XXH64 string   `json:"xxh64"`
}

// part is the share of one GPU.
type part struct {
	cfg    client.Config
	log    hclog.Logger
	file   *weights.File
	client *client.Client
	// tensors of this GPU, all with elements, and their mappings.
	tensors  []weights.Tensor
	mappings []*client.Mapping
	// digests are what the tensors must have.
	digests []uint64

	// stop ends the watch over the session; watching waits for it.
	stop     context.CancelFunc
	watching sync.WaitGroup
}

// connect opens a session with a new client.
func (p *part) connect(ctx context.Context, lock wire.LockType) (wire.LockType, error) {
	if err := p.renew(); err != nil {
		return "", err
	}
	granted, err := p.client.Connect(ctx, lock, nil)
	if err != nil {
		return "", fmt.Errorf("%s: %w", p.cfg.Socket, err)
	}
	return granted, nil
}

// renew makes a client in place of the one before.
func (p *part) renew() (err error) {
	if p.client != nil {
		if err := p.client.Close(); err != nil {
			return err
		}
	}
	p.mappings = nil
	p.client, err = client.New(p.cfg)
	return err
}

// fill makes the tensors, or imports them. Other weights make way for a primary's once no
// other engine uses them; a shadow waits for that.
func (p *part) fill(ctx context.Context, asked, granted wire.LockType, known weights.Digests) error {
	for told := false; ; told = true {
		if granted == wire.RW {
			return p.write(ctx, known)
		}
		err := p.read(ctx, known)
		if !errors.Is(err, errOther) {
			return err
		}
		if !told {
			p.log.Warn("waiting until no engine uses what the GPU memory service has under this model and version", "reason", err)
		}
		if err := p.client.Close(); err != nil {
			return err
		}
		if err := pause(ctx, otherRetry); err != nil {
			return err
		}
		// A writer that waits would hold up the others' failovers.
		if granted, err = p.replace(ctx, asked); err != nil {
			return err
		}
	}
}

// replace opens a writer's session for a primary if no other engine uses the layout,
// else a session as it was asked for.
func (p *part) replace(ctx context.Context, asked wire.LockType) (granted wire.LockType, err error) {
	if asked == wire.Auto {
		if err := p.renew(); err != nil {
			return "", err
		}
		err := p.client.Replace(ctx)
		if err == nil {
			return wire.RW, nil
		}
		if !errors.Is(err, client.ErrInUse) && !errors.Is(err, client.ErrTimeout) || ctx.Err() != nil {
			return "", fmt.Errorf("%s: %w", p.cfg.Socket, err)
		}
	}
	return p.connect(ctx, asked)
}

// write loads the tensors from the file into new allocations and commits them.
func (p *part) write(ctx context.Context, known weights.Digests) error {
	s := p.client.Session()
	p.digests = make([]uint64, len(p.tensors))
	for _, t := range p.tensors {
		a, err := s.Allocate(ctx, uint64(t.End-t.Begin), "weights")
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		m, err := p.client.Map(ctx, a.ID)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		p.mappings = append(p.mappings, m)
	}
	err := each(len(p.tensors), func(i int) error {
		t := p.tensors[i]
		err := p.load(ctx, t, p.mappings[i])
		if err == nil {
			p.digests[i], err = digest(ctx, p.mappings[i])
		}
		if want, ok := known[t.Name]; ok && err == nil && p.digests[i] != want {
			err = fmt.Errorf("%w: it has xxh64 %016x, want %016x", weights.ErrDigest, p.digests[i], want)
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, t := range p.tensors {
		value, err := json.Marshal(entry{DType: t.DType, Shape: t.Shape, XXH64: fmt.Sprintf("%016x", p.digests[i])})
		if err != nil {
			return err
		}
		meta := client.Metadata{AllocationID: p.mappings[i].Allocation().ID, Value: value}
		if err := s.PutMetadata(ctx, t.Name, meta); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	hash, err := p.client.Commit(ctx)
	if errors.Is(err, client.ErrCommitted) {
		within, cancel := context.WithTimeout(ctx, reconnectTime)
		defer cancel()
		err = p.client.Reconnect(within)
	}
	if err != nil {
		return err
	}
	p.log.Info("weights written to the GPU memory service", "tensors", len(p.tensors), "hash", hash)
	return nil
}

// load copies a tensor from the file.
func (p *part) load(ctx context.Context, t weights.Tensor, m *client.Mapping) error {
	if to := m.Bytes(); to != nil {
		return p.file.ReadTensor(t, 0, to)
	}
	for at := uint64(0); at < m.Size(); at += chunk {
		// A write that is broken off may still read its buffer, so each has its own.
		buf := make([]byte, min(chunk, m.Size()-at))
		if err := p.file.ReadTensor(t, int64(at), buf); err != nil {
			return err
		}
		if err := m.Write(ctx, at, buf); err != nil {
			return err
		}
	}
	return nil
}

// read maps the committed tensors and checks them. The error wraps errOther where
// they are not this model's.
func (p *part) read(ctx context.Context, known weights.Digests) error {
	s := p.client.Session()
	keys, err := s.ListMetadata(ctx, "")
	if err != nil {
		return err
	}
	if len(keys) != len(p.tensors) {
		return fmt.Errorf("%w: %d tensors, and this model has %d there", errOther, len(keys), len(p.tensors))
	}
	p.digests = make([]uint64, len(p.tensors))
	for i, t := range p.tensors {
		meta, found, err := s.GetMetadata(ctx, t.Name)
		if err != nil {
			return err
		}
		if !found {
			return fmt.Errorf("%w: there is no tensor %q", errOther, t.Name)
		}
		if p.digests[i], err = p.matches(t, meta, known); err != nil {
			return err
		}
		m, err := p.client.Map(ctx, meta.AllocationID)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		p.mappings = append(p.mappings, m)
		if m.Size() != uint64(t.End-t.Begin) || meta.Offset != 0 {
			return fmt.Errorf("%w: tensor %q takes %d bytes at %d of its allocation, and this model's takes %d", errOther, t.Name, m.Size(), meta.Offset, t.End-t.Begin)
		}
	}
	if err := p.check(ctx); err != nil {
		return err
	}
	p.log.Info("weights imported from the GPU memory service", "tensors", len(p.tensors), "hash", p.client.Hash())
	return nil
}

// matches returns the digest that a committed tensor must have.
func (p *part) matches(t weights.Tensor, meta client.Metadata, known weights.Digests) (uint64, error) {
	var e entry
	if err := json.Unmarshal(meta.Value, &e); err != nil {
		return 0, fmt.Errorf("%w: the metadata of tensor %q: %w", errOther, t.Name, err)
	}
	var sum uint64
	if n, err := fmt.Sscanf(e.XXH64, "%016x", &sum); n != 1 || err != nil {
		return 0, fmt.Errorf("%w: tensor %q has the digest %q", errOther, t.Name, e.XXH64)
	}
	if want, ok := known[t.Name]; ok && sum != want {
		return 0, fmt.Errorf("%w: tensor %q has xxh64 %016x, and this model's has %016x", errOther, t.Name, sum, want)
	}
	if e.DType != t.DType || fmt.Sprint(e.Shape) != fmt.Sprint(t.Shape) {
		return 0, fmt.Errorf("%w: tensor %q is %s%v, and this model's is %s%v", errOther, t.Name, e.DType, e.Shape, t.DType, t.Shape)
	}
	return sum, nil
}

// wake maps the tensors again where they were, and checks them where verify says
// so.
func (p *part) wake(ctx context.Context, verify Verify) error {
	began := time.Now()
	if err := p.client.Remap(ctx); err != nil {
		return fmt.Errorf("%s: %w", p.cfg.Socket, err)
	}
	mapped := time.Now()
	var checked time.Duration
	if verify == VerifyAlways {
		if err := p.check(ctx); err != nil {
			return err
		}
		checked = time.Since(mapped)
	}
	p.log.Info("weights mapped again", "tensors", len(p.tensors), "remap", mapped.Sub(began), "check", checked)
	return nil
}

// check compares the mapped bytes with their digests; the error names every
// tensor that differs.
func (p *part) check(ctx context.Context) error {
	return each(len(p.tensors), func(i int) error {
		sum, err := digest(ctx, p.mappings[i])
		if err == nil && sum != p.digests[i] {
			err = fmt.Errorf("%w: it has xxh64 %016x, want %016x", weights.ErrDigest, sum, p.digests[i])
		}
		if err != nil {
			return fmt.Errorf("tensor %q: %w", p.tensors[i].Name, err)
		}
		return nil
	})
}

func digest(ctx context.Context, m *client.Mapping) (uint64, error) {
	sum := xxhash.New()
	if b := m.Bytes(); b != nil {
		for ; len(b) > 0 && ctx.Err() == nil; b = b[min(chunk, len(b)):] {
			_, _ = sum.Write(b[:min(chunk, len(b))])
		}
		return sum.Sum64(), ctx.Err()
	}
	for at := uint64(0); at < m.Size(); at += chunk {
		buf := make([]byte, min(chunk, m.Size()-at))
		if err := m.Read(ctx, at, buf); err != nil {
			return 0, err
		}
		_, _ = sum.Write(buf)
	}
	return sum.Sum64(), nil
}

// watch opens the session anew whenever the service has ended it, and calls lost
// when what is mapped is no longer what the service has. A service that is away
// costs nothing: the memory stays mapped. With check it also compares all bytes with
// their digests, once.
func (p *part) watch(lost func(error), check bool) {
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	if check {
		p.watching.Go(func() {
			began := time.Now()
			if err := p.check(ctx); ctx.Err() != nil {
				return
			} else if err != nil {
				lost(fmt.Errorf("%s: %w", p.cfg.Socket, err))
				return
			}
			p.log.Info("the weights are intact", "tensors", len(p.tensors), "check", time.Since(began))
		})
	}
	p.watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-p.client.Session().Done():
			}
			p.log.Warn("the session with the GPU memory service is over: opening another")
			if err := p.again(ctx); err != nil {
				if ctx.Err() == nil {
					lost(fmt.Errorf("%s: %w", p.cfg.Socket, err))
				}
				return
			}
		}
	})
}

// again tries until there is a session, or there can be none.
func (p *part) again(ctx context.Context) error {
	for {
		within, cancel := context.WithTimeout(ctx, reconnectTime)
		err := p.client.Reconnect(within)
		cancel()
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case errors.Is(err, client.ErrRestarted), errors.Is(err, client.ErrStaleLayout), errors.Is(err, client.ErrBroken):
			return err
		}
		p.log.Warn("the GPU memory service is not there: going on with what is mapped", "error", err)
		if err := pause(ctx, reconnectRetry); err != nil {
			return err
		}
	}
}

func (p *part) unwatch() {
	if p.stop != nil {
		p.stop()
		p.watching.Wait()
		p.stop = nil
	}
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// each calls f for 0 to n-1 on as many goroutines as there are CPUs and joins the
// errors.
func each(n int, f func(i int) error) error {
	errs := make([]error, n)
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		wg.Go(func() {
			for i := range next {
				errs[i] = f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return errors.Join(errs...)
}
