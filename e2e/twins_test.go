//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/controller/planner"
	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/internal/vram"
	"remuda/jobs"
	"remuda/lockd/engine"
)

// twins are two pairs of different models on one GPU.
type twins struct{ *fleet }

// TestTwoPairsOnOneGPU shares one cluster with one GPU.
func TestTwoPairsOnOneGPU(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, func(o *devcluster.Options) { o.GPUs, o.Seats = 1, 8 })
	inTurn(t, f, f.use, []part[*fleet]{{"side by side", sideBySide}, {"one version twice", oneVersionTwice}, {"random orders", randomOrders}})
}

// sideBySide: two pairs of different models share a GPU, and one of them a rolling update. Each fails
// over while the other one loads, wakes and sleeps, and neither takes the other's weights.
func sideBySide(t *testing.T, f *fleet) {
	w := &twins{f}
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(jobs.Failover), 0o600))
	f.remuda("model", "apply", "-detach", w.model("a", "32MiB", "1s"))
	f.remuda("model", "apply", "-detach", w.model("b", "48MiB", "1s"))
	serve := func(what string) {
		t.Helper()
		for _, m := range []string{"a", "b"} {
			took := f.asked(m, what)
			t.Logf("%s: %s answers after %s", what, m, took.Round(time.Millisecond))
			f.hot(m, 1)
		}
	}
	serve("both placed")

	for _, pair := range [][2]string{{"a", "b"}, {"b", "a"}} {
		one, other := pair[0], pair[1]
		// The other one loads its weights: its replica is a new one.
		f.remuda("scale", "-detach", other, "0")
		f.hot(other, 0)
		f.remuda("scale", "-detach", other, "1")
		w.failover(one)
		serve(other + " loads")
		// The other one sleeps and wakes.
		f.remuda("evict", "-force", other, "-to", "warm")
		w.failover(one)
		f.asked(other, "wake")
		w.failover(one)
		serve(other + " slept")
	}

	// A rolling update of b beside a, under requests for both.
	onA := f.load("a", 2, 60)
	f.remuda("model", "apply", "-detach", w.model("b", "40MiB", "1s"))
	w.failover("a")
	eventually(t, 2*time.Minute, "the end of the rollout", func() error {
		replicas, err := f.replicas("b")
		if err == nil && len(replicas) != 1 {
			err = fmt.Errorf("%d replicas", len(replicas))
		}
		for _, r := range replicas {
			if err == nil && (r.Version != 2 || r.Status != "serving") {
				err = fmt.Errorf("%+v", r)
			}
		}
		return err
	})
	_, _ = onA.end()
	serve("b is updated")
	w.failover("b")
	serve("b has failed over")
	f.clear("a", "b")
}

// oneVersionTwice: two pairs of one version share the GPU, where there is room for them only because they share
// their weights. What the controller counts is what is in use, also while one of them fails over, sleeps,
// wakes and goes.
func oneVersionTwice(t *testing.T, f *fleet) {
	gpu := func() (api.GPU, error) {
		nodes, _, err := f.api.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
		if err != nil || len(nodes) != 1 || len(nodes[0].GPUs) != 1 {
			return api.GPU{}, errors.Join(err, fmt.Errorf("nodes: %+v", nodes))
		}
		return nodes[0].GPUs[0], nil
	}
	card, err := gpu()
	require.NoError(t, err)
	// In MiB: two have room by sharing, with less than 2 MiB to spare.
	const weights = 64
	each := (card.Memory>>20 + weights) / 2
	all := 2*each - weights
	job := strings.NewReplacer(`"-kv-memory", var.kv_memory,`, fmt.Sprintf(`"-kv-memory", "%dMiB",`, each-weights-2*ordersContext),
		`"-context-memory", var.context_memory,`, fmt.Sprintf(`"-context-memory", "%dMiB",`, ordersContext)).Replace(jobs.Failover)
	require.NotEqual(t, jobs.Failover, job)
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "twice.nomad.hcl"), []byte(job), 0o600))
	path := filepath.Join(f.dir, "twice.model.hcl")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, `model "twice" {
  replicas = 2
  max      = 2
  failover = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights       = "%[1]dMiB"
    memory        = "%[2]dMiB"
    shared_memory = "%[1]dMiB"
    host_memory   = "%[1]dMiB"
    sleep_memory  = "%[3]dMiB"
    cost          = 1
    slots         = 4
    job           = "twice.nomad.hcl"
    vars          = { weights = "%[1]dMiB", init_delay = "1s" }
  }
}
`, weights, each, 2*ordersContext), 0o600))
	f.remuda("model", "apply", "-detach", path)

	agree := func(what string, want int64) {
		t.Helper()
		eventually(t, time.Minute, what+": the memory in use", func() error {
			now, err := gpu()
			if err != nil {
				return err
			}
			used, _, err := vram.Used(filepath.Join(f.info.DataDir, "gpus"), now.UUID)
			if counted := (now.Memory - now.FreeMemory) >> 20; err == nil && (counted != want || used>>20 != want) {
				err = fmt.Errorf("%d MiB are counted and %d MiB in use: want %d MiB", counted, used>>20, want)
			}
			return err
		})
	}
	whole := func(what string) []string {
		t.Helper()
		names := f.hot("twice", 2)
		agree(what, all)
		f.asked("twice", what)
		return names
	}
	names := whole("placed")

	engines, err := f.passing("twice")
	require.NoError(t, err)
	require.Len(t, engines, 2)
	kill9(t, f.enginePID(engines[0].HostPort()))
	whole("failed over")

	f.remuda("evict", "-force", names[0], "-to", "warm")
	eventually(t, time.Minute, "the sleep of "+names[0], func() error {
		if all := f.decisions("twice"); !slices.Contains(all, planner.KindAsleep) {
			return fmt.Errorf("%v", all)
		}
		return nil
	})
	f.asked("twice", "one sleeps")
	f.remuda("scale", "-detach", "twice", "2")
	whole("awake")

	f.remuda("scale", "-detach", "twice", "1")
	f.hot("twice", 1)
	agree("one is left", each)
	f.asked("twice", "one is left")
	f.clear("twice")
	agree("none is left", 0)
}

// model writes the file of a model that is one failover pair.
func (w *twins) model(name, weights, delay string) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name+".model.hcl")
	require.NoError(w.t, os.WriteFile(path, fmt.Appendf(nil, `model %q {
  replicas = 1
  max      = 2
  failover = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = %q
    memory  = "1GiB"
    cost    = 1
    slots   = 16
    job     = "failover.nomad.hcl"
    vars    = { weights = %q, init_delay = %q }
  }
}
`, name, weights, weights, delay), 0o600))
	return path
}

// failover kills the engine that serves and waits until the other one of its pair does, and
// the dead one has come back and stands by: else there is no engine for the next failover.
func (w *twins) failover(model string) {
	w.t.Helper()
	w.failedOver(model)
	eventually(w.t, time.Minute, "the standby of "+model, func() error { return w.standsBy(model) })
}

// failedOver kills the engine that serves and waits until the other one of its pair does.
func (w *twins) failedOver(model string) {
	w.t.Helper()
	old := w.engine(model)
	kill9(w.t, w.enginePID(old.HostPort()))
	began := time.Now()
	eventually(w.t, time.Minute, "the failover of "+model, func() error {
		now, err := w.passing(model)
		if err == nil && (len(now) != 1 || now[0].Name != old.Name || now[0].Token.Compare(old.Token) <= 0) {
			err = fmt.Errorf("Consul has %+v after %+v", now, old)
		}
		return err
	})
	w.t.Logf("%s failed over after %s", model, time.Since(began).Round(time.Millisecond))
}

// standsBy returns nil if an engine of the model's pair waits for the pair's lock.
func (w *twins) standsBy(model string) error { return w.waits(model, false) }

// waits returns nil if a shim of the model's pair waits for the pair's lock, without an engine
// if it stands by cold.
func (w *twins) waits(model string, cold bool) error {
	engines, err := w.passing(model)
	if err != nil {
		return err
	}
	if len(engines) != 1 {
		return fmt.Errorf("%d engines", len(engines))
	}
	alloc := w.allocOf(engines[0].Name.String())
	for _, role := range []string{replica.RolePrimary, replica.RoleShadow} {
		var st engine.Status
		if err := readJSON(fmt.Sprintf("http://127.0.0.1:%d/state", port(w.t, alloc, role+"_shim")), &st); err != nil {
			return err
		}
		if st.State == engine.Standby && (st.PID == 0) == cold && st.Lock != nil && st.Lock.Position > 0 {
			return nil
		}
	}
	return errors.New("none stands by")
}

// bothSleep returns nil if both engines of a WARM pair sleep, by their own word, and none is in Consul.
func (w *twins) bothSleep(r api.Replica) error {
	if engines, err := w.passing(r.Model); err != nil || len(engines) > 0 {
		return errors.Join(err, fmt.Errorf("%d engines serve", len(engines)))
	}
	alloc := w.allocOf(r.Name)
	for _, role := range []string{replica.RolePrimary, replica.RoleShadow} {
		var st engine.Status
		if err := readJSON(fmt.Sprintf("http://127.0.0.1:%d/state", port(w.t, alloc, role+"_shim")), &st); err != nil {
			return err
		}
		var sim struct {
			Sleeps bool `json:"is_sleeping"`
		}
		if err := readJSON("http://"+st.Address+"/is_sleeping", &sim); err != nil {
			return err
		}
		if st.PID == 0 || !sim.Sleeps {
			return fmt.Errorf("the %s does not sleep: %+v", role, st)
		}
	}
	return nil
}

// readJSON reads what a server answers at url.
func readJSON(url string, v any) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(v)
}
