package engine_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

// lot is where the shims of one allocation have their record.
type lot struct {
	t   *testing.T
	dir string
}

func newLot(t *testing.T) lot {
	t.Helper()
	return lot{t, filepath.Join(t.TempDir(), "remuda")}
}

func (l lot) file() string { return filepath.Join(l.dir, "record.json") }

// record returns the record, Hot where there is none.
func (l lot) record() engine.Record {
	l.t.Helper()
	raw, err := os.ReadFile(l.file())
	if errors.Is(err, fs.ErrNotExist) {
		return engine.Record{Wanted: engine.Hot}
	}
	require.NoError(l.t, err)
	var rec engine.Record
	require.NoError(l.t, json.Unmarshal(raw, &rec))
	return rec
}

func (l lot) parked() bool { return l.record().Wanted == engine.Warm }

// put writes a record, as a shim that died left it.
func (l lot) put(raw string) {
	l.t.Helper()
	require.NoError(l.t, os.MkdirAll(l.dir, 0o700))
	require.NoError(l.t, os.WriteFile(l.file(), []byte(raw), 0o600))
}

// tune makes a shim use it.
func (l lot) tune(more ...func(*engine.Config)) func(*engine.Config) {
	return func(c *engine.Config) {
		c.Record = l.dir
		for _, f := range more {
			f(c)
		}
	}
}

// post calls the shim's own HTTP.
func (s *shim) post(path string, want int) string {
	s.t.Helper()
	code, body := call(s.t, http.MethodPost, s.url+path)
	require.Equal(s.t, want, code, body)
	return body
}

// withoutEngine waits until the shim stands by, parked, without a process, and checks
// that it stays so.
func (s *shim) withoutEngine() engine.Status {
	s.t.Helper()
	var st engine.Status
	s.await("standing by without an engine", func() bool {
		var ok bool
		st, ok = s.status()
		return ok && st.State == engine.Standby && st.PID == 0
	})
	// Longer than several looks of the shim's own.
	for deadline := time.Now().Add(300 * time.Millisecond); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		now, ok := s.status()
		require.True(s.t, ok)
		require.Equal(s.t, []any{engine.Standby, 0, true}, []any{now.State, now.PID, now.Parked})
		require.False(s.t, now.ParkedSince.IsZero())
	}
	for _, path := range []string{"/live", "/ready"} {
		code, body := call(s.t, http.MethodGet, s.url+path)
		require.Equal(s.t, http.StatusOK, code, body)
	}
	_, err := http.Get(s.engine + "/health")
	require.Error(s.t, err, "no engine")
	return st
}

// kill9 kills the shim or its engine, and waits for the end of both.
func (s *shim) kill9(what string) {
	s.t.Helper()
	st, ok := s.status()
	require.True(s.t, ok)
	pids := []int{st.PID}
	if what == "the shim" {
		kill(s.t, s.cmd.Process.Pid, syscall.SIGKILL)
	} else {
		kill(s.t, st.PID, syscall.SIGKILL)
	}
	require.Error(s.t, s.exited())
	s.awaitGone(pids)
}

var victims = []string{"the shim", "the engine"}

// TestParkedAcrossRestarts: from the sleep to the wake no engine is started, whoever is
// killed in between.
func TestParkedAcrossRestarts(t *testing.T) {
	t.Parallel()
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			l, a := newLot(t), consultest.New(t)
			s := startShim(t, settings{consul: a.Addr(), tune: l.tune()})
			st := s.awaitState(engine.Active)
			require.False(t, st.Parked)
			s.post("/v1/sleep", http.StatusOK)
			require.True(t, l.parked())
			require.Empty(t, a.Services())
			st = s.awaitState(engine.Standby)
			require.True(t, st.Parked)
			code, body := call(t, http.MethodGet, s.url+"/ready")
			require.Equal(t, http.StatusOK, code, "it does what is asked of it: %s", body)
			_, body = call(t, http.MethodGet, s.url+"/metrics")
			require.Contains(t, body, `remuda_engine_parked{model="m",replica="r1",role="primary",variant="v"} 1`)
			s.post("/v1/sleep", http.StatusOK)
			since := st.ParkedSince

			s.kill9(victim)
			s = startShim(t, settings{consul: a.Addr(), tune: l.tune()})
			st = s.withoutEngine()
			require.Equal(t, since, st.ParkedSince)
			s.post("/v1/sleep", http.StatusOK)
			kill(t, s.cmd.Process.Pid, syscall.SIGKILL)
			require.Error(t, s.exited())
			s = startShim(t, settings{consul: a.Addr(), tune: l.tune()})
			s.withoutEngine()
			require.Empty(t, a.Services())
			s.post("/v1/wake", http.StatusOK)
			require.False(t, l.parked())
			st = s.awaitState(engine.Active)
			require.False(t, st.Parked)
			require.True(t, registered(a.Services()))
			s.post("/v1/wake", http.StatusOK)

			s.kill9(victim) // after the wake all is as ever
			s = startShim(t, settings{consul: a.Addr(), tune: l.tune()})
			s.awaitState(engine.Active)
		})
	}
}

// TestKilledBeforeItSleeps: a drain that does not come to an end parks nothing.
func TestKilledBeforeItSleeps(t *testing.T) {
	t.Parallel()
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			l := newLot(t)
			s := startShim(t, settings{tune: l.tune()})
			s.awaitState(engine.Active)
			s.request()
			body := s.post("/v1/sleep?timeout=100ms", http.StatusGatewayTimeout)
			require.Contains(t, body, `"state":"draining"`)
			require.False(t, l.parked(), "it was called off")
			go func() { _, _ = http.Post(s.url+"/v1/sleep", "", nil) }()
			s.awaitState(engine.Draining)
			s.kill9(victim)
			require.False(t, l.parked())
			startShim(t, settings{tune: l.tune()}).awaitState(engine.Active)
		})
	}
}

// TestKilledWithinItsSleep: the record is written first.
func TestKilledWithinItsSleep(t *testing.T) {
	t.Parallel()
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			l := newLot(t)
			s := startShim(t, settings{tune: l.tune()})
			s.awaitState(engine.Active)
			s.control("slow-sleep")
			go func() { _, _ = http.Post(s.url+"/v1/sleep", "", nil) }()
			s.await("the record", l.parked)
			_, body := call(t, http.MethodGet, s.engine+"/is_sleeping")
			require.JSONEq(t, `{"is_sleeping":false}`, body)
			s.kill9(victim)
			s = startShim(t, settings{tune: l.tune()})
			s.withoutEngine()
			s.post("/v1/wake", http.StatusOK)
			s.awaitState(engine.Active)
			require.False(t, l.parked())
		})
	}
}

// TestKilledWithinItsWake: it is parked until it serves.
func TestKilledWithinItsWake(t *testing.T) {
	t.Parallel()
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			l := newLot(t)
			s := startShim(t, settings{tune: l.tune()})
			s.awaitState(engine.Active)
			s.control("slow-wake")
			s.post("/v1/sleep", http.StatusOK)
			go func() { _, _ = http.Post(s.url+"/v1/wake", "", nil) }()
			s.awaitState(engine.Waking)
			require.True(t, l.parked())
			s.kill9(victim)
			s = startShim(t, settings{tune: l.tune()})
			s.withoutEngine()
			s.post("/v1/wake", http.StatusOK)
			s.awaitState(engine.Active)
		})
	}
}

// TestFailedSleepStaysParked: what was not put to sleep must not be started again.
func TestFailedSleepStaysParked(t *testing.T) {
	t.Parallel()
	l := newLot(t)
	s := startShim(t, settings{tune: l.tune()})
	s.awaitState(engine.Active)
	s.control("fail-sleep")
	s.post("/v1/sleep", http.StatusInternalServerError)
	require.Equal(t, 1, exitCode(s.exited()))
	startShim(t, settings{tune: l.tune()}).withoutEngine()
}

func TestSleeplessEngineIsNotParked(t *testing.T) {
	t.Parallel()
	l := newLot(t)
	s := startShim(t, settings{sleepless: true, tune: l.tune()})
	s.awaitState(engine.Active)
	s.post("/v1/sleep", http.StatusConflict)
	require.False(t, l.parked())
	require.Equal(t, engine.Active, s.awaitState(engine.Active).State)
}

// TestOddRecords: a damaged one keeps the engine asleep, and what cannot be written parks nothing.
func TestOddRecords(t *testing.T) {
	t.Parallel()
	l := newLot(t)
	l.put("{")
	s := startShim(t, settings{tune: l.tune()})
	s.withoutEngine()
	s.post("/v1/wake", http.StatusOK)
	require.False(t, l.parked())

	missing := newLot(t)
	s = startShim(t, settings{tune: missing.tune()})
	s.awaitState(engine.Active)
	require.NoError(t, os.RemoveAll(missing.dir))
	body := s.post("/v1/sleep", http.StatusInternalServerError)
	require.Contains(t, body, "write the record")
	s.post("/v1/wake", http.StatusOK) // the drain is called off
	s.awaitState(engine.Active)
}

func TestParkedShimStops(t *testing.T) {
	t.Parallel()
	l := newLot(t)
	s := startShim(t, settings{tune: l.tune()})
	s.awaitState(engine.Active)
	s.post("/v1/sleep", http.StatusOK)
	st := s.awaitState(engine.Standby)
	kill(t, s.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 0, exitCode(s.exited()))
	s.awaitGone([]int{st.PID})
	s = startShim(t, settings{tune: l.tune()})
	s.withoutEngine()
	kill(t, s.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 0, exitCode(s.exited()))
	require.True(t, l.parked())
}

// TestParkedPair: the lock goes on as ever, and nobody wakes.
func TestParkedPair(t *testing.T) {
	t.Parallel()
	for _, victim := range victims {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			lock, l, a := newLocks(t), newLot(t), consultest.New(t)
			primary := lock.engine(replica.RolePrimary, a, l.tune())
			primary.awaitState(engine.Active)
			shadow := lock.engine(replica.RoleShadow, a, l.tune())
			shadow.standby()
			body := shadow.post("/v1/sleep", http.StatusConflict)
			require.Contains(t, body, "waits for its lock")
			require.False(t, l.parked())

			primary.post("/v1/sleep", http.StatusOK)
			require.Empty(t, a.Services())
			st, ok := shadow.status()
			require.True(t, ok)
			require.True(t, st.Parked, "the record is the pair's")
			shadow.post("/v1/sleep", http.StatusConflict)
			shadow.post("/v1/wake", http.StatusConflict)

			primary.kill9(victim)
			shadow.await("the lock", func() bool { st, _ = shadow.status(); return st.Lock != nil && st.Lock.Held })
			require.Equal(t, token(4), st.Token)
			primary = lock.engine(replica.RolePrimary, a, l.tune())
			primary.withoutEngine()
			primary.standby()
			st, ok = shadow.status()
			require.True(t, ok)
			require.Equal(t, []any{engine.Standby, true}, []any{st.State, st.Parked})
			require.NotZero(t, st.PID, "its engine sleeps on")
			_, body = call(t, http.MethodGet, shadow.engine+"/is_sleeping")
			require.JSONEq(t, `{"is_sleeping":true}`, body)
			require.Empty(t, a.Services())
			shadow.post("/v1/sleep", http.StatusOK)
			primary.post("/v1/wake", http.StatusConflict)

			shadow.post("/v1/wake", http.StatusOK)
			require.False(t, l.parked())
			serves(t, a, replica.RoleShadow, "4")
			primary.await("an engine that stands by again", func() bool {
				st, ok := primary.status()
				if !ok || st.PID == 0 {
					return false
				}
				resp, err := http.Get(primary.engine + "/is_sleeping")
				if err != nil {
					return false
				}
				defer resp.Body.Close()
				raw := make([]byte, 64)
				n, _ := resp.Body.Read(raw)
				return strings.Contains(string(raw[:n]), "true")
			})
			shadow.kill9(victim)
			primary.awaitState(engine.Active)
			serves(t, a, replica.RolePrimary, "6")
		})
	}
}

// TestPairWhoseHolderDiesWaking: the other one gets the lock and sleeps on.
func TestPairWhoseHolderDiesWaking(t *testing.T) {
	t.Parallel()
	lock, l, a := newLocks(t), newLot(t), consultest.New(t)
	primary := lock.engine(replica.RolePrimary, a, l.tune())
	primary.awaitState(engine.Active)
	shadow := lock.engine(replica.RoleShadow, a, l.tune())
	shadow.standby()
	primary.control("slow-wake")
	primary.post("/v1/sleep", http.StatusOK)
	go func() { _, _ = http.Post(primary.url+"/v1/wake", "", nil) }()
	primary.awaitState(engine.Waking)
	primary.kill9("the engine")
	shadow.await("the lock", func() bool { st, _ := shadow.status(); return st.Lock != nil && st.Lock.Held })
	st := shadow.awaitState(engine.Standby)
	require.True(t, st.Parked)
	shadow.post("/v1/wake", http.StatusOK)
	serves(t, a, replica.RoleShadow, "4")
}

// TestPairIsParkedWhileItsShadowLoads: an engine that loads would take memory.
func TestPairIsParkedWhileItsShadowLoads(t *testing.T) {
	t.Parallel()
	lock, l, a := newLocks(t), newLot(t), consultest.New(t)
	primary := lock.engine(replica.RolePrimary, a, l.tune())
	primary.awaitState(engine.Active)
	shadow := startShim(t, settings{role: replica.RoleShadow, loading: true, consul: a.Addr(), tune: l.tune(func(c *engine.Config) { c.Lock, c.Standby = lock.cfg.Socket, engine.StandbyWarm })})
	var st engine.Status
	shadow.await("an engine that loads", func() bool {
		var ok bool
		st, ok = shadow.status()
		return ok && st.State == engine.Init && st.PID != 0
	})
	primary.post("/v1/sleep", http.StatusOK)
	shadow.withoutEngine()
	shadow.awaitGone([]int{st.PID})
	shadow.standby()
	primary.post("/v1/wake", http.StatusOK)
	shadow.await("an engine that loads again", func() bool { st, ok := shadow.status(); return ok && st.PID != 0 })
	primary.post("/v1/sleep", http.StatusOK)
	shadow.withoutEngine() // again, from its second start
	kill(t, shadow.cmd.Process.Pid, syscall.SIGTERM)
	require.Equal(t, 0, exitCode(shadow.exited()))
}

// TestWithoutAParkASleepEndsWithTheShim, as ever.
func TestWithoutAParkASleepEndsWithTheShim(t *testing.T) {
	t.Parallel()
	s := startShim(t, settings{})
	s.awaitState(engine.Active)
	s.post("/v1/sleep", http.StatusOK)
	st := s.awaitState(engine.Standby)
	require.False(t, st.Parked)
	s.kill9("the shim")
	startShim(t, settings{}).awaitState(engine.Active)
}

// TestWakeOnOtherGPUs: where the engine can, also across restarts.
func TestWakeOnOtherGPUs(t *testing.T) {
	t.Parallel()
	l := newLot(t)
	gpus := func(c *engine.Config) {
		c.Dialect, c.UseGPUs, c.SeatGPUs = "sim", []string{"GPU-a"}, []string{"GPU-a", "GPU-b", "GPU-c"}
	}
	uses := func(s *shim, want ...string) {
		t.Helper()
		st := s.awaitState(engine.Active)
		require.Equal(t, want, st.GPUs)
		_, body := call(t, http.MethodGet, s.engine+"/test/gpus")
		require.Equal(t, strings.Join(want, ","), body)
	}
	s := startShim(t, settings{tune: l.tune(gpus)})
	uses(s, "GPU-a")
	require.Equal(t, "GPU-a", env(t, s.awaitState(engine.Active).PID, "CUDA_VISIBLE_DEVICES"), "not all on which it has seats")
	s.post("/v1/wake?gpus=GPU-a", http.StatusOK)
	body := s.post("/v1/wake?gpus=GPU-b", http.StatusConflict)
	require.Contains(t, body, "must sleep before it wakes on other GPUs")
	s.post("/v1/sleep", http.StatusOK)
	for _, bad := range []string{"GPU-x", "GPU-a,GPU-a", ""} {
		s.post("/v1/wake?gpus="+bad, http.StatusBadRequest)
	}
	s.post("/v1/wake?gpus=GPU-b", http.StatusOK)
	uses(s, "GPU-b")

	s.kill9("the shim")
	s = startShim(t, settings{tune: l.tune(gpus)})
	uses(s, "GPU-b") // the ledger has it there, whatever the job says
	s.post("/v1/sleep", http.StatusOK)
	s.kill9("the shim")
	s = startShim(t, settings{tune: l.tune(gpus)})
	s.withoutEngine()
	s.post("/v1/wake?gpus=GPU-c,GPU-a", http.StatusOK)
	uses(s, "GPU-c", "GPU-a")
	s.post("/v1/sleep", http.StatusOK)
	s.post("/v1/wake?gpus=GPU-a,GPU-c", http.StatusOK) // the same ones
	s.post("/v1/sleep", http.StatusOK)
	s.post("/v1/wake", http.StatusOK)
	uses(s, "GPU-c", "GPU-a")
}

// TestPairMoves: whoever takes over wakes where the group is.
func TestPairMoves(t *testing.T) {
	t.Parallel()
	lock, l, a := newLocks(t), newLot(t), consultest.New(t)
	gpus := l.tune(func(c *engine.Config) {
		c.Dialect, c.UseGPUs, c.SeatGPUs = "sim", []string{"GPU-a"}, []string{"GPU-a", "GPU-b"}
	})
	primary := lock.engine(replica.RolePrimary, a, gpus)
	primary.awaitState(engine.Active)
	shadow := lock.engine(replica.RoleShadow, a, gpus)
	shadow.standby()
	primary.post("/v1/sleep", http.StatusOK)
	primary.post("/v1/wake?gpus=GPU-b", http.StatusOK)
	primary.kill9("the engine")
	require.Equal(t, []string{"GPU-b"}, shadow.awaitState(engine.Active).GPUs)
	_, body := call(t, http.MethodGet, shadow.engine+"/test/gpus")
	require.Equal(t, "GPU-b", body)
}

// TestStandbyStartsWhereTheGroupIs: an engine loads its model before it stands by. It must
// do so where the ledger has room for it, and not where the group was before.
func TestStandbyStartsWhereTheGroupIs(t *testing.T) {
	t.Parallel()
	lock, l, a := newLocks(t), newLot(t), consultest.New(t)
	gpus := l.tune(func(c *engine.Config) {
		c.Dialect, c.UseGPUs, c.SeatGPUs = "sim", []string{"GPU-a"}, []string{"GPU-a", "GPU-b"}
	})
	primary := lock.engine(replica.RolePrimary, a, gpus)
	primary.awaitState(engine.Active)
	primary.post("/v1/sleep", http.StatusOK)
	shadow := lock.engine(replica.RoleShadow, a, gpus)
	shadow.withoutEngine()
	primary.post("/v1/wake?gpus=GPU-b", http.StatusOK)
	var st engine.Status
	shadow.await("an engine that stands by", func() bool {
		st, _ = shadow.status()
		return st.PID != 0
	})
	require.Equal(t, []string{"GPU-b"}, st.GPUs)
	require.Equal(t, "GPU-b", env(t, st.PID, engine.EnvUseGPUs))
}

// TestEngineThatCannotMove sleeps on, with and without its process.
func TestEngineThatCannotMove(t *testing.T) {
	t.Parallel()
	l := newLot(t)
	gpus := func(c *engine.Config) { c.UseGPUs, c.SeatGPUs = []string{"GPU-a"}, []string{"GPU-a", "GPU-b"} }
	s := startShim(t, settings{tune: l.tune(gpus)})
	s.awaitState(engine.Active)
	s.post("/v1/sleep", http.StatusOK)
	for range 2 {
		body := s.post("/v1/wake?gpus=GPU-b", http.StatusConflict)
		require.Contains(t, body, "cannot move")
		s.awaitState(engine.Standby)
		require.True(t, l.parked())
		kill(t, s.cmd.Process.Pid, syscall.SIGKILL)
		require.Error(t, s.exited())
		s = startShim(t, settings{tune: l.tune(gpus)})
		s.withoutEngine()
	}
	s.post("/v1/wake?gpus=GPU-a", http.StatusOK)
	s.awaitState(engine.Active)
}

// TestOrderForAnotherState: an order names the state that it is for, and does nothing in
// another one.
func TestOrderForAnotherState(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	primary := p.shim(replica.RolePrimary)
	p.serves(primary)
	since := func() string {
		st, ok := primary.status()
		require.True(t, ok)
		return "?since=" + url.QueryEscape(st.Since.Format(time.RFC3339Nano))
	}
	serving := since()
	primary.post("/v1/sleep"+serving, http.StatusOK)
	p.free(primary)
	asleep := since()
	body := primary.post("/v1/wake"+serving, http.StatusPreconditionFailed)
	require.Contains(t, body, "the engine's state has changed: it is standby since")
	primary.post("/v1/wake"+asleep, http.StatusOK)
	p.serves(primary)
	primary.post("/v1/sleep"+serving, http.StatusPreconditionFailed)
	primary.post("/v1/sleep"+asleep, http.StatusPreconditionFailed)
	p.serves(primary)
	body = primary.post("/v1/sleep?since=yesterday", http.StatusBadRequest)
	require.Contains(t, body, `since is \"yesterday\"`)
}

// startWarm makes a shim load its engine to sleep.
func startWarm(c *engine.Config) { c.StartWarm = true }

// TestStartsWarm: the engines of a new allocation load and sleep, and nothing serves until a wake. Afterwards
// they are as any others.
func TestStartsWarm(t *testing.T) {
	t.Parallel()
	asleep := func(s *shim) {
		t.Helper()
		st, ok := s.status()
		require.True(t, ok)
		require.Equal(t, []any{engine.Standby, false}, []any{st.State, st.Parked})
		require.NotZero(t, st.PID)
		_, body := call(t, http.MethodGet, s.engine+"/is_sleeping")
		require.JSONEq(t, `{"is_sleeping":true}`, body)
	}
	t.Run("a pair", func(t *testing.T) {
		t.Parallel()
		lock, l, a := newLocks(t), newLot(t), consultest.New(t)
		primary := lock.engine(replica.RolePrimary, a, l.tune(startWarm))
		primary.await("the lock", func() bool { st, _ := primary.status(); return st.Lock != nil && st.Lock.Held })
		shadow := lock.engine(replica.RoleShadow, a, l.tune(startWarm))
		shadow.standby()
		time.Sleep(300 * time.Millisecond) // longer than several looks of the shims' own
		asleep(primary)
		asleep(shadow)
		require.Empty(t, a.Services())
		for _, victim := range victims { // it loads again
			shadow.kill9(victim)
			shadow = lock.engine(replica.RoleShadow, a, l.tune(startWarm))
			shadow.standby()
			asleep(shadow)
		}
		if st, _ := primary.status(); !st.Lock.Held {
			t.Fatal("the primary has lost the lock")
		}
		primary.post("/v1/sleep", http.StatusOK)
		require.True(t, l.parked())
		require.False(t, l.record().Loads)
		primary.post("/v1/wake", http.StatusOK)
		primary.awaitState(engine.Active)
		primary.kill9("the engine")
		shadow.awaitState(engine.Active)
		primary = lock.engine(replica.RolePrimary, a, l.tune(startWarm))
		primary.standby()
		shadow.kill9("the engine")
		primary.awaitState(engine.Active)
	})
	t.Run("a single engine", func(t *testing.T) {
		t.Parallel()
		l, a := newLot(t), consultest.New(t)
		s := startShim(t, settings{role: replica.RolePrimary, consul: a.Addr(), tune: l.tune(startWarm)})
		s.awaitState(engine.Standby)
		time.Sleep(300 * time.Millisecond)
		asleep(s)
		s.post("/v1/wake", http.StatusOK) // also without a sleep before it
		s.awaitState(engine.Active)
		s.kill9("the engine")
		s = startShim(t, settings{role: replica.RolePrimary, consul: a.Addr(), tune: l.tune(startWarm)})
		s.awaitState(engine.Active)
	})
}
