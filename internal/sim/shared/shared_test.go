package shared_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/sim/shared"
	"remuda/internal/sim/weights"
	"remuda/internal/testkit/gmsserve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	mib      = 1 << 20
	patience = time.Minute
)

// service is a GPU memory service in this process that can be ended and begun
// again, which loses what it had.
type service struct {
	t       *testing.T
	dir     string
	gpus    []gms.GPU
	hosts   []*host.Backend
	sockets []string
	stop    func()
}

func newService(t *testing.T, gpus int) *service {
	t.Helper()
	dir, err := os.MkdirTemp("", "shared")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &service{t: t, dir: dir}
	for i := range gpus {
		b, err := host.New(host.Config{Granularity: 2 * mib, Capacity: 256 * mib})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		uuid := fmt.Sprintf("GPU-%d", i)
		s.gpus = append(s.gpus, gms.GPU{UUID: uuid, Backend: b})
		s.hosts = append(s.hosts, b)
		s.sockets = append(s.sockets, filepath.Join(dir, "gms_"+uuid+"_weights.sock"))
	}
	s.start()
	return s
}

func (s *service) start() {
	s.t.Helper()
	cfg := gms.DefaultConfig()
	cfg.SocketDir, cfg.GPUs = s.dir, s.gpus
	s.stop = gmsserve.Start(s.t, cfg).Stop
}

// used is what all GPUs have in use.
func (s *service) used() (n uint64) {
	for _, b := range s.hosts {
		n += b.Used()
	}
	return n
}

func (s *service) committed(i int) bool {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	st, err := client.RuntimeState(ctx, s.sockets[i])
	require.NoError(s.t, err)
	return st.Committed
}

// model makes a weights file.
func model(t *testing.T, seed uint64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), fmt.Sprint(seed, ".safetensors"))
	_, err := weights.Create(path, weights.Spec{Size: 24*mib + 12, Seed: seed})
	require.NoError(t, err)
	return path
}

// engine is what one engine asks for.
type engine struct {
	cfg  shared.Config
	lost chan error
}

func (s *service) engine(path string, lock wire.LockType) *engine {
	e := &engine{lost: make(chan error, 16)}
	e.cfg = shared.Config{
		Path: path, Sockets: s.sockets, Lock: lock, WakeTimeout: patience,
		Space: func(string) (client.Space, func() error, error) {
			return host.NewSpace(), func() error { return nil }, nil
		},
		Lost:   func(err error) { e.lost <- err },
		Logger: hclog.NewNullLogger(),
	}
	return e
}

func (e *engine) open(t *testing.T) *shared.Weights {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := shared.Open(ctx, e.cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

// opening opens in the background.
func (e *engine) opening(t *testing.T) <-chan *shared.Weights {
	t.Helper()
	opened := make(chan *shared.Weights, 1)
	go func() {
		defer close(opened)
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		w, err := shared.Open(ctx, e.cfg)
		if err != nil {
			t.Errorf("open: %v", err)
			return
		}
		t.Cleanup(func() { _ = w.Close() })
		opened <- w
	}()
	return opened
}

// A reader fails with a clear error if no engine writes the weights in time.
func TestReaderDoesNotWaitForEver(t *testing.T) {
	s := newService(t, 2)
	reader := s.engine(model(t, 1), wire.RO)
	reader.cfg.Wait = 200 * time.Millisecond
	_, err := shared.Open(t.Context(), reader.cfg)
	require.ErrorContains(t, err, "there are no weights after 200ms")
	require.ErrorContains(t, err, s.sockets[1])
}

func TestPairSharesOneCopy(t *testing.T) {
	for _, gpus := range []int{1, 4} {
		t.Run(fmt.Sprint(gpus, " GPUs"), func(t *testing.T) {
			s, path := newService(t, gpus), model(t, 1)
			waiting := s.engine(path, wire.RO).opening(t) // first, and it waits
			primary := s.engine(path, wire.Auto)
			p := primary.open(t)
			b := <-waiting
			require.NotNil(t, b)
			used := s.used()
			require.GreaterOrEqual(t, used, uint64(p.Size()))
			require.Less(t, used, 2*uint64(p.Size()), "there is one copy")
			device, host := b.Usage()
			require.Equal(t, []int64{p.Size(), 0}, []int64{device, host})

			for _, w := range []*shared.Weights{p, b} {
				require.NoError(t, w.Sleep(1, 0))
				require.NoError(t, w.Sleep(2, 0), "twice is once")
				device, _ := w.Usage()
				require.Zero(t, device)
			}
			require.Equal(t, used, s.used(), "the weights stay while all sleep")
			for range 3 {
				require.NoError(t, b.Wake(t.Context(), false))
				require.NoError(t, b.Wake(t.Context(), false), "twice is once")
				require.NoError(t, b.Sleep(1, 0))
			}
			require.Equal(t, used, s.used())
		})
	}
}

// TestNothingIsReadFromDiskToWake: nor to import.
func TestNothingIsReadFromDiskToWake(t *testing.T) {
	s, path := newService(t, 1), model(t, 1)
	p := s.engine(path, wire.Auto).open(t)
	info, err := os.Stat(path)
	require.NoError(t, err)
	header := info.Size() - p.Size()
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = file.WriteAt(make([]byte, p.Size()), header) // all data is gone
	require.NoError(t, err)
	require.NoError(t, file.Close())
	b := s.engine(path, wire.RO).open(t)
	require.NoError(t, b.Sleep(1, 0))
	require.NoError(t, b.Wake(t.Context(), false))
}

func TestDamageIsFound(t *testing.T) {
	s, path := newService(t, 1), model(t, 1)
	w := s.engine(path, wire.Auto).open(t)
	require.NoError(t, w.Sleep(1, 0))
	trusting := s.engine(path, wire.RO)
	trusting.cfg.Verify = shared.VerifyImport
	trusts := trusting.open(t)
	require.NoError(t, trusts.Sleep(1, 0))
	later := s.engine(path, wire.RO)
	later.cfg.Verify = shared.VerifyBackground
	looksLater := later.open(t)
	for range 20 { // a sleep ends a check that is under way
		require.NoError(t, looksLater.Sleep(1, 0))
		require.NoError(t, looksLater.Wake(t.Context(), false))
	}
	require.NoError(t, looksLater.Sleep(1, 0))
	require.Empty(t, later.lost)
	// Somebody writes where nobody may: the descriptors of the service do allow it.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	session, err := client.Open(ctx, s.sockets[0], client.Options{Lock: wire.RO})
	require.NoError(t, err)
	list, err := session.List(ctx, "")
	require.NoError(t, err)
	fd, _, err := session.Export(ctx, list[1].ID)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "memory")
	_, err = f.WriteAt([]byte{1, 2, 3, 4, 5}, 100)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	require.NoError(t, session.Close())
	require.ErrorIs(t, w.Wake(t.Context(), false), weights.ErrDigest)
	require.NoError(t, trusts.Wake(t.Context(), false), "told not to look")
	require.NoError(t, looksLater.Wake(t.Context(), false), "it serves at once")
	select {
	case err := <-later.lost:
		require.ErrorIs(t, err, weights.ErrDigest)
	case <-time.After(patience):
		t.Fatal("the damage is not found")
	}

	fresh := s.engine(path, wire.RO)
	_, err = shared.Open(ctx, fresh.cfg)
	require.ErrorIs(t, err, weights.ErrDigest)
}

func TestDamagedFileIsNotShared(t *testing.T) {
	s, path := newService(t, 1), model(t, 1)
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	info, err := file.Stat()
	require.NoError(t, err)
	_, err = file.WriteAt([]byte{1, 2, 3}, info.Size()-100)
	require.NoError(t, err)
	require.NoError(t, file.Close())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err = shared.Open(ctx, s.engine(path, wire.Auto).cfg)
	require.ErrorIs(t, err, weights.ErrDigest)
	require.False(t, s.committed(0))
	require.Eventually(t, func() bool { return s.used() == 0 }, patience, time.Millisecond)
}

// TestAnotherModelMakesWay: the layout of a GPU and tag is one model's.
func TestAnotherModelMakesWay(t *testing.T) {
	s := newService(t, 2)
	one, two := model(t, 1), model(t, 2)
	old := s.engine(one, wire.Auto).open(t)
	shadow := s.engine(two, wire.RO).opening(t)
	next := s.engine(two, wire.Auto).opening(t)
	select {
	case <-next:
		t.Fatal("the weights of a model that is awake were replaced")
	case <-shadow:
		t.Fatal("the shadow has weights that nobody has loaded")
	case <-time.After(500 * time.Millisecond):
	}
	require.NoError(t, old.Sleep(1, 0))
	p, b := <-next, <-shadow
	require.NotNil(t, p)
	require.NotNil(t, b)
	err := old.Wake(t.Context(), false)
	require.ErrorIs(t, err, client.ErrStaleLayout, "it is told at once")
}

// on has an engine use the units of a tag, as one of a group.
func (s *service) on(e *engine, tag, group string) *engine {
	e.cfg.Sockets = nil
	for _, g := range s.gpus {
		e.cfg.Sockets = append(e.cfg.Sockets, client.Address(gms.NodeSocketPath(s.dir), g.UUID, tag, group))
	}
	return e
}

// TestModelsOnOneGPU: pairs of two models live side by side, and one fails over while the
// other loads, sleeps and wakes.
func TestModelsOnOneGPU(t *testing.T) {
	s := newService(t, 2)
	one, two := model(t, 1), model(t, 2)
	primary := s.on(s.engine(one, wire.Auto), "one@1", "a").open(t)
	shadow := s.on(s.engine(one, wire.RO), "one@1", "a").open(t)
	require.NoError(t, shadow.Sleep(1, 0))
	for range 3 {
		loading := s.on(s.engine(two, wire.Auto), "two@1", "b").opening(t)
		require.NoError(t, primary.Close()) // it dies while the other model loads
		require.NoError(t, shadow.Wake(t.Context(), false))
		other := <-loading
		require.NotNil(t, other)
		require.NoError(t, other.Sleep(1, 0))
		require.NoError(t, other.Wake(t.Context(), false))
		require.NoError(t, other.Close())
		primary, shadow = shadow, s.on(s.engine(one, wire.RO), "one@1", "a").open(t)
		require.NoError(t, shadow.Sleep(1, 0))
	}
}

// TestOtherWeightsOfOneVersionWait: those of a file that was changed, say. They wait
// without holding up the failovers of who has the layout, also in the moment in which
// nobody has it mapped, and take its place once the last of the others has gone.
func TestOtherWeightsOfOneVersionWait(t *testing.T) {
	s := newService(t, 1)
	primary := s.on(s.engine(model(t, 1), wire.Auto), "m@1", "a")
	p := primary.open(t)
	shadow := s.on(s.engine(primary.cfg.Path, wire.RO), "m@1", "a").open(t)
	require.NoError(t, shadow.Sleep(1, 0))
	held, release := context.WithCancel(t.Context())
	shim := make(chan struct{})
	go func() { defer close(shim); client.Hold(held, primary.cfg.Sockets[0], primary.cfg.Logger) }()
	waits := s.on(s.engine(model(t, 2), wire.Auto), "m@1", "b").opening(t)
	for range 3 {
		require.NoError(t, p.Sleep(1, 0)) // nobody has it mapped
		select {
		case <-waits:
			t.Fatal("the weights of a pair that sleeps were replaced")
		case <-time.After(400 * time.Millisecond):
		}
		soon, cancel := context.WithTimeout(t.Context(), patience)
		require.NoError(t, shadow.Wake(soon, false))
		cancel()
		p, shadow = shadow, p
	}
	require.NoError(t, p.Close())
	require.NoError(t, shadow.Close())
	release()
	<-shim
	require.NotNil(t, <-waits)
}

// TestServiceThatRestarts: engines that sleep learn it at their wake,
// at once; those that are awake learn it when it is back.
func TestServiceThatRestarts(t *testing.T) {
	s, path := newService(t, 2), model(t, 1)
	primary, shadow := s.engine(path, wire.Auto), s.engine(path, wire.RO)
	p, b := primary.open(t), shadow.open(t)
	require.NoError(t, b.Sleep(1, 0))
	s.stop()
	select {
	case err := <-primary.lost:
		t.Fatalf("a service that is away for a while costs nothing: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	s.start()
	select {
	case err := <-primary.lost:
		require.ErrorIs(t, err, client.ErrRestarted)
	case <-time.After(patience):
		t.Fatal("the engine that is awake was not told")
	}
	began := time.Now()
	require.ErrorIs(t, b.Wake(t.Context(), false), client.ErrRestarted)
	require.Less(t, time.Since(began), patience/2, "it does not wait for its deadline")
	require.NoError(t, p.Close())
	require.NoError(t, b.Close())
	// Both start anew: a clean recovery.
	again := shadow.opening(t)
	primary.open(t)
	require.NotNil(t, <-again)
}

func TestServiceThatStaysAway(t *testing.T) {
	s, path := newService(t, 1), model(t, 1)
	e := s.engine(path, wire.Auto)
	e.cfg.WakeTimeout = 300 * time.Millisecond
	w := e.open(t)
	require.NoError(t, w.Sleep(1, 0))
	s.stop()
	require.Error(t, w.Wake(t.Context(), false))
}

// TestPartialCommitsResume: with several GPUs, what a primary had
// committed before it died stays, and the rest is loaded by the next one.
func TestPartialCommitsResume(t *testing.T) {
	s, path := newService(t, 4), model(t, 1)
	waiting := s.engine(path, wire.RO).opening(t)
	// It has committed on two of four GPUs and dies with a writer's lock on the
	// others.
	half := s.engine(path, wire.Auto)
	half.cfg.Sockets = s.sockets
	dead := &dying{after: 2}
	space := half.cfg.Space
	half.cfg.Space = func(socket string) (client.Space, func() error, error) {
		inner, end, err := space(socket)
		return dead.space(inner), end, err
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := shared.Open(ctx, half.cfg)
	require.ErrorIs(t, err, errDying)
	var before []bool
	for i := range s.sockets {
		before = append(before, s.committed(i))
	}
	require.ElementsMatch(t, []bool{true, true, false, false}, before)
	primary := s.engine(path, wire.Auto).open(t)
	require.NoError(t, primary.Sleep(1, 0))
	require.NoError(t, primary.Wake(t.Context(), false))
	require.NotNil(t, <-waiting, "the shadow has waited through it")
	for i, was := range before {
		writers := 0
		for _, e := range gmsserve.Events(t, s.sockets[i]) {
			if e.Kind == wire.EventRWConnected {
				writers++
			}
		}
		require.Equal(t, map[bool]int{true: 1, false: 2}[was], writers, "GPU %d: what was committed is not loaded again", i)
	}
}

var errDying = errors.New("dying")

// dying lets as many GPUs protect their memory, which comes before a commit, as it
// is told, and fails all others.
type dying struct {
	after int32
	count atomic.Int32
}

type dyingSpace struct {
	*host.Space
	dead  *dying
	alive atomic.Int32 // 1: it may go on, 2: it may not
}

func (d *dying) space(s client.Space) client.Space {
	return &dyingSpace{Space: s.(*host.Space), dead: d}
}

func (s *dyingSpace) Protect(addr uintptr, size uint64, writable bool) error {
	if s.alive.Load() == 0 {
		s.alive.Store(1)
		if s.dead.count.Add(1) > s.dead.after {
			s.alive.Store(2)
		}
	}
	if s.alive.Load() == 2 {
		return errDying
	}
	return s.Space.Protect(addr, size, writable)
}

func TestLeaksAddUp(t *testing.T) {
	s, path := newService(t, 1), model(t, 1)
	w := s.engine(path, wire.Auto).open(t)
	require.NoError(t, w.Sleep(1, 3*mib))
	require.NoError(t, w.Wake(t.Context(), false))
	require.NoError(t, w.Sleep(1, mib))
	device, _ := w.Usage()
	require.EqualValues(t, 4*mib, device)
	require.ErrorIs(t, w.Wake(t.Context(), true), weights.ErrDigest, "told to fail")
}

func TestConfigErrorsNameEveryField(t *testing.T) {
	_, err := shared.Open(t.Context(), shared.Config{Lock: wire.RW, Verify: 9})
	for _, want := range []string{"Path must be set", "Sockets must not be empty", `Lock is "rw"`, "Space, Lost and Logger", "Verify is 9", "WakeTimeout is 0s"} {
		require.ErrorContains(t, err, want)
	}
}

// hanging is a GPU whose driver hangs once told to, as does its end then.
type hanging struct {
	*host.Space
	hangs   atomic.Bool
	release chan struct{}
}

func (h *hanging) Map(addr uintptr, size uint64, fd int, writable bool) error {
	if h.hangs.Load() {
		<-h.release
	}
	return h.Space.Map(addr, size, fd, writable)
}

func (h *hanging) close() error {
	if h.hangs.Load() {
		<-h.release
	}
	return nil
}

// TestDriverThatHangsDoesNotHoldUpTheEnd: an engine that could not wake ends, so that
// another takes over.
func TestDriverThatHangsDoesNotHoldUpTheEnd(t *testing.T) {
	s := newService(t, 1)
	e := s.engine(model(t, 1), wire.Auto)
	h := &hanging{Space: host.NewSpace(), release: make(chan struct{})}
	e.cfg.Space = func(string) (client.Space, func() error, error) { return h, h.close, nil }
	e.cfg.WakeTimeout = 2 * time.Second // by then it is at the driver
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, err := shared.Open(ctx, e.cfg)
	require.NoError(t, err)
	require.NoError(t, w.Sleep(1, 0))
	h.hangs.Store(true)
	defer close(h.release)
	require.ErrorIs(t, w.Wake(t.Context(), false), client.ErrBroken)
	ended := make(chan error, 1)
	go func() { ended <- w.Close() }()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, client.ErrBroken)
	case <-time.After(patience):
		t.Fatal("it waits for the driver")
	}
}

// TestSharedWeightsDoNotMove: they are the other engine's, too.
func TestSharedWeightsDoNotMove(t *testing.T) {
	s := newService(t, 1)
	w := s.engine(model(t, 1), wire.Auto).open(t)
	require.NoError(t, w.Sleep(1, 0))
	require.ErrorIs(t, w.Move([]string{"GPU-1"}), shared.ErrFixed)
	require.NoError(t, w.Wake(t.Context(), false))
}
