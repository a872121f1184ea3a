//go:build e2e

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/internal/devcluster"
	"remuda/internal/testkit/long"
	"remuda/internal/vram"
	"remuda/jobs"
)

// TestPairsOnManyGPUs: failover pairs on 1, 2 and 4 GPUs, in the long form on 8 as well, whose engines have a worker on each of them
// and a KV cache of which no GPU has room for two. The other engine takes over when a worker of the one
// that serves dies, when one hangs, and when the engine dies before its workers; it wakes only once
// all memory is back, or it would have none.
func TestPairsOnManyGPUs(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(o *devcluster.Options) { o.GPUs, o.Seats = long.Pick(7, 15), long.Pick(8, 16) })
	w := &twins{f}
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(paced(t, jobs.Failover, 50)), 0o600))
	sizes := map[string]int{"pair-4": 4, "pair-2": 2, "pair-1": 1}
	if long.Enabled() {
		sizes["pair-8"] = 8
	}
	apply := func(name string, more string) {
		t.Helper()
		path := filepath.Join(f.dir, name+".model.hcl")
		require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  replicas = 1
  max      = 1
  failover = true
%s
  variant "sim" {
    gpu {
      count = %d
    }

    weights = "64MiB"
    memory  = "60GiB"
    cost    = 1
    slots   = 16
    engine  = "sim"
    job     = "failover.nomad.hcl"
    vars    = { weights = "64MiB", workers = true, kv_memory = "50GiB", context_memory = "400MiB", teardown = "1s" }
  }
}
`, name, more, sizes[name]), 0o600))
		f.remuda("model", "apply", "-detach", path)
	}
	for name := range sizes {
		apply(name, "")
	}
	for name := range sizes {
		f.hot(name, 1)
		eventually(t, time.Minute, "the standby of "+name, func() error { return w.standsBy(name) })
		f.asked(name, "placed")
	}
	// Two contexts on each GPU, and one KV cache beside the weights, which the pair shares.
	const contexts = 2 * 400 << 20
	served := func(name string) int { return 50<<30 + contexts + 64<<20/sizes[name] }
	used := func(name string, want int) {
		t.Helper()
		replicas, err := f.replicas(name)
		require.NoError(t, err)
		require.Len(t, replicas, 1)
		for _, r := range replicas {
			gpus := map[string]bool{}
			for _, seat := range r.Seats {
				gpu, _, _ := strings.Cut(seat, "#")
				gpus[gpu] = true
			}
			require.Len(t, gpus, sizes[name])
			for gpu := range gpus {
				n, _, err := vram.Used(filepath.Join(f.info.DataDir, "gpus"), gpu)
				require.NoError(t, err)
				require.InDelta(t, want, n, 32<<20, "%s has %d bytes in use on %s", name, n, gpu)
			}
		}
	}
	for name, gpus := range sizes {
		used(name, served(name))
		for what, strike := range map[string]func(engine int, workers []int){
			"a worker dies":  func(_ int, workers []int) { kill9(t, workers[gpus-1]) },
			"a worker hangs": func(_ int, workers []int) { require.NoError(t, syscall.Kill(workers[0], syscall.SIGSTOP)) },
			"the engine dies, and its workers take a second": func(engine int, _ []int) { kill9(t, engine) },
		} {
			old := f.engine(name)
			engine := f.enginePID(old.HostPort())
			workers := workersOf(t, engine)
			require.Len(t, workers, gpus)
			strike(engine, workers)
			began := time.Now()
			f.asked(name, what) // a worker that hangs is found by a request that does not go on
			eventually(t, time.Minute, "the failover of "+name, func() error {
				now, err := f.passing(name)
				if err == nil && (len(now) != 1 || now[0].Token.Compare(old.Token) <= 0) {
					err = fmt.Errorf("Consul has %+v after %+v", now, old)
				}
				return err
			})
			t.Logf("%s: %s: answers after %s", name, what, time.Since(began).Round(time.Millisecond))
			for _, pid := range append(workers, engine) {
				eventually(t, 5*time.Second, "the end of the old engine", func() error {
					if syscall.Kill(pid, 0) == nil {
						return fmt.Errorf("process %d is left", pid)
					}
					return nil
				})
			}
			eventually(t, time.Minute, "the standby of "+name, func() error { return w.standsBy(name) })
			used(name, served(name))
		}
	}
	// By hand both engines of a pair sleep: their contexts are what it keeps, and what is charged. Nobody
	// had to estimate that, and no GPU is taken out of use for it. A request wakes the pair.
	parked := func(name string) {
		t.Helper()
		warm := f.tiers(name, 0, 1, 0)[0]
		require.InDelta(t, contexts, warm.SleepMemory, 8<<20)
		used(name, contexts)
	}
	for name := range sizes {
		f.remuda("evict", "-to", "warm", f.tiers(name, 1, 0, 0)[0].Name)
		parked(name)
		t.Logf("%s: serves %s after the request that wakes it", name, f.asked(name, "wake").Round(time.Millisecond))
		eventually(t, time.Minute, "the standby of "+name, func() error { return w.standsBy(name) })
		used(name, served(name))
	}
	// Pressure sends a pair WARM as well, and a request brings it back once there is room.
	f.applyTier(tierModel{name: "urgent", replicas: 1, priority: 90})
	f.tiers("urgent", 1, 0, 0)
	evicted := ""
	for name := range sizes {
		if warm, err := f.replicas(name); err == nil && !slices.ContainsFunc(slices.Collect(maps.Values(warm)), func(r api.Replica) bool { return r.Tier == "HOT" }) {
			require.Empty(t, evicted, "one makes room")
			evicted = name
		}
	}
	t.Logf("%s makes room", evicted)
	parked(evicted)
	f.clear("urgent")
	f.asked(evicted, "room again")
	eventually(t, time.Minute, "the standby of "+evicted, func() error { return w.standsBy(evicted) })
	used(evicted, served(evicted))
	// Without requests a pair goes WARM by itself, and stays so until one comes.
	apply("pair-2", "  idle {\n    warm = \"3s\"\n  }\n")
	parked("pair-2")
	require.Contains(t, f.decisions("pair-2"), planner.KindIdle)
	apply("pair-2", "")
	warm := f.tiers("pair-2", 0, 1, 0)[0]
	eventually(t, 20*time.Second, "the sleep of both engines", func() error { return w.bothSleep(warm) })
	t.Logf("pair-2: serves %s after the request that wakes it from its idle sleep", f.asked("pair-2", "no more idle").Round(time.Millisecond))
	eventually(t, time.Minute, "the standby of pair-2", func() error { return w.standsBy("pair-2") })
	used("pair-2", served("pair-2"))
	nodes, _, err := f.api.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
	require.NoError(t, err)
	for _, n := range nodes {
		for _, g := range n.GPUs {
			require.False(t, g.Cordoned, "%s: %s", g.UUID, g.CordonReason)
		}
	}
}

// workersOf are the workers of a simulated engine, by their GPUs' order.
func workersOf(t testing.TB, engine int) (pids []int) {
	t.Helper()
	for _, pid := range childrenOf(t, engine) {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		require.NoError(t, err)
		require.Contains(t, string(raw), "\x00sim-worker\x00")
		pids = append(pids, pid)
	}
	return pids
}
