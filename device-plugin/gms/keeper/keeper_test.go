package keeper_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/keeper"
	gmssocket "remuda/device-plugin/gms/socket"
	processkit "remuda/internal/testkit/process"
)

func TestConfigNamesEveryBadField(t *testing.T) {
	_, err := keeper.New(keeper.Config{})
	for _, field := range []string{"Socket", "Stall", "Logger", "Limits.Records", "Limits.Blob", "Limits.Bytes", "Limits.Descriptors", "Limits.Connections"} {
		require.ErrorContains(t, err, field)
	}
	_, err = keeper.Open("", nil)
	require.Error(t, err)
	cfg := keeper.DefaultConfig()
	cfg.Socket = strings.Repeat("x", 108)
	_, err = keeper.New(cfg)
	require.ErrorContains(t, err, "choose a shorter one")
}

func TestSaveLoadDrop(t *testing.T) {
	for _, tc := range []struct {
		name       string
		bytes, fds int
	}{
		{"empty", 0, 0}, {"blob only", 7, 0}, {"descriptors only", 0, 3},
		{"one full packet", 60 << 10, 250}, {"one more than a packet", 60<<10 + 1, 251},
		{"many descriptors", 10, 1000}, {"large blob", 5 << 20, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := testContext(t)
			socket, stop := start(t, nil)
			c := open(t, socket)
			_, _, found, err := c.Load(ctx, "r")
			require.NoError(t, err)
			require.False(t, found)
			blob := make([]byte, tc.bytes)
			for i := range blob {
				blob[i] = byte(rand.Uint32())
			}
			fds := files(t, 0, tc.fds)
			require.NoError(t, c.Save(ctx, "r", blob, fds))
			closeAll(t, fds)
			for range 2 {
				got, fds, found, err := c.Load(ctx, "r")
				require.NoError(t, err)
				require.True(t, found)
				require.True(t, bytes.Equal(blob, got))
				requireFiles(t, fds, 0, tc.fds)
				closeAll(t, fds)
			}
			have(t, os.Getpid(), tc.fds)
			require.NoError(t, c.Drop(ctx, "r"))
			require.NoError(t, c.Drop(ctx, "r"), "an unknown name is no error")
			_, _, found, err = c.Load(ctx, "r")
			require.NoError(t, err)
			require.False(t, found)
			have(t, os.Getpid(), 0)
			stop()
		})
	}
}

func TestReplaceClosesTheOldRecord(t *testing.T) {
	ctx := testContext(t)
	socket, _ := start(t, nil)
	c := open(t, socket)
	for i := range 5 {
		fds := files(t, 100*i, 300)
		require.NoError(t, c.Save(ctx, "r", fmt.Append(nil, i), fds))
		closeAll(t, fds)
		have(t, os.Getpid(), 300)
	}
	blob, fds, found, err := c.Load(ctx, "r")
	require.NoError(t, err)
	require.True(t, found)
	assert.Equal(t, "4", string(blob))
	requireFiles(t, fds, 400, 300)
	closeAll(t, fds)
}

func TestStopClosesEverything(t *testing.T) {
	ctx := testContext(t)
	socket, stop := start(t, nil)
	c := open(t, socket)
	fds := files(t, 0, 10)
	require.NoError(t, c.Save(ctx, "r", nil, fds))
	stop()
	assert.Equal(t, 10, descriptors(t, os.Getpid()), "ours are left")
	closeAll(t, fds)
	_, err := os.Stat(socket)
	require.ErrorIs(t, err, os.ErrNotExist)
}

func TestConcurrentSavesAndLoadsSeeWholeRecords(t *testing.T) {
	ctx := testContext(t)
	socket, _ := start(t, nil)
	c := open(t, socket)
	const n = 260
	save := func(i int) {
		fds := files(t, i*1000, n)
		assert.NoError(t, c.Save(ctx, "r", binary.BigEndian.AppendUint32(nil, uint32(i)), fds))
		closeAll(t, fds)
	}
	save(0)
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Go(func() {
			for i := range 10 {
				save(10*w + i)
			}
		})
		wg.Go(func() {
			for range 15 {
				blob, fds, found, err := c.Load(ctx, "r")
				if assert.NoError(t, err) && assert.True(t, found) {
					requireFiles(t, fds, int(binary.BigEndian.Uint32(blob))*1000, n)
				}
				closeAll(t, fds)
			}
		})
	}
	wg.Wait()
	have(t, os.Getpid(), n)
}

// A keeper that nobody can reach ends, so that it is started again.
func TestAKeeperWhoseSocketIsRemovedEnds(t *testing.T) {
	cfg := keeper.DefaultConfig()
	cfg.Socket = filepath.Join(t.TempDir(), "k.sock")
	k, err := keeper.New(cfg)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- k.Run(testContext(t)) }()
	fds := files(t, 0, 1)
	require.NoError(t, open(t, cfg.Socket).Save(testContext(t), "r", nil, fds))
	closeAll(t, fds)
	require.NoError(t, os.Remove(cfg.Socket))
	select {
	case err := <-done:
		require.ErrorContains(t, err, "was removed or replaced")
		have(t, os.Getpid(), 0)
	case <-time.After(deadline):
		t.Fatal("it goes on")
	}
}

func TestAStalledClientIsCutOff(t *testing.T) {
	socket, _ := start(t, func(c *keeper.Config) { c.Stall = 50 * time.Millisecond })
	idle := dial(t, socket)
	r := dial(t, socket)
	r.write(saveRequest("r", 10, 10))
	r.write([]byte("D1"), files(t, 0, 1)...)
	r.ended()
	have(t, os.Getpid(), 0)
	idle.write([]byte("Xnothing"))
	assert.Equal(t, "k", string(idle.read()), "one that asks for nothing is not stalled")
}

func TestLimits(t *testing.T) {
	ctx := testContext(t)
	socket, _ := start(t, func(c *keeper.Config) {
		c.Limits = keeper.Limits{Records: 2, Blob: 1000, Bytes: 1500, Descriptors: 10, Connections: 4}
	})
	c := open(t, socket)
	refused := func(err error, about string) {
		t.Helper()
		var r *keeper.RefusedError
		require.ErrorAs(t, err, &r)
		require.Contains(t, r.Reason, about)
	}
	fds := files(t, 0, 6)
	refused(c.Save(ctx, "a", make([]byte, 1001), nil), "over the keeper's limit of 1000")
	require.NoError(t, c.Save(ctx, "a", make([]byte, 1000), nil))
	refused(c.Save(ctx, "b", make([]byte, 501), nil), "over its limit of 1500")
	refused(c.Save(ctx, "a", make([]byte, 501), nil), "over its limit of 1500")
	require.NoError(t, c.Drop(ctx, "a"))
	require.NoError(t, c.Save(ctx, "a", nil, fds))
	refused(c.Save(ctx, "a", nil, fds[:5]), "over its limit of 10")
	require.NoError(t, c.Save(ctx, "b", nil, fds[:4]))
	refused(c.Save(ctx, "c", nil, nil), "its limit")
	require.NoError(t, c.Drop(ctx, "b"))
	require.NoError(t, c.Save(ctx, "a", nil, fds[:4]), "there is room for both now")
	require.Error(t, c.Save(ctx, "", nil, nil))
	require.Error(t, c.Save(ctx, string(make([]byte, keeper.MaxName+1)), nil, nil))
	require.NoError(t, c.Save(ctx, string(make([]byte, keeper.MaxName)), nil, nil))
	have(t, os.Getpid(), 6+4)
	closeAll(t, fds)

	// One of the four connections is the client's, and its last calls' may be
	// closing yet.
	greeted := func() *net.UnixConn {
		conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		require.NoError(t, err)
		require.NoError(t, conn.SetDeadline(time.Now().Add(deadline)))
		t.Cleanup(func() { _ = conn.Close() })
		n, err := conn.Read(make([]byte, 100))
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		if n == 0 || err != nil {
			return nil
		}
		return conn
	}
	for range 3 {
		require.Eventually(t, func() bool { return greeted() != nil }, deadline, tick)
	}
	require.Nil(t, greeted(), "a fifth is cut off at once")
}

func TestCallsHonourTheirContext(t *testing.T) {
	c := open(t, filepath.Join(t.TempDir(), "none.sock"))
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Save(ctx, "r", nil, nil), context.DeadlineExceeded)
	require.ErrorContains(t, c.Drop(ctx, "r"), "drop")
	_, _, _, err := c.Load(ctx, "r")
	require.ErrorIs(t, err, context.DeadlineExceeded)

	// A keeper that is stopped answers nothing.
	socket := filepath.Join(t.TempDir(), "k.sock")
	process := startProcess(t, socket)
	c = open(t, socket)
	require.NoError(t, c.Save(testContext(t), "r", []byte("x"), nil))
	require.NoError(t, processkit.Freeze(process.Process.Pid))
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", process.Process.Pid))
		return err == nil && bytes.Contains(stat, []byte(") T "))
	}, deadline, tick, "it has stopped")
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, _, _, err = c.Load(ctx, "r")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, process.Process.Signal(unix.SIGCONT))
	blob, _, _, err := c.Load(testContext(t), "r")
	require.NoError(t, err)
	assert.Equal(t, "x", string(blob))
}

func TestLiveSocketIsNotTaken(t *testing.T) {
	run := func(socket string) error {
		cfg := keeper.DefaultConfig()
		cfg.Socket = socket
		k, err := keeper.New(cfg)
		require.NoError(t, err)
		return k.Run(testContext(t))
	}
	socket, _ := start(t, nil)
	info, err := os.Stat(socket)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.ErrorIs(t, run(socket), gmssocket.ErrInUse, "a keeper's")
	require.NoError(t, os.Remove(socket+".lock"))
	require.ErrorIs(t, run(socket), gmssocket.ErrInUse, "one whose lock file was removed")
	require.NoError(t, open(t, socket).Save(testContext(t), "r", nil, nil), "it was not harmed")

	other := filepath.Join(t.TempDir(), "stream.sock")
	l, err := net.Listen("unix", other)
	require.NoError(t, err)
	defer l.Close()
	require.ErrorIs(t, run(other), gmssocket.ErrInUse, "another program's")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, run(file), "not a socket")
}

func TestAKilledKeeperIsNoticedAndFilledAgain(t *testing.T) {
	ctx := testContext(t)
	socket := filepath.Join(t.TempDir(), "k.sock")
	first := startProcess(t, socket)
	c := open(t, socket)
	fds := files(t, 0, 300)
	defer closeAll(t, fds)
	require.NoError(t, c.Save(ctx, "r", []byte("blob"), fds))
	have(t, first.Process.Pid, 300)
	select {
	case <-c.Lost():
		t.Fatal("the first keeper lacks nothing")
	default:
	}
	kill(first)
	second := startProcess(t, socket)
	select {
	case <-c.Lost():
	case <-ctx.Done():
		t.Fatal("nobody told")
	}
	_, _, found, err := c.Load(ctx, "r")
	require.NoError(t, err)
	assert.False(t, found)
	require.NoError(t, c.Save(ctx, "r", []byte("blob"), fds))
	have(t, second.Process.Pid, 300)
	select {
	case <-c.Lost():
		t.Fatal("told twice")
	default:
	}
}

func TestAKeeperThatComesLateAsksForWhatFailed(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "k.sock")
	c := open(t, socket)
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	require.Error(t, c.Save(short, "r", nil, nil))
	startProcess(t, socket)
	select {
	case <-c.Lost():
	case <-testContext(t).Done():
		t.Fatal("nobody told")
	}
}

// A server that comes back asks for thousands of descriptors at once.
func TestThousandsOfDescriptors(t *testing.T) {
	const n = 4000
	ctx := testContext(t)
	socket := filepath.Join(t.TempDir(), "k.sock")
	process := startProcess(t, socket)
	c := open(t, socket)
	fds := files(t, 0, n)
	blob := make([]byte, 1<<20)
	require.NoError(t, c.Save(ctx, "r", blob, fds))
	closeAll(t, fds)
	have(t, process.Process.Pid, n)
	_, fds, _, err := open(t, socket).Load(ctx, "r")
	require.NoError(t, err)
	requireFiles(t, fds, 0, n)
	closeAll(t, fds)
}
