//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/jobs"
)

// BenchmarkIdleNode measures the CPU that remuda's own processes on a node take while its
// failover pairs have no requests, with 1, 8 and 32 pairs and a thousand other processes: in
// percent of a core, over half a minute. The simulated engines themselves, the controller and the
// gateway are not of it, and neither is the device plugin, which finds the load of simulated GPUs by
// reading all processes.
func BenchmarkIdleNode(b *testing.B) {
	f := newFleet(b, 1, func(o *devcluster.Options) { o.GPUs, o.Seats = 8, 8 })
	require.NoError(b, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(strings.NewReplacer("cpu    = 500", "cpu    = 20", "cpu    = 100", "cpu    = 20").Replace(jobs.Failover)), 0o600))
	path := filepath.Join(f.dir, "idle.model.hcl")
	require.NoError(b, os.WriteFile(path, []byte(`model "pair" {
  replicas = 0
  max      = 32
  failover = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "1MiB"
    memory  = "64MiB"
    cost    = 1
    slots   = 4
    job     = "failover.nomad.hcl"
    vars    = { weights = "1MiB", memory = 128 }
  }
}
`), 0o600))
	f.remuda("model", "apply", path)
	for range 1000 {
		other := exec.Command("sleep", "3600")
		require.NoError(b, other.Start())
		b.Cleanup(func() { _ = other.Process.Kill(); _ = other.Wait() })
	}
	kinds := map[string]string{
		"lockd": " lockd -socket ", "gms": " gms -socket-dir ", "gms-serve": " gms-serve", "shim": " engine -dialect ",
	}
	const span = 30 * time.Second
	for range b.N {
		for _, pairs := range []int{1, 8, 32} {
			f.remuda("scale", "-detach", "pair", strconv.Itoa(pairs))
			f.hotWithin(5*time.Minute, "pair", pairs)
			time.Sleep(10 * time.Second) // the starts are over
			before := map[string]time.Duration{}
			count := map[string]int{}
			use := func(sign int) {
				for _, p := range processesOf(f.info.DataDir) {
					number, command, _ := strings.Cut(p, " ")
					for kind, part := range kinds {
						if strings.Contains(command, part) && !strings.Contains(command, "executor") {
							pid, err := strconv.Atoi(number)
							require.NoError(b, err)
							before[kind] += time.Duration(sign) * cpuTime(b, pid)
							count[kind]++
						}
					}
				}
			}
			use(-1)
			clear(count)
			time.Sleep(span)
			use(+1)
			var sum time.Duration
			for kind, took := range before {
				sum += took
				b.ReportMetric(100*took.Seconds()/span.Seconds(), fmt.Sprintf("%s-%%-%d-pairs", kind, pairs))
			}
			b.ReportMetric(100*sum.Seconds()/span.Seconds(), fmt.Sprintf("all-%%-%d-pairs", pairs))
			b.ReportMetric(float64(count["shim"]), fmt.Sprintf("shims-%d-pairs", pairs))
		}
		b.ReportMetric(0, "ns/op")
	}
}

// cpuTime is what a process has used so far, in user and system time (proc(5), fields 14 and
// 15 of stat, in hundredths of a second).
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(raw), ") ")
	fields := strings.Fields(after)
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		require.NoError(t, err)
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
