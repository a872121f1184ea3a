//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"remuda/controller/api"
	"remuda/internal/devcluster"
	"remuda/internal/replica"
	"remuda/internal/testkit/long"
	"remuda/jobs"
)

// TestPolicies: each policy of jobs/ scales a model like the demo's up under load, down as the load
// falls and to zero when it ends. TestAutoscaler has remuda-capacity. The models share the cluster and
// the wait: what else a policy may and may not do is tested while their windows pass.
func TestPolicies(t *testing.T) {
	t.Parallel()
	names := []string{"hpa", "utilization", "predictive"}
	dir := dataDir(t)
	var models, policies strings.Builder
	single, err := fs.ReadFile(jobs.Files, jobs.SingleModel)
	require.NoError(t, err)
	replace := func(text, old, new string) string {
		t.Helper()
		require.Contains(t, text, old)
		return strings.ReplaceAll(text, old, new)
	}
	policyOf := func(policy, model string) string {
		text, err := fs.ReadFile(jobs.Files, jobs.Policy(policy))
		require.NoError(t, err)
		return replace(replace(replace(string(text), `"demo"`, strconv.Quote(model)), "replicas/demo", "replicas/"+model), `"10s"`, strconv.Quote(evaluation())) + "\n"
	}
	// The windows are as short as the strategies take them.
	const hpaWindow, hpaShort = `"stabilization_window_seconds": 300`, `"stabilization_window_seconds": 2`
	short := map[string]func(string) string{
		"hpa":         func(s string) string { return replace(s, hpaWindow, hpaShort) },
		"utilization": func(s string) string { return replace(s, `usage_window = "2m"`, `usage_window = "1m"`) },
		"predictive": func(s string) string {
			return replace(s, `target_wait = "2s"`, "target_wait = \"2s\"\n        cold_start  = \"1s\"\n        payback     = \"1m\"\n        config      = \"{\\\"decay_seconds\\\": 60}\"")
		},
	}
	for _, name := range names {
		policies.WriteString(short[name](replace(policyOf(name, name), `idle_after    = "5m"`, `idle_after    = "5s"`)))
		models.WriteString(replace(replace(string(single), `"demo"`, strconv.Quote(name)), `"256MiB"`, `"32MiB"`) + "\n")
	}
	policies.WriteString(replace(replace(policyOf("hpa", "pair"), hpaWindow, hpaShort), `scale_to_zero = "true"`, `scale_to_zero = "false"`))
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	write("demo.nomad.hcl", jobs.Demo)
	write("failover.nomad.hcl", jobs.Failover)
	d := newDev(t, func(o *devcluster.Options) {
		o.NoAutoscaler, o.GPUs = false, 10
		o.Model, o.Policy = write("all.model.hcl", models.String()), write("all.policy.hcl", policies.String())
	})
	f := &fleet{t: t, dir: dir, dev: d, api: d.controller}
	f.remuda("switch", "set", "disable-scaling/pair", "true")
	pair, err := fs.ReadFile(jobs.Files, jobs.DemoModel)
	require.NoError(t, err)
	f.remuda("model", "apply", "-detach", write("pair.model.hcl",
		replace(replace(replace(string(pair), `"demo"`, `"pair"`), `"256MiB"`, `"32MiB"`), "replicas = 1", "replicas = 2")))
	awaits := func(what string, ok func(st api.ModelStatus) bool) {
		t.Helper()
		for _, name := range names {
			began := time.Now()
			eventually(t, 5*time.Minute, what+" of "+name, func() error {
				st, _, err := d.controller.Model(t.Context(), name, api.QueryOptions{})
				if err == nil && !ok(st) {
					err = fmt.Errorf("%+v of %d: %s", st.Counts, st.Model.Target, st.StatusDescription)
				}
				return err
			})
			t.Logf("%s: %s after another %s", name, what, time.Since(began).Round(time.Second))
		}
	}
	loads := map[string]*load{}
	for _, name := range names {
		loads[name] = d.load(name, 18, 60)
	}
	awaits("two HOT replicas", func(st api.ModelStatus) bool { return st.Counts.Hot >= 2 })
	for _, name := range names {
		loads[name].none()
		loads[name] = d.load(name, 1, 60)
	}
	withoutStandby(t, f)
	policyInTheFile(t, f)
	awaits("one HOT replica under the load of one client", func(st api.ModelStatus) bool {
		return st.Model.Target == 1 && st.Counts.Hot == 1
	})
	for _, name := range names {
		loads[name].flows(1)
		loads[name].none()
	}
	awaits("no replica", func(st api.ModelStatus) bool { return st.Model.Target == 0 && st.Counts.Hot+st.Counts.Starting == 0 })
	for _, name := range names {
		s := &scaled{f, "remuda-" + name}
		s.replays()
	}
	metrics, err := fetch("http://" + d.strategyMetrics())
	require.NoError(t, err)
	require.Contains(t, metrics, `remuda_autoscaler_decisions_total{direction="up",model="hpa",strategy="remuda-hpa"}`)
	require.Contains(t, metrics, `remuda_autoscaler_decisions_total{direction="down",model="hpa",strategy="remuda-hpa"}`)
}

// withoutStandby: the policy of an idle model of two failover pairs wants one of them less. While neither
// pair has a standby it does not ask for that, and does so once they have.
func withoutStandby(t *testing.T, f *fleet) {
	pairs := func(what string, degraded bool) (replicas []api.Replica) {
		t.Helper()
		eventually(t, 2*time.Minute, what, func() error {
			st, _, err := f.api.Model(t.Context(), "pair", api.QueryOptions{})
			if replicas = st.Replicas; err != nil || len(replicas) != 2 {
				return errors.Join(err, fmt.Errorf("%d replicas: %s", len(replicas), st.StatusDescription))
			}
			for _, r := range replicas {
				if r.Status != "serving" || r.Pair == nil || r.Pair.Serves == "" || (r.Pair.Degraded != "") != degraded {
					return fmt.Errorf("%s is %s: %+v", r.Name, r.Status, r.Pair)
				}
			}
			return nil
		})
		return replicas
	}
	var frozen []int
	for _, r := range pairs("two pairs with their standbys", false) {
		role := map[string]string{replica.RolePrimary: replica.RoleShadow, replica.RoleShadow: replica.RolePrimary}[r.Pair.Serves]
		shim := pids(t, slices.DeleteFunc(shimsRunning(f.dev), func(p string) bool {
			return !strings.Contains(p, " -role "+role+" ") || !strings.Contains(p, " "+r.Name+" ")
		}))
		require.Len(t, shim, 1, "%s of %s: %q", role, r.Name, shimsRunning(f.dev))
		frozen = append(frozen, shim...)
	}
	resume := func() {
		for _, pid := range frozen {
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	}
	t.Cleanup(resume)
	for _, pid := range frozen {
		require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	}
	pairs("two pairs without a standby", true)
	f.remuda("switch", "unset", "disable-scaling/pair")
	decisions := filepath.Join(f.info.DataDir, "autoscaler", "hpa.decisions.json")
	const held = "no scale-down because all 2 replicas that serve are failover pairs without a standby"
	eventually(t, time.Minute, "three decisions to remove nothing", func() error {
		if n := mentions(t, decisions, held); n < 3 {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	pairs("two pairs without a standby", true)
	scaled := func() (reasons []string) {
		list, _, err := f.api.Decisions(t.Context(), api.DecisionFilter{Model: "pair", Limit: 100}, api.QueryOptions{})
		require.NoError(t, err)
		for _, d := range list {
			if d.Kind == "scale" && strings.Contains(d.Reason, "the autoscaler asked") {
				reasons = append(reasons, d.Reason)
			}
		}
		return reasons
	}
	require.Empty(t, scaled())
	resume()
	eventually(t, 2*time.Minute, "one pair", func() error {
		if st, _, err := f.api.Model(t.Context(), "pair", api.QueryOptions{}); err != nil || st.Model.Target != 1 || st.Counts.Hot != 1 {
			return errors.Join(err, fmt.Errorf("%+v of %d: %s", st.Counts, st.Model.Target, st.StatusDescription))
		}
		return nil
	})
	require.Len(t, scaled(), 1)
}

// policyInTheFile: a model whose file has a policy is scaled by it, by the next one when the file
// changes, and not at all without one. nomad-autoscaler goes on all the time.
func policyInTheFile(t *testing.T, f *fleet) {
	pid := f.pid("autoscaler")
	single, err := fs.ReadFile(jobs.Files, jobs.SingleModel)
	require.NoError(t, err)
	path := filepath.Join(f.dir, "own.model.hcl")
	apply := func(scaling string) (string, error) {
		text := strings.Replace(string(single), `model "demo" {`, `model "own" {`+scaling, 1)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return f.tryRemuda("model", "apply", "-detach", path)
	}
	perReplica := func(requests int) string {
		return fmt.Sprintf("\n  scaling {\n    strategy = \"remuda-hpa\"\n    evaluation_interval = %q\n    form = \"replicate\"\n    metric = \"running\"\n    target = %d\n"+
			"    behavior = { scale_down = { stabilization_window_seconds = 2 } }\n  }\n", evaluation(), requests)
	}
	hot := func(n int) {
		t.Helper()
		eventually(t, 3*time.Minute, fmt.Sprintf("%d HOT replicas of own", n), func() error {
			st, _, err := f.api.Model(t.Context(), "own", api.QueryOptions{})
			if err == nil && (st.Counts.Hot != n || st.Model.Target != n) {
				err = fmt.Errorf("%+v of %d: %s", st.Counts, st.Model.Target, st.StatusDescription)
			}
			return err
		})
	}
	out, err := apply("\n  scaling {\n    strategy = \"remuda-magic\"\n  }\n")
	require.Error(t, err)
	require.Contains(t, out, `scaling: strategy is "remuda-magic": must be one of remuda-capacity,`)

	out, err = apply(perReplica(12))
	require.NoError(t, err, out)
	hot(1)
	l := f.load("own", 24, 60)
	hot(2)
	out, err = apply(perReplica(24))
	require.NoError(t, err, out)
	hot(1)
	out, err = apply("")
	require.NoError(t, err, out)
	decisions := filepath.Join(f.info.DataDir, "autoscaler", "hpa.decisions.json")
	last := -1
	eventually(t, time.Minute, "no decision for five evaluations", func() error {
		time.Sleep(5 * time.Duration(long.Pick(1, 2)) * time.Second)
		before := last
		if last = mentions(t, decisions, `"model":"own"`); last != before {
			return fmt.Errorf("%d decisions, and %d before", last, before)
		}
		return nil
	})
	hot(1)
	l.none()
	// Three streams leave most slots free; a simulated token takes longer than a millisecond.
	out, err = apply(fmt.Sprintf("\n  slo {\n    itl_p95 = \"1ms\"\n  }\n  scaling {\n    strategy = \"remuda-capacity\"\n    evaluation_interval = %q\n  }\n", evaluation()))
	require.NoError(t, err, out)
	require.Regexp(t, `Goals += at most 1ms between tokens \(95 of 100\)`, f.remuda("model", "status", "own"))
	l = f.load("own", 3, 60)
	eventually(t, 3*time.Minute, "a second HOT replica of own", func() error {
		st, _, err := f.api.Model(t.Context(), "own", api.QueryOptions{})
		if err == nil && st.Counts.Hot < 2 {
			err = fmt.Errorf("%+v of %d: %s", st.Counts, st.Model.Target, st.StatusDescription)
		}
		return err
	})
	l.none()
	list, _, err := f.api.Decisions(t.Context(), api.DecisionFilter{Model: "own", Limit: 100}, api.QueryOptions{})
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(list, func(d api.Decision) bool {
		return d.Kind == "scale" && strings.Contains(d.Reason, "2 replicas for the model's goals: 95 of 100 times between tokens took up to")
	}), "%+v", list)
	out, err = apply("")
	require.NoError(t, err, out)
	eventually(t, time.Minute, "no policy of the model is left", func() error {
		files, err := filepath.Glob(filepath.Join(f.info.DataDir, "config", "policies", "remuda-*.hcl"))
		if err == nil && len(files) > 0 {
			err = fmt.Errorf("%v", files)
		}
		return err
	})
	require.Equal(t, pid, f.pid("autoscaler"), "nomad-autoscaler was not restarted")
}

var listens = regexp.MustCompile(`metrics_listen = "([^"]+)"`)

// strategyMetrics is the address of the first strategy's own metrics.
func (d *dev) strategyMetrics() string {
	d.t.Helper()
	raw, err := os.ReadFile(filepath.Join(d.info.DataDir, "config", "autoscaler.hcl"))
	require.NoError(d.t, err)
	at := listens.FindSubmatch(raw)
	require.NotNil(d.t, at, "%s", raw)
	return string(at[1]) + "/metrics"
}
