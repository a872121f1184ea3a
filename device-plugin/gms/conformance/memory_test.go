package conformance_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms/backend/cuda"
	"remuda/internal/testkit/process"
)

// The tests of this file measure how much memory is in use, at the driver where
// there is one. They run alone: none of them is parallel.

// suiteEnv is in the environment of every process that the suite starts.
const suiteEnv = "REMUDA_GMS_CONFORMANCE_SUITE"

// inUse is how many bytes of memory are in use: on a real GPU by everybody, as the
// driver reports it, and else by the processes of this suite.
func inUse(t testing.TB) int64 {
	t.Helper()
	if !onCUDA() || fakeDriver {
		return memfdsInUse(t)
	}
	s, err := ownSpace()
	require.NoError(t, err)
	free, total, err := s.(*cuda.Space).Info()
	require.NoError(t, err)
	return int64(total - free)
}

// memfdsInUse adds up the memfds of the host backend and of the fake driver that a
// process holds by a descriptor or a mapping.
func memfdsInUse(t testing.TB) int64 {
	t.Helper()
	pids, err := process.WithEnv(suiteEnv + "=" + os.Getenv(suiteEnv))
	require.NoError(t, err)
	sizes := map[uint64]int64{} // by inode
	for _, pid := range pids {
		descriptors, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		require.NoError(t, err)
		for _, fd := range descriptors {
			var st unix.Stat_t
			if to, err := os.Readlink(fd); err == nil && isMemory(to) && unix.Stat(fd, &st) == nil {
				sizes[st.Ino] = st.Size
			}
		}
		maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid)) // the process may have ended
		for line := range strings.Lines(string(maps)) {
			f := strings.Fields(line) // 7f00-7f20 rw-s 00000000 00:01 4711 /memfd:remuda-gms (deleted)
			if len(f) < 6 || !isMemory(f[5]) {
				continue
			}
			from, to, _ := strings.Cut(f[0], "-")
			inode, err := strconv.ParseUint(f[4], 10, 64)
			require.NoError(t, err)
			sizes[inode] = address(t, to) - address(t, from) // memory is mapped whole
		}
	}
	sum := int64(0)
	for _, size := range sizes {
		sum += size
	}
	return sum
}

func isMemory(path string) bool {
	return strings.HasPrefix(path, "/memfd:remuda-gms") || strings.HasPrefix(path, "/memfd:fakecuda")
}

func address(t testing.TB, hex string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(hex, 16, 64)
	require.NoError(t, err)
	return n
}

// meter compares the memory in use with what was in use before a test.
type meter struct {
	t      testing.TB
	before int64
	// size is how much memory the test allocates, and slack is the error of a
	// reading.
	size, slack int64
}

func newMeter(t testing.TB) meter {
	t.Helper()
	m := meter{t: t, before: inUse(t), size: capacity}
	if onCUDA() && !fakeDriver {
		// More than the contexts of the clients take, and enough to measure a rate.
		m.size = 1024 * mib
		m.slack = m.size / 16 // a process that initialises the driver or ends takes some
	}
	return m
}

// held checks that the memory is in use.
func (m meter) held() {
	m.t.Helper()
	require.GreaterOrEqual(m.t, inUse(m.t)-m.before, m.size-m.slack, "bytes more than before are in use")
}

// returned waits until the memory is free again.
func (m meter) returned() {
	m.t.Helper()
	began := time.Now()
	var more int64
	eventually(m.t, func() bool { more = inUse(m.t) - m.before; return more <= m.slack },
		func() []any { return []any{"%d bytes more than before are still in use", more} })
	figure(m.t, "return_seconds", time.Since(began).Seconds())
}

// figure logs a measured number in the form that tools/gpucheck reads.
func figure(t testing.TB, name string, value float64) {
	t.Helper()
	t.Logf("figure %s %.6g", name, value)
}

// seconds logs how long f takes.
func seconds(t testing.TB, name string, f func()) {
	t.Helper()
	began := time.Now()
	f()
	figure(t, name, time.Since(began).Seconds())
}

// write has a client allocate, map and fill the meter's memory as a writer. One of
// the allocations is not a multiple of the granularity.
func (m meter) write(c *client, path string, seed int64) (all []allocation) {
	m.t.Helper()
	require.Equal(m.t, writer, c.open("w", path, writer))
	seconds(m.t, "write_seconds", func() {
		for i, size := range []int64{m.size / 2, m.size / 4, m.size / 8, m.size/8 - 1000} {
			a := c.allocate("w", size, "x")
			c.mapOf("w", a)
			c.fill(a, seed+int64(i))
			all = append(all, a)
		}
	})
	m.held()
	return all
}

// read has a client import and map the memory as a reader, and compare it.
func (m meter) read(c *client, path string, all []allocation, seed int64) {
	m.t.Helper()
	require.Equal(m.t, reader, c.open("r", path, reader))
	seconds(m.t, "import_seconds", func() {
		for _, a := range all {
			c.mapAs("r", a, false)
		}
	})
	c.same(all, seed)
}

// same has a client read everything that it has mapped.
func (c *client) same(all []allocation, seed int64) {
	c.t.Helper()
	for i, a := range all {
		c.verify(a, seed+int64(i))
	}
}

func (c *client) commit(name string) {
	c.t.Helper()
	require.True(c.t, truth(c.t, c.ask(name, "commit"), "success"))
}

// TestMemoryOfAKilledWriterGoesBack: without a commit nothing keeps it.
func TestMemoryOfAKilledWriterGoesBack(t *testing.T) {
	m := newMeter(t)
	s := start(t, serverConfig{})
	w := newClient(t)
	m.write(w, s.weights(), 1)
	w.kill()
	m.returned()
	becomes(t, s.weights(), lockState{State: empty})
	_, n, _ := runtimeState(t, s.weights())
	require.Zero(t, n)
}

// TestCommittedMemoryGoesBackWithItsLastHolder: it outlives its writer, and with its
// readers it outlives the server.
func TestCommittedMemoryGoesBackWithItsLastHolder(t *testing.T) {
	m := newMeter(t)
	s := start(t, serverConfig{})
	w, one, two := newClient(t), newClient(t), newClient(t)
	all := m.write(w, s.weights(), 2)
	seconds(t, "commit_seconds", func() { w.commit("w") })
	w.kill()
	becomes(t, s.weights(), lockState{State: committed, Committed: true})
	m.held()
	m.read(one, s.weights(), all, 2)
	m.read(two, s.weights(), all, 2)
	becomes(t, s.weights(), lockState{State: inReading, Readers: 2, Committed: true})
	s.lose(t)
	m.held()
	one.kill()
	m.held()
	two.same(all, 2)
	two.kill()
	m.returned()
}

// TestKeptMemoryOutlivesTheServer: the next server has the same layout and the same
// bytes, and once the keeper is gone the memory goes back with its last
// reader.
func TestKeptMemoryOutlivesTheServer(t *testing.T) {
	m := newMeter(t)
	s := start(t, serverConfig{})
	w, one, two := newClient(t), newClient(t), newClient(t)
	all := m.write(w, s.weights(), 3)
	seconds(t, "commit_seconds", func() { w.commit("w") })
	w.kill()
	s.keeps(t, len(all))
	nonce, layout := nonceOf(t, s.weights()), readLayout(t, s.weights())
	m.read(one, s.weights(), all, 3)

	s.kill(t)
	m.held()
	seconds(t, "ready_seconds", func() { s = s.again(t) })
	require.NotEqual(t, nonce, nonceOf(t, s.weights()))
	require.Equal(t, layout, readLayout(t, s.weights()))
	one.same(all, 3)
	m.read(two, s.weights(), all, 3)

	s.lose(t)
	two.kill()
	m.held()
	one.same(all, 3)
	one.kill()
	m.returned()
}
