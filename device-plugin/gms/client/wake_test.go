package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
)

func TestSleepAndWake(t *testing.T) {
	backends(t, func(t *testing.T, library string) {
		w := newWorld(t, library, 0)
		w.serve(nil)
		ctx := testContext(t)
		writer, reader := w.client(nil), w.client(nil)
		mappings, hash := load(t, writer, 1, 3*mib, mib, 100)
		mappings = append(mappings, adopt(t, reader)...)
		where := addresses(mappings)
		for range 3 {
			require.NoError(t, writer.Unmap(ctx))
			require.NoError(t, reader.Unmap(ctx))
			assert.Nil(t, writer.Session())
			require.Eventually(t, func() bool {
				state, err := client.RuntimeState(ctx, w.socket)
				return err == nil && state.ROSessionCount == 0 && state.MemoryLayoutHash == hash
			}, deadline, tick, "sleepers hold no session")
			for _, m := range mappings {
				assert.Nil(t, m.Bytes())
				require.ErrorIs(t, m.Read(ctx, 0, make([]byte, 1)), client.ErrState)
			}
			require.NoError(t, writer.Remap(ctx))
			require.NoError(t, reader.Remap(ctx))
			assert.Equal(t, where, addresses(mappings))
			requireFilled(t, mappings[:3], 1)
			requireFilled(t, mappings[3:], 1)
			assert.Equal(t, wire.RO, writer.Session().Lock())
		}
	})
}

// A sleeper holds no memory: a new writer can have all of it.
func TestASleeperHoldsNoMemory(t *testing.T) {
	w := newWorld(t, "", 8*mib)
	w.serve(nil)
	ctx := testContext(t)
	sleeper, other := w.client(nil), w.client(nil)
	load(t, sleeper, 1, 8*mib)
	require.NoError(t, sleeper.Unmap(ctx))
	load(t, other, 2, 4*mib, 4*mib)
	require.ErrorIs(t, sleeper.Remap(ctx), client.ErrStaleLayout)
}

func TestWakeNeedsADeadline(t *testing.T) {
	w := newWorld(t, "", 0)
	stop := w.serve(nil)
	c := w.client(nil)
	load(t, c, 1, mib)
	require.NoError(t, c.Unmap(testContext(t)))
	require.ErrorIs(t, c.Remap(context.Background()), client.ErrNoDeadline)
	require.NoError(t, c.Remap(testContext(t)))
	stop()
	<-c.Session().Done()
	require.ErrorIs(t, c.Reconnect(context.Background()), client.ErrNoDeadline)
}

// What can go wrong at a wake, each with its error. Only what may still get better is waited
// for, and that as long as the context says.
func TestWakeFails(t *testing.T) {
	for name, tc := range map[string]struct {
		// during happens while the client sleeps.
		during func(t *testing.T, w *world, stop func())
		time   time.Duration
		want   error
	}{
		"the server has restarted and lost all": {
			during: func(_ *testing.T, w *world, stop func()) { stop(); w.serve(nil) },
			time:   never, want: client.ErrRestarted,
		},
		"restarted with another layout": {
			during: func(t *testing.T, w *world, stop func()) { stop(); w.serve(nil); load(t, w.client(nil), 2, mib) },
			time:   never, want: client.ErrStaleLayout,
		},
		"another layout was committed": {
			during: func(t *testing.T, w *world, _ func()) { load(t, w.client(nil), 2, 2*mib, 3*mib) },
			time:   never, want: client.ErrStaleLayout,
		},
		"a writer is at work": {
			during: func(t *testing.T, w *world, _ func()) { connect(t, w.client(nil), wire.RW, wire.RW) },
			time:   100 * time.Millisecond, want: client.ErrTimeout,
		},
		"the server is gone": {
			during: func(_ *testing.T, _ *world, stop func()) { stop() },
			time:   100 * time.Millisecond, want: client.ErrTimeout,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "", 0)
			stop := w.serve(nil)
			c := w.client(nil)
			mappings, _ := load(t, c, 1, 2*mib, mib)
			where := addresses(mappings)
			require.NoError(t, c.Unmap(testContext(t)))
			tc.during(t, w, stop)
			ctx, cancel := context.WithTimeout(context.Background(), tc.time)
			defer cancel()
			before := descriptors(t)
			require.ErrorIs(t, c.Remap(ctx), tc.want)
			require.Eventually(t, func() bool { return descriptors(t) <= before }, deadline, tick, "the server here closes its side a moment later")
			assert.Equal(t, where, addresses(mappings))
			for _, m := range mappings {
				assert.Nil(t, m.Bytes(), "it still sleeps")
			}
		})
	}
}

// The same weights, loaded anew by another engine, have the same hash: they are
// mapped where the old ones were.
func TestWakeOnTheSameLayoutLoadedAnew(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	ctx := testContext(t)
	c := w.client(nil)
	mappings, _ := load(t, c, 1, 2*mib, mib)
	id, where := mappings[0].Allocation().ID, addresses(mappings)
	require.NoError(t, c.Unmap(ctx))
	load(t, w.client(nil), 2, 2*mib, mib)
	require.NoError(t, c.Remap(ctx))
	requireFilled(t, mappings, 2)
	assert.Equal(t, where, addresses(mappings))
	assert.NotEqual(t, id, mappings[0].Allocation().ID)
	require.NoError(t, c.Unmap(ctx))
	require.NoError(t, c.Remap(ctx), "and once more, by the new IDs")
	requireFilled(t, mappings, 2)
}

// failing is a Space of which one Map fails, or hangs until it is released.
type failing struct {
	client.Space
	failAt      int
	hangs, hang chan struct{} // hangs is closed when Map hangs
}

var errMap = errors.New("told to fail")

func (f *failing) Map(addr uintptr, size uint64, fd int, writable bool) error {
	f.failAt--
	if f.failAt == 0 {
		if f.hang == nil {
			return errMap
		}
		close(f.hangs)
		<-f.hang
	}
	return f.Space.Map(addr, size, fd, writable)
}

func TestAWakeThatFailsHalfwayMapsNothing(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	ctx := testContext(t)
	space := &failing{Space: w.space}
	c := w.client(func(cfg *client.Config) { cfg.Space = space })
	mappings, _ := load(t, c, 1, mib, mib, mib)
	require.NoError(t, c.Unmap(ctx))
	for at := 1; at <= 3; at++ {
		space.failAt = at
		require.ErrorIs(t, c.Remap(ctx), errMap)
		for _, m := range mappings {
			assert.Nil(t, m.Bytes())
		}
		assert.Nil(t, c.Session())
	}
	require.NoError(t, c.Remap(ctx), "the addresses were left as they should be")
	requireFilled(t, mappings, 1)
}

func TestADriverThatHangsBreaksTheClient(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	space := &failing{Space: w.space, hangs: make(chan struct{}), hang: make(chan struct{})}
	defer close(space.hang)
	c := w.client(func(cfg *client.Config) { cfg.Space = space })
	load(t, c, 1, mib)
	require.NoError(t, c.Unmap(testContext(t)))
	space.failAt = 1
	err := c.Remap(endsWith{context.Background(), space.hangs})
	require.ErrorIs(t, err, client.ErrBroken)
	require.ErrorIs(t, err, client.ErrTimeout)
	require.ErrorIs(t, c.Remap(testContext(t)), client.ErrBroken)
	require.ErrorIs(t, c.Close(), client.ErrBroken, "what is mapped was not unmapped")
	require.NoError(t, c.Close())
}

// A process that maps memory keeps it, whatever the server does, until it dies.
func TestMemoryLivesUntilTheLastProcessIsGone(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	ctx := testContext(t)
	c := w.client(nil)
	load(t, c, 1, 3*mib, mib)
	reader, out := start(t, "reader", w.socket, "")
	_, err := out.ReadString('\n')
	require.NoError(t, err, "it has mapped everything")
	require.NoError(t, c.Close())
	require.EqualValues(t, 6*mib, w.backend.Used())

	// A writer clears the layout once the readers' sessions are over. This reader
	// goes on without one, as one does that a restart of the server has cut off.
	stopped := w.client(nil)
	waiting := make(chan error, 1)
	go func() {
		_, err := stopped.Connect(ctx, wire.RW, nil)
		waiting <- err
	}()
	require.Eventually(t, func() bool {
		s, err := client.RuntimeState(ctx, w.socket)
		return err == nil && s.WaitingWriters == 1
	}, deadline, tick)
	assert.EqualValues(t, 6*mib, w.backend.Used())
	kill(reader)
	require.NoError(t, <-waiting)
	require.Eventually(t, func() bool { return w.backend.Used() == 0 }, deadline, tick, "freed at its death")
}

// The service is killed while an engine is mapped and another sleeps; the keeper
// has the weights.
func TestAKilledServerLosesNothing(t *testing.T) {
	backends(t, func(t *testing.T, library string) {
		dir := shortDir(t)
		server, _ := start(t, "server", dir, library)
		w := &world{t: t, dir: dir, library: library, socket: gms.SocketPath(dir, uuid)}
		var err error
		w.space, err = makeSpace(library)
		require.NoError(t, err)
		ctx := testContext(t)
		awake, asleep := w.client(nil), w.client(nil)
		mappings, hash := load(t, awake, 1, 3*mib, mib)
		sleeping := adopt(t, asleep)
		where := addresses(sleeping)
		require.NoError(t, asleep.Unmap(ctx))
		nonce := awake.Session().Nonce()

		killService(t, server)
		<-awake.Session().Done()
		requireFilled(t, mappings, 1)
		began := time.Now()
		require.NoError(t, asleep.Remap(ctx))
		t.Logf("awake %s after the end of the service", time.Since(began))
		require.NoError(t, awake.Reconnect(ctx))
		assert.NotEqual(t, nonce, awake.Session().Nonce(), "it is another incarnation")
		assert.Equal(t, where, addresses(sleeping))
		requireFilled(t, sleeping, 1)
		requireFilled(t, mappings, 1)
		assert.Equal(t, hash, asleep.Hash())

		// Another process sees the same.
		_, out := start(t, "reader", w.socket, library)
		line, err := out.ReadString('\n')
		require.NoError(t, err)
		assert.Len(t, strings.Fields(line), 2)
	})
}

// With the keeper killed, a sleeper learns at once that its layout is lost.
func TestAKilledKeeper(t *testing.T) {
	dir := shortDir(t)
	server, _ := start(t, "server", dir, "")
	w := &world{t: t, dir: dir, socket: gms.SocketPath(dir, uuid)}
	var err error
	w.space, err = makeSpace("")
	require.NoError(t, err)
	ctx := testContext(t)
	awake, asleep := w.client(nil), w.client(nil)
	mappings, _ := load(t, awake, 1, mib)
	adopt(t, asleep)
	require.NoError(t, asleep.Unmap(ctx))
	kill(server)
	start(t, "server", dir, "")
	require.ErrorIs(t, asleep.Remap(ctx), client.ErrRestarted)
	<-awake.Session().Done()
	require.ErrorIs(t, awake.Reconnect(ctx), client.ErrRestarted)
	requireFilled(t, mappings, 1)
}

func TestReconnectTellsMemoryThatNobodyElseHas(t *testing.T) {
	w := newWorld(t, "", 0)
	stop := w.serve(nil)
	ctx := testContext(t)
	c := w.client(nil)
	load(t, c, 1, mib)
	stop()
	<-c.Session().Done()
	w.serve(nil)
	load(t, w.client(nil), 2, mib)
	// The hash is the same, the memory is not.
	require.ErrorIs(t, c.Reconnect(ctx), client.ErrStaleLayout)
	// The sleeper's rule is another: it may take the new memory.
	require.NoError(t, c.Unmap(ctx))
	require.NoError(t, c.Remap(ctx))
}
