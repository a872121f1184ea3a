//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"remuda/internal/devcluster"
	"remuda/jobs"
)

// TestController: one controller on real Nomad and Consul. The parts run in order on
// one cluster.
func TestController(t *testing.T) {
	t.Parallel()
	gpus := filepath.Join(t.TempDir(), "gpus.json")
	f := newFleet(t, 1, func(o *devcluster.Options) {
		o.GPUs = 4
		set(o, "nomad-client", fmt.Sprintf("plugin \"remuda-device\" {\n  config {\n    state_file = %q\n    fingerprint_period = \"500ms\"\n  }\n}\n", gpus))
	})
	inTurn(t, f, f.use, []part[*fleet]{
		{"apply", applied},
		{"scale up", scaledUp},
		{"scale down with requests in flight", scaledDown},
		{"update with a canary", updated},
		{"a failed update is rolled back", rolledBack},
		{"a task before the engine always fails", prestartFails},
		{"a full cluster rolls in place", rolledInPlace},
		{"a job stopped or edited behind our back", behindOurBack},
		{"a replica is evicted", evicted},
		{"the GPU under a pair is cordoned", cordoned},
		{"the GPU under a pair dies", func(t *testing.T, f *fleet) { gpuDies(t, f, gpus) }},
		{"a restart adopts what runs", restarted},
		{"a controller without its data adopts what runs", adopted},
		{"nomad is away", nomadDown},
		{"bad input changes nothing", badInput},
		{"stop", stoppedForGood},
	})
}

func applied(t *testing.T, f *fleet) {
	file := f.modelFile("m", 1, nil)
	out := f.remuda("model", "apply", file)
	t.Logf("remuda model apply:\n%s", out)
	f.hot("m", 1)
	require.Equal(t, "", streamed(f, "m", "hello"))
	again := f.remuda("model", "apply", file)
	t.Logf("again:\n%s", again)
	require.Contains(t, again, "Nothing changed")
	list := jsonOf[[]api.ModelSummary](t, f.remuda("model", "list", "-json"))
	counts := map[string]api.Counts{}
	for _, m := range list {
		counts[m.Name] = m.Counts
	}
	require.Equal(t, map[string]api.Counts{"idle": {}, "m": {Hot: 1}}, counts)
	t.Logf("remuda model status m:\n%s", f.remuda("model", "status", "m"))
	t.Logf("remuda node list:\n%s", f.remuda("node", "list"))
}

// streamed asks for one answer and returns what is wrong with it.
func streamed(f *fleet, model, prompt string) string {
	got, err := streamChat(context.Background(), f.info.Gateway, model, prompt, 20)
	if err != nil {
		return err.Error()
	}
	if want := exact(model, prompt, 20).Text; got.text != want {
		return fmt.Sprintf("got %q, want %q", got.text, want)
	}
	return ""
}

func scaledUp(t *testing.T, f *fleet) {
	out := f.remuda("scale", "m", "3")
	t.Logf("remuda scale m 3:\n%s", out)
	f.hot("m", 3)
	out, err := f.tryRemuda("scale", "m", "17")
	require.Error(t, err)
	require.Contains(t, out, "0 to 16")
	f.hot("m", 3)
}

func scaledDown(t *testing.T, f *fleet) {
	l := f.load("m", 8, 60)
	l.flows(16)
	f.remuda("scale", "m", "1")
	f.hot("m", 1)
	l.flows(16)
	l.none()
}

// floor watches that the model never has fewer than n HOT replicas.
func (f *fleet) floor(model string, n int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var lowest = n
	wg.Go(func() {
		_ = api.Watch(ctx, api.QueryOptions{}, func(ctx context.Context, q api.QueryOptions) (api.QueryMeta, error) {
			st, meta, err := f.api.Model(ctx, model, q)
			if err == nil {
				lowest = min(lowest, st.Counts.Hot)
			}
			return meta, err
		}, nil)
	})
	return func() {
		f.t.Helper()
		cancel()
		wg.Wait()
		require.GreaterOrEqual(f.t, lowest, n, "HOT replicas of %s", model)
	}
}

func updated(t *testing.T, f *fleet) {
	f.remuda("scale", "m", "2")
	before := f.hot("m", 2)
	l := f.load("m", 6, 60)
	l.flows(6)
	stop := f.floor("m", 2)
	out := f.remuda("model", "apply", f.modelFile("m", 1, map[string]string{"weights": "48MiB"}))
	t.Logf("remuda model apply:\n%s", out)
	after := f.hot("m", 2)
	stop()
	l.flows(6)
	l.none()
	for _, name := range after {
		require.NotContains(t, before, name)
	}
	kinds := f.decisions("m")
	t.Logf("decisions: %v", kinds)
	st, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Empty(t, st.Model.Rollouts)
}

func rolledBack(t *testing.T, f *fleet) {
	before := f.hot("m", 2)
	l := f.load("m", 6, 60)
	stop := f.floor("m", 2)
	out, err := f.tryRemuda("model", "apply", f.modelFile("m", 1, map[string]string{"weights": "48MiB", "remuda": "/nonexistent/remuda"}))
	require.Error(t, err, "the command tells that the rollout failed:\n%s", out)
	t.Logf("remuda model apply:\n%s", out)
	eventually(t, 2*time.Minute, "the rollback", func() error {
		st, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
		if err == nil && st.Model.Rollouts["sim"].Status != "rolled_back" {
			err = fmt.Errorf("%+v", st.Model.Rollouts)
		}
		if err == nil && (st.Counts != api.Counts{Hot: 2}) {
			err = fmt.Errorf("%+v", st.Counts)
		}
		return err
	})
	t.Logf("remuda model status m:\n%s", f.remuda("model", "status", "m"))
	stop()
	l.flows(6)
	l.none()
	// An old replica that dies meanwhile comes back as it was.
	f.command("nomad", "job", "stop", "-purge", "-detach", before[0])
	eventually(t, time.Minute, "the old replicas", func() error {
		jobs, err := f.jobsOf("m")
		if err == nil && !slices.Equal(jobs, before) {
			err = fmt.Errorf("jobs %v", jobs)
		}
		return err
	})
	// What works is put back, and nothing rolls.
	f.remuda("model", "apply", f.modelFile("m", 1, map[string]string{"weights": "48MiB"}))
	require.Equal(t, before, f.hot("m", 2))
}

// prestartFails: the task that writes the weights fails at each try, so that no engine is ever
// started. Nomad restarts it for ever and calls the allocation pending.
func prestartFails(t *testing.T, f *fleet) {
	const why = "times without serving: weights: Exit Code: 2"
	bogus := map[string]string{"weights": "bogus"}
	before := f.hot("m", 2)
	out, err := f.tryRemuda("model", "apply", f.modelFile("m", 1, bogus))
	require.Error(t, err, "the command reports that the rollout failed:\n%s", out)
	require.Contains(t, out, why)
	require.Equal(t, before, f.hot("m", 2))
	st, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, "rolled_back", st.Model.Rollouts["sim"].Status)
	require.Contains(t, st.Model.Rollouts["sim"].Reason, why)
	require.Equal(t, "", streamed(f, "m", "after the rollback"))
	f.remuda("model", "apply", f.modelFile("m", 1, map[string]string{"weights": "48MiB"}))
	require.Equal(t, before, f.hot("m", 2))

	// A model that has nothing to return to fails again and again.
	f.remuda("model", "apply", "-detach", f.modelFile("never", 1, bogus))
	eventually(t, time.Minute, "two failures", func() error {
		all, err := f.replicas("never")
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.Failures >= 2 && strings.Contains(r.LastError, why) {
				return nil
			}
		}
		return errors.New(f.why("never"))
	})
	out = f.remuda("model", "status", "never")
	t.Logf("remuda model status never:\n%s", out)
	require.Contains(t, out, why)
	f.remuda("model", "delete", "never")
}

// rolledInPlace: without a place for another replica, an old one makes way for its successor. What
// cannot roll says how it could.
func rolledInPlace(t *testing.T, f *fleet) {
	all, err := f.replicas("m")
	require.NoError(t, err)
	keep := gpuOf(all[f.hot("m", 2)[0]])
	nodes, _, err := f.api.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
	require.NoError(t, err)
	for _, g := range nodes[0].GPUs {
		if g.UUID != keep {
			f.remuda("node", "cordon", g.UUID, "-reason", "no spare place")
		}
	}
	eventually(t, time.Minute, "both replicas on the GPU that is left", func() error {
		all, err := f.replicas("m")
		if err == nil && (len(all) != 2 || slices.ContainsFunc(slices.Collect(maps.Values(all)), func(r api.Replica) bool { return gpuOf(r) != keep || r.Status != "serving" })) {
			err = errors.New(f.why("m"))
		}
		return err
	})
	before := f.hot("m", 2)
	l := f.load("m", 4, 60)
	l.flows(4)
	stop := f.floor("m", 1)
	path := f.modelFile("m", 1, map[string]string{"weights": "40MiB"})
	f.remuda("model", "apply", "-detach", path)
	eventually(t, time.Minute, "the way out", func() error {
		if why := f.why("m"); !strings.Contains(why, "no room for the canary") || !strings.Contains(why, "update { surge = 0 }") {
			return errors.New(why)
		}
		return nil
	})
	all, err = f.replicas("m")
	require.NoError(t, err)
	require.Equal(t, before, slices.Sorted(maps.Keys(all)), "nothing is lost")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	inPlace := "# no GPU is to spare\n" + strings.Replace(string(text), "\n  variant", "\n  update {\n    surge = 0\n  }\n\n  variant", 1)
	require.NoError(t, os.WriteFile(path, []byte(inPlace), 0o600))
	t.Logf("remuda model apply:\n%s", f.remuda("model", "apply", path))
	require.Equal(t, inPlace, f.remuda("model", "file", "m"))
	for _, name := range f.hot("m", 2) {
		require.NotContains(t, before, name)
	}
	stop()
	l.flows(4)
	l.none()
	f.remuda("node", "uncordon", nodes[0].Name)
}

func behindOurBack(t *testing.T, f *fleet) {
	names := f.hot("m", 2)
	f.command("nomad", "job", "stop", "-detach", names[0])
	eventually(t, time.Minute, "the decision", func() error {
		if !slices.Contains(f.decisions("m"), "job-stopped") {
			return fmt.Errorf("%v", f.decisions("m"))
		}
		return nil
	})
	require.Equal(t, names, f.hot("m", 2))

	job, _, err := f.nomad.Jobs().Info(names[1], nil)
	require.NoError(t, err)
	meta := job.Meta["remuda_seats"]
	job.Meta["remuda_seats"] = "GPU-edited#0"
	_, _, err = f.nomad.Jobs().Register(job, nil)
	require.NoError(t, err)
	eventually(t, time.Minute, "the job as it was", func() error {
		job, _, err := f.nomad.Jobs().Info(names[1], nil)
		if err == nil && job.Meta["remuda_seats"] != meta {
			err = fmt.Errorf("seats %q", job.Meta["remuda_seats"])
		}
		return err
	})
	require.Contains(t, f.decisions("m"), "job-edited")
	require.Equal(t, names, f.hot("m", 2))
}

func evicted(t *testing.T, f *fleet) {
	names := f.hot("m", 2)
	l := f.load("m", 4, 60)
	l.flows(4)
	out := f.remuda("evict", names[0])
	t.Logf("remuda evict:\n%s", out)
	require.Equal(t, names[1:], f.hot("m", 1))
	l.flows(4)
	l.none()
	f.remuda("scale", "m", "2")
	f.hot("m", 2)
}

// applyPair applies a model that is one failover pair, and returns what waits until the pair
// serves and describes it.
func (f *fleet) applyPair() func() api.Replica {
	f.t.Helper()
	require.NoError(f.t, os.WriteFile(filepath.Join(f.dir, "failover.nomad.hcl"), []byte(jobs.Failover), 0o600))
	path := filepath.Join(f.dir, "pair.model.hcl")
	require.NoError(f.t, os.WriteFile(path, []byte(`model "pair" {
  max      = 1
  replicas = 1
  failover = true

  variant "sim" {
    gpu {
      count = 1
    }

    weights = "32MiB"
    cost    = 1
    slots   = 4
    job     = "failover.nomad.hcl"
    vars    = { weights = "32MiB", gms = "" }
  }
}
`), 0o600))
	f.remuda("model", "apply", path)
	return func() api.Replica {
		f.t.Helper()
		all, err := f.replicas("pair")
		require.NoError(f.t, err)
		return all[f.hot("pair", 1)[0]]
	}
}

// moved waits until another pair than old serves.
func (f *fleet) moved(old api.Replica) {
	f.t.Helper()
	eventually(f.t, 2*time.Minute, "another pair", func() error {
		names, err := f.isHot("pair", 1)
		if err == nil && names[0] == old.Name {
			err = errors.New(f.why("pair"))
		}
		return err
	})
}

// cordoned: a pair moves to another GPU while it answers requests, and stays where it is as
// long as there is no other GPU.
func cordoned(t *testing.T, f *fleet) {
	pair := f.applyPair()
	old := pair()
	others := f.hot("m", 2)
	l := f.load("pair", 4, 60)
	l.flows(4)
	stop := f.floor("pair", 1)
	t.Logf("remuda node cordon:\n%s", f.remuda("node", "cordon", gpuOf(old), "-reason", "it is hot"))
	f.moved(old)
	moved := pair()
	require.NotEqual(t, gpuOf(old), gpuOf(moved))
	require.ElementsMatch(t, []string{gpuOf(moved) + "#0", gpuOf(moved) + "#1"}, moved.Seats)
	require.Contains(t, f.decisions("pair"), "move-away")
	t.Logf("remuda model status pair:\n%s", f.remuda("model", "status", "pair"))

	f.remuda("node", "cordon", moved.NodeName)
	eventually(t, time.Minute, "the reason", func() error {
		if why := f.why("pair"); !strings.Contains(why, "fit nowhere else and stay") {
			return errors.New(why)
		}
		return nil
	})
	l.flows(4)
	require.Equal(t, moved.Name, pair().Name)
	require.Equal(t, others, f.hot("m", 2))
	stop()
	l.none()
	f.remuda("node", "uncordon", moved.NodeName)
	f.remuda("model", "delete", "pair")
}

// gpuDies: both engines of a pair die with their GPU and cannot start there again. Another pair
// takes their place on another GPU, and nothing else moves.
func gpuDies(t *testing.T, f *fleet, states string) {
	const xid = "XID 79: the GPU has fallen off the bus"
	pair := f.applyPair()
	old := pair()
	others := f.hot("m", 2)
	require.Equal(t, "", streamed(f, "pair", "before"))
	alloc := f.allocOf(old.Name)
	require.NoError(t, os.Remove(filepath.Join(f.info.DataDir, "nomad", "alloc", alloc.ID, "alloc", "data", "remuda", "weights.safetensors")))
	require.NoError(t, os.WriteFile(states, fmt.Appendf(nil, `{"gpus": {%q: {"unhealthy": %q}}}`, gpuOf(old), xid), 0o600))
	kill9(t, processesOfReplica(t, old.Name, "sim")...)
	begin := time.Now()
	f.moved(old)
	t.Logf("another pair serves %s after the GPU died", time.Since(begin).Round(time.Millisecond))
	require.NotEqual(t, gpuOf(old), gpuOf(pair()))
	require.Equal(t, "", streamed(f, "pair", "after"))
	require.Equal(t, others, f.hot("m", 2))
	ds, _, err := f.api.Decisions(t.Context(), api.DecisionFilter{Model: "pair", Limit: 50}, api.QueryOptions{})
	require.NoError(t, err)
	t.Logf("remuda decision list:\n%s", f.remuda("decision", "list", "-model", "pair"))
	require.True(t, slices.ContainsFunc(ds, func(d api.Decision) bool {
		return d.Kind == "move-away" && strings.Contains(d.Reason, gpuOf(old)) && strings.Contains(d.Reason, xid)
	}), "the decisions name the GPU and its fault")
	require.NoError(t, os.Remove(states))
	f.remuda("model", "delete", "pair")
}

func restarted(t *testing.T, f *fleet) {
	names := f.hot("m", 2)
	ids, versions := f.allocations("m")
	l := f.load("m", 4, 60)
	f.servers[0].end(syscall.SIGKILL)
	l.flows(8) // The byte path needs no controller.
	f.servers[0].start()
	f.leader()
	require.Equal(t, names, f.hot("m", 2))
	l.none()
	gotIDs, gotVersions := f.allocations("m")
	require.Equal(t, ids, gotIDs)
	require.Equal(t, versions, gotVersions)
}

func adopted(t *testing.T, f *fleet) {
	names := f.hot("m", 2)
	ids, versions := f.allocations("m")
	f.servers[0].end(syscall.SIGKILL)
	require.NoError(t, os.RemoveAll(filepath.Join(f.info.DataDir, "controller")))
	f.servers[0].start()
	f.leader()
	eventually(t, time.Minute, "the nodes", func() error {
		nodes, _, err := f.api.Nodes(t.Context(), api.NodeFilter{}, api.QueryOptions{})
		if err == nil && len(nodes) == 0 {
			err = errors.New("none")
		}
		return err
	})
	// Jobs that it does not know are left alone, and adopted once their model is there.
	jobs, err := f.jobsOf("m")
	require.NoError(t, err)
	require.Equal(t, names, jobs)
	f.remuda("model", "apply", f.modelFile("m", 2, map[string]string{"weights": "40MiB"}))
	require.Equal(t, names, f.hot("m", 2))
	gotIDs, gotVersions := f.allocations("m")
	require.Equal(t, ids, gotIDs)
	require.Equal(t, versions, gotVersions)
	require.Contains(t, f.decisions("m"), "adopt")
}

func nomadDown(t *testing.T, f *fleet) {
	names := f.hot("m", 2)
	ids, versions := f.allocations("m")
	l := f.load("m", 4, 60)
	stop := f.beat()
	pid := f.pid("nomad-server")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	resume := sync.OnceFunc(func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
	defer resume()
	f.remuda("scale", "m", "3", "-detach") // said while Nomad is away, done when it is back
	time.Sleep(outage())
	st, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, 2, st.Counts.Hot, "%s", st.StatusDescription)
	eventually(t, time.Minute, "the controller to report it", func() error {
		health, err := f.api.AgentHealth(t.Context())
		if err == nil && health.Healthy {
			err = errors.New("it is healthy")
		}
		return err
	})
	resume()
	// A client whose heartbeat was under way may send the next one two minutes later.
	after := f.hotWithin(5*time.Minute, "m", 3)
	for _, name := range names {
		require.Contains(t, after, name)
	}
	l.none()
	gotIDs, gotVersions := f.allocations("m")
	for job, id := range ids {
		require.Equal(t, id, gotIDs[job])
		require.Equal(t, versions[job], gotVersions[job])
	}
	stop()
	f.remuda("scale", "m", "2")
	f.hot("m", 2)
}

// beat is a job of Nomad alone whose task ends and is started again every few seconds, so
// that the client always has news of an allocation. A node that was down is "initializing",
// and takes no work, until its client tells of one, and a client that noticed no outage has
// no reason to: not even starting it anew helps (Node.UpdateStatus, Nomad 1.11).
func (f *fleet) beat() (stop func()) {
	f.t.Helper()
	const name = "beat"
	job, err := f.nomad.Jobs().ParseHCL(`job "`+name+`" {
  group "g" {
    restart {
      attempts = 1000
      interval = "1h"
      delay    = "2s"
      mode     = "fail"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "sleep"
        args    = ["2"]
      }
      resources {
        cpu    = 20
        memory = 16
      }
    }
  }
}`, true)
	require.NoError(f.t, err)
	_, _, err = f.nomad.Jobs().Register(job, nil)
	require.NoError(f.t, err)
	eventually(f.t, time.Minute, "the job "+name+" to run", func() error {
		allocs, _, err := f.nomad.Jobs().Allocations(name, false, nil)
		if err == nil && (len(allocs) == 0 || allocs[0].ClientStatus != "running") {
			err = fmt.Errorf("allocations: %d", len(allocs))
		}
		return err
	})
	return func() {
		_, _, err := f.nomad.Jobs().Deregister(name, false, nil)
		require.NoError(f.t, err)
	}
}

func badInput(t *testing.T, f *fleet) {
	names := f.hot("m", 2)
	_, before, err := f.api.Models(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	bad := filepath.Join(f.dir, "bad.model.hcl")
	require.NoError(t, os.WriteFile(bad, []byte(`model "m" {
  max      = -1
  replicas = "many"
  variant "sim" {
    gpu { count = 0 }
    weights = "lots"
    job     = "nowhere.nomad.hcl"
  }
}
`), 0o600))
	out, err := f.tryRemuda("model", "apply", bad)
	require.Error(t, err)
	t.Logf("remuda model apply:\n%s", out)
	for _, want := range []string{"bad.model.hcl:2:", "bad.model.hcl:3:", "bad.model.hcl:5:", "bad.model.hcl:6:", "bad.model.hcl:7:"} {
		require.Contains(t, out, want)
	}
	// A job file that Nomad refuses.
	require.NoError(t, os.WriteFile(filepath.Join(f.dir, "wrong.nomad.hcl"), []byte(`job "x" {
  group "g" {
    task "primary" {
      driver = "raw_exec"
      confg {}
    }
  }
}
`), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte(`model "m" {
  max = 2
  variant "sim" {
    gpu { count = 1 }
    weights = "32MiB"
    job     = "wrong.nomad.hcl"
  }
}
`), 0o600))
	out, err = f.tryRemuda("model", "apply", bad)
	require.Error(t, err)
	require.Contains(t, out, "confg")
	for args, want := range map[[3]string]string{
		{"scale", "nobody", "1"}:       "nobody",
		{"evict", "nobody", ""}:        "nobody",
		{"model", "status", "nobody"}:  "nobody",
		{"replica", "status", "nobod"}: "nobod",
		{"node", "status", "nowhere"}:  "nowhere",
		{"scale", "m", "-1"}:           "-1",
		{"scale", "m/gpu", "1"}:        "gpu",
	} {
		list := slices.DeleteFunc(args[:], func(s string) bool { return s == "" })
		out, err := f.tryRemuda(list...)
		require.Error(t, err, "%v", list)
		require.Contains(t, out, want)
	}
	require.Equal(t, names, f.hot("m", 2))
	_, after, err := f.api.Models(t.Context(), api.QueryOptions{})
	require.NoError(t, err)
	require.Equal(t, before.Index, after.Index, "a refused request wrote to the models")
}

func stoppedForGood(t *testing.T, f *fleet) {
	f.remuda("model", "stop", "m")
	f.hot("m", 0)
	require.Contains(t, f.remuda("model", "list"), "m")
	f.remuda("model", "delete", "m")
	_, _, err := f.api.Model(t.Context(), "m", api.QueryOptions{})
	var gone *api.Error
	require.ErrorAs(t, err, &gone)
	require.Equal(t, api.CodeNotFound, gone.Code)
}
