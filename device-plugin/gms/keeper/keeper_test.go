package keeper_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/keeper"
)

const (
	// deadline is far more than anything here takes.
	deadline = 10 * time.Second
	tick     = time.Millisecond
)

// keeperEnv makes this program a keeper at the socket that it names.
const keeperEnv = "REMUDA_TEST_KEEPER"

func TestMain(m *testing.M) {
	if socket := os.Getenv(keeperEnv); socket != "" {
		cfg := keeper.DefaultConfig()
		cfg.Socket = socket
		k, err := keeper.New(cfg)
		if err == nil {
			err = k.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// start runs a keeper in this process. What change does to its config counts.
func start(t *testing.T, change func(*keeper.Config)) (socket string, stop func()) {
	t.Helper()
	cfg := keeper.DefaultConfig()
	cfg.Socket = filepath.Join(t.TempDir(), "k.sock")
	if change != nil {
		change(&cfg)
	}
	k, err := keeper.New(cfg)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			assert.NoError(t, <-done)
		})
	}
	t.Cleanup(stop)
	require.Eventually(t, func() bool { _, err := os.Stat(cfg.Socket); return err == nil }, deadline, tick)
	return cfg.Socket, stop
}

// startProcess runs a keeper in a process of its own.
func startProcess(t *testing.T, socket string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), keeperEnv+"="+socket)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	return cmd
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func open(t *testing.T, socket string) *keeper.Client {
	t.Helper()
	c, err := keeper.Open(socket, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// files makes n descriptors, each of a file that holds its number from first on.
func files(t *testing.T, first, n int) []int {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fd, err := unix.MemfdCreate("kept", unix.MFD_CLOEXEC)
		require.NoError(t, err)
		_, err = unix.Pwrite(fd, binary.BigEndian.AppendUint32(nil, uint32(first+i)), 0)
		require.NoError(t, err)
		fds[i] = fd
	}
	return fds
}

func closeAll(t *testing.T, fds []int) {
	t.Helper()
	for _, fd := range fds {
		require.NoError(t, unix.Close(fd))
	}
}

// requireFiles checks what files made, and that exec closes the descriptors.
func requireFiles(t *testing.T, fds []int, first, n int) {
	t.Helper()
	require.Len(t, fds, n)
	for i, fd := range fds {
		buf := make([]byte, 4)
		_, err := unix.Pread(fd, buf, 0)
		require.NoError(t, err)
		require.EqualValues(t, first+i, binary.BigEndian.Uint32(buf), "the order is kept")
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
	}
}

// descriptors counts the memfds of files that a process has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	n := 0
	for _, e := range list {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && to == "/memfd:kept (deleted)" {
			n++
		}
	}
	return n
}

// have waits until a process has n of the memfds open.
func have(t *testing.T, pid, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return descriptors(t, pid) == n }, deadline, tick, "memfds: %d, want %d", descriptors(t, pid), n)
}

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

// raw is a connection that keeps to nothing.
type raw struct {
	t *testing.T
	c *net.UnixConn
}

func dial(t *testing.T, socket string) *raw {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
	require.NoError(t, err)
	require.NoError(t, c.SetDeadline(time.Now().Add(deadline)))
	t.Cleanup(func() { _ = c.Close() })
	r := &raw{t, c}
	require.Equal(t, byte('H'), r.read()[0])
	return r
}

func (r *raw) read() []byte {
	r.t.Helper()
	buf := make([]byte, 1<<16)
	n, err := r.c.Read(buf)
	require.NoError(r.t, err)
	return buf[:n]
}

// write sends one packet with descriptors, which are closed here.
func (r *raw) write(packet []byte, fds ...int) {
	r.t.Helper()
	_, _, err := r.c.WriteMsgUnix(packet, unix.UnixRights(fds...), nil)
	require.NoError(r.t, err)
	closeAll(r.t, fds)
}

// empty sends a packet of no bytes with descriptors, which are closed here. Package
// net would add a byte.
func (r *raw) empty(fds ...int) {
	r.t.Helper()
	control := unix.UnixRights(fds...)
	msg := unix.Msghdr{Control: &control[0]}
	msg.SetControllen(len(control))
	conn, err := r.c.SyscallConn()
	require.NoError(r.t, err)
	require.NoError(r.t, conn.Control(func(fd uintptr) {
		_, _, errno := unix.Syscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&msg)), 0)
		require.Zero(r.t, errno)
	}))
	closeAll(r.t, fds)
}

// ended waits until the keeper has closed the connection.
func (r *raw) ended() {
	r.t.Helper()
	for {
		n, err := r.c.Read(make([]byte, 1<<16))
		if n == 0 || err != nil {
			require.NotErrorIs(r.t, err, os.ErrDeadlineExceeded)
			return
		}
	}
}

func saveRequest(name string, size uint64, fds uint32) []byte {
	b := binary.BigEndian.AppendUint64([]byte{'S'}, size)
	return append(binary.BigEndian.AppendUint32(b, fds), name...)
}

func TestAClientThatDiesInASaveChangesNothing(t *testing.T) {
	ctx := testContext(t)
	socket, _ := start(t, nil)
	c := open(t, socket)
	old := files(t, 0, 5)
	require.NoError(t, c.Save(ctx, "r", []byte("old"), old))
	closeAll(t, old)
	for name, during := range map[string]func(*raw){
		"after the request":   func(*raw) {},
		"after descriptors":   func(r *raw) { r.write([]byte("D"), files(t, 50, 200)...) },
		"after bytes":         func(r *raw) { r.write([]byte("Dnew")) },
		"before the last one": func(r *raw) { r.write([]byte("Dne"), files(t, 50, 250)...) },
	} {
		t.Run(name, func(t *testing.T) {
			r := dial(t, socket)
			r.write(saveRequest("r", 4, 251))
			require.Equal(t, "k", string(r.read()))
			during(r)
			require.NoError(t, r.c.Close())
			have(t, os.Getpid(), 5)
			blob, fds, found, err := c.Load(ctx, "r")
			require.NoError(t, err)
			require.True(t, found)
			assert.Equal(t, "old", string(blob))
			requireFiles(t, fds, 0, 5)
			closeAll(t, fds)
		})
	}
}

func TestBrokenProtocolIsCutOffAndLeaksNothing(t *testing.T) {
	begin := func(r *raw, size uint64, fds uint32) {
		r.write(saveRequest("r", size, fds))
		require.Equal(t, "k", string(r.read()))
	}
	for name, do := range map[string]func(*raw){
		"unknown packet":             func(r *raw) { r.write([]byte("?")) },
		"descriptors on an unknown":  func(r *raw) { r.write([]byte("?"), files(t, 0, 50)...) },
		"descriptors on a drop":      func(r *raw) { r.write([]byte("Xr"), files(t, 0, 1)...) },
		"descriptors on a load":      func(r *raw) { r.write([]byte("Lr"), files(t, 0, 2)...) },
		"descriptors on a save":      func(r *raw) { r.write(saveRequest("r", 0, 2), files(t, 0, 2)...) },
		"253 descriptors on a drop":  func(r *raw) { r.write([]byte("Xr"), files(t, 0, 253)...) },
		"short save":                 func(r *raw) { r.write([]byte("S1234")) },
		"data without a save":        func(r *raw) { r.write([]byte("Dxyz"), files(t, 0, 1)...) },
		"next without a load":        func(r *raw) { r.write([]byte("N")) },
		"an answer":                  func(r *raw) { r.write([]byte("k")) },
		"more descriptors than said": func(r *raw) { begin(r, 0, 2); r.write([]byte("D"), files(t, 0, 3)...) },
		"more bytes than said":       func(r *raw) { begin(r, 2, 2); r.write([]byte("Dxyz"), files(t, 0, 2)...) },
		"nothing in a save":          func(r *raw) { begin(r, 1, 1); r.write([]byte("D")) },
		"another request in a save":  func(r *raw) { begin(r, 1, 1); r.write([]byte("Lr"), files(t, 0, 1)...) },
		"an end in the midst of one": func(r *raw) { begin(r, 9, 9); r.write([]byte("D1"), files(t, 0, 1)...); r.c.CloseWrite() },
		"a packet that is too long":  func(r *raw) { r.write(append([]byte("L"), make([]byte, 70<<10)...)) },
		"too long inside of a save": func(r *raw) {
			begin(r, 1<<20, 1)
			r.write(append([]byte("D"), make([]byte, 70<<10)...), files(t, 0, 1)...)
		},
		"an empty packet":                  func(r *raw) { r.write(nil) },
		"253 descriptors on no byte":       func(r *raw) { r.empty(files(t, 0, 253)...) },
		"descriptors on no byte in a save": func(r *raw) { begin(r, 1, 1); r.empty(files(t, 0, 1)...) },
		"a different packet in a load": func(r *raw) {
			begin(r, 1, 0)
			r.write([]byte("D1"))
			require.Equal(t, "k", string(r.read()))
			r.write([]byte("Lr"))
			require.Equal(t, byte('f'), r.read()[0])
			r.write([]byte("Lr"), files(t, 0, 1)...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			reg := prometheus.NewRegistry()
			socket, _ := start(t, func(c *keeper.Config) { c.Metrics = reg })
			r := dial(t, socket)
			do(r)
			r.ended()
			have(t, os.Getpid(), 0)
			c := open(t, socket)
			require.NoError(t, c.Save(testContext(t), "other", []byte("x"), nil), "it serves on")
			require.Eventually(t, func() bool {
				return value(t, reg, "remuda_gms_keeper_descriptors") == 0
			}, deadline, tick)
		})
	}
}

func value(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	all, err := reg.Gather()
	require.NoError(t, err)
	for _, f := range all {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}

// What is no fault is not counted as one, nor logged: the end of a call, and a look
// whether the keeper is there.
func TestOrdinaryEndsAreNotFaults(t *testing.T) {
	reg := prometheus.NewRegistry()
	var log bytes.Buffer
	socket, stop := start(t, func(c *keeper.Config) {
		c.Metrics, c.Logger = reg, hclog.New(&hclog.LoggerOptions{Output: &log, Level: hclog.Warn})
	})
	c := open(t, socket)
	require.NoError(t, c.Save(testContext(t), "r", []byte("x"), nil))
	require.NoError(t, c.Close())
	for range 20 {
		look, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: socket, Net: "unixpacket"})
		require.NoError(t, err)
		require.NoError(t, look.Close())
	}
	r := dial(t, socket)
	r.write([]byte("Lr"))
	r.read()
	require.NoError(t, r.c.Close()) // in the middle of a load
	require.Eventually(t, func() bool { return value(t, reg, "remuda_gms_keeper_connections_cut_total") == 1 }, deadline, tick)
	stop()
	assert.Equal(t, 1.0, value(t, reg, "remuda_gms_keeper_connections_cut_total"))
	assert.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), "%s", &log)
}

// A keeper that hangs does not do afterwards what was called off meanwhile: a later
// call may have been answered first.
func TestWhatWasCalledOffIsNotDoneLater(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "k.sock")
	process := startProcess(t, socket)
	c := open(t, socket)
	require.NoError(t, c.Save(testContext(t), "kept", []byte("x"), nil))
	save, drop := dial(t, socket), dial(t, socket)
	save.write(saveRequest("late", 1, 1))
	require.Equal(t, "k", string(save.read()))
	require.NoError(t, process.Process.Signal(unix.SIGSTOP))
	save.write([]byte("D1"), files(t, 0, 1)...)
	drop.write([]byte("Xkept"))
	require.NoError(t, save.c.Close())
	require.NoError(t, drop.c.Close())
	require.NoError(t, process.Process.Signal(unix.SIGCONT))
	have(t, process.Process.Pid, 0)
	_, _, found, err := c.Load(testContext(t), "late")
	require.NoError(t, err)
	assert.False(t, found, "the save was called off")
	_, _, found, err = c.Load(testContext(t), "kept")
	require.NoError(t, err)
	assert.True(t, found, "the drop was called off")
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
	require.NoError(t, process.Process.Signal(unix.SIGSTOP))
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
	require.ErrorIs(t, run(socket), keeper.ErrSocketInUse, "a keeper's")
	require.NoError(t, os.Remove(socket+".lock"))
	require.ErrorIs(t, run(socket), keeper.ErrSocketInUse, "one whose lock file was removed")
	require.NoError(t, open(t, socket).Save(testContext(t), "r", nil, nil), "it was not harmed")

	other := filepath.Join(t.TempDir(), "stream.sock")
	l, err := net.Listen("unix", other)
	require.NoError(t, err)
	defer l.Close()
	require.ErrorIs(t, run(other), keeper.ErrSocketInUse, "another program's")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, run(file), "no socket")
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
func TestLoadIsFast(t *testing.T) {
	const n = 4000
	ctx := testContext(t)
	socket := filepath.Join(t.TempDir(), "k.sock")
	process := startProcess(t, socket)
	c := open(t, socket)
	fds := files(t, 0, n)
	blob := make([]byte, 1<<20)
	began := time.Now()
	require.NoError(t, c.Save(ctx, "r", blob, fds))
	saved := time.Since(began)
	closeAll(t, fds)
	have(t, process.Process.Pid, n)
	began = time.Now()
	_, fds, _, err := open(t, socket).Load(ctx, "r")
	require.NoError(t, err)
	loaded := time.Since(began)
	requireFiles(t, fds, 0, n)
	closeAll(t, fds)
	t.Logf("%d descriptors: saved in %s, loaded in %s", n, saved, loaded)
	assert.Less(t, loaded, 500*time.Millisecond)
}

// FuzzServe sends packets of any bytes, some with a descriptor.
func FuzzServe(f *testing.F) {
	f.Add([]byte("\x11S\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x01name\x82Dx"))
	f.Add([]byte("\x05Lname\x01N\x05Xname"))
	f.Add([]byte("\x81?\x00\x01S"))
	cfg := keeper.DefaultConfig()
	cfg.Socket = filepath.Join(f.TempDir(), "k.sock")
	k, err := keeper.New(cfg)
	require.NoError(f, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	f.Cleanup(func() { cancel(); require.NoError(f, <-done) })
	require.Eventually(f, func() bool { _, err := os.Stat(cfg.Socket); return err == nil }, deadline, tick)
	f.Fuzz(func(t *testing.T, script []byte) {
		r := dial(t, cfg.Socket)
		defer r.c.Close()
		names := 0
		for len(script) > 0 && names < 100 {
			n, with := min(int(script[0]&0x7f), len(script)-1), script[0]&0x80 != 0
			packet := script[1 : 1+n]
			script = script[1+n:]
			names++
			var rights []byte
			var fds []int
			if with {
				fds = files(t, 0, 1)
				rights = unix.UnixRights(fds...)
			}
			_, _, err := r.c.WriteMsgUnix(packet, rights, nil)
			closeAll(t, fds)
			if err != nil {
				break // cut off, as it should be
			}
		}
		require.NoError(t, r.c.CloseWrite())
		r.ended()
		c := dial(t, cfg.Socket) // it serves on
		defer c.c.Close()
		c.write([]byte("Xnothing"))
		require.Equal(t, "k", string(c.read()))
	})
}
