package engine_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/replica"
	"remuda/internal/testkit/consultest"
	"remuda/lockd/engine"
)

// recordOf reads the record in dir.
func recordOf(t *testing.T, dir string) engine.Record {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, "record.json"))
	require.NoError(t, err)
	var rec engine.Record
	require.NoError(t, json.Unmarshal(raw, &rec))
	return rec
}

// awaitTakeover waits until the engine serves after another one.
func (s *shim) awaitTakeover() engine.Status {
	s.t.Helper()
	var st engine.Status
	s.await("a take-over", func() bool {
		var ok bool
		st, ok = s.status()
		return ok && st.State == engine.Active && st.Takeover != nil
	})
	return st
}

// pair starts a pair with one record, of which the primary serves and the shadow waits. tune is for
// the primary.
func (l *locks) pair(a *consultest.Agent, dir string, tune func(*engine.Config)) (primary, shadow *shim) {
	l.t.Helper()
	primary = l.engine(replica.RolePrimary, a, func(c *engine.Config) {
		c.Record = dir
		if tune != nil {
			tune(c)
		}
	})
	first := primary.awaitState(engine.Active)
	require.Nil(l.t, first.Takeover, "it is the first one")
	primary.await("its record", func() bool {
		_, err := os.Stat(filepath.Join(dir, "record.json")) // it is written once the engine serves
		return err == nil
	})
	shadow = l.engine(replica.RoleShadow, a, func(c *engine.Config) { c.Record = dir })
	shadow.standby()
	return primary, shadow
}

// TestTakeoverHasItsCause: the engine that takes over reports why and when the one before it ended.
func TestTakeoverHasItsCause(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end    func(s *shim, st engine.Status)
		cause  engine.Cause
		reason string
	}{
		"a signal":       {func(s *shim, st engine.Status) { kill(s.t, st.PID, syscall.SIGKILL) }, engine.CauseExited, "signal: killed"},
		"it hangs":       {func(s *shim, _ engine.Status) { s.control("hang-health") }, engine.CauseHung, "failed its health checks"},
		"a stop":         {func(s *shim, _ engine.Status) { kill(s.t, s.cmd.Process.Pid, syscall.SIGTERM) }, engine.CauseStopped, ""},
		"a killed shim":  {func(s *shim, _ engine.Status) { kill(s.t, s.cmd.Process.Pid, syscall.SIGKILL) }, engine.CauseKilled, "the shim was killed"},
		"a hand-over":    {func(s *shim, _ engine.Status) { s.post("/v1/failover", http.StatusOK) }, engine.CauseHandOver, "handed over to the standby, drained in"},
		"a drill":        {func(s *shim, _ engine.Status) { s.post("/v1/failover?drill", http.StatusOK) }, engine.CauseDrill, "ended by a drill"},
		"a drill, busy":  {func(s *shim, _ engine.Status) { s.occupy(); s.post("/v1/failover?drill=true", http.StatusOK) }, engine.CauseDrill, "ended by a drill"},
		"no drill, idle": {func(s *shim, _ engine.Status) { s.post("/v1/failover?drill=false", http.StatusOK) }, engine.CauseHandOver, "drained in"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "record")
			l, a := newLocks(t), consultest.New(t)
			primary, shadow := l.pair(a, dir, func(c *engine.Config) {
				if tc.cause == engine.CauseHung {
					c.HangTimeout = 5 * time.Second // longer than a pause of a busy machine
				}
			})
			led := recordOf(t, dir).Leader
			before := primary.awaitState(engine.Active)
			require.Equal(t, []string{replica.RolePrimary, before.Cohort}, []string{led.Role, led.Cohort})
			began := time.Now()
			tc.end(primary, before)
			now := shadow.awaitTakeover()
			primary.exited()
			got := now.Takeover
			require.Equal(t, []any{replica.RolePrimary, tc.cause}, []any{got.From, got.Cause})
			require.Contains(t, got.Reason, tc.reason)
			require.False(t, got.Ended.Before(began), "it ended at %s, and was told to at %s", got.Ended, began)
			require.False(t, got.At.Before(got.Ended))
			require.InDelta(t, got.At.Sub(got.Ended).Seconds(), got.Seconds, 0.001)
			_, metrics := call(t, http.MethodGet, shadow.url+"/metrics")
			require.Contains(t, metrics, `remuda_engine_takeover_seconds_count{cause="`+string(tc.cause)+`",model="m",replica="r1",role="shadow",variant="v"} 1`)

			rec := recordOf(t, dir)
			require.Equal(t, []string{replica.RoleShadow, now.Cohort}, []string{rec.Leader.Role, rec.Leader.Cohort})
			require.Equal(t, []any{replica.RolePrimary, before.Cohort, tc.cause}, []any{rec.LastEnd.Role, rec.LastEnd.Cohort, rec.LastEnd.Cause})
			serves(t, a, replica.RoleShadow, "4")
		})
	}
}

// TestFirstTokenAfterATakeover: the time to the first token is taken where a request waits for it, and nowhere else.
func TestFirstTokenAfterATakeover(t *testing.T) {
	t.Parallel()
	const name = "remuda_engine_takeover_first_token_seconds"
	series := func(s *shim, suffix string) string {
		_, metrics := call(s.t, http.MethodGet, s.url+"/metrics")
		_, value, found := strings.Cut(metrics, name+suffix+`{cause="exited",model="m",replica="r1",role="shadow",variant="v"} `)
		require.True(s.t, found, metrics)
		value, _, _ = strings.Cut(value, "\n")
		return value
	}
	// takeOver starts a pair whose primary dies; before is for the shadow while it stands by.
	takeOver := func(t *testing.T, before func(s *shim), tune func(*engine.Config)) (*shim, *engine.Takeover) {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "record")
		l, a := newLocks(t), consultest.New(t)
		with := func(c *engine.Config) {
			c.Record = dir
			if tune != nil {
				tune(c)
			}
		}
		primary := l.engine(replica.RolePrimary, a, with)
		st := primary.awaitState(engine.Active)
		primary.await("its record", func() bool {
			_, err := os.Stat(filepath.Join(dir, "record.json"))
			return err == nil
		})
		shadow := l.engine(replica.RoleShadow, a, with)
		shadow.standby()
		if before != nil {
			before(shadow)
		}
		kill(t, st.PID, syscall.SIGKILL)
		return shadow, shadow.awaitTakeover().Takeover
	}
	t.Run("a request waits", func(t *testing.T) {
		t.Parallel()
		shadow, took := takeOver(t, func(s *shim) { s.control("stall"); s.occupy() }, nil)
		require.Equal(t, "0", series(shadow, "_count"))
		wentOn := time.Now()
		shadow.control("go-on")
		shadow.await("the first token", func() bool { return series(shadow, "_count") == "1" })
		seconds, err := strconv.ParseFloat(series(shadow, "_sum"), 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, seconds, wentOn.Sub(took.Ended).Seconds())
		require.LessOrEqual(t, seconds, time.Since(took.Ended).Seconds())
		shadow.control("release")
	})
	t.Run("a cold standby", func(t *testing.T) {
		t.Parallel()
		var asked sync.WaitGroup
		ctx, cancel := context.WithCancel(context.Background())
		defer asked.Wait()
		defer cancel()
		shadow, took := takeOver(t, func(s *shim) {
			asked.Go(func() { // the engine has no process yet
				for ctx.Err() == nil {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.engine+"/v1/completions", strings.NewReader("{}"))
					if err != nil {
						return
					}
					if resp, err := http.DefaultClient.Do(req); err == nil {
						_ = resp.Body.Close()
					}
				}
			})
		}, func(c *engine.Config) { c.Standby = engine.StandbyCold })
		shadow.await("the first token", func() bool { return series(shadow, "_count") == "1" })
		seconds, err := strconv.ParseFloat(series(shadow, "_sum"), 64)
		require.NoError(t, err)
		require.GreaterOrEqual(t, seconds, took.Seconds)
	})
	t.Run("none waits", func(t *testing.T) {
		t.Parallel()
		shadow, _ := takeOver(t, nil, nil)
		shadow.await("the end of the wait", func() bool { return strings.Contains(shadow.log.String(), "no request waited for the take-over") })
		shadow.occupy()
		require.Equal(t, "0", series(shadow, "_count"))
	})
}

// TestEndOfAStandby is not one of the engine that serves, and a replica that was put to sleep is
// woken and not taken over.
func TestEndOfAStandby(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "record")
	l, a := newLocks(t), consultest.New(t)
	primary, shadow := l.pair(a, dir, nil)
	kill(t, shadow.awaitState(engine.Standby).PID, syscall.SIGKILL)
	shadow.exited()
	require.Zero(t, recordOf(t, dir).LastEnd)
	shadow = l.engine(replica.RoleShadow, a, func(c *engine.Config) { c.Record = dir })
	shadow.standby()

	primary.post("/v1/sleep", http.StatusOK)
	kill(t, primary.cmd.Process.Pid, syscall.SIGKILL)
	primary.exited()
	shadow.await("the lock", func() bool {
		st, ok := shadow.status()
		return ok && st.Lock.Held
	})
	shadow.post("/v1/wake", http.StatusOK)
	require.Equal(t, engine.Active, shadow.awaitState(engine.Active).State)
	require.Equal(t, replica.RoleShadow, recordOf(t, dir).Leader.Role)
	st, ok := shadow.status()
	require.True(t, ok)
	require.Nil(t, st.Takeover)
}

// TestRestartedSingleEngine takes over from its own earlier life.
func TestRestartedSingleEngine(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "record")
	l, a := newLocks(t), consultest.New(t)
	with := func(c *engine.Config) { c.Record = dir }
	s := l.single(a, with)
	kill(t, s.awaitState(engine.Active).PID, syscall.SIGTERM)
	require.Equal(t, 1, exitCode(s.exited()))
	got := l.single(a, with).awaitTakeover().Takeover
	require.Equal(t, []any{replica.RolePrimary, engine.CauseExited}, []any{got.From, got.Cause})
	require.Contains(t, got.Reason, "signal: terminated")
}
