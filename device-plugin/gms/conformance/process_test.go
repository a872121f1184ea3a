package conformance_test

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"remuda/internal/testkit/process"
)

// residentKiB is the memory that a process has in RAM, without what it shares.
func residentKiB(t testing.TB, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			require.NoError(t, err)
			return n
		}
	}
	require.Fail(t, "no RssAnon in status")
	return 0
}

// settles waits until a process has no more descriptors than that.
func settles(t testing.TB, pid, most int) {
	t.Helper()
	var n int
	eventually(t, func() bool { n, _ = descriptors(t, pid); return n <= most },
		func() []any { return []any{"%d descriptors are open, want %d", n, most} })
}

func itoa(n int) string { return strconv.Itoa(n) }

// pause stops a process, and returns when all of it stands still. It goes on at the end of
// the test at the latest: a process that is stopped cannot be asked to end.
func pause(t testing.TB, pid int) (resume func()) {
	t.Helper()
	require.NoError(t, process.Freeze(pid))
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	return func() { require.NoError(t, syscall.Kill(pid, syscall.SIGCONT)) }
}
