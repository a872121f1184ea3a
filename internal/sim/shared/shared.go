package shared

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/sim/memory"
	"remuda/internal/sim/weights"
)

// Verify says when weights are checked against their digests.
type Verify int

const (
	// VerifyAlways checks what is written, what is imported, and what a wake maps
	// again.
	VerifyAlways Verify = iota
	// VerifyImport trusts a wake: the layout's hash says that it is the same
	// layout, and nobody can write to what is committed. Reading all bytes back
	// from a GPU takes longer than all else in a wake.
	VerifyImport
	// VerifyBackground is VerifyImport, and checks all bytes once the engine serves after
	// a wake. A byte that differs is reported to Lost.
	VerifyBackground
)

// Config says where weights come from and where they are held.
type Config struct {
	// Path is the weights file. A reader needs its header only, to know what it
	// imports.
	Path string
	// Sockets are the service's, one for each GPU.
	Sockets []string
	// At is where a leak shows.
	At memory.Place
	// Rank is which tensors these are.
	Rank memory.Rank
	// Connected, if set, is called once every session is there, before anything is written or read: an
	// engine's ranks go on together.
	Connected func(ctx context.Context) error
	// Lock is wire.Auto for a primary and wire.RO for a shadow.
	Lock wire.LockType
	// Space makes the place in which one GPU's memory is mapped, and what closes
	// it.
	Space func(socket string) (space client.Space, closeSpace func() error, err error)
	// Verify is VerifyAlways by default.
	Verify Verify
	// WakeTimeout bounds the wait for the service at a wake, Wait bounds the wait of Open: for the
	// service, and as a reader for another engine to write the weights. Wait 0: no limit.
	WakeTimeout, Wait time.Duration
	// Lost is called when the service has lost what is mapped, or when a check in the
	// background found a damaged byte; an engine ends itself then.
	Lost   func(error)
	Logger hclog.Logger
}

func (c *Config) validate() error {
	var errs []error
	if c.Path == "" {
		errs = append(errs, errors.New("Path must be set"))
	}
	if len(c.Sockets) == 0 {
		errs = append(errs, errors.New("Sockets must not be empty"))
	}
	if c.Lock != wire.Auto && c.Lock != wire.RO {
		errs = append(errs, fmt.Errorf("Lock is %q: must be %q or %q", c.Lock, wire.Auto, wire.RO))
	}
	if c.Space == nil || c.Lost == nil || c.Logger == nil {
		errs = append(errs, errors.New("Space, Lost and Logger must be set"))
	}
	if c.Verify < VerifyAlways || c.Verify > VerifyBackground {
		errs = append(errs, fmt.Errorf("Verify is %d: must be VerifyAlways, VerifyImport or VerifyBackground", c.Verify))
	}
	if c.Wait < 0 {
		errs = append(errs, fmt.Errorf("Wait is %s: must be at least 0", c.Wait))
	}
	if c.WakeTimeout <= 0 {
		errs = append(errs, fmt.Errorf("WakeTimeout is %s: must be more than 0", c.WakeTimeout))
	}
	return errors.Join(errs...)
}

// Weights are one model's. The methods are safe for concurrent use.
type Weights struct {
	cfg    Config
	header *weights.Header
	parts  []*part
	closes []func() error

	mu     sync.Mutex // held during a sleep or a wake
	asleep bool
	leaks  memory.Leaks

	usage          sync.Mutex // guards mapped and leaked, so that Usage never waits
	mapped, leaked int64
}

// Open connects to every GPU's service and makes or imports the weights. It waits
// for the services to come up and, as a reader, for a writer to commit, for as long
// as ctx allows.
func Open(ctx context.Context, cfg Config) (_ *Weights, err error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("shared weights: %w", err)
	}
	file, err := weights.Open(cfg.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	file.Header = file.Header.Part(cfg.Rank.Number, cfg.Rank.Of)
	known, err := file.Header.Digests()
	if err != nil {
		return nil, fmt.Errorf("weights %s: %w", cfg.Path, err)
	}
	w := &Weights{cfg: cfg, header: file.Header}
	defer func() {
		if err != nil {
			err = fmt.Errorf("weights %s: %w", cfg.Path, errors.Join(err, w.Close()))
		}
	}()
	for _, socket := range cfg.Sockets {
		space, closeSpace, err := cfg.Space(socket)
		if err != nil {
			return nil, err
		}
		w.closes = append(w.closes, closeSpace)
		log := cfg.Logger.With("socket", socket)
		w.parts = append(w.parts, &part{file: file, log: log,
			cfg: client.Config{Socket: socket, Space: space, Logger: log}})
	}
	for i, t := range file.Header.Tensors {
		if t.End > t.Begin { // memory of no size cannot be allocated
			p := w.parts[i%len(w.parts)]
			p.tensors = append(p.tensors, t)
		}
	}
	granted, err := w.connect(ctx)
	if err == nil && cfg.Connected != nil {
		err = cfg.Connected(ctx)
	}
	if err != nil {
		return nil, err
	}
	err = w.all(func(i int, p *part) error { return p.fill(ctx, cfg.Lock, granted[i], known) })
	if err != nil {
		return nil, err
	}
	w.resume(false)
	return w, nil
}

// slowWait is when a session that is waited for is worth a line in the log.
const slowWait = 10 * time.Second

// connect opens the sessions of all parts, and returns what was granted to each.
func (w *Weights) connect(ctx context.Context) ([]wire.LockType, error) {
	within, cancel := ctx, context.CancelFunc(func() {})
	if w.cfg.Wait > 0 {
		within, cancel = context.WithTimeout(ctx, w.cfg.Wait)
	}
	defer cancel()
	granted := make([]wire.LockType, len(w.parts))
	err := w.all(func(i int, p *part) (err error) {
		slow := time.AfterFunc(slowWait, func() {
			p.log.Warn("still waiting: the GPU memory service does not answer, or no engine has written the weights yet", "lock", w.cfg.Lock, "limit", w.cfg.Wait)
		})
		defer slow.Stop()
		granted[i], err = p.connect(within, w.cfg.Lock)
		return err
	})
	// The service, which knows the limit, may be the first to say that it is over.
	if w.cfg.Wait > 0 && ctx.Err() == nil && (within.Err() != nil || errors.Is(err, client.ErrTimeout)) && err != nil {
		err = fmt.Errorf("there are no weights after %s: the GPU memory service does not answer, or the engine that is to write them did not: %w", w.cfg.Wait, err)
	}
	return granted, err
}

// all calls f for every part at once and joins the errors.
func (w *Weights) all(f func(i int, p *part) error) error {
	errs := make([]error, len(w.parts))
	var wg sync.WaitGroup
	for i, p := range w.parts {
		wg.Go(func() { errs[i] = f(i, p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// resume notes that the weights are mapped, and has them checked in the background.
func (w *Weights) resume(check bool) {
	for _, p := range w.parts {
		p.watch(w.cfg.Lost, check)
	}
	w.asleep = false
	w.account()
}

// Sleep unmaps the weights and ends the sessions; what is committed stays with the
// service at either level. leak is how many bytes of memory to keep by mistake (a
// fault switch); leaks add up.
func (w *Weights) Sleep(_ int, leak int64) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer w.account()
	if err := w.leaks.Add(leak, w.cfg.At); err != nil {
		return err
	}
	if w.asleep {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.cfg.WakeTimeout)
	defer cancel()
	err := w.all(func(_ int, p *part) error { p.unwatch(); return p.client.Unmap(ctx) })
	w.asleep = err == nil
	return err
}

// Wake maps the weights again where they were and checks them, unless the config
// trusts wakes. It waits no longer
// than the wake's time. With corrupt it fails in any case, as if a byte had changed
// (a fault switch; the memory is another engine's too). Any error is fatal to the
// engine.
func (w *Weights) Wake(ctx context.Context, corrupt bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.asleep {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.WakeTimeout)
	defer cancel()
	err := w.all(func(_ int, p *part) error { return p.wake(ctx, w.cfg.Verify) })
	if err == nil && corrupt {
		err = fmt.Errorf("%w: told to fail", weights.ErrDigest)
	}
	if err != nil {
		return err
	}
	w.resume(w.cfg.Verify == VerifyBackground)
	return nil
}

// ErrFixed is returned by Move.
var ErrFixed = errors.New("the weights are shared with other engines on these GPUs")

// Move fails: what is committed stays with the service of its GPU.
func (w *Weights) Move([]string) error { return ErrFixed }

// Size is how many bytes the weights take.
func (w *Weights) Size() int64 { return w.header.DataSize }

// Tensors is how many tensors the weights have.
func (w *Weights) Tensors() int { return len(w.header.Tensors) }

// Usage is how many bytes are mapped (leaks included), and 0: nothing is copied to
// host memory. It does not wait for a Sleep or Wake in progress.
func (w *Weights) Usage() (device, host int64) {
	w.usage.Lock()
	defer w.usage.Unlock()
	return w.mapped + w.leaked, 0
}

// account publishes the sizes; the caller holds mu, or nobody else has w.
func (w *Weights) account() {
	mapped := int64(0)
	if !w.asleep {
		mapped = w.header.DataSize
	}
	w.usage.Lock()
	defer w.usage.Unlock()
	w.mapped, w.leaked = mapped, w.leaks.Size()
}

// Close ends the sessions and the mappings. The weights must not be used
// afterwards. A driver that hangs is left to the end of the process, so that it
// does not hold that up.
func (w *Weights) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	hangs := make([]bool, len(w.closes))
	for i, p := range w.parts {
		p.unwatch()
		if p.client != nil {
			err := p.client.Close()
			hangs[i] = errors.Is(err, client.ErrBroken)
			errs = append(errs, err)
		}
	}
	for i, closeSpace := range w.closes {
		if !hangs[i] {
			errs = append(errs, closeSpace())
		}
	}
	return errors.Join(append(errs, w.leaks.Free())...)
}
