package client_test

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend"
	"remuda/device-plugin/gms/backend/cuda"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/keeper"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/testkit/cudatest"
	"remuda/internal/testkit/gmsserve"
	"remuda/internal/testkit/process"
)

const (
	mib = 1 << 20
	// deadline is far more than anything here takes.
	deadline = time.Minute
	tick     = time.Millisecond
)

// never is the deadline of a call that must return by itself, long before: the test binary
// is stopped first.
const never = 24 * time.Hour

// announced is a context with a deadline at which it does not end. What a server does with
// the deadline that it is told is seen however slow the machine is.
type announced struct {
	context.Context
	at time.Time
}

func (a announced) Deadline() (time.Time, bool) { return a.at, true }

// endsWith is a context whose deadline passes when the channel is closed.
type endsWith struct {
	context.Context
	done <-chan struct{}
}

func (e endsWith) Deadline() (time.Time, bool) { return time.Now().Add(never), true }
func (e endsWith) Done() <-chan struct{}       { return e.done }

func (e endsWith) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

var uuid = cudatest.UUIDs[0]

// roleEnv makes this program another one: "server DIR LIBRARY", which is a keeper with
// the service as its child, or "reader SOCKET LIBRARY". LIBRARY is empty for the host
// backend.
const roleEnv = "REMUDA_TEST_CLIENT_ROLE"

// serviceArg is the first argument of the keeper's child.
const serviceArg = "service"

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	args := strings.Split(role, " ")
	var err error
	switch {
	case len(os.Args) > 1 && os.Args[1] == serviceArg:
		err = serviceMain(args[1], args[2])
	case args[0] == "server":
		cfg := keeper.DefaultConfig()
		cfg.ServiceArgs, cfg.Program = []string{serviceArg}, os.Args[0]
		var k *keeper.Keeper
		if k, err = keeper.New(cfg); err == nil {
			err = k.Run(context.Background())
		}
	case args[0] == "reader":
		err = readerMain(args[1], args[2])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serviceMain(dir, library string) error {
	b, err := makeBackend(library, 0)
	if err != nil {
		return err
	}
	k, kept, err := keeper.Connect(keeper.FD)
	if err != nil {
		return err
	}
	cfg := gms.DefaultConfig()
	cfg.SocketDir, cfg.GPUs, cfg.Keeper, cfg.Kept = dir, []gms.GPU{{UUID: uuid, Backend: b}}, k, kept
	cfg.OnReady = func() { _ = k.Ready() }
	s, err := gms.New(cfg)
	if err != nil {
		return err
	}
	return s.Run(context.Background())
}

// killService kills the keeper's child.
func killService(t *testing.T, server *exec.Cmd) {
	t.Helper()
	pid := process.Child(server.Process.Pid)
	require.NoError(t, unix.Kill(pid, unix.SIGKILL))
}

// readerMain maps everything, says what is there, and stays until its input ends.
func readerMain(socket, library string) error {
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	space, err := makeSpace(library)
	if err != nil {
		return err
	}
	c, err := client.New(client.Config{Socket: socket, Space: space})
	if err != nil {
		return err
	}
	if _, err := c.Connect(ctx, wire.RO, nil); err != nil {
		return err
	}
	list, err := c.Session().List(ctx, "")
	if err != nil {
		return err
	}
	for _, a := range list {
		m, err := c.Map(ctx, a.ID)
		if err != nil {
			return err
		}
		first := make([]byte, 8)
		if err := m.Read(ctx, 0, first); err != nil {
			return err
		}
		fmt.Printf("%s ", hex.EncodeToString(first))
	}
	fmt.Println()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func makeBackend(library string, capacity uint64) (backend.Backend, error) {
	if library == "" {
		return host.New(host.Config{Capacity: capacity})
	}
	return cuda.New(cuda.Config{Library: library, GPU: uuid})
}

func makeSpace(library string) (client.Space, error) {
	if library == "" {
		return host.NewSpace(), nil
	}
	return cuda.NewSpace(cuda.Config{Library: library, GPU: uuid})
}

// start starts this program in another role.
func start(t testing.TB, role ...string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+strings.Join(role, " "))
	cmd.Stderr = os.Stderr
	_, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() { kill(cmd) })
	return cmd, bufio.NewReader(out)
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	t.Cleanup(cancel)
	return ctx
}

// world is one GPU with a server, in this process.
type world struct {
	t       *testing.T
	dir     string
	library string
	socket  string
	backend backend.Backend
	space   client.Space
}

// shortDir is a directory whose path leaves room for a socket's name.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func newWorld(t *testing.T, library string, capacity uint64) *world {
	t.Helper()
	w := &world{t: t, dir: shortDir(t), library: library}
	w.socket = gms.SocketPath(w.dir, uuid)
	var err error
	w.backend, err = makeBackend(library, capacity)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.backend.Close()) })
	w.space, err = makeSpace(library)
	require.NoError(t, err)
	return w
}

// serve starts a server on the world's memory. stop ends it.
func (w *world) serve(change func(*gms.Config)) (stop func()) {
	w.t.Helper()
	cfg := gms.DefaultConfig()
	cfg.SocketDir, cfg.GPUs = w.dir, []gms.GPU{{UUID: uuid, Backend: w.backend}}
	if change != nil {
		change(&cfg)
	}
	return gmsserve.Start(w.t, cfg).Stop
}

// client makes a client that is closed with the test.
func (w *world) client(change func(*client.Config)) *client.Client {
	w.t.Helper()
	cfg := client.Config{Socket: w.socket, Space: w.space}
	if change != nil {
		change(&cfg)
	}
	c, err := client.New(cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// connect opens a session and wants the lock.
func connect(t testing.TB, c *client.Client, lock, want wire.LockType) *client.Session {
	t.Helper()
	got, err := c.Connect(testContext(t), lock, nil)
	require.NoError(t, err)
	require.Equal(t, want, got)
	return c.Session()
}

// fill is the content of the i-th allocation of a generation.
func fill(generation, i int) []byte {
	return fmt.Appendf(nil, "gen %d alloc %d", generation, i)
}

// load writes and commits a layout of allocations with these sizes.
func load(t *testing.T, c *client.Client, generation int, sizes ...uint64) (mappings []*client.Mapping, hash string) {
	t.Helper()
	ctx := testContext(t)
	s := connect(t, c, wire.RW, wire.RW)
	for i, size := range sizes {
		a, err := s.Allocate(ctx, size, "weights")
		require.NoError(t, err)
		m, err := c.Map(ctx, a.ID)
		require.NoError(t, err)
		require.NoError(t, m.Write(ctx, size/2, fill(generation, i)))
		require.NoError(t, s.PutMetadata(ctx, fmt.Sprintf("tensor %d", i), client.Metadata{AllocationID: a.ID, Offset: size / 2, Value: []byte("f32")}))
		mappings = append(mappings, m)
	}
	hash, err := c.Commit(ctx)
	require.NoError(t, err)
	require.NotEmpty(t, hash)
	return mappings, hash
}

// adopt maps everything that is committed.
func adopt(t *testing.T, c *client.Client) (mappings []*client.Mapping) {
	t.Helper()
	ctx := testContext(t)
	s := connect(t, c, wire.Auto, wire.RO)
	list, err := s.List(ctx, "")
	require.NoError(t, err)
	for _, a := range list {
		m, err := c.Map(ctx, a.ID)
		require.NoError(t, err)
		mappings = append(mappings, m)
	}
	return mappings
}

// requireFilled checks what load wrote.
func requireFilled(t *testing.T, mappings []*client.Mapping, generation int) {
	t.Helper()
	for i, m := range mappings {
		want := fill(generation, i)
		got := make([]byte, len(want))
		require.NoError(t, m.Read(testContext(t), m.Size()/2, got))
		require.Equal(t, string(want), string(got))
	}
}

func addresses(mappings []*client.Mapping) (out []uintptr) {
	for _, m := range mappings {
		out = append(out, m.Address())
	}
	return out
}

// backends are the libraries to test with, by name.
func backends(t *testing.T, test func(t *testing.T, library string)) {
	t.Helper()
	t.Run("host", func(t *testing.T) { test(t, "") })
	t.Run("cuda", func(t *testing.T) { test(t, cudatest.Build(t)) })
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(list)
}
