//go:build e2e

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	gmsclient "remuda/device-plugin/gms/client"
	"remuda/lockd/engine"
)

// How the keeper of jobs/node.nomad.hcl and its child, the service, look in a list of
// processes.
const (
	keeperCommand  = " gms -"
	serviceCommand = " gms-serve "
)

// sharedWeights: the pair of `remuda dev` has one copy of its weights, in the GPU memory
// service. The service may crash at any time and no engine notices; with its keeper the
// weights are lost, and both engines end and load them anew.
func sharedWeights(t *testing.T, d *dev) {
	active, standby := d.pair()
	socket := d.weightsAddress(active.PID)
	ask := func() (nonce, hash string) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		st, err := gmsclient.RuntimeState(ctx, socket)
		if err != nil {
			return err.Error(), "" // it is being restarted
		}
		return st.Nonce, st.MemoryLayoutHash
	}
	nonce, hash := ask()
	require.NotEmpty(t, hash)

	const size = 256 << 20
	held := func(pid int) int64 { return proportional(t, pid) }
	require.Greater(t, held(active.PID), int64(size))
	require.Less(t, held(standby.PID), int64(size/4), "the standby has no copy of its own")

	// The service may crash at any time. A client notices nothing.
	l := d.load("demo", 4, 20)
	back := func() {
		t.Helper()
		eventually(t, 20*time.Second, "the next service to have the layout", func() error {
			if now, has := ask(); now == nonce || has != hash {
				return fmt.Errorf("incarnation %q has layout %q", now, has)
			}
			return nil
		})
		nonce, _ = ask()
	}
	d.killTasks(serviceCommand)
	back()
	// Nor of an upgrade, which replaces the keeper as well.
	require.NoError(t, syscall.Kill(d.process(keeperCommand), syscall.SIGHUP))
	back()
	l.none()
	now, waits := d.pair()
	require.Equal(t, []int{active.PID, standby.PID}, []int{now.PID, waits.PID}, "no engine was restarted")
	kill9(t, active.PID)
	eventually(t, 20*time.Second, "the standby to serve", func() error {
		if now, _ = d.pair(); now.PID != standby.PID {
			return fmt.Errorf("engine %d serves", now.PID)
		}
		return nil
	})
	d.answers("after the crash of the service")

	// With the keeper everything is lost: both engines end, and load anew.
	active, standby = d.pair()
	began := time.Now()
	d.killTasks(keeperCommand)
	var fresh engine.Status
	eventually(t, time.Minute, "both engines to be new", func() error {
		var other engine.Status
		fresh, other = d.pair()
		for _, e := range []engine.Status{fresh, other} {
			if e.PID == active.PID || e.PID == standby.PID {
				return fmt.Errorf("engine %d is still there", e.PID)
			}
		}
		return nil
	})
	t.Logf("keeper killed: both engines anew and serving after %s", time.Since(began).Round(time.Millisecond))
	require.Positive(t, fresh.Token.Compare(active.Token))
	_, again := ask()
	require.Equal(t, hash, again, "the same weights make the same layout")
	d.answers("after the loss of the weights")
}

// process is the first one whose command line has part.
func (d *dev) process(part string) int {
	d.t.Helper()
	for _, p := range processesOf(d.info.DataDir) {
		if pid, command, _ := strings.Cut(p, " "); strings.Contains(command, part) {
			n, err := strconv.Atoi(pid)
			require.NoError(d.t, err)
			return n
		}
	}
	d.t.Fatalf("no process has %q", part)
	return 0
}

// answers asks once and compares the text.
func (d *dev) answers(prompt string) {
	d.t.Helper()
	got, err := streamChat(d.t.Context(), d.info.Gateway, "demo", prompt, 20)
	require.NoError(d.t, err)
	require.Equal(d.t, exact("demo", prompt, 20).Text, got.text)
}

// weightsAddress is the unit of the service that the engine uses.
func (d *dev) weightsAddress(pid int) string {
	d.t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	require.NoError(d.t, err)
	vars := map[string]string{}
	for kv := range strings.SplitSeq(string(raw), "\x00") {
		name, value, _ := strings.Cut(kv, "=")
		vars[name] = value
	}
	require.NotEmpty(d.t, vars["GMS_SOCKET_DIR"])
	require.NotEmpty(d.t, vars["REMUDA_GPU_UUIDS"])
	version := cmp.Or(vars["REMUDA_VERSION"], "0")
	return gmsclient.Address(filepath.Join(vars["GMS_SOCKET_DIR"], "gms.sock"), vars["REMUDA_GPU_UUIDS"], "demo@"+version, "")
}

// proportional is the memory of a process in bytes; what several share is split
// between them.
func proportional(t testing.TB, pid int) int64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "Pss:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			require.NoError(t, err)
			return kib << 10
		}
	}
	t.Fatalf("no Pss in %q", raw)
	return 0
}
