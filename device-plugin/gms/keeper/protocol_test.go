package keeper_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/keeper"
	processkit "remuda/internal/testkit/process"
)

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
	require.NoError(t, processkit.Freeze(process.Process.Pid))
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
