package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/sim/weights"
	"remuda/internal/testkit/loopback"
	"remuda/internal/testkit/process"
	"remuda/internal/vram"
	"remuda/lockd/engine"
)

// simNode is lockd and a GPU memory service of two simulated GPUs, and a failover pair on both: all of them
// processes, as on a node.
type simNode struct {
	t       *testing.T
	dir     string
	weights string
	shims   map[string]*simShim
}

// simShim is the shim of an engine.
type simShim struct {
	*process.Process
	engine, shim string
}

func (n *simNode) start(args ...string) *process.Process {
	n.t.Helper()
	p, err := process.Start(process.Config{
		Path: os.Args[0], Args: args, Dir: n.dir, Log: filepath.Join(n.dir, fmt.Sprintf("%s-%d.log", args[0], time.Now().UnixNano())),
		Env: []string{asProgram + "=1", vram.EnvDir + "=" + n.dir, gmsSocketDirEnv + "=" + n.dir, "REMUDA_GPU_UUIDS=GPU-0,GPU-1", "REMUDA_USE_GPUS="},
	})
	require.NoError(n.t, err)
	n.t.Cleanup(p.Kill)
	return p
}

// startEngine starts the engine of a role with its shim, as Nomad does at first and after each end.
func (n *simNode) startEngine(role string) *simShim {
	n.t.Helper()
	s := &simShim{engine: loopback.Free(n.t), shim: loopback.Free(n.t)}
	s.Process = n.start("engine", "-dialect", "sim", "-role", role, "-group", "m:sim:pair", "-lock", filepath.Join(n.dir, "lockd.sock"), "-standby", "warm", "-no-consul",
		"-engine-url", "http://"+s.engine, "-listen", s.shim, "-record", filepath.Join(n.dir, "record"), "-gms-socket", "auto",
		"--", os.Args[0], "sim", "-listen", s.engine, "-model", "m", "-weights", n.weights, "-gms-socket", "auto", "-workers", "-start-asleep",
		"-kv-memory", "50MiB", "-context-memory", "10MiB")
	n.shims[role] = s
	return s
}

func (n *simNode) eventually(what string, is func() error) {
	n.t.Helper()
	var err error
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if err = is(); err == nil {
			return
		}
		require.True(n.t, time.Now().Before(deadline), "%s: not within a minute: %v", what, err)
	}
}

// awaits waits until an engine is in a state.
func (n *simNode) awaits(role string, state engine.State) (st engine.Status) {
	n.t.Helper()
	s := n.shims[role]
	n.eventually("the "+role+" is "+string(state), func() error {
		if err := s.Running(); err != nil {
			return err
		}
		resp, err := http.Get("http://" + s.shim + "/state")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		st = engine.Status{}
		if err := json.NewDecoder(resp.Body).Decode(&st); err != nil || st.State != state || st.PID == 0 {
			return errors.Join(err, fmt.Errorf("it is %+v", st))
		}
		return nil
	})
	return st
}

// unit is the address of the weights on a GPU, or of another tag.
func (n *simNode) unit(gpu int, tag string) string {
	return client.Address(gms.NodeSocketPath(n.dir), fmt.Sprint("GPU-", gpu), tag, "")
}

func (n *simNode) part(gpu int) string { return n.unit(gpu, weightsTag("m", gpu, 2)) }

// events counts what has happened to the weights on a GPU.
func (n *simNode) events(gpu int) map[string]int {
	n.t.Helper()
	c, err := wire.Dial(gms.NodeSocketPath(n.dir))
	require.NoError(n.t, err)
	defer c.Close()
	require.NoError(n.t, c.SetReadDeadline(time.Now().Add(time.Minute)))
	var out wire.Message
	for _, m := range []wire.Message{&wire.OpenUnitRequest{GPU: fmt.Sprint("GPU-", gpu), Tag: weightsTag("m", gpu, 2)}, &wire.GetEventHistoryRequest{}} {
		require.NoError(n.t, c.Write(m, -1))
		out, _, err = c.Read(1<<20, false)
		require.NoError(n.t, err)
	}
	count := map[string]int{}
	for _, e := range out.(*wire.GetEventHistoryResponse).Events {
		count[e.Kind]++
	}
	return count
}

// TestPartialCommitOfAKilledPrimary: a primary is killed when it has committed its weights on one of two GPUs and
// writes them on the other one. The next one loads those of the other one only, and the shadow, which has waited
// meanwhile, stands by.
func TestPartialCommitOfAKilledPrimary(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "resume") // paths of sockets are short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &simNode{t: t, dir: dir, weights: filepath.Join(dir, "w.safetensors"), shims: map[string]*simShim{}}
	t.Cleanup(func() {
		if logs, _ := filepath.Glob(filepath.Join(dir, "*.log")); t.Failed() {
			for _, log := range logs {
				text, _ := os.ReadFile(log)
				t.Logf("%s:\n%s", filepath.Base(log), text)
			}
		}
	})
	_, err = weights.Create(n.weights, weights.Spec{Size: 8 << 20, Seed: 1})
	require.NoError(t, err)
	for gpu := range 2 {
		require.NoError(t, vram.Create(dir, fmt.Sprint("GPU-", gpu), simGPUMemory))
	}
	n.start("lockd", "-socket", filepath.Join(dir, "lockd.sock"), "-state", filepath.Join(dir, "lockd.state"))
	n.start("gms", "-socket-dir", dir, "-backend", "host", "-gpu", "GPU-0,GPU-1=16MiB", "-host-granularity", "64KiB", "-oom-limit", "0s")

	// Something else has taken nearly all of the second GPU, so a writer has to wait there.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	other, err := client.Open(ctx, n.unit(1, "other"), client.Options{Lock: wire.RW})
	require.NoError(t, err)
	defer func() { _ = other.Close() }()
	_, err = other.Allocate(ctx, 15<<20, "")
	require.NoError(t, err)

	n.startEngine("primary")
	shadow := n.startEngine("shadow")
	primary := n.awaits("primary", engine.Init)
	n.eventually("one of two GPUs has its weights, and the other one is written to", func() error {
		if first, second := n.events(0), n.events(1); first[wire.EventCommitted] != 1 || second[wire.EventRWConnected] != 1 || second[wire.EventOOM] == 0 {
			return fmt.Errorf("%v, %v", first, second)
		}
		return nil
	})
	loaded, err := client.RuntimeState(ctx, n.part(0))
	require.NoError(t, err)
	require.NoError(t, unix.Kill(primary.PID, unix.SIGKILL))
	require.Error(t, n.shims["primary"].Wait(ctx))
	require.NoError(t, other.Close())
	n.eventually("what the dead one wrote is gone", func() error {
		if second := n.events(1); second[wire.EventRWAborted] != 1 {
			return fmt.Errorf("%v", second)
		}
		return nil
	})
	require.NoError(t, shadow.Running(), "the shadow waits")

	n.startEngine("primary")
	// Which of the two serves is up to lockd.
	n.eventually("one serves and the other one stands by", func() error {
		states := map[engine.State]bool{}
		for _, s := range n.shims {
			resp, err := http.Get("http://" + s.shim + "/state")
			if err != nil {
				return err
			}
			var st engine.Status
			err = json.NewDecoder(resp.Body).Decode(&st)
			resp.Body.Close()
			if err != nil {
				return err
			}
			if states[st.State] = true; st.State == engine.Active {
				answer, err := http.Post("http://"+s.engine+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"Hello","max_tokens":1}`))
				if err != nil {
					return err
				}
				answer.Body.Close()
				require.Equal(t, http.StatusOK, answer.StatusCode)
			}
		}
		if !states[engine.Active] || !states[engine.Standby] {
			return fmt.Errorf("they are %v", states)
		}
		return nil
	})
	require.Equal(t, 1, n.events(0)[wire.EventRWConnected], "the first GPU's weights were not written again")
	require.Equal(t, 1, n.events(0)[wire.EventCommitted])
	require.Equal(t, 2, n.events(1)[wire.EventRWConnected], "the second GPU's were")
	require.Equal(t, 1, n.events(1)[wire.EventCommitted])
	now, err := client.RuntimeState(ctx, n.part(0))
	require.NoError(t, err)
	require.Equal(t, loaded.MemoryLayoutHash, now.MemoryLayoutHash)
}
