//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/state"
	"remuda/internal/devcluster"
	"remuda/internal/testkit/long"
	"remuda/internal/testkit/nextlevel"
)

// TestControllerServers: three controllers, whose leader is killed, frozen and cut off, and
// two nodes, of which one is drained, blinks and is lost.
func TestControllerServers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, func(o *devcluster.Options) { o.Nodes = 2 })
	inTurn(t, f, f.use, []part[*fleet]{
		{"leader killed in the middle of", leaderKilled},
		{"leader frozen", leaderFrozen},
		{"leader cut off", leaderCutOff},
		{"upgrade and back", upgradeAndBack},
		{"all killed at once", allKilled},
		{"a node is drained", nodeDrained},
		{"a node blinks", nodeBlinks},
		{"a node is lost", nodeLost},
		{"a node is frozen", nodeFrozen},
	})
}

// written requires that every job was written exactly once: nobody did what was done.
func (f *fleet) written(model string) {
	f.t.Helper()
	_, versions := f.allocations(model)
	for job, version := range versions {
		require.Zero(f.t, version, "job %s was written %d times", job, version+1)
	}
}

func leaderKilled(t *testing.T, f *fleet) {
	// Delays are from 0 to a little longer than a job takes to be registered, and to
	// load. The short form has one of them at random for each step.
	delays := []time.Duration{0, 30 * time.Millisecond, 120 * time.Millisecond, 400 * time.Millisecond}
	rounds := delays
	if !long.Enabled() {
		rounds = delays[:1]
	}
	for i, delay := range rounds {
		model := fmt.Sprintf("kill-%d", i)
		kill := func(what string) {
			t.Helper()
			leader := f.leader()
			if !long.Enabled() {
				delay = delays[rand.IntN(len(delays))]
			}
			time.Sleep(delay + rand.N(delay+time.Millisecond))
			leader.end(syscall.SIGKILL)
			f.leader(leader)
			leader.start()
			t.Logf("%s: the leader, server %d, was killed after %s", what, leader.number, delay)
		}
		f.remuda("model", "apply", "-detach", f.modelFile(model, 2, nil))
		kill("deploy")
		f.hot(model, 2)
		f.remuda("scale", "-detach", model, "4")
		kill("scale up")
		f.hot(model, 4)
		f.remuda("scale", "-detach", model, "2")
		kill("scale down")
		f.hot(model, 2)
		f.remuda("model", "apply", "-detach", f.modelFile(model, 2, map[string]string{"weights": "48MiB"}))
		kill("update")
		f.hot(model, 2)
		f.written(model)
		f.remuda("model", "stop", "-detach", model)
		kill("stop")
		f.hot(model, 0)
	}
}

func leaderFrozen(t *testing.T, f *fleet) {
	f.remuda("model", "apply", f.modelFile("ice", 2, nil))
	before := f.hot("ice", 2)
	old := f.leader()
	// It is stopped in the middle of what it was told to do, and does not know later
	// that it slept.
	f.remuda("scale", "-detach", "ice", "4")
	require.NoError(t, syscall.Kill(f.pid(old.name), syscall.SIGSTOP))
	f.leader(old)
	f.hot("ice", 4)
	_, err := f.api.Scale(t.Context(), "ice", api.ScaleRequest{Replicas: 3})
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(f.pid(old.name), syscall.SIGCONT))
	after := f.hot("ice", 3)
	for _, name := range before {
		require.Contains(t, after, name)
	}
	f.written("ice")
	f.remuda("model", "delete", "ice")
}

func leaderCutOff(t *testing.T, f *fleet) {
	f.remuda("model", "apply", f.modelFile("island", 2, nil))
	f.hot("island", 2)
	old := f.leader()
	f.partition(old, true)
	defer f.partition(old, false)
	now := f.leader(old)
	require.NotEqual(t, old.number, now.number)
	eventually(t, time.Minute, "the old leader to notice", func() error {
		self, err := old.self()
		if err == nil && self.Leader {
			err = errors.New("it leads still")
		}
		return err
	})
	acts, err := actions(old)
	require.NoError(t, err)

	// The majority goes on.
	majority, err := api.NewClient(api.Config{Addresses: []string{"http://" + now.http}})
	require.NoError(t, err)
	defer majority.Close()
	eventually(t, time.Minute, "the majority to take an order", func() error { // it may lose a leader once more
		_, err := majority.Scale(t.Context(), "island", api.ScaleRequest{Replicas: 4})
		return err
	})
	eventually(t, 2*time.Minute, "4 HOT replicas", func() error {
		st, _, err := majority.Model(t.Context(), "island", api.QueryOptions{})
		if err == nil && (st.Counts != api.Counts{Hot: 4}) {
			err = fmt.Errorf("%+v", st.Counts)
		}
		return err
	})
	// The old one neither acts nor promises nor answers for the cluster; what it has it
	// gives to who asks for it as it is.
	island, err := api.NewClient(api.Config{Addresses: []string{"http://" + old.http}, Timeout: 20 * time.Second})
	require.NoError(t, err)
	defer island.Close()
	_, err = island.Scale(t.Context(), "island", api.ScaleRequest{Replicas: 1})
	var refused *api.Error
	require.ErrorAs(t, err, &refused)
	require.Equal(t, api.CodeNoLeader, refused.Code)
	_, _, err = island.Model(t.Context(), "island", api.QueryOptions{})
	require.ErrorAs(t, err, &refused)
	st, meta, err := island.Model(t.Context(), "island", api.QueryOptions{Stale: true})
	require.NoError(t, err)
	require.Equal(t, 2, st.Model.Target)
	require.False(t, meta.KnownLeader)
	later, err := actions(old)
	require.NoError(t, err)
	require.Equal(t, acts, later)

	f.partition(old, false)
	eventually(t, time.Minute, "the old leader to catch up", func() error {
		st, _, err := island.Model(t.Context(), "island", api.QueryOptions{Stale: true})
		if err == nil && st.Model.Target != 4 {
			err = fmt.Errorf("target %d", st.Model.Target)
		}
		return err
	})
	f.hot("island", 4)
	f.written("island")
	f.remuda("model", "delete", "island")
}

// actions returns the lines of a server's metrics that count what it did in Nomad.
func actions(s *server) (map[string]string, error) {
	body, err := fetch("http://" + s.http + "/metrics")
	if err != nil {
		return nil, err
	}
	return linesWith(body, "remuda_controller_actions_total"), nil
}

var switchModel = porcupine.Model{
	Init: func() any { return "" },
	Step: func(s, in, out any) (bool, any) {
		op := in.(switchAccess)
		if op.write {
			return true, op.value
		}
		return s == out, s
	},
	Equal: func(a, b any) bool { return a == b },
}

type switchAccess struct {
	write bool
	value string
}

// written is the switch that the writers of upgradeAndBack set, and writesEach more than each
// of them writes: writer i's nth value is i*writesEach+n.
const (
	written    = "cap-max-replicas/history"
	writesEach = 1_000_000
)

// upgradeAndBack replaces the servers one by one by those of the next feature level, and
// then by those of this one, while clients write, read and watch a switch through all of
// them, a model is scaled, and its requests are answered.
func upgradeAndBack(t *testing.T, f *fleet) {
	next := filepath.Join(t.TempDir(), "remuda")
	nextlevel.Go(t, "build", "-ldflags", "-extldflags=-Wl,-z,lazy", "-o", next, "./cmd/remuda")
	f.remuda("model", "apply", f.modelFile("steady", 2, nil))
	f.hot("steady", 2)
	requests := f.load("steady", 4, 60)
	requests.flows(8)
	target := 2
	// scale is acknowledged, perhaps after some attempts, and is then not lost.
	scale := func() {
		t.Helper()
		target = 5 - target
		eventually(t, time.Minute, "the scale", func() error {
			_, err := f.api.Scale(t.Context(), "steady", api.ScaleRequest{Replicas: target})
			return err
		})
	}
	scaled := func() {
		t.Helper()
		eventually(t, time.Minute, "the model", func() error {
			st, _, err := f.api.Model(t.Context(), "steady", api.QueryOptions{})
			if err == nil {
				require.Equal(t, target, st.Model.Target, "an acknowledged scale is lost")
			}
			return err
		})
	}

	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	begin := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	acknowledged, unknown, read := 0, 0, 0
	record := func(op porcupine.Operation) {
		mu.Lock()
		defer mu.Unlock()
		history = append(history, op)
	}
	newClient := func(i int) *api.Client {
		// Each begins with another server.
		var urls []string
		for k := range f.servers {
			urls = append(urls, "http://"+f.servers[(i+k)%len(f.servers)].http)
		}
		c, err := api.NewClient(api.Config{Addresses: urls, Timeout: 20 * time.Second})
		require.NoError(t, err)
		t.Cleanup(c.Close)
		return c
	}
	value := func(list []api.Switch) string {
		for _, s := range list {
			if n, err := strconv.Atoi(s.Value); err == nil && s.Name == written {
				return fmt.Sprintf("%d.%d", n/writesEach, n%writesEach)
			}
		}
		return ""
	}

	var writers, watchers sync.WaitGroup
	for i := range 3 {
		c := newClient(i)
		writers.Go(func() { // A writer's values grow.
			for n := 1; ctx.Err() == nil; n++ {
				v := fmt.Sprintf("%d.%d", i, n)
				op := porcupine.Operation{ClientId: i, Input: switchAccess{true, v}, Call: int64(time.Since(begin))}
				_, err := c.SetSwitch(context.Background(), written, api.SwitchRequest{Value: strconv.Itoa(i*writesEach + n)})
				op.Return = int64(time.Since(begin))
				var refused *api.Error
				switch {
				case err == nil:
					mu.Lock()
					acknowledged++
					mu.Unlock()
				case errors.As(err, &refused) && refused.Code != api.CodeUnknownOutcome:
					continue // Nothing happened.
				default:
					// It may happen at any time from now on.
					op.ClientId, op.Return = 1000*(i+1)+n, int64(time.Hour)
				}
				mu.Lock()
				if err != nil {
					unknown++
				}
				mu.Unlock()
				record(op)
				time.Sleep(20 * time.Millisecond)
			}
		})
		r := newClient(i + 1)
		writers.Go(func() {
			for ctx.Err() == nil {
				op := porcupine.Operation{ClientId: 10 + i, Input: switchAccess{}, Call: int64(time.Since(begin))}
				list, _, err := r.Switches(context.Background(), api.QueryOptions{})
				op.Return, op.Output = int64(time.Since(begin)), value(list)
				if err == nil {
					record(op)
					mu.Lock()
					read++
					mu.Unlock()
				}
				time.Sleep(20 * time.Millisecond)
			}
		})
	}
	// Watchers must see every writer's values in order, no index go back, and at the end
	// what was written last.
	type sighting struct {
		last    string
		seen    int
		trouble string
	}
	sightings := make([]sighting, 6)
	watchCtx, stopWatching := context.WithCancel(context.Background())
	defer stopWatching()
	for i := range sightings {
		c := newClient(i)
		watchers.Go(func() {
			newest := map[string]int{}
			var index uint64
			_ = api.Watch(watchCtx, api.QueryOptions{Stale: i%2 == 1}, func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
				list, meta, err := c.Switches(ctx, q)
				if err != nil {
					return meta, err
				}
				mu.Lock()
				defer mu.Unlock()
				s := &sightings[i]
				if v := value(list); v != "" && (i%2 == 0 || meta.Index >= index) {
					// A stale answer may be of a server that lags, and says so by its index.
					writer, text, _ := cutDot(v)
					n, _ := strconv.Atoi(text)
					if n < newest[writer] {
						s.trouble = fmt.Sprintf("saw %s after %d of the same writer", v, newest[writer])
					}
					newest[writer] = n
					s.last, s.seen = v, s.seen+1
				}
				if i%2 == 0 && meta.Index < index {
					s.trouble = fmt.Sprintf("index %d after %d", meta.Index, index)
				}
				index = meta.Index
				return meta, nil
			}, nil)
		})
	}

	for _, version := range []struct {
		program string
		level   int
	}{{next, nextlevel.Level}, {binary(t, "remuda"), state.FeatureLevel}} {
		for _, s := range f.servers {
			s.end(syscall.SIGTERM)
			s.replace(version.program)
			scale()
			s.start()
			scaled()
			// The next is not restarted before this one knows its leader, and some more
			// writes were made.
			mu.Lock()
			enough := acknowledged + 15
			mu.Unlock()
			eventually(t, time.Minute, "the server to be back", func() error {
				self, err := s.self()
				if err == nil && !self.KnownLeader {
					err = errors.New("it knows no leader")
				}
				mu.Lock()
				defer mu.Unlock()
				if err == nil && acknowledged < enough {
					err = fmt.Errorf("%d of %d writes", acknowledged, enough)
				}
				return err
			})
			scaled()
		}
		eventually(t, time.Minute, "all servers to have the feature level", func() error {
			conf, _, err := f.api.RaftConfiguration(t.Context(), api.QueryOptions{})
			for _, s := range conf.Servers {
				if err == nil && s.FeatureLevel != version.level {
					err = fmt.Errorf("%+v, want %d", s, version.level)
				}
			}
			return err
		})
	}
	cancel()
	writers.Wait()
	requests.none()
	f.hot("steady", target)
	f.remuda("model", "delete", "steady")
	list, _, err := f.api.Switches(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	final := value(list)
	eventually(t, time.Minute, "all watchers to see the last value", func() error {
		mu.Lock()
		defer mu.Unlock()
		for i, s := range sightings {
			if s.last != final {
				return fmt.Errorf("watcher %d has %q, want %q", i, s.last, final)
			}
		}
		return nil
	})
	stopWatching()
	watchers.Wait()
	seen := 0
	for i, s := range sightings {
		require.Empty(t, s.trouble, "watcher %d", i)
		seen += s.seen
	}
	t.Logf("%d writes acknowledged, %d of unknown outcome, %d reads, %d sightings of 6 watchers in %s", acknowledged, unknown, read, seen, time.Since(begin).Round(time.Second))
	require.Greater(t, acknowledged, 50)
	require.Greater(t, read, 50)
	require.Equal(t, porcupine.Ok, porcupine.CheckOperationsTimeout(switchModel, history, 2*time.Minute))
	require.NoError(t, f.api.DeleteSwitch(t.Context(), written))
}

func allKilled(t *testing.T, f *fleet) {
	f.remuda("model", "apply", f.modelFile("phoenix", 3, nil))
	names := f.hot("phoenix", 3)
	ids, versions := f.allocations("phoenix")
	l := f.load("phoenix", 4, 60)
	for _, s := range f.servers {
		s.end(syscall.SIGKILL)
	}
	l.flows(8)
	for _, s := range f.servers {
		s.start()
	}
	f.leader()
	require.Equal(t, names, f.hot("phoenix", 3))
	l.none()
	gotIDs, gotVersions := f.allocations("phoenix")
	require.True(t, maps.Equal(ids, gotIDs), "allocations %v, were %v", gotIDs, ids)
	require.True(t, maps.Equal(versions, gotVersions))
	f.remuda("model", "delete", "phoenix")
}
