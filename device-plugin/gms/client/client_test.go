package client_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/gmsserve"
)

func TestConfigNamesEveryBadField(t *testing.T) {
	_, err := client.New(client.Config{})
	for _, field := range []string{"Socket", "Space"} {
		require.ErrorContains(t, err, field)
	}
	_, err = client.Open(testContext(t), "s", client.Options{Lock: "x"})
	require.ErrorContains(t, err, "lock type")
}

func TestWriteCommitRead(t *testing.T) {
	backends(t, func(t *testing.T, library string) {
		w := newWorld(t, library, 0)
		w.serve(nil)
		ctx := testContext(t)
		writer, reader := w.client(nil), w.client(nil)
		mappings, hash := load(t, writer, 1, 3*mib, 100, 2*mib-5)
		assert.Equal(t, wire.RO, writer.Session().Lock(), "a writer goes on as a reader")
		assert.Equal(t, hash, writer.Hash())
		requireFilled(t, mappings, 1)
		require.Error(t, mappings[0].Write(ctx, 0, []byte("x")), "nothing is written after the commit")
		require.Error(t, mappings[0].Read(ctx, 3*mib-1, make([]byte, 2)), "over the end")
		require.Error(t, mappings[0].Read(ctx, 1<<63, make([]byte, 2)), "over the end")
		assert.EqualValues(t, 100, mappings[1].Size())

		read := adopt(t, reader)
		require.Len(t, read, 3)
		assert.Equal(t, hash, reader.Hash())
		requireFilled(t, read, 1)
		require.Error(t, read[0].Write(ctx, 0, []byte("x")), "a reader does not write")
		assert.NotEqual(t, mappings[0].Address(), read[0].Address())
		assert.EqualValues(t, 2, w.backend.Used()/(4*mib), "one copy: 8 MiB")

		m, found, err := reader.Session().GetMetadata(ctx, "tensor 2")
		require.NoError(t, err)
		require.True(t, found)
		assert.Equal(t, client.Metadata{AllocationID: read[2].Allocation().ID, Offset: (2*mib - 5) / 2, Value: []byte("f32")}, m)
		if library == "" {
			assert.Len(t, read[2].Bytes(), 2*mib-5)
		} else {
			assert.Nil(t, read[2].Bytes())
		}
		require.NoError(t, reader.Close())
		require.NoError(t, reader.Close(), "a second close does nothing")
		assert.Nil(t, read[2].Bytes())
		_, err = reader.Connect(ctx, wire.RO, nil)
		require.ErrorIs(t, err, client.ErrState)
	})
}

func TestSessionRequests(t *testing.T) {
	w := newWorld(t, "", 16*mib)
	w.serve(func(c *gms.Config) { c.OOMLimit, c.OOMRetry = 20*time.Millisecond, 5*time.Millisecond })
	ctx := testContext(t)
	s, err := client.Open(ctx, w.socket, client.Options{Lock: wire.Auto})
	require.NoError(t, err)
	require.Equal(t, wire.RW, s.Lock())
	require.NotEmpty(t, s.Nonce())
	a, err := s.Allocate(ctx, 100, "")
	require.NoError(t, err)
	assert.Equal(t, client.Allocation{ID: a.ID, Size: 100, Aligned: 2 * mib, Tag: wire.DefaultTag}, a)
	b, err := s.Allocate(ctx, 4*mib, "other")
	require.NoError(t, err)
	assert.EqualValues(t, 1, b.Slot)
	got, err := s.Get(ctx, b.ID)
	require.NoError(t, err)
	assert.Equal(t, b, got)
	list, err := s.List(ctx, "")
	require.NoError(t, err)
	assert.Equal(t, []client.Allocation{a, b}, list)
	list, err = s.List(ctx, "other")
	require.NoError(t, err)
	assert.Equal(t, []client.Allocation{b}, list)

	_, err = s.Allocate(ctx, 12*mib, "")
	require.ErrorIs(t, err, client.ErrOutOfMemory)
	_, err = s.Allocate(ctx, 1<<63, "")
	require.Error(t, err)
	var refused *client.RequestError
	_, err = s.Get(ctx, "nothing")
	require.ErrorAs(t, err, &refused)
	assert.EqualValues(t, wire.ErrorNotFound, refused.Code)
	require.Error(t, s.Free(ctx, "nothing"))
	_, _, err = s.Export(ctx, "nothing")
	require.ErrorAs(t, err, &refused)
	require.Error(t, s.PutMetadata(ctx, "k", client.Metadata{AllocationID: a.ID, Offset: 2 * mib}), "over the end")
	require.Error(t, s.PutMetadata(ctx, "k", client.Metadata{AllocationID: a.ID, Offset: 1 << 63}))

	require.NoError(t, s.PutMetadata(ctx, "k/2", client.Metadata{AllocationID: a.ID}))
	require.NoError(t, s.PutMetadata(ctx, "k/1", client.Metadata{AllocationID: b.ID, Offset: 7, Value: []byte{0}}))
	keys, err := s.ListMetadata(ctx, "k/")
	require.NoError(t, err)
	assert.Equal(t, []string{"k/1", "k/2"}, keys)
	deleted, err := s.DeleteMetadata(ctx, "k/2")
	require.NoError(t, err)
	assert.True(t, deleted)
	deleted, err = s.DeleteMetadata(ctx, "k/2")
	require.NoError(t, err)
	assert.False(t, deleted)
	_, found, err := s.GetMetadata(ctx, "k/2")
	require.NoError(t, err)
	assert.False(t, found)
	require.NoError(t, s.Free(ctx, b.ID))
	keys, err = s.ListMetadata(ctx, "")
	require.NoError(t, err)
	assert.Empty(t, keys, "they go with their allocation")
	count, err := s.AllocationCount(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 1, count)
	hash, err := s.LayoutHash(ctx)
	require.NoError(t, err)
	assert.Empty(t, hash)
	state, err := s.LockState(ctx)
	require.NoError(t, err)
	assert.Equal(t, wire.StateRW, state.State)
	require.NoError(t, s.Commit(ctx))
	<-s.Done()
	_, err = s.AllocationCount(ctx)
	require.ErrorIs(t, err, client.ErrClosed)

	runtime, err := client.RuntimeState(ctx, w.socket)
	require.NoError(t, err)
	assert.True(t, runtime.Committed)
	assert.Equal(t, s.Nonce(), runtime.Nonce)
	kinds := ""
	for _, e := range gmsserve.Events(t, w.socket) {
		kinds += e.Kind + " "
	}
	assert.Equal(t, "rw_connected allocation_oom committed ", kinds)
	_, err = client.RuntimeState(ctx, w.socket+"x")
	require.Error(t, err)
}

func TestOneSessionServesConcurrentCallers(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	ctx := testContext(t)
	c := w.client(nil)
	s := connect(t, c, wire.RW, wire.RW)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				a, err := s.Allocate(ctx, 1, fmt.Sprint(i))
				if !assert.NoError(t, err) {
					return
				}
				assert.Equal(t, fmt.Sprint(i), a.Tag)
				key := fmt.Sprintf("%d/%d", i, j)
				assert.NoError(t, s.PutMetadata(ctx, key, client.Metadata{AllocationID: a.ID, Value: []byte(key)}))
				m, err := c.Map(ctx, a.ID)
				if assert.NoError(t, err) {
					assert.NoError(t, m.Write(ctx, 0, []byte{byte(i)}))
				}
				got, _, err := s.GetMetadata(ctx, key)
				assert.NoError(t, err)
				assert.Equal(t, key, string(got.Value))
			}
		})
	}
	wg.Wait()
	_, err := c.Commit(ctx)
	require.NoError(t, err)
}

func TestForget(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	ctx := testContext(t)
	c := w.client(nil)
	s := connect(t, c, wire.RW, wire.RW)
	keep, err := s.Allocate(ctx, mib, "")
	require.NoError(t, err)
	drop, err := s.Allocate(ctx, mib, "")
	require.NoError(t, err)
	_, err = c.Map(ctx, keep.ID)
	require.NoError(t, err)
	m, err := c.Map(ctx, drop.ID)
	require.NoError(t, err)
	freed, err := s.Allocate(ctx, mib, "")
	require.NoError(t, err)
	left, err := c.Map(ctx, freed.ID)
	require.NoError(t, err)
	require.NoError(t, s.Free(ctx, freed.ID))
	_, err = c.Commit(ctx)
	require.ErrorIs(t, err, client.ErrState, "it could never be mapped again")
	require.NoError(t, c.Forget(ctx, left))
	require.NoError(t, c.Forget(ctx, m))
	require.ErrorIs(t, c.Forget(ctx, m), client.ErrState)
	require.ErrorIs(t, m.Write(ctx, 0, []byte("x")), client.ErrState)
	require.NoError(t, s.Free(ctx, drop.ID))
	require.Eventually(t, func() bool { return w.backend.Used() == 2*mib }, deadline, tick)
	_, err = c.Commit(ctx)
	require.NoError(t, err)
	require.NoError(t, c.Unmap(ctx))
	require.NoError(t, c.Remap(ctx))
}

func TestCallsThatDoNotFit(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	ctx := testContext(t)
	c := w.client(nil)
	fails := func(name string, err error) {
		t.Helper()
		require.ErrorIs(t, err, client.ErrState, name)
	}
	_, err := c.Map(ctx, "x")
	fails("map without a session", err)
	_, err = c.Commit(ctx)
	fails("commit without a session", err)
	fails("unmap without a layout", c.Unmap(ctx))
	fails("remap what does not sleep", c.Remap(ctx))
	fails("reconnect without a layout", c.Reconnect(ctx))
	mappings, _ := load(t, c, 1, mib)
	_, err = c.Connect(ctx, wire.RO, nil)
	fails("two sessions", err)
	_, err = c.Commit(ctx)
	fails("a reader's commit", err)
	fails("reconnect with a session", c.Reconnect(ctx))
	require.NoError(t, c.Unmap(ctx))
	require.NoError(t, c.Unmap(ctx), "a second unmap does nothing")
	_, err = c.Map(ctx, mappings[0].Allocation().ID)
	fails("map while asleep", err)
	_, err = c.Connect(ctx, wire.RO, nil)
	fails("connect while asleep", err)
	fails("read while asleep", mappings[0].Read(ctx, 0, make([]byte, 1)))
	require.NoError(t, c.Close())
	fails("remap after close", c.Remap(ctx))
}

// The shadow waits for the layout and gets it as soon as it is there.
func TestAReaderWaitsForTheCommit(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	ctx := testContext(t)
	writer, shadow := w.client(nil), w.client(nil)
	s := connect(t, writer, wire.Auto, wire.RW)
	granted := make(chan error, 1)
	go func() {
		_, err := shadow.Connect(ctx, wire.RO, nil)
		granted <- err
	}()
	_, err := s.Allocate(ctx, mib, "")
	require.NoError(t, err)
	select {
	case err := <-granted:
		t.Fatalf("granted before the commit: %v", err)
	default:
	}
	_, err = writer.Commit(ctx)
	require.NoError(t, err)
	require.NoError(t, <-granted)
	assert.Equal(t, writer.Hash(), shadow.Hash())
}

func TestLockTimeouts(t *testing.T) {
	w := newWorld(t, "", 0)
	w.serve(nil)
	connect(t, w.client(nil), wire.RW, wire.RW)
	limit := func(d time.Duration) *time.Duration { return &d }
	for name, tc := range map[string]struct {
		lock    wire.LockType
		timeout *time.Duration
		ctx     time.Duration
	}{
		"one try":         {wire.RW, limit(0), never},
		"negative":        {wire.Auto, limit(-1), never},
		"a short time":    {wire.RO, limit(20 * time.Millisecond), never},
		"by the context":  {wire.RO, nil, 50 * time.Millisecond},
		"context is less": {wire.RO, limit(never), 50 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			c := w.client(nil)
			_, err := c.Connect(announced{testContext(t), time.Now().Add(tc.ctx)}, tc.lock, tc.timeout)
			require.ErrorIs(t, err, client.ErrTimeout)
			var refused *client.HandshakeError
			require.ErrorAs(t, err, &refused, "the server itself tells")
			assert.Equal(t, wire.CodeTimeout, refused.Code)
		})
	}
}
