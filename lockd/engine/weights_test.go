package engine_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/stretchr/testify/require"

	"remuda/device-plugin/gms"
	"remuda/device-plugin/gms/backend/host"
	"remuda/device-plugin/gms/client"
	"remuda/device-plugin/gms/offload"
	"remuda/device-plugin/gms/wire"
	"remuda/internal/replica"
	"remuda/internal/sim"
	"remuda/internal/sim/shared"
	"remuda/internal/sim/weights"
	"remuda/internal/testkit/consultest"
	"remuda/internal/testkit/gmsserve"
	"remuda/internal/testkit/loopback"
	"remuda/lockd/engine"
)

// runSim is a simulated engine whose weights are in the GPU memory service.
func runSim(addr, file, sockets string) error {
	cfg := sim.DefaultConfig()
	cfg.Model, cfg.Weights, cfg.Version, cfg.Exit = "m", file, "test", os.Exit
	cfg.Logger = hclog.New(&hclog.LoggerOptions{Name: "sim", Output: os.Stderr})
	cfg.Shared = &shared.Config{
		Sockets: strings.Split(sockets, ","), Lock: wire.RO, WakeTimeout: 10 * time.Second,
		Space: func(string) (client.Space, func() error, error) {
			return host.NewSpace(), func() error { return nil }, nil
		},
	}
	if os.Getenv("REMUDA_WEIGHTS_LOCK") == "rw_or_ro" {
		cfg.Shared.Lock = wire.Auto
	}
	s, err := sim.New(cfg)
	if err != nil {
		return err
	}
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return s.Run(ctx, ln)
}

// pair is a failover pair that shares its weights on two GPUs.
type pair struct {
	t       *testing.T
	locks   *locks
	lot     lot
	consul  *consultest.Agent
	hosts   []*host.Backend
	node    string   // the service's socket
	sockets []string // the addresses of the units
	file    string
}

const weightsSize = 6 << 20

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, locks: newLocks(t), lot: newLot(t), consul: consultest.New(t), file: filepath.Join(t.TempDir(), "w.safetensors")}
	_, err := weights.Create(p.file, weights.Spec{Size: weightsSize, Seed: 5})
	require.NoError(t, err)
	dir, err := os.MkdirTemp("", "gms")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := gms.DefaultConfig()
	cfg.SocketDir, p.node = dir, gms.NodeSocketPath(dir)
	for _, uuid := range []string{"GPU-a", "GPU-b"} {
		b, err := host.New(host.Config{Granularity: 64 << 10, Capacity: 64 << 20})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, b.Close()) })
		cfg.GPUs = append(cfg.GPUs, gms.GPU{UUID: uuid, Backend: b})
		p.hosts = append(p.hosts, b)
		p.sockets = append(p.sockets, client.Address(gms.NodeSocketPath(dir), uuid, "m@1", "m:v:r1"))
	}
	gmsserve.Start(t, cfg)
	return p
}

func (p *pair) shim(role string) *shim {
	p.t.Helper()
	exe, err := os.Executable()
	require.NoError(p.t, err)
	addr := loopback.Free(p.t)
	return startShim(p.t, settings{role: role, consul: p.consul.Addr(), addr: addr,
		command: []string{exe, "test-sim", addr, p.file, strings.Join(p.sockets, ",")},
		tune: p.lot.tune(func(c *engine.Config) {
			c.Lock, c.Standby, c.GMSSockets, c.WakeTimeout = p.locks.at(p.consul).cfg.Socket, engine.StandbyWarm, p.sockets, 20*time.Second
		})})
}

// used is how much memory of the GPUs anybody holds.
func (p *pair) used() uint64 { return p.hosts[0].Used() + p.hosts[1].Used() }

// free waits until nobody holds memory of a GPU.
func (p *pair) free(s *shim) {
	p.t.Helper()
	s.await("free GPUs", func() bool { return p.used() == 0 })
}

// serves checks that the engine answers, and holds its weights: it has compared every
// byte with its digest when it woke.
func (p *pair) serves(s *shim) {
	p.t.Helper()
	s.awaitState(engine.Active)
	resp, err := http.Post(s.engine+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":2}`))
	require.NoError(p.t, err)
	require.NoError(p.t, resp.Body.Close())
	require.Equal(p.t, http.StatusOK, resp.StatusCode)
	require.GreaterOrEqual(p.t, p.used(), uint64(weightsSize))
	require.False(p.t, p.lot.parked())
}

func (s *shim) awaitLock() {
	s.t.Helper()
	s.await("the lock", func() bool { st, ok := s.status(); return ok && st.Lock.Held && st.State == engine.Standby })
}

func (s *shim) weightsLost() bool {
	st, ok := s.status()
	return ok && st.WeightsLost
}

// TestParkedPairHoldsNoGPUMemory, and its bytes come back without the file.
func TestParkedPairHoldsNoGPUMemory(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	primary := p.shim(replica.RolePrimary)
	p.serves(primary)
	shadow := p.shim(replica.RoleShadow)
	shadow.standby()
	st, ok := shadow.status()
	require.True(t, ok)
	asleep := st.PID
	var noted []offload.Layout
	primary.await("the layouts that are to be cleared away", func() bool {
		noted = p.lot.record().Layouts
		return len(noted) > 0
	})
	require.Len(t, noted, 2)
	require.Equal(t, p.sockets[1], noted[1].Socket)
	require.NoError(t, os.Rename(p.file, p.file+".away"))
	for range 2 {
		primary.post("/v1/sleep", http.StatusOK)
		p.free(primary) // the service releases what nobody uses in the background
		st, ok := primary.status()
		require.True(t, ok)
		require.True(t, st.ParkedSince.After(st.Since), "the weights left the GPUs after the engine slept")
		primary.post("/v1/sleep", http.StatusOK)
		primary.post("/v1/wake", http.StatusOK)
		p.serves(primary)
	}
	// The shadow has slept through all of it, and maps what was restored.
	primary.kill9("the engine")
	p.serves(shadow)
	st, ok = shadow.status()
	require.True(t, ok)
	require.Equal(t, asleep, st.PID)
	require.Equal(t, token(4), st.Token)
}

// TestTheOnlyCopyIsLost: the next wake loads the weights from their file, by whichever
// engine has the lock then.
func TestTheOnlyCopyIsLost(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	primary := p.shim(replica.RolePrimary)
	p.serves(primary)
	shadow := p.shim(replica.RoleShadow)
	shadow.standby()
	primary.post("/v1/sleep", http.StatusOK)
	p.free(primary)
	require.False(t, primary.weightsLost())
	primary.kill9("the shim")
	shadow.awaitLock()
	shadow.await("word that they are lost", shadow.weightsLost)
	shadow.post("/v1/sleep", http.StatusOK)
	require.True(t, shadow.weightsLost(), "a further order to sleep brings nothing back")
	shadow.post("/v1/wake", http.StatusOK) // whether or not its useless all processes of the engine have exited yet
	p.serves(shadow)

	primary = p.shim(replica.RolePrimary)
	primary.standby()
	shadow.post("/v1/sleep", http.StatusOK)
	require.False(t, shadow.weightsLost())
	p.free(shadow)
	shadow.kill9("the engine")
	primary.awaitLock()
	primary.withoutEngine() // it has ended the one that could not wake any more
	p.free(primary)
	primary.post("/v1/wake", http.StatusOK)
	p.serves(primary)
}

// TestCrashLeavesNothingOnTheGPU: whoever has the lock of a parked pair sees to that.
func TestCrashLeavesNothingOnTheGPU(t *testing.T) {
	t.Parallel()
	t.Run("before the weights were saved", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		primary := p.shim(replica.RolePrimary)
		p.serves(primary)
		shadow := p.shim(replica.RoleShadow)
		shadow.standby()
		// As a shim leaves it that dies when it has marked the group and its engine
		// has gone to sleep.
		p.lot.put(`{"wanted":"warm","since":"2026-01-02T03:04:05Z"}`)
		st, ok := shadow.status()
		require.True(t, ok)
		primary.kill9("the shim")
		shadow.awaitLock()
		p.free(shadow)
		require.NoError(t, os.Rename(p.file, p.file+".away"))
		shadow.post("/v1/wake", http.StatusOK)
		p.serves(shadow)
		now, ok := shadow.status()
		require.True(t, ok)
		require.Equal(t, st.PID, now.PID, "its engine has them from the copy")
	})
	t.Run("half way", func(t *testing.T) {
		t.Parallel()
		p := newPair(t)
		primary := p.shim(replica.RolePrimary)
		p.serves(primary)
		primary.post("/v1/sleep", http.StatusOK)
		p.free(primary)
		primary.kill9("the shim")
		// A part of another life's weights, committed on one GPU.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		c, err := client.New(client.Config{Socket: p.sockets[1], Space: host.NewSpace()})
		require.NoError(t, err)
		_, err = c.Connect(ctx, wire.RW, nil)
		require.NoError(t, err)
		_, err = c.Session().Allocate(ctx, 1<<20, "weights")
		require.NoError(t, err)
		_, err = c.Commit(ctx)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		require.NotZero(t, p.used())
		primary = p.shim(replica.RolePrimary)
		p.free(primary)
		primary.withoutEngine()
		primary.post("/v1/wake", http.StatusOK)
		p.serves(primary)
	})
}

// TestPairThatSharesDoesNotMove: its weights are on the GPU of its shadow, too.
func TestPairThatSharesDoesNotMove(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	primary := p.shim(replica.RolePrimary)
	p.serves(primary)
	primary.post("/v1/sleep", http.StatusOK)
	primary.post("/v1/wake?gpus=GPU-c", http.StatusConflict)
	p.free(primary)
	primary.post("/v1/wake", http.StatusOK)
	p.serves(primary)
}

// TestMemoryThatSomebodyElseHasMapped holds nobody up, and is let go of as soon as they do.
func TestMemoryThatSomebodyElseHasMapped(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	primary := p.shim(replica.RolePrimary)
	p.serves(primary)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c, err := client.New(client.Config{Socket: client.Address(p.node, "GPU-a", "m@1", "another"), Space: host.NewSpace()})
	require.NoError(t, err)
	_, err = c.Connect(ctx, wire.RO, nil)
	require.NoError(t, err)
	primary.post("/v1/sleep", http.StatusOK) // it waits for nobody
	require.NotZero(t, p.used())
	require.NoError(t, c.Close())
	p.free(primary)
}
