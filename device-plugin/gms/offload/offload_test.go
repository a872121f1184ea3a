package offload_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/offload"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmsserve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	mib      = 1 << 20
	patience = time.Minute
)

// service is a GPU memory service in this process, of two GPUs.
type service struct {
	t       *testing.T
	hosts   []*host.Backend
	sockets []string // the addresses of its units, for a group
	node    string
}

func newService(t *testing.T) *service {
	t.Helper()
	dir, err := os.MkdirTemp("", "offload")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &service{t: t, node: gms.NodeSocketPath(dir)}
	cfg := gms.DefaultConfig()
	cfg.SocketDir = dir
	for i := range 2 {
		b, err := host.New(host.Config{Granularity: 64 << 10, Capacity: 16 * mib})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		uuid := fmt.Sprintf("GPU-%d", i)
		cfg.GPUs = append(cfg.GPUs, gms.GPU{UUID: uuid, Backend: b})
		s.hosts = append(s.hosts, b)
	}
	s.sockets = s.of("own")
	gmsserve.Start(t, cfg)
	return s
}

// of are the addresses for a group.
func (s *service) of(group string) []string {
	return []string{client.Address(s.node, "GPU-0", "m@1", group), client.Address(s.node, "GPU-1", "m@1", group)}
}

// vacates has the services release everything.
func vacates(t *testing.T, o *offload.Offload) {
	t.Helper()
	all, err := o.Vacate(within(t))
	require.NoError(t, err)
	require.True(t, all)
}

// free waits until no GPU has memory in use.
func (s *service) free() {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.hosts[0].Used()+s.hosts[1].Used() == 0 }, patience, time.Millisecond)
}

func hostSpace(string) (client.Space, func() error, error) {
	return host.NewSpace(), func() error { return nil }, nil
}

// blind is a Space whose memory this process cannot read by itself, as a GPU's.
type blind struct{ client.Space }

func (s *service) offload(space func(string) (client.Space, func() error, error)) *offload.Offload {
	s.t.Helper()
	o, err := offload.New(offload.Config{Sockets: s.sockets, Space: space})
	require.NoError(s.t, err)
	return o
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// engine writes a layout on every GPU and sleeps, as an engine does.
type engine struct {
	clients []*client.Client
	maps    [][]*client.Mapping
	bytes   [][][]byte
}

func (s *service) engine() *engine {
	s.t.Helper()
	ctx := within(s.t)
	e := &engine{}
	random := rand.NewChaCha8([32]byte{7})
	for _, socket := range s.sockets {
		c, err := client.New(client.Config{Socket: socket, Space: host.NewSpace()})
		require.NoError(s.t, err)
		s.t.Cleanup(func() { _ = c.Close() })
		_, err = c.Connect(ctx, wire.RW, nil)
		require.NoError(s.t, err)
		var maps []*client.Mapping
		var all [][]byte
		for i, size := range []uint64{mib, 1, 3*64<<10 + 5, 200 << 10} {
			a, err := c.Session().Allocate(ctx, size, []string{"weights", "scales"}[i%2])
			require.NoError(s.t, err)
			if i == 1 { // freed again: slots have a hole then
				require.NoError(s.t, c.Session().Free(ctx, a.ID))
				continue
			}
			m, err := c.Map(ctx, a.ID)
			require.NoError(s.t, err)
			content := make([]byte, size)
			_, _ = random.Read(content)
			copy(m.Bytes(), content)
			maps, all = append(maps, m), append(all, content)
			require.NoError(s.t, c.Session().PutMetadata(ctx, fmt.Sprint("tensor", i), client.Metadata{AllocationID: a.ID, Offset: uint64(i), Value: []byte{byte(i), 0, 255}}))
		}
		_, err = c.Commit(ctx)
		require.NoError(s.t, err)
		e.clients, e.maps, e.bytes = append(e.clients, c), append(e.maps, maps), append(e.bytes, all)
	}
	return e
}

func (e *engine) sleep(t *testing.T) {
	t.Helper()
	for _, c := range e.clients {
		require.NoError(t, c.Unmap(within(t)))
	}
}

// wake checks that every byte is where it was.
func (e *engine) wake(t *testing.T) {
	t.Helper()
	for i, c := range e.clients {
		require.NoError(t, c.Remap(within(t)))
		for j, m := range e.maps[i] {
			require.Equal(t, e.bytes[i][j], m.Bytes())
			meta, found, err := c.Session().GetMetadata(within(t), fmt.Sprint("tensor", []int{0, 2, 3}[j]))
			require.NoError(t, err)
			require.True(t, found)
			require.Equal(t, m.Allocation().ID, meta.AllocationID)
		}
	}
}

// TestThereAndBack: an engine that slept through it all finds its bytes where they were.
func TestThereAndBack(t *testing.T) {
	for name, space := range map[string]func(string) (client.Space, func() error, error){
		"memory of this machine": hostSpace,
		"a GPU's": func(string) (client.Space, func() error, error) {
			return blind{host.NewSpace()}, func() error { return nil }, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t)
			o := s.offload(space)
			held, err := o.Look(within(t))
			require.NoError(t, err)
			require.Equal(t, offload.Nothing, held)
			_, err = o.Save(within(t))
			require.ErrorIs(t, err, offload.ErrNothing)

			e := s.engine()
			e.sleep(t)
			for range 2 {
				held, err = o.Look(within(t))
				require.NoError(t, err)
				require.Equal(t, offload.Whole, held)
				saved, err := o.Save(within(t))
				require.NoError(t, err)
				require.EqualValues(t, 2*(mib+3*64<<10+5+200<<10), saved.Bytes())
				vacates(t, o)
				s.free()
				held, err = o.Look(within(t))
				require.NoError(t, err)
				require.Equal(t, offload.Nothing, held)
				vacates(t, o) // there is nothing any more

				require.NoError(t, o.Restore(within(t), saved))
				require.NoError(t, saved.Free())
				require.Zero(t, saved.Bytes())
				e.wake(t)
				e.sleep(t)
			}
		})
	}
}

// TestOthersAreLeftAlone: two pairs of one model share the layout. One of them goes, as a
// reader, and neither waits for the other, awake or asleep, nor holds up its wake; the
// last one takes the layout along. Whoever comes back finds what is there.
func TestOthersAreLeftAlone(t *testing.T) {
	s := newService(t)
	o := s.offload(hostSpace)
	other, err := offload.New(offload.Config{Sockets: s.of("other"), Space: hostSpace})
	require.NoError(t, err)
	e := s.engine() // awake; it counts as the own group's
	ours, theirs := o.Hold(), other.Hold()
	held := func() {
		t.Helper()
		for i, b := range s.hosts {
			require.NotZero(t, b.Used(), i)
		}
	}
	refuses := func(o *offload.Offload) {
		t.Helper()
		began := time.Now()
		all, err := o.Vacate(within(t))
		require.NoError(t, err)
		require.False(t, all)
		require.Less(t, time.Since(began), patience/2, "it waits for nobody")
		held()
	}
	ours()
	refuses(o) // mapped by an engine
	e.sleep(t)
	refuses(o) // the other pair sleeps, and will wake
	saved, err := o.Save(within(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, saved.Free()) }()
	// The other pair wakes and sleeps meanwhile, and is held up by nobody.
	stop := make(chan struct{})
	var tries sync.WaitGroup
	tries.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = o.Vacate(within(t))
			}
		}
	})
	for range 20 {
		c, err := client.New(client.Config{Socket: s.of("other")[0], Space: host.NewSpace()})
		require.NoError(t, err)
		zero := 100 * time.Millisecond
		_, err = c.Connect(within(t), wire.RO, &zero)
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	close(stop)
	tries.Wait()

	require.NoError(t, o.Restore(within(t), saved), "what is there is the same")
	require.EqualValues(t, 0, events(t, s, wire.EventCleared))
	e.wake(t)
	e.sleep(t)
	theirs()
	vacates(t, other)
	s.free()
	require.NoError(t, o.Restore(within(t), saved))
	e.wake(t)
}

// events is how often something has happened to the first unit.
func events(t *testing.T, s *service, kind string) (n int) {
	t.Helper()
	conn, err := wire.Dial(s.node)
	require.NoError(t, err)
	defer conn.Close()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(patience)))
	require.NoError(t, conn.Write(&wire.OpenUnitRequest{GPU: "GPU-0", Tag: "m@1"}, -1))
	_, _, err = conn.Read(0, false)
	require.NoError(t, err)
	require.NoError(t, conn.Write(&wire.GetEventHistoryRequest{}, -1))
	m, _, err := conn.Read(0, false)
	require.NoError(t, err)
	for _, e := range m.(*wire.GetEventHistoryResponse).Events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// TestAnotherLayoutIsNotReplaced: one that was committed meanwhile.
func TestAnotherLayoutIsNotReplaced(t *testing.T) {
	s := newService(t)
	o := s.offload(hostSpace)
	e := s.engine()
	e.sleep(t)
	saved, err := o.Save(within(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, saved.Free()) }()
	vacates(t, o)
	c, err := client.New(client.Config{Socket: s.sockets[0], Space: host.NewSpace()})
	require.NoError(t, err)
	_, err = c.Connect(within(t), wire.RW, nil)
	require.NoError(t, err)
	_, err = c.Commit(within(t))
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.ErrorIs(t, o.Restore(within(t), saved), client.ErrStaleLayout)
}

// TestACrashInTheMiddle leaves a part, which the next one clears away.
func TestACrashInTheMiddle(t *testing.T) {
	s := newService(t)
	o := s.offload(hostSpace)
	e := s.engine()
	e.sleep(t)
	saved, err := o.Save(within(t))
	require.NoError(t, err)
	first, err := offload.New(offload.Config{Sockets: s.sockets[:1], Space: hostSpace})
	require.NoError(t, err)
	vacates(t, first)
	held, err := o.Look(within(t))
	require.NoError(t, err)
	require.Equal(t, offload.Partial, held)
	_, err = o.Save(within(t))
	require.ErrorIs(t, err, offload.ErrNothing)
	require.ErrorContains(t, first.Restore(within(t), saved), "the copy is of 2 GPUs, and there are 1")
	require.NoError(t, o.Restore(within(t), saved), "it replaces what there is")
	require.NoError(t, saved.Free())
	e.wake(t)
}

// TestALayoutThatGoesWhileItIsSaved: as when the service and its keeper are killed. Nobody writes it again
// while the pair goes to sleep, so there is nothing to wait for.
func TestALayoutThatGoesWhileItIsSaved(t *testing.T) {
	s := newService(t)
	s.engine().sleep(t)
	other := s.offload(hostSpace)
	var once sync.Once
	o := s.offload(func(string) (client.Space, func() error, error) { // it is called once the layout was seen
		once.Do(func() { vacates(t, other) })
		return host.NewSpace(), func() error { return nil }, nil
	})
	_, err := o.Save(within(t))
	require.ErrorIs(t, err, offload.ErrNothing)
}

// failing damages what is written.
type failing struct{ client.Space }

func (f failing) Write(addr uintptr, from []byte) error {
	bad := append([]byte(nil), from...)
	bad[len(bad)/2] ^= 1
	return f.Space.Write(addr, bad)
}

// TestNoWrongByteIsCommitted: a byte that differs on the GPU.
func TestNoWrongByteIsCommitted(t *testing.T) {
	s := newService(t)
	e := s.engine()
	e.sleep(t)
	saved, err := s.offload(hostSpace).Save(within(t))
	require.NoError(t, err)
	defer func() { require.NoError(t, saved.Free()) }()
	bad := s.offload(func(string) (client.Space, func() error, error) {
		return failing{host.NewSpace()}, func() error { return nil }, nil
	})
	vacates(t, bad)
	require.ErrorIs(t, bad.Restore(within(t), saved), offload.ErrDamaged)
	s.free() // the service hears of the end a moment after the client
	held, err := bad.Look(within(t))
	require.NoError(t, err)
	require.Equal(t, offload.Nothing, held)
	require.NoError(t, s.offload(hostSpace).Restore(within(t), saved))
	e.wake(t)
}

func TestServiceThatIsAway(t *testing.T) {
	o, err := offload.New(offload.Config{Sockets: []string{filepath.Join(t.TempDir(), "none.sock")}, Space: hostSpace})
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err = o.Look(ctx)
	require.ErrorContains(t, err, "none.sock")
	require.ErrorContains(t, err, "no such file")
	_, err = o.Save(ctx)
	require.ErrorContains(t, err, "none.sock")
}

// TestServiceThatRestarts: it is waited for, before the pair sleeps as well as before it wakes.
func TestServiceThatRestarts(t *testing.T) {
	s := newService(t)
	s.engine().sleep(t)
	o := s.offload(hostSpace)
	away := s.node + ".away"
	require.NoError(t, os.Rename(s.node, away))
	back := time.AfterFunc(50*time.Millisecond, func() { _ = os.Rename(away, s.node) })
	defer back.Stop()
	held, err := o.Look(within(t))
	require.NoError(t, err)
	require.Equal(t, offload.Whole, held)
	require.NoError(t, os.Rename(s.node, away))
	back.Reset(50 * time.Millisecond)
	saved, err := o.Save(within(t))
	require.NoError(t, err)
	require.NoError(t, saved.Free())
}

func TestConfigNamesEveryBadField(t *testing.T) {
	_, err := offload.New(offload.Config{})
	require.ErrorContains(t, err, "Sockets")
	require.ErrorContains(t, err, "Space")
}

// TestLeftovers: what engines that are gone have left is cleared, and nothing else.
func TestLeftovers(t *testing.T) {
	s := newService(t)
	o := s.offload(hostSpace)
	e := s.engine()
	left, err := o.Layouts(within(t))
	require.NoError(t, err)
	require.Len(t, left, 2)
	soon, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err = offload.Clear(soon, left[0])
	require.ErrorIs(t, err, client.ErrTimeout, "it is mapped")
	require.NotZero(t, s.hosts[0].Used())
	e.sleep(t)
	cleared, err := offload.Clear(within(t), offload.Layout{Socket: left[0].Socket, Hash: "another's"})
	require.NoError(t, err)
	require.False(t, cleared)
	for _, l := range left {
		cleared, err := offload.Clear(within(t), l)
		require.NoError(t, err)
		require.True(t, cleared)
	}
	s.free()
	cleared, err = offload.Clear(within(t), left[0])
	require.NoError(t, err)
	require.False(t, cleared)
	left, err = o.Layouts(within(t))
	require.NoError(t, err)
	require.Empty(t, left)
	_, err = offload.Clear(within(t), offload.Layout{Socket: filepath.Join(t.TempDir(), "none.sock"), Hash: "x"})
	require.ErrorContains(t, err, "none.sock")
}
