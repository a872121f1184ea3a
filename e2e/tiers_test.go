//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/internal/devcluster"
	"remuda/internal/testkit/long"
)

// card is more than half of a simulated GPU, so that a second one of the kind finds no
// room beside it.
const card = "60GiB"

// tierModel is a model file whose replicas fill a GPU each.
type tierModel struct {
	name      string
	replicas  int
	priority  int
	dedicated bool
	more      string // further lines of the model block
	detach    bool   // do not wait for the replicas
	memory    string // of the GPU
	weights   string // that are loaded
	vars      string
}

func (f *fleet) applyTier(m tierModel) {
	f.t.Helper()
	if m.priority == 0 {
		m.priority = 50
	}
	if m.memory == "" {
		m.memory = card
	}
	if m.weights == "" {
		m.weights = "32MiB"
	}
	text := fmt.Sprintf(`model %q {
  min       = 0
  max       = 8
  replicas  = %d
  priority  = %d
  dedicated = %t
  %s

  variant "sim" {
    gpu {
      count = 1
    }

    weights     = %q
    memory      = %q
    host_memory = %q
    cost        = 1
    slots       = 4
    job         = "demo.nomad.hcl"
    vars        = { weights = %q%s }
  }
}
`, m.name, m.replicas, m.priority, m.dedicated, m.more, m.weights, m.memory, m.weights, m.weights, m.vars)
	path := filepath.Join(f.dir, m.name+".model.hcl")
	require.NoError(f.t, os.WriteFile(path, []byte(text), 0o600))
	if m.detach {
		f.remuda("model", "apply", "-detach", path)
		return
	}
	f.remuda("model", "apply", path)
}

// replicas returns the model's replicas by name.
func (f *fleet) replicas(model string) (map[string]api.Replica, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	list, _, err := f.api.Replicas(ctx, model, api.QueryOptions{})
	out := map[string]api.Replica{}
	for _, r := range list {
		out[r.Name] = r
	}
	return out, err
}

// tiers waits until the model has exactly so many replicas at rest in each tier, and
// returns them sorted by name.
func (f *fleet) tiers(model string, hot, warm, cold int) []api.Replica {
	f.t.Helper()
	defer func() {
		if f.t.Failed() {
			f.t.Logf("remuda model status %s:\n%s", model, f.remuda("model", "status", model))
		}
	}()
	var found []api.Replica
	eventually(f.t, 2*time.Minute, fmt.Sprintf("%d HOT, %d WARM and %d COLD replicas of %s", hot, warm, cold, model), func() error {
		all, err := f.replicas(model)
		if err != nil {
			return err
		}
		found = found[:0]
		have := map[string]int{}
		for _, r := range all {
			have[r.Status]++
			found = append(found, r)
		}
		want := map[string]int{}
		for status, n := range map[string]int{"serving": hot, "warm": warm, "cold": cold} {
			if n > 0 {
				want[status] = n
			}
		}
		if fmt.Sprint(have) != fmt.Sprint(want) {
			return fmt.Errorf("there are %v: %s", have, f.why(model))
		}
		return nil
	})
	slices.SortFunc(found, func(a, b api.Replica) int { return strings.Compare(a.Name, b.Name) })
	return found
}

func (f *fleet) why(model string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	st, _, err := f.api.Model(ctx, model, api.QueryOptions{})
	if err != nil {
		return err.Error()
	}
	return st.StatusDescription
}

// asked sends one request after the other until one is answered as it should be. It
// returns how long that took.
func (f *fleet) asked(model, prompt string) time.Duration {
	f.t.Helper()
	begin := time.Now()
	eventually(f.t, 2*time.Minute, "an answer of "+model, func() error {
		got, err := streamChat(context.Background(), f.info.Gateway, model, prompt, 20)
		if err == nil && got.text != exact(model, prompt, 20).Text {
			err = fmt.Errorf("got %q", got.text)
		}
		return err
	})
	return time.Since(begin)
}

// engineOf returns the URL of a replica's engine that serves now.
func (f *fleet) engineOf(name string) string {
	f.t.Helper()
	var url string
	eventually(f.t, time.Minute, "the engine of "+name, func() error {
		model, _, _ := strings.Cut(name, ":")
		engines, err := f.passing(model)
		for _, e := range engines {
			if e.Name.String() == name {
				url = "http://" + e.HostPort()
				return nil
			}
		}
		return errors.Join(err, errors.New("it is not in Consul"))
	})
	return url
}

// fault switches faults of a simulated engine.
func (f *fleet) fault(engine string, set map[string]any) {
	f.t.Helper()
	raw, err := json.Marshal(set)
	require.NoError(f.t, err)
	resp, err := client.Post(engine+"/sim/faults", "application/json", bytes.NewReader(raw))
	require.NoError(f.t, err)
	defer resp.Body.Close()
	require.Equal(f.t, http.StatusOK, resp.StatusCode)
}

// gpuOf is the GPU on which a replica has its first seat.
func gpuOf(r api.Replica) string { gpu, _, _ := strings.Cut(r.Seats[0], "#"); return gpu }

// ledgers requires that what the nodes say is held is what the replicas hold, byte for
// byte and seat for seat, and that no GPU has given away more than it has.
func (f *fleet) ledgers() {
	f.t.Helper()
	nodes, _, err := f.api.Nodes(f.t.Context(), api.NodeFilter{}, api.QueryOptions{})
	require.NoError(f.t, err)
	for _, n := range nodes {
		require.GreaterOrEqual(f.t, n.FreeHostMemory, int64(0), "host memory of %s", n.Name)
		for _, g := range n.GPUs {
			require.GreaterOrEqual(f.t, g.FreeMemory, int64(0), "GPU %s of %s", g.UUID, n.Name)
		}
	}
}

// killLeader kills the leader with SIGKILL and starts it again.
func (f *fleet) killLeader() {
	f.t.Helper()
	s := f.leader()
	s.end(syscall.SIGKILL)
	s.start()
}

// TestTiers fills the simulated cluster and moves replicas between HOT, WARM and COLD,
// with the faults that belong to it. The parts run in order on one cluster.
func TestTiers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, func(o *devcluster.Options) { o.GPUs, o.Gateways = 3, 2 })
	parts := []part[*fleet]{
		{"on demand", onDemand},
		{"pressure sends the right replica WARM", pressed},
		{"a request wakes a WARM replica", wokenByRequest},
		{"to COLD and back", coldAndBack},
		{"a request in the middle of an eviction", evictedAndAsked},
		{"a WARM process that dies loses its weights and takes no GPU memory", warmKilled},
		{"a failed sleep", failedSleep},
		{"a failed wake", failedWake},
		{"memory that stays is charged", memoryKept},
		{"memory that does not return", memoryHeld},
		{"the leader is killed in each step", leaderKilledInSteps},
		{"idle models cost nothing", idlePruned},
		{"switches", switched},
		{"dedicated models", dedicated},
	}
	for i, p := range parts { // after each of them the books are right
		parts[i].test = func(t *testing.T, f *fleet) {
			p.test(t, f)
			f.ledgers()
		}
	}
	inTurn(t, f, f.use, parts)
}

// clear ends all replicas of models.
func (f *fleet) clear(models ...string) {
	f.t.Helper()
	for _, m := range models {
		eventually(f.t, time.Minute, "the stop of "+m, func() error {
			_, err := f.tryRemuda("model", "stop", m) // the leader may change meanwhile
			return err
		})
		eventually(f.t, 2*time.Minute, "the end of "+m, func() error {
			left, err := f.replicas(m)
			if err == nil && len(left) > 0 {
				err = fmt.Errorf("%d are left", len(left))
			}
			return err
		})
	}
}

// pressed: a with traffic, two of b with requests, no room for c. One of b makes room.
func pressed(t *testing.T, f *fleet) {
	f.applyTier(tierModel{name: "a", replicas: 1})
	f.applyTier(tierModel{name: "b", replicas: 2})
	a := f.tiers("a", 1, 0, 0)
	b := f.tiers("b", 2, 0, 0)
	onA, onB := f.load("a", 2, 60), f.load("b", 4, 60)
	onA.flows(8)
	onB.flows(8)
	// c waits while a and b are younger than their least age, and then one of b goes.
	f.applyTier(tierModel{name: "c", replicas: 1})
	f.tiers("c", 1, 0, 0)
	after := f.tiers("b", 1, 1, 0)
	require.Equal(t, a, stripped(f.tiers("a", 1, 0, 0), a), "a was touched")
	for i := range after {
		require.Equal(t, b[i].Name, after[i].Name)
		require.Equal(t, b[i].Seats, after[i].Seats)
	}
	onA.flows(8)
	onB.flows(8)
	onA.none()
	onB.none()
	t.Logf("decisions about b: %v", f.decisions("b"))
	require.Contains(t, f.decisions("b"), "evict")
	require.Contains(t, f.decisions("b"), "asleep")
	t.Logf("remuda node status dev:\n%s", f.remuda("node", "status", "dev"))
	// The process of the replica that went is the one that was there.
	require.Equal(t, "", streamed(f, "c", "hello"))
}

// stripped leaves out what changes by itself.
func stripped(now, then []api.Replica) []api.Replica {
	out := slices.Clone(now)
	for i := range out {
		if i < len(then) {
			out[i].Load, out[i].ModifyIndex = then[i].Load, then[i].ModifyIndex
		}
	}
	return out
}

// wokenByRequest: c goes, and what b lost comes back. What an operator evicts comes back by a
// request alone.
func wokenByRequest(t *testing.T, f *fleet) {
	t.Logf("remuda model status b:\n%s", f.remuda("model", "status", "b"))
	f.clear("c")
	f.tiers("b", 2, 0, 0)
	why := f.decisions("b") // the clients that waited when one was evicted may have asked for it first
	require.True(t, slices.Contains(why, "return") || slices.Contains(why, "demand"), "%v", why)
	f.remuda("evict", "b", "-to", "warm")
	before := f.tiers("b", 0, 2, 0)
	ids, _ := f.allocations("b")
	took := f.asked("b", "wake up")
	t.Logf("answered %s after the first request", took)
	after := f.tiers("b", 1, 1, 0)
	require.Equal(t, []string{before[0].Name, before[1].Name}, []string{after[0].Name, after[1].Name})
	again, _ := f.allocations("b")
	require.Equal(t, ids, again, "something was started anew")
	require.Contains(t, f.decisions("b"), "awake")
}

// coldAndBack: a WARM replica goes COLD, its job ends, and its node is remembered.
func coldAndBack(t *testing.T, f *fleet) {
	f.remuda("evict", "b", "-to", "cold")
	f.tiers("b", 0, 0, 1)
	running, err := f.jobsOf("b")
	require.NoError(t, err)
	require.Empty(t, running)
	seats, err := f.seatsOf(t.Context(), "b")
	require.NoError(t, err)
	require.Empty(t, seats)
	f.remuda("scale", "b", "1")
	f.tiers("b", 1, 0, 0)
	require.Equal(t, "", streamed(f, "b", "back again"))
}

// evictedAndAsked: a long answer is under way when the replica is evicted, and more are
// asked for meanwhile.
func evictedAndAsked(t *testing.T, f *fleet) {
	r := f.tiers("b", 1, 0, 0)[0]
	f.fault(f.engineOf(r.Name), map[string]any{"slow_latency": "20ms"})
	long := make(chan error, 1)
	go func() {
		got, err := streamChat(context.Background(), f.info.Gateway, "b", "a long one", 200)
		if err == nil && got.text != exact("b", "a long one", 200).Text {
			err = fmt.Errorf("got %q", got.text)
		}
		long <- err
	}()
	eventually(t, time.Minute, "the request to be seen", func() error {
		all, err := f.replicas("b")
		if l := all[r.Name].Load; err == nil && (l == nil || l.InFlight == 0) {
			err = errors.New("it is not")
		}
		return err
	})
	f.remuda("evict", r.Name, "-to", "warm")
	// The first ones may still go to the replica, as long as the gateway has not heard of it.
	eventually(t, time.Minute, "a request to bring the model back", func() error {
		f.asked("b", "in the middle")
		kinds := f.decisions("b") // the newest first
		evicted := slices.Index(kinds, "evict")
		if evicted < 0 || !slices.Contains(kinds[:evicted], planner.KindDemand) {
			return fmt.Errorf("the newest decisions are %v", kinds)
		}
		return nil
	})
	require.NoError(t, <-long, "the request that was under way")
	f.tiers("b", 1, 0, 0)
}

// warmKilled: the process of a WARM replica dies. Nomad starts it anew, and it takes
// nothing of the GPU that is no longer its own.
func warmKilled(t *testing.T, f *fleet) {
	r := f.tiers("b", 1, 0, 0)[0]
	f.engineOf(r.Name)
	f.remuda("evict", r.Name, "-to", "warm")
	f.tiers("b", 0, 1, 0)
	pids := processesOfReplica(t, r.Name, "sim")
	require.NotEmpty(t, pids)
	kill9(t, pids...)
	f.tiers("b", 0, 0, 1)
	require.Contains(t, f.decisions("b"), "lost-warm")
	f.remuda("scale", "b", "1")
	f.tiers("b", 1, 0, 0)
}

// failedSleep: an engine that cannot be put to sleep is stopped, and COLD.
func failedSleep(t *testing.T, f *fleet) {
	r := f.tiers("b", 1, 0, 0)[0]
	f.fault(f.engineOf(r.Name), map[string]any{"sleep": "error"})
	f.remuda("evict", r.Name, "-to", "warm")
	f.tiers("b", 0, 0, 1)
	require.Contains(t, f.decisions("b"), "sleep-failed")
	f.remuda("scale", "b", "1")
	f.tiers("b", 1, 0, 0)
}

// failedWake: a replica that cannot be woken is replaced by another one.
func failedWake(t *testing.T, f *fleet) {
	r := f.tiers("b", 1, 0, 0)[0]
	f.fault(f.engineOf(r.Name), map[string]any{"wake": "error"})
	f.remuda("evict", r.Name, "-to", "warm")
	f.tiers("b", 0, 1, 0)
	f.asked("b", "are you there")
	all := f.tiers("b", 1, 0, 0)
	require.NotEqual(t, r.Name, all[0].Name)
	require.Contains(t, f.decisions("b"), "wake-failed")
}

// memoryKept: what a sleeping engine keeps is charged to it, and it comes back.
func memoryKept(t *testing.T, f *fleet) {
	r := f.tiers("b", 1, 0, 0)[0]
	f.fault(f.engineOf(r.Name), map[string]any{"leak_bytes": 64 << 20})
	f.remuda("evict", r.Name, "-to", "warm")
	warm := f.tiers("b", 0, 1, 0)[0]
	require.Equal(t, r.Name, warm.Name)
	require.EqualValues(t, 64<<20, warm.SleepMemory)
	f.remuda("scale", "b", "1")
	require.Equal(t, r.Name, f.tiers("b", 1, 0, 0)[0].Name)
	f.remuda("evict", r.Name, "-to", "cold") // which gives the leak back
	f.tiers("b", 0, 0, 1)
	f.remuda("scale", "b", "1")
	f.tiers("b", 1, 0, 0)
}

// leaky has a replica that keeps most of its memory when it goes to sleep. It is alone: simulated engines
// take much less than what they are charged, and beside one of them the leak would count as its memory.
func (f *fleet) leaky() api.Replica {
	f.t.Helper()
	f.clear("a", "b", "c")
	f.applyTier(tierModel{name: "leaky", replicas: 1, memory: "100MiB"})
	r := f.tiers("leaky", 1, 0, 0)[0]
	f.fault(f.engineOf(r.Name), map[string]any{"leak_bytes": 64 << 20})
	return r
}

// memoryHeld: an engine that keeps most of its memory has not slept, and what stays on a GPU keeps
// everything away from it.
func memoryHeld(t *testing.T, f *fleet) {
	r := f.leaky()
	f.remuda("evict", r.Name, "-to", "warm")
	f.tiers("leaky", 0, 0, 1)
	n, _, err := f.api.Node(t.Context(), r.Node, api.QueryOptions{})
	require.NoError(t, err)
	for _, g := range n.Node.GPUs {
		require.Equal(t, g.UUID == gpuOf(r), g.Cordoned, g.UUID)
		if g.Cordoned {
			t.Logf("cordoned: %s", g.CordonReason)
		}
	}
	require.Contains(t, f.decisions("leaky"), "memory-held")
	// The next replica goes elsewhere, and the GPU is used again once somebody says so.
	f.remuda("scale", "leaky", "1")
	require.NotEqual(t, gpuOf(r), gpuOf(f.tiers("leaky", 1, 0, 0)[0]))
	f.remuda("node", "uncordon", gpuOf(r))
	f.clear("leaky")
	f.applyTier(tierModel{name: "b", replicas: 1})
	f.tiers("b", 1, 0, 0)
}

// leaderKilledInSteps: whatever is being done with a replica, its end comes under the next
// leader as well.
func leaderKilledInSteps(t *testing.T, f *fleet) {
	f.clear("a")
	defer f.clear("b")
	reaches := func(model, status string) {
		t.Helper()
		eventually(t, time.Minute, model+" to be "+status, func() error {
			all, err := f.replicas(model)
			for _, r := range all {
				if r.Status == status {
					return nil
				}
			}
			return errors.Join(err, fmt.Errorf("it is %v", all))
		})
	}
	slowly := func(set map[string]any) api.Replica {
		t.Helper()
		r := f.tiers("b", 1, 0, 0)[0]
		f.fault(f.engineOf(r.Name), set)
		return r
	}

	t.Run("draining", func(t *testing.T) {
		f.t = t
		r := slowly(map[string]any{"slow_latency": "25ms"})
		var wg sync.WaitGroup
		var err error
		wg.Go(func() { _, err = streamChat(context.Background(), f.info.Gateway, "b", "long", 200) })
		eventually(t, time.Minute, "the request to be seen", func() error {
			all, err := f.replicas("b")
			if l := all[r.Name].Load; err == nil && (l == nil || l.InFlight == 0) {
				err = errors.New("it is not")
			}
			return err
		})
		f.remuda("evict", r.Name, "-to", "warm")
		reaches("b", "draining")
		f.killLeader()
		wg.Wait()
		require.NoError(t, err)
		require.Equal(t, r.Name, f.tiers("b", 0, 1, 0)[0].Name)
	})
	defer func() { f.t = t }()
	t.Run("waking", func(t *testing.T) {
		f.t = t
		f.remuda("scale", "-detach", "b", "1")
		f.killLeader()
		f.tiers("b", 1, 0, 0)
		require.Equal(t, "", streamed(f, "b", "awake"))
	})
	if !long.Enabled() {
		return // the other steps, under other faults
	}
	t.Run("sleeping", func(t *testing.T) {
		f.t = t
		r := f.tiers("b", 1, 0, 0)[0]
		f.fault(f.engineOf(r.Name), map[string]any{"sleep": "slow"})
		f.remuda("evict", r.Name, "-to", "warm")
		reaches("b", "sleeping")
		f.killLeader()
		require.Equal(t, r.Name, f.tiers("b", 0, 1, 0)[0].Name)
	})
	t.Run("a slow wake", func(t *testing.T) {
		f.t = t
		f.remuda("scale", "b", "1")
		r := f.tiers("b", 1, 0, 0)[0]
		f.fault(f.engineOf(r.Name), map[string]any{"wake": "slow"})
		f.remuda("evict", r.Name, "-to", "warm")
		f.tiers("b", 0, 1, 0)
		f.remuda("scale", "-detach", "b", "1")
		reaches("b", "waking")
		f.killLeader()
		require.Equal(t, r.Name, f.tiers("b", 1, 0, 0)[0].Name)
	})
	t.Run("a failing sleep", func(t *testing.T) {
		f.t = t
		r := slowly(map[string]any{"sleep": "error"})
		f.remuda("evict", "-to", "warm", r.Name)
		f.killLeader()
		f.tiers("b", 0, 0, 1)
	})
	t.Run("memory that does not return", func(t *testing.T) {
		f.t = t
		r := f.leaky()
		f.remuda("evict", "-to", "warm", r.Name)
		reaches("leaky", "sleeping")
		f.killLeader()
		f.tiers("leaky", 0, 0, 1)
		f.remuda("node", "uncordon", gpuOf(r))
		f.clear("leaky")
		f.applyTier(tierModel{name: "b", replicas: 1})
	})
	t.Run("a failing wake", func(t *testing.T) {
		f.t = t
		f.remuda("scale", "b", "1")
		r := slowly(map[string]any{"wake": "hang"})
		f.remuda("evict", "-to", "warm", r.Name)
		f.tiers("b", 0, 1, 0)
		f.remuda("scale", "-detach", "b", "1")
		reaches("b", "waking")
		kill9(t, processesOfReplica(t, r.Name, "sim")...)
		f.killLeader()
		// The next leader may wake the shim that has come back, which starts an engine anew.
		f.tiers("b", 1, 0, 0)
		require.Equal(t, "", streamed(f, "b", "after all"))
	})
	f.t = t
}

// idlePruned: a model that nobody asks for goes WARM and then COLD, by itself.
func idlePruned(t *testing.T, f *fleet) {
	f.applyTier(tierModel{name: "lazy", replicas: 1, more: `idle {
    warm = "3s"
    cold = "8s"
  }`})
	f.tiers("lazy", 1, 0, 0)
	l := f.load("lazy", 1, 60)
	l.flows(20)
	f.tiers("lazy", 1, 0, 0)
	l.none()
	f.tiers("lazy", 0, 1, 0)
	f.tiers("lazy", 0, 0, 1)
	require.Contains(t, f.decisions("lazy"), "idle")
	f.asked("lazy", "and again")
	f.tiers("lazy", 1, 0, 0)
	// A gateway that is not heard tells nothing, and nothing is concluded.
	f.remuda("switch", "set", "scale-to-zero-delay", "never")
}

// switched: each of the kill switches.
func switched(t *testing.T, f *fleet) {
	// scale-to-zero-delay is never: it stays, for longer than its idle time.
	stay := time.Duration(long.Pick(4, 8)) * time.Second
	stays := func(what string) {
		t.Helper()
		for until := time.Now().Add(stay); ; time.Sleep(100 * time.Millisecond) {
			all, err := f.replicas("lazy")
			require.NoError(t, err)
			for _, r := range all {
				require.Equal(t, "serving", r.Status, what)
			}
			require.Len(t, all, 1)
			if time.Now().After(until) {
				return
			}
		}
	}
	stays("scale-to-zero-delay = never")
	f.remuda("switch", "set", "disable-scaling", "true")
	f.remuda("switch", "unset", "scale-to-zero-delay")
	stays("disable-scaling")
	f.remuda("switch", "set", "disable-scaling/lazy", "true")
	f.remuda("switch", "unset", "disable-scaling")
	stays("disable-scaling/lazy")
	f.remuda("switch", "unset", "disable-scaling/lazy")
	f.tiers("lazy", 0, 0, 1)

	f.applyTier(tierModel{name: "b", replicas: 1})
	f.remuda("scale", "b", "3")
	f.tiers("b", 3, 0, 0)
	f.remuda("switch", "set", "cap-max-replicas", "1")
	f.tiers("b", 1, 0, 0)
	f.remuda("switch", "unset", "cap-max-replicas")
	f.tiers("b", 3, 0, 0)
	out, err := f.tryRemuda("switch", "set", "cap-max-replicas", "many")
	require.Error(t, err)
	require.Contains(t, out, "many")
	f.clear("b", "lazy")
}

// serving waits until one replica of the model is HOT, wherever others of it rest.
func (f *fleet) serving(model string) {
	f.t.Helper()
	eventually(f.t, 2*time.Minute, "a HOT replica of "+model, func() error {
		all, err := f.replicas(model)
		for _, r := range all {
			if r.Status == "serving" {
				return nil
			}
		}
		return errors.Join(err, errors.New(f.why(model)))
	})
}

// dedicated: what is pinned is not evicted, and a set replaces the one before.
func dedicated(t *testing.T, f *fleet) {
	for _, name := range []string{"p", "q", "r"} {
		f.applyTier(tierModel{name: name, replicas: 1})
		f.tiers(name, 1, 0, 0)
	}
	f.remuda("dedicated", "set", "p=1", "q=1")
	t.Logf("remuda dedicated status:\n%s", f.remuda("dedicated", "status"))
	out, err := f.tryRemuda("evict", "p", "-to", "warm")
	require.Error(t, err)
	require.Contains(t, out, "dedicated")
	f.applyTier(tierModel{name: "s", replicas: 1, priority: 90})
	f.tiers("s", 1, 0, 0)
	f.tiers("r", 0, 1, 0)
	f.tiers("p", 1, 0, 0)
	f.tiers("q", 1, 0, 0)
	t.Logf("remuda plan -scale r=1:\n%s", f.remuda("plan", "-scale", "r=1"))
	// Another set: r comes back in the place of what is not in it any more.
	f.remuda("dedicated", "set", "r=1")
	f.serving("r")
	// And one by the calendar, whose only window is always.
	calendar := filepath.Join(f.dir, "calendar.hcl")
	require.NoError(t, os.WriteFile(calendar, []byte("timezone = \"UTC\"\ndefault {\n  dedicated = { p = 1 }\n}\n"), 0o600))
	f.remuda("dedicated", "schedule", calendar)
	eventually(t, time.Minute, "the calendar's set", func() error {
		out := f.remuda("dedicated", "status")
		if !strings.Contains(out, "schedule") {
			return errors.New(out)
		}
		return nil
	})
	f.serving("p")
	f.clear("p", "q", "r", "s")
}
