//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
	"remuda/lockd/engine"
)

// viewer is a client that streams answer after answer and asks again at once when
// one breaks.
type viewer struct {
	mu      sync.Mutex
	streams int       // begun so far
	last    time.Time // token
	// killed is the number of streams at the kill, and resumed gets the gap between
	// the last token of those and the first of a later one.
	killed  int
	resumed chan time.Duration
}

func watchAnswers(t testing.TB, ctx context.Context, gateway, model string, done *sync.WaitGroup) *viewer {
	v := &viewer{}
	done.Go(func() {
		for ctx.Err() == nil {
			v.mu.Lock()
			v.streams++
			stream := v.streams
			v.mu.Unlock()
			prompt := fmt.Sprintf("stream %d", stream)
			got, err := streamChatSeen(ctx, gateway, model, prompt, 100, func(at time.Time) { v.token(stream, at) })
			if err == nil && got.text != exact(model, prompt, 100).Text {
				t.Errorf("%s: got %q", prompt, got.text)
			}
			if err != nil {
				time.Sleep(time.Millisecond)
			}
		}
	})
	return v
}

func (v *viewer) token(stream int, at time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.resumed != nil && stream > v.killed {
		v.resumed <- at.Sub(v.last)
		v.resumed = nil
	}
	v.last = at
}

func (v *viewer) seesTokens() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.last.IsZero() {
		return errors.New("none came")
	}
	return nil
}

// kill runs f, which kills the serving engine, and tells how long there was no
// token.
func (v *viewer) kill(f func()) <-chan time.Duration {
	v.mu.Lock()
	defer v.mu.Unlock()
	resumed := make(chan time.Duration, 1)
	v.resumed, v.killed = resumed, v.streams
	f()
	return resumed
}

// TestPair shares one cluster with a failover pair; its parts run in order.
func TestPair(t *testing.T) {
	t.Parallel()
	raft := dataDir(t)
	d := newDev(t, func(o *devcluster.Options) {
		o.GPUs = 2
		set(o, "nomad-client", nomadForController(t, "/usr/local/bin/remuda", raft))
	})
	inTurn(t, d, func(t *testing.T) { d.t = t }, []part[*dev]{
		{"failover", failover},
		{"lockd hangs", hungLockd},
		{"shared weights", sharedWeights},
		{"the controller's adapter on a real Nomad", nomadAdapter},
		{"job files are valid", jobFilesAreValid},
		{"configs of the jobs", configsOfTheJobs},
		{"the controller on Nomad", func(t *testing.T, d *dev) { controllerOnNomad(t, d, raft) }},
	})
	if !t.Failed() {
		d.stop(syscall.SIGINT)
	}
}

// failover kills the engine that serves, over and over, under load: the other one of the
// pair takes over, and the one that was killed comes back as its shadow, by itself.
func failover(t *testing.T, d *dev) {
	require.Regexp(t, "^demo:sim:", d.info.Job, "the job bears the replica's name")
	l := d.load("demo", 4, 20)
	ctx, cancel := context.WithCancel(t.Context())
	var viewing sync.WaitGroup
	v := watchAnswers(t, ctx, d.info.Gateway, "demo", &viewing)
	eventually(t, time.Minute, "the first token", v.seesTokens)
	var gaps []time.Duration
	var token replica.Token
	for round := range long.Pick(4, 20) {
		active, standby := d.pair()
		require.Positive(t, active.Token.Compare(token), "tokens grow: %s after %s", active.Token, token)
		token = active.Token
		require.Equal(t, 1, standby.Lock.Position)
		shim := parent(t, active.PID)
		// The holder of the lock is the shim; its engine must go with it, and it
		// with its engine.
		resumed := v.kill(func() { kill9(t, []int{active.PID, shim}[round%2]) })
		select {
		case gap := <-resumed:
			gaps = append(gaps, gap)
		case <-time.After(2 * time.Minute):
			t.Fatal("no answer from the other engine within 2 min")
		}
		now := d.engine("demo")
		require.Equal(t, standby.Role, now.Role, "the shadow serves")
		for _, pid := range []int{active.PID, shim} {
			eventually(t, 5*time.Second, "the old processes to be gone", func() error {
				if syscall.Kill(pid, 0) == nil {
					return fmt.Errorf("%d lives", pid)
				}
				return nil
			})
		}
	}
	cancel()
	viewing.Wait()
	active, standby := d.pair()
	require.NotEqual(t, active.Role, standby.Role)
	// A holder that hangs keeps its connection: lockd misses its heartbeats and kills it.
	frozen := parent(t, active.PID)
	require.NoError(t, syscall.Kill(frozen, syscall.SIGSTOP))
	began := time.Now()
	eventually(t, time.Minute, "the other engine to take over from the one that hangs", func() error {
		e, err := d.passing("demo")
		if err == nil && (len(e) != 1 || e[0].Role != standby.Role) {
			err = fmt.Errorf("consul has %+v", e)
		}
		return err
	})
	t.Logf("a holder that hangs was replaced after %s", time.Since(began).Round(time.Millisecond))
	require.ErrorIs(t, syscall.Kill(frozen, syscall.SIGCONT), syscall.ESRCH, "it is dead and does nothing more")
	active, standby = d.pair()
	served, failed := l.end()
	eventually(t, 10*time.Second, "lockd to show the holder in Consul", func() error { return d.mirrored(active) })
	d.killLockd()
	again, _ := d.pair()
	require.Equal(t, active.PID, again.PID, "a lockd that is killed costs nobody the lock")
	require.Equal(t, active.Token, again.Token)
	eventually(t, 40*time.Second, "the new lockd to show the holder in Consul", func() error { return d.mirrored(active) })
	slices.Sort(gaps)
	t.Logf("from the last token before the kill to the first after it, n=%d: p50 %s, p99 %s, max %s; %d other streams served meanwhile, %d broken or refused",
		len(gaps), gaps[len(gaps)/2], gaps[(len(gaps)-1)*99/100], gaps[len(gaps)-1], served, failed)
}

// hungLockd stops lockd with its sockets open: its check ends it, and Nomad starts another one. The engine that
// served died meanwhile. Its place goes to the first that asks the new lockd: the standby, or the engine that
// was started again, if that has loaded by then.
func hungLockd(t *testing.T, d *dev) {
	active, _ := d.pair()
	find := func() int {
		found := d.commands(" lockd -socket ")
		if len(found) != 1 {
			return 0
		}
		return pids(t, found)[0]
	}
	hung := find()
	require.NotZero(t, hung)
	began := time.Now()
	require.NoError(t, syscall.Kill(hung, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(hung, syscall.SIGCONT) })
	kill9(t, active.PID)
	eventually(t, 2*time.Minute, "another lockd", func() error {
		if now := find(); now == 0 || now == hung {
			return errors.New("there is none")
		}
		return nil
	})
	again := time.Since(began)
	eventually(t, time.Minute, "an engine to serve", func() error {
		engines, err := d.passing("demo")
		if err == nil && (len(engines) != 1 || engines[0].Token.Compare(active.Token) <= 0) {
			err = fmt.Errorf("consul has %+v", engines)
		}
		return err
	})
	d.answers("after a lockd that hung")
	now, _ := d.pair()
	require.Positive(t, now.Token.Compare(active.Token))
	require.NotEqual(t, active.PID, now.PID)
	t.Logf("a lockd that hung was replaced after %s, and %s served after %s", again.Round(time.Millisecond), now.Role, time.Since(began).Round(time.Millisecond))
}

// mirrored returns nil if Consul's key says that the engine holds the lock, in a
// living session.
func (d *dev) mirrored(active engine.Status) error {
	key, _, err := d.consul.KV().Get("remuda/locks/"+active.Replica, nil)
	if err != nil || key == nil {
		return fmt.Errorf("key of %s: %v, %w", active.Replica, key, err)
	}
	var v struct {
		Holder string
		Token  uint64
	}
	if err := json.Unmarshal(key.Value, &v); err != nil {
		return err
	}
	if v.Holder != active.Role || v.Token != active.Token.Counter || key.Session == "" {
		return fmt.Errorf("consul says %s in session %q, want %s with token %s", key.Value, key.Session, active.Role, active.Token)
	}
	return nil
}

// killLockd kills lockd with -9 and waits until Nomad has started another.
func (d *dev) killLockd() {
	d.t.Helper()
	d.killTasks(" lockd -socket ")
}

// killTasks kills the processes whose command lines have these parts with -9, all
// at once, and waits until Nomad has started others.
func (d *dev) killTasks(parts ...string) {
	d.t.Helper()
	find := func(part string) int {
		for _, p := range processesOf(d.info.DataDir) {
			if pid, command, _ := strings.Cut(p, " "); strings.Contains(command, part) {
				n, err := strconv.Atoi(pid)
				require.NoError(d.t, err)
				return n
			}
		}
		return 0
	}
	before := make([]int, len(parts))
	for i, part := range parts {
		before[i] = find(part)
		require.NotZero(d.t, before[i], "no process has %q", part)
	}
	kill9(d.t, before...)
	eventually(d.t, 20*time.Second, "the killed tasks to run again", func() error {
		for i, part := range parts {
			if now := find(part); now == 0 || now == before[i] {
				return fmt.Errorf("%q does not", part)
			}
		}
		return nil
	})
}

// pair waits until one engine of the pair serves and the other waits for the lock.
func (d *dev) pair() (active, standby engine.Status) {
	d.t.Helper()
	eventually(d.t, time.Minute, "one engine to serve and one to stand by", func() error {
		a := d.alloc()
		states := map[engine.State]engine.Status{}
		for _, role := range []string{replica.RolePrimary, replica.RoleShadow} {
			resp, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/state", port(d.t, a, role+"_shim")))
			if err != nil {
				return err
			}
			var st engine.Status
			err = json.NewDecoder(resp.Body).Decode(&st)
			_ = resp.Body.Close()
			if err != nil {
				return err
			}
			states[st.State] = st
		}
		var okActive, okStandby bool
		active, okActive = states[engine.Active]
		standby, okStandby = states[engine.Standby]
		if !okActive || !okStandby || standby.Lock.Position == 0 {
			return fmt.Errorf("%+v", states)
		}
		engines, err := d.passing("demo")
		if err == nil && (len(engines) != 1 || engines[0].Role != active.Role) {
			err = fmt.Errorf("consul has %+v", engines)
		}
		return err
	})
	return active, standby
}
