package keeper

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/socket"
)

// Config is how a Keeper runs. Start from DefaultConfig.
type Config struct {
	// Socket is the path of the Unix socket.
	Socket string
	// Limits bound what is held.
	Limits Limits
	// Stall is how long a client may let the keeper wait in the middle of a save
	// or load before it is cut off.
	Stall time.Duration
	// Logger must be set.
	Logger hclog.Logger
	// Metrics is where the keeper's metrics are registered; nil: nowhere.
	Metrics prometheus.Registerer
}

// DefaultConfig is what a keeper should run with, but for the socket.
func DefaultConfig() Config {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		files.Cur = 1024 // what Linux gives by default
	}
	return Config{
		Limits: DefaultLimits(files.Cur),
		// A packet takes microseconds. A client that is stopped or swapped out
		// gets half a minute.
		Stall:  30 * time.Second,
		Logger: hclog.NewNullLogger(),
	}
}

func (c *Config) validate() error {
	errs := []error{c.Limits.validate()}
	if c.Socket == "" {
		errs = append(errs, errors.New("Socket must be set"))
	}
	if len(c.Socket) > socket.MaxPath {
		errs = append(errs, fmt.Errorf("Socket is a path of %d bytes, and the kernel takes at most %d: choose a shorter one", len(c.Socket), socket.MaxPath))
	}
	if c.Stall <= 0 {
		errs = append(errs, errors.New("Stall must be more than 0"))
	}
	if c.Logger == nil {
		errs = append(errs, errors.New("Logger must be set"))
	}
	return errors.Join(errs...)
}

// Keeper serves one socket. Create it with New and call Run once.
type Keeper struct {
	cfg      Config
	log      hclog.Logger
	store    *store
	metrics  *metrics
	instance string
	// uid is whose processes are served.
	uid uint32

	mu    sync.Mutex // guards links
	links map[*link]struct{}
	ended bool
	// serving counts the goroutines of connections.
	serving sync.WaitGroup
}

// New checks the config; the error names every bad field. It starts nothing.
func New(cfg Config) (*Keeper, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("gms keeper: %w", err)
	}
	k := &Keeper{cfg: cfg, log: cfg.Logger, store: newStore(cfg.Limits), instance: rand.Text(),
		uid: uint32(os.Geteuid()), links: map[*link]struct{}{}}
	k.metrics = newMetrics(k.store, cfg.Metrics)
	return k, nil
}

// Run serves until ctx ends. Then everything that is kept is given up. The error
// wraps socket.ErrInUse where another program serves the socket. It ends with an error
// as well when the socket's file is removed or replaced: nobody could take back what
// is kept.
func (k *Keeper) Run(ctx context.Context) error {
	claim, err := socket.Take(ctx, "unixpacket", k.cfg.Socket)
	if err != nil {
		return fmt.Errorf("gms keeper: %w", err)
	}
	defer func() { _ = claim.Close() }()
	l, err := claim.Listen()
	if err != nil {
		return fmt.Errorf("gms keeper: %w", err)
	}
	k.log.Info("the keeper is ready", "socket", k.cfg.Socket, "instance", k.instance, "max_descriptors", k.cfg.Limits.Descriptors)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	unreachable := make(chan error, 1)
	go func() {
		err := claim.Watch(ctx)
		cancel(err)
		unreachable <- err
	}()
	err = k.accept(ctx, l)
	cancel(nil)
	err = errors.Join(err, <-unreachable)
	claim.Stop()
	k.mu.Lock()
	k.ended = true
	for l := range k.links {
		_ = l.c.Close()
	}
	k.mu.Unlock()
	k.serving.Wait()
	records, descriptors, _ := k.store.held()
	k.log.Info("the keeper is stopping and releases its records", "records", records, "descriptors", descriptors)
	k.store.clear()
	if err != nil {
		return fmt.Errorf("gms keeper: %w", err)
	}
	return nil
}

// accept serves connections until the listener is closed.
func (k *Keeper) accept(ctx context.Context, l *net.UnixListener) error {
	for {
		c, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if c != nil {
				_ = c.Close()
			}
			return nil
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		case err != nil:
			// Out of descriptors, say: what is kept must not be lost for that.
			k.log.Warn("cannot accept a connection", "error", err)
			select {
			case <-ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		k.start(c)
	}
}

// start serves one connection, if it may be served.
func (k *Keeper) start(c *net.UnixConn) {
	l, err := newLink(c)
	if err == nil && l.uid != k.uid {
		err = fmt.Errorf("the client's user is %d: must be %d", l.uid, k.uid)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil && len(k.links) >= k.cfg.Limits.Connections {
		err = fmt.Errorf("the limit of %d connections is reached", len(k.links))
	}
	if err != nil || k.ended {
		k.metrics.refused.Inc()
		k.log.Warn("rejected a connection", "error", err)
		_ = c.Close()
		return
	}
	k.links[l] = struct{}{}
	k.serving.Go(func() {
		err := k.serve(l)
		k.mu.Lock()
		delete(k.links, l)
		ended := k.ended
		k.mu.Unlock()
		_ = c.Close()
		if err != nil && !ended {
			k.metrics.broken.Inc()
			k.log.Warn("closing a connection", "pid", l.peer, "error", err)
		}
	})
}

// serve answers one client until it goes or breaks the protocol.
func (k *Keeper) serve(l *link) error {
	if err := l.within(k.cfg.Stall); err != nil {
		return err
	}
	if err := l.send(opHello, append([]byte{version}, k.instance...), nil); err != nil {
		if errors.Is(err, unix.EPIPE) { // it only looked whether somebody is here
			return nil
		}
		return err
	}
	for {
		// Between requests a client may be silent: it watches that way.
		if err := l.within(0); err != nil {
			return err
		}
		p, err := l.receive()
		if errors.Is(err, errEnd) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(p.fds) > 0 {
			p.close()
			return fmt.Errorf("%w: %d descriptors where none belong", errProtocol, len(p.fds))
		}
		if err := l.within(k.cfg.Stall); err != nil {
			return err
		}
		switch p.op {
		case opSave:
			err = k.save(l, p.body)
		case opDrop:
			err = k.drop(l, p.body)
		case opLoad:
			err = k.load(l, p.body)
		default:
			err = fmt.Errorf("%w: packet %q where a request belongs", errProtocol, p.op)
		}
		if err != nil {
			return err
		}
	}
}

// save receives a record and stores it once it is whole.
func (k *Keeper) save(l *link, body []byte) error {
	e, rest, err := cutExtent(body)
	if err != nil {
		return err
	}
	name := string(rest)
	err = checkName(name)
	if err == nil {
		err = k.store.reserve(name, e)
	}
	if err != nil {
		k.log.Warn("rejected a save", "name", name, "bytes", e.size, "descriptors", e.count, "error", err)
		return l.send(opRefused, []byte(err.Error()), nil)
	}
	r := &record{}
	if err := k.fill(l, r, e); err != nil {
		closeAll(r.fds)
		k.store.cancel(e)
		return fmt.Errorf("save %q, %d of %d bytes and %d of %d descriptors had come: %w", name, len(r.blob), e.size, len(r.fds), e.count, err)
	}
	if !k.store.put(name, r, l.waits) {
		return fmt.Errorf("save %q: %w before it was stored", name, errEnd)
	}
	k.metrics.saves.Inc()
	k.log.Debug("saved", "name", name, "bytes", e.size, "descriptors", e.count, "pid", l.peer)
	return l.send(opOK, nil, nil)
}

// fill receives what a record is made of. It answers all packets but the last:
// the record is stored first.
func (k *Keeper) fill(l *link, r *record, e extent) error {
	for uint64(len(r.blob)) < e.size || len(r.fds) < int(e.count) {
		if err := errors.Join(l.send(opOK, nil, nil), l.within(k.cfg.Stall)); err != nil {
			return err
		}
		p, err := l.receive()
		if err != nil {
			return err
		}
		switch {
		case p.op != opData:
			err = fmt.Errorf("%w: packet %q in the middle of a save", errProtocol, p.op)
		case uint64(len(p.body)) > e.size-uint64(len(r.blob)) || len(p.fds) > int(e.count)-len(r.fds):
			err = fmt.Errorf("%w: more bytes or descriptors than announced", errProtocol)
		case len(p.body) == 0 && len(p.fds) == 0:
			err = fmt.Errorf("%w: an empty packet in the middle of a save", errProtocol)
		}
		if err != nil {
			p.close()
			return err
		}
		// Room grows with what really comes, whatever was announced.
		r.blob = append(r.blob, p.body...)
		r.fds = append(r.fds, p.fds...)
	}
	return nil
}

func (k *Keeper) drop(l *link, body []byte) error {
	if !k.store.drop(string(body), l.waits) {
		return fmt.Errorf("drop %q: %w before it was done", body, errEnd)
	}
	k.log.Debug("dropped", "name", string(body), "pid", l.peer)
	return l.send(opOK, nil, nil)
}

// load sends a record as it was when it was asked for, whatever is saved
// meanwhile.
func (k *Keeper) load(l *link, body []byte) error {
	name := string(body)
	r := k.store.get(name)
	if r == nil {
		return l.send(opMissing, nil, nil)
	}
	defer k.store.release(r)
	if err := l.send(opFound, extent{uint64(len(r.blob)), uint32(len(r.fds))}.append(nil), nil); err != nil {
		return err
	}
	for blob, fds := r.blob, r.fds; len(blob) > 0 || len(fds) > 0; {
		var chunk []byte
		var batch []int
		chunk, blob, batch, fds = part(blob, fds)
		if err := l.within(k.cfg.Stall); err != nil {
			return err
		}
		p, err := l.receive()
		if err == nil && (p.op != opNext || len(p.fds) > 0) {
			p.close()
			err = fmt.Errorf("%w: packet %q in the middle of a load", errProtocol, p.op)
		}
		if err == nil {
			err = l.send(opData, chunk, batch)
		}
		if err != nil {
			return fmt.Errorf("load %q: %w", name, err)
		}
	}
	k.metrics.loads.Inc()
	return nil
}
