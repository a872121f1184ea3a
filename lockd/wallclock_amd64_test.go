package lockd_test

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/loopback"
	"remuda/lockd"
	"remuda/lockd/lock"
)

// movedClock replaces clock_gettime in the vDSO that the kernel maps into every
// process: it asks the kernel and adds an offset, in seconds, to CLOCK_REALTIME.
var movedClock = []byte{
	0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xff, // test edi, edi (CLOCK_REALTIME is 0)
	0x75, 0x0d, // jnz over the next two
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, // mov rcx, offset
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3, // ret
}

const movedClockOffset = 13

// moveClock moves the wall clock that one process sees, as a step of the machine's
// clock would. The process is stopped meanwhile.
func moveClock(t *testing.T, pid int, by time.Duration) {
	t.Helper()
	mem, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	require.NoError(t, err)
	defer mem.Close()
	start, end := vdsoOf(t, pid)
	image := make([]byte, end-start)
	_, err = mem.ReadAt(image, int64(start))
	require.NoError(t, err)
	// A patched image has the same headers.
	file, err := elf.NewFile(bytes.NewReader(image))
	require.NoError(t, err)
	symbols, err := file.DynamicSymbols()
	require.NoError(t, err)
	entry := uint64(0)
	for _, s := range symbols {
		if s.Name == "__vdso_clock_gettime" || s.Name == "clock_gettime" {
			entry = s.Value
		}
	}
	require.NotZero(t, entry, "the vDSO has no clock_gettime")
	code := bytes.Clone(movedClock)
	binary.LittleEndian.PutUint64(code[movedClockOffset:], uint64(int64(by/time.Second)))

	require.Eventually(t, func() bool {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
		if !awayFrom(t, pid, start, end) { // no thread may be in the code that changes
			require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
			return false
		}
		_, err = mem.WriteAt(code, int64(start+entry))
		require.NoError(t, err)
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		return true
	}, patience, time.Millisecond)
}

func vdsoOf(t *testing.T, pid int) (start, end uint64) {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			from, to, _ := strings.Cut(strings.Fields(line)[0], "-")
			start, err = strconv.ParseUint(from, 16, 64)
			require.NoError(t, err)
			end, err = strconv.ParseUint(to, 16, 64)
			require.NoError(t, err)
			return start, end
		}
	}
	t.Fatal("no vDSO")
	return 0, 0
}

// awayFrom waits until all threads have stopped and tells whether none of them is
// between start and end.
func awayFrom(t *testing.T, pid int, start, end uint64) bool {
	t.Helper()
	away := true
	require.Eventually(t, func() bool {
		away = true
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
		require.NoError(t, err)
		for _, path := range threads {
			// The last field is the program counter; a thread that runs has none.
			raw, err := os.ReadFile(path)
			fields := strings.Fields(string(raw))
			if err != nil || len(fields) < 3 {
				return false
			}
			at, err := strconv.ParseUint(strings.TrimPrefix(fields[len(fields)-1], "0x"), 16, 64)
			require.NoError(t, err)
			away = away && (at < start || at >= end)
		}
		return true
	}, patience, time.Millisecond)
	return away
}

// TestWallClockIsMoved: an hour either way, of lockd, of holders and of waiters,
// on the Unix socket and over TCP. Nothing changes, for longer than any time that
// they go by, and the next failover is as quick as ever.
func TestWallClockIsMoved(t *testing.T) {
	t.Parallel()
	d := newDaemon(t, func(c *lockd.Config) {
		c.Listen = loopback.Free(t)
		// Moving a clock stops the process, on a busy machine for seconds.
		c.Times.SessionTTL, c.Times.Reconnect = 8*time.Second, 8*time.Second
	})
	all := []*client{
		d.newKeeper("local", "primary", keeperSettings{}),
		d.newKeeper("remote", "primary", keeperSettings{Addr: "tcp://" + d.cfg.Listen, SessionTTL: d.cfg.Times.SessionTTL}),
	}
	for _, c := range all {
		c.granted()
	}
	all = append(all,
		d.newKeeper("local", "shadow", keeperSettings{}),
		d.newKeeper("remote", "shadow", keeperSettings{Addr: "tcp://" + d.cfg.Listen, SessionTTL: d.cfg.Times.SessionTTL}))
	for _, c := range all[2:] {
		require.Equal(t, 1, c.waiting().Position)
	}
	before := []any{d.status("local"), d.status("remote")}
	// An hour on a wall clock would expire everything at the next look.
	const quiet = 1500 * time.Millisecond
	hold := func() {
		t.Helper()
		deadline := time.Now().Add(quiet)
		for _, c := range all {
			c.silent(max(time.Until(deadline), 0))
		}
		require.Equal(t, before, []any{d.status("local"), d.status("remote")})
	}
	for _, by := range []time.Duration{time.Hour, -time.Hour} {
		moveClock(t, d.cmd.Process.Pid, by)
		require.WithinDuration(t, time.Now().Add(by), d.clock(), time.Minute, "lockd sees the moved clock")
		hold()
		for _, c := range all {
			moveClock(t, c.cmd.Process.Pid, by)
		}
		hold()
	}
	all[0].kill()
	require.Equal(t, uint64(3), all[2].granted().Token)
	all[1].kill()
	require.Equal(t, uint64(4), all[3].granted().Token)
	moveClock(t, d.cmd.Process.Pid, 0)
	require.WithinDuration(t, time.Now(), d.clock(), time.Minute)
	require.Equal(t, string(lock.Held), d.status("remote").State)
}

// clock makes lockd log a line and returns its time.
func (d *daemon) clock() time.Time {
	d.t.Helper()
	seen := len(d.log.String())
	c, err := net.Dial("unix", d.cfg.Socket)
	require.NoError(d.t, err)
	defer c.Close()
	_, err = io.WriteString(c, "hello\n")
	require.NoError(d.t, err)
	_, _ = io.Copy(io.Discard, c)
	var at time.Time
	require.Eventually(d.t, func() bool {
		for line := range strings.Lines(d.log.String()[seen:]) {
			stamp, _, _ := strings.Cut(line, " ")
			if at, err = time.Parse("2006-01-02T15:04:05.000Z0700", stamp); err == nil && strings.Contains(line, "is not the JSON object") {
				return true
			}
		}
		return false
	}, patience, time.Millisecond, "lockd logged nothing: %s", d.log)
	return at
}
